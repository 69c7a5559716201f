"""The guard's lookup of columns: each is found in the policy, and written down so that the server can take no other."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from sqlglot import exp

from .dialects import TEXTS, words
from .policy import Policy, near
from .refusal import Refused, too_complex
from .sources import ALIAS_PARTS, PSEUDO, UNNAMED, Chain, Cte, Origin, Outputs, Place, Scope, Source, alike, folded

MAX_ITEMS = 2_000  # columns of one list, stars written out


class Columns:
    """Looks up the columns of one statement."""

    def __init__(self, policy: Policy, dialect: str) -> None:
        self.policy, self.dialect = policy, dialect
        self.schema = policy.file.schema_name or {"postgres": "public", "sqlite": "main"}.get(dialect)
        self.joins = policy.joins
        self.tables: set[str] = set()
        self.reading: frozenset[str] = frozenset()  # what the query under way reads, subqueries included
        self.found: dict[int, tuple[Outputs | None, frozenset[str]]] = {}  # of subqueries, by the id of their node
        self.ctes = 0
        self.recursive: dict[int, tuple[Cte, list[str]]] = {}  # and its columns, by the id of the UNION that reads it
        self.outside: Chain | None = None  # in a CTE of SQLite: the scopes around it, of which it may not speak

    def name(self, node: Any) -> str:
        """An identifier as the server takes it."""
        if self.dialect == "postgres" and isinstance(node, exp.Identifier) and not node.args.get("quoted"):
            return folded(node.name)
        return str(node.name)

    def no_hidden_words(self, text: str, tree: exp.Expr) -> None:
        """No hidden column's name stands in the text other than as a name that was looked up. Raises Refused."""
        hidden = {column for table in self.tables for column in self.policy.readable(table).hidden}
        if not hidden:
            return
        said = Counter(token.text.casefold() for token in words(text, self.dialect) if token.token_type not in TEXTS)
        looked_up = Counter(name.name.casefold() for name in tree.find_all(exp.Identifier))
        for column in hidden:
            if said[column] > looked_up[column]:
                raise self.no_column(column, [])

    def column(self, node: exp.Column, chain: Chain) -> None:
        """One column. Raises Refused if it may be one that cannot be read."""
        if isinstance(node.this, exp.Star):
            self.star_inside(node, chain)
            return
        name, table = self.name(node.this), node.args.get("table")
        if schema := node.args.get("db"):
            if self.name(schema) != self.schema:
                raise Refused("schema_not_allowed", f"the schema {self.name(schema)[:60]} cannot be read")
            node.set("db", None)
        if table:
            self.look_up(name, sources := self.sources_of(self.name(table), chain))
            self.reach(sources[0], chain)
        elif not self.bind(node, name, chain):
            if self.dialect == "sqlite" and node.this.args.get("quoted") and not self.may_be_elsewhere(name, chain):
                node.replace(exp.Literal.string(node.name))  # as SQLite itself takes "text" that is no name
                return
            raise self.no_column(name, [source for scope in chain for source in scope.sources])

    def bind(self, node: exp.Column, name: str, chain: Chain) -> bool:
        """Whether a name without a table may stand here.

        Where one source is known to have such a column its name is written before it, so that the server can take no
        other. What is left as it was must be harmless whatever the server takes it for.
        """
        fold, may_be = folded(name), False
        for scope in chain:
            for source in scope.sources:
                if source.hides(name):
                    raise self.no_column(name, [source])
            having = [source for source in scope.sources if source.has(name)]
            own = fold in scope.aliases and scope.part in ALIAS_PARTS[self.dialect]
            if having and not own and fold not in scope.merged:
                if len(having) > 1:
                    names = ", ".join(source.name for source in having)
                    raise Refused(
                        "ambiguous_column", f"{name[:60]!r} may be of {names}", "Put the table or its alias before it."
                    )
                self.reach(having[0], chain)
                if having[0].name:
                    node.set("table", exp.to_identifier(having[0].name, quoted=True))
                    return True
            may_be = bool(having) or own or any(self.may_have_any(source) for source in scope.sources)
            if may_be:
                break
        around = [source for scope in chain for source in scope.sources]
        for source in around:
            if source.hides(name):
                raise self.no_column(name, [source])
        if self.dialect == "postgres":
            for source in around:
                if alike(source.name) == alike(name):
                    self.whole_row(source)
                    may_be = True
        return may_be and (alike(name) not in PSEUDO[self.dialect] or not any(source.table for source in around))

    def may_have_any(self, source: Source) -> bool:
        """Whether every name may be a column of a source.

        SQLite looks a name of a CTE that nothing in the CTE has up where the CTE is used. In a CTE only what is known
        to be there may be named; of tables whose columns nobody has told us that cannot be asked.
        """
        return source.outputs is None and (self.outside is None or source.table is not None)

    def may_be_elsewhere(self, name: str, chain: Chain) -> bool:
        """Whether a name in a CTE that was found nowhere may still be one, and no text."""
        if self.outside is None:
            return False
        here, around = ([source for scope in scopes for source in scope.sources] for scopes in (chain, self.outside))
        return any(source.outputs is None for source in here) or any(source.has(name) for source in around)

    def reach(self, source: Source, chain: Chain) -> None:
        """Remember that a query, and those between, speak of a source of a query around them."""
        self.reading |= source.tables
        for scope in chain:
            if source in scope.sources:
                return
            if source not in scope.outer:
                scope.outer.append(source)

    def sources_of(self, name: str, chain: Chain) -> list[Source]:
        """The sources that a name before a dot can mean, the likeliest first. Raises Refused if there is none."""
        sources = [source for scope in chain for source in scope.sources]
        same = [source for source in sources if alike(source.name) == alike(name)]
        if self.outside is not None:
            same = [source for source in same if folded(source.name) == folded(name)]
        if not same:
            there = [source.name for source in sources if source.name]
            hint = f"The names here are: {', '.join(there)}." if there else ""
            reason = f"there is no table or alias {name[:60]} in this part of the statement"
            raise Refused("unknown_table", reason, hint)
        return sorted(same, key=lambda source: source.name != name)

    def look_up(self, name: str, sources: list[Source]) -> None:
        """Raise Refused unless every source that may be meant has a column of this name, or may have it.

        A server does not see a source in the ON of a join before its own, and takes one of the same name further out.
        """
        for source in sources:
            unnamed = source.is_open and self.outside is None
            unknown = (unnamed or self.may_have_any(source)) and alike(name) not in PSEUDO[self.dialect]
            if source.hides(name) or not (source.has(name) or unknown):
                raise self.no_column(name, sources)

    def no_column(self, name: str, sources: list[Source]) -> Refused:
        """The refusal of a column; the same whether it is hidden or not there."""
        have = {source.name: self.columns_of(source) for source in sources}
        nearest = near(name, [column for columns in have.values() for column in columns])
        hint = f"Near it: {', '.join(nearest)}. " if nearest else ""
        shown = [f"{table} has {', '.join(columns[:20])}" for table, columns in have.items() if columns]
        hint += f"{'; '.join(shown[:4])}." if shown else "Call describe_table for the columns."
        return Refused("column_not_allowed", f"there is no readable column {name[:60]}", hint)

    def columns_of(self, source: Source) -> list[str]:
        if source.table and source.table.visible is not None:
            return list(source.table.visible)
        return [name for name in source.outputs or () if not name.startswith(UNNAMED)]

    def whole_row(self, source: Source) -> None:
        """A whole row as one value. Raises Refused if some of it cannot be read."""
        if source.partial:
            raise Refused("column_not_allowed", f"not all of {source.name} can be read", "Name the columns.")

    def star_inside(self, node: exp.Column, chain: Chain) -> None:
        """`t.*` where it is not a whole item of the list, as in COUNT(t.*)."""
        for source in self.sources_of(self.name(node.args["table"]), chain):
            self.whole_row(source)

    def expand_stars(self, node: exp.Select, scope: Scope) -> None:
        """Write `*` out where it would give more than may be read. Raises Refused where that is not possible."""
        items: list[exp.Expr] = []
        for item in node.expressions:
            table = item.args.get("table") if isinstance(item, exp.Column) else None
            if isinstance(item, exp.Star):
                sources = scope.sources
            elif table and isinstance(item.this, exp.Star):
                sources = self.sources_of(self.name(table), (scope,))[:1]
            else:
                items.append(item)
                continue
            if not any(source.partial for source in sources):
                items.append(item)
                continue
            whole = isinstance(item, exp.Star)
            if whole and scope.merged and any(join.args.get("side") in ("RIGHT", "FULL") for join in joins_of(node)):
                raise Refused("star_not_allowed", "* is not allowed with this USING", "Name the columns instead of *.")
            for source in sources:
                items += self.written_out(source, source.joined if whole else frozenset())
            if len(items) > MAX_ITEMS:
                raise too_complex("the statement asks for too many columns")
        node.set("expressions", items)

    def written_out(self, source: Source, but: frozenset[str]) -> Iterable[exp.Expr]:
        """The columns of a source one by one, or its own star where that hides nothing. but: what stands there."""
        columns = self.columns_of(source)
        if source.partial and not columns:
            raise Refused("star_not_allowed", f"not all of {source.name} can be read", "Name the columns instead of *.")
        if not source.partial and not (source.table and columns):
            return [exp.Column(this=exp.Star(), table=exp.to_identifier(source.name, quoted=True))]
        wanted = [column for column in columns if folded(column) not in but]
        return [exp.column(column, table=source.name, quoted=True) for column in wanted]

    def outputs(self, node: exp.Select, scope: Scope, here: Chain) -> Outputs | None:
        """The columns of a SELECT."""
        found: list[Place] = []
        placed = True
        for item in node.expressions:
            if isinstance(item, exp.Star) or (isinstance(item, exp.Column) and isinstance(item.this, exp.Star)):
                table = item.args.get("table")
                for source in self.sources_of(self.name(table), here)[:1] if table else scope.sources:
                    if source.outputs is None:
                        return None
                    once = frozenset[str]() if table else source.joined
                    found += [place for place in source.outputs.places if place[0] not in once]
                    placed = placed and source.outputs.placed and (bool(table) or not scope.merged)
            else:
                name = self.output_name(item) or f"{UNNAMED}{len(found)}"
                found.append((folded(name), self.origin(item.unalias(), here)[1]))
        return Outputs(found, placed)

    def output_name(self, item: exp.Expr) -> str:
        """What a column of the list is called; empty where that is the server's own business."""
        alias = item.args.get("alias")
        if isinstance(alias, exp.Identifier):
            return self.name(alias)
        return self.name(item.this) if isinstance(item, exp.Column) else ""

    def origin(self, node: exp.Expr, chain: Chain) -> tuple[Source | None, Origin | None]:
        """The source and the column of a table that a value is taken from, where it is one unchanged."""
        node = node.unnest()
        if not isinstance(node, exp.Column) or isinstance(node.this, exp.Star):
            return None, None
        name, table = self.name(node.this), node.args.get("table")
        if table:
            sources = self.sources_of(self.name(table), chain)[:1]
        else:
            sources = [source for scope in chain for source in scope.sources if source.has(name)][:1]
            if not sources and len(chain) and len(chain[0].sources) == 1:
                sources = chain[0].sources
        return (sources[0], sources[0].origin(name)) if sources else (None, None)


def joins_of(node: exp.Select) -> list[exp.Expr]:
    """The joins of a SELECT, those in brackets too."""
    start = node.args.get("from_")
    return [*(node.args.get("joins") or ()), *(start.find_all(exp.Join) if start else ())]
