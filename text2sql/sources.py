"""What the names of a statement can mean: sources that stand in a FROM, and the scopes in which they are seen."""

import string
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from sqlglot import exp

from .policy import Readable

Origin = tuple[str, str]  # the table and the (casefolded) column that a value comes from unchanged
Place = tuple[str, Origin | None]  # one column of a query: its name, folded, and what it is unchanged


class Outputs:
    """The columns of a query, place by place; several may have one name.

    placed: False where a server may have them in another order; then no place is known to come from a column.
    """

    def __init__(self, columns: Iterable[Place] = (), placed: bool = True) -> None:
        found = list(columns)
        self.places: list[Place] = found if placed else [(name, None) for name, _ in found]
        self.placed = placed
        self.named: dict[str, Origin | None] = {}
        for name, origin in found:
            self.named[name] = origin if self.named.get(name, origin) == origin else None

    def __contains__(self, name: str) -> bool:
        return name in self.named

    def __iter__(self) -> Iterator[str]:
        return iter(self.named)

    def get(self, name: str) -> Origin | None:
        """Where the values of a name come from; None too where several columns of that name differ."""
        return self.named.get(name)


Found = tuple[Outputs | None, frozenset[str]]  # the columns of a query, and the tables behind it


@dataclass(eq=False)
class Source:
    """What stands in a FROM. table: None for anything but a real table. outputs: None where they are not known.

    joined: the columns that its own USING makes one with those before it.
    """

    name: str
    table: Readable | None = None
    outputs: Outputs | None = None
    tables: frozenset[str] = frozenset()  # real tables behind it
    joined: frozenset[str] = frozenset()

    @property
    def partial(self) -> bool:
        return self.table is not None and self.table.partial

    @property
    def is_open(self) -> bool:
        """It may have columns whose names are not known; all of them may be read where it is no table."""
        if self.outputs is None:
            return True
        return self.table is None and any(name.startswith(UNNAMED) for name in self.outputs)

    def has(self, name: str) -> bool:
        """Whether it is known to have a column of this name that may be read."""
        return folded(name) in (self.outputs or ())

    def origin(self, name: str) -> Origin | None:
        """What a column of it is unchanged, where that is known."""
        if self.outputs is None:
            return (self.table.name, name.casefold()) if self.table else None
        return self.outputs.get(folded(name))

    def hides(self, name: str) -> bool:
        """Whether a server might take the name for a hidden column: MySQL takes İ for i."""
        if self.table is None or not self.table.hidden:
            return False
        hidden = self.table.hidden
        return name.casefold() in hidden or (not self.has(name) and alike(name) in all_alike(hidden))


@dataclass
class Scope:
    """The sources that the names of one SELECT can mean, and the names that it gives itself.

    part: the clause that is being checked. merged: what USING and NATURAL make one column of. outer: the sources of
    queries around it that it speaks of. looking: what stands in the FROM itself and speaks of other sources there.
    """

    sources: list[Source] = field(default_factory=list)
    aliases: set[str] = field(default_factory=set)
    part: str = ""
    merged: set[str] = field(default_factory=set)
    outer: list[Source] = field(default_factory=list)
    looking: list[exp.Expr] = field(default_factory=list)


@dataclass(frozen=True)
class Cte:
    """A query with a name. new_name: what it is called in the text that runs, so that no table can be meant."""

    new_name: str
    outputs: Outputs | None
    tables: frozenset[str]


Chain = tuple[Scope, ...]  # innermost first
Known = dict[str, Cte]

LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
UNNAMED = "\n"  # begins the name of a column that has none
# Columns that every table has although nobody made them.
PSEUDO = {
    "mysql": frozenset({"_rowid"}),
    "postgres": frozenset("ctid oid xmin xmax cmin cmax tableoid".split()),
    "sqlite": frozenset({"rowid", "_rowid_", "oid"}),
}
# The clauses in which a name of the SELECT list stands for its item.
ALIAS_PARTS = dict.fromkeys(PSEUDO, {"group", "having", "order", "distinct"})
ALIAS_PARTS["sqlite"] = ALIAS_PARTS["sqlite"] | {"where"}


def folded(name: str) -> str:
    """A name without the case of A to Z: no server tells names apart by that, but PostgreSQL in quotes."""
    return name.translate(LOWER)


@lru_cache(maxsize=4096)
def alike(name: str) -> str:
    """A name without case and accents: the same for names that some server could take for one."""
    plain = unicodedata.normalize("NFKD", name)
    return "".join(character for character in plain if not unicodedata.combining(character)).casefold()


@lru_cache(maxsize=256)
def all_alike(names: frozenset[str]) -> frozenset[str]:
    """The same of many."""
    return frozenset(map(alike, names))
