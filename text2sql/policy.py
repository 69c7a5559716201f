"""The policy: what may be read, written down in a TOML file that the operator owns. Rights never come from a prompt."""

import difflib
import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from errors import ConfigError

Catalogue = Mapping[str, tuple[str, ...]]  # table or view -> its columns, as the database has them
Pair = frozenset[tuple[str, str]]  # a join: the (table, column) of both sides, casefolded columns

JOIN = re.compile(r"(.+)\.([^.]+?)\s*=\s*(.+)\.([^.]+)")


class TableRule(BaseModel):
    """One readable table. columns: only these; hide: all but these. note: told to the model."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    columns: tuple[str, ...] | None = None
    hide: tuple[str, ...] = ()
    note: str = ""


class PolicyFile(BaseModel):
    """The file as it stands. What is not in it may not be read."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tables: dict[str, TableRule]
    joins: tuple[str, ...] | None = None  # None: readable tables may be joined in any way
    functions: tuple[str, ...] = ()  # permitted besides the built-in list
    schema_name: str | None = Field(None, alias="schema")
    max_rows: int = Field(200, ge=1, le=10_000)  # fetched and kept with the run
    max_bytes: int = Field(64_000, ge=1_000, le=1_000_000)
    model_rows: int = Field(50, ge=1, le=10_000)  # of these, given to the model
    model_bytes: int = Field(8_000, ge=1_000, le=20_000)
    time_limit_s: float = Field(5.0, gt=0, le=3600)

    @property
    def rows_to_read(self) -> int:
        """How many rows the model can see of one result."""
        return min(self.max_rows, self.model_rows)


@dataclass(frozen=True)
class Readable:
    """A table that may be read. visible: None where the columns are not known; partial: others exist or may exist."""

    name: str
    visible: tuple[str, ...] | None
    hidden: frozenset[str]
    partial: bool
    note: str = ""


@dataclass(frozen=True)
class Policy:
    """What may be read, with the columns of the database where they are known."""

    file: PolicyFile
    catalogue: Catalogue = field(default_factory=dict)

    @property
    def joins(self) -> frozenset[Pair] | None:
        """The allowed joins; None for any."""
        if self.file.joins is None:
            return None
        return frozenset(read_join(text) for text in self.file.joins)

    def with_catalogue(self, catalogue: Catalogue) -> "Policy":
        """The same policy over the columns that a database really has."""
        return Policy(self.file, catalogue)

    def tables(self) -> list[str]:
        """The names of the readable tables that exist, as far as that is known."""
        return [name for name in self.file.tables if not self.catalogue or name in self.catalogue]

    def find(self, name: str, exact: bool) -> str | None:
        """The readable table of this name. exact: letters in capitals are other letters."""
        if name in self.file.tables:
            return name
        alike = [] if exact else [table for table in self.file.tables if table.casefold() == name.casefold()]
        return alike[0] if len(alike) == 1 else None

    def readable(self, name: str) -> Readable:
        """What of a readable table may be read."""
        rule, there = self.file.tables[name], self.catalogue.get(name)
        hide = {column.casefold() for column in rule.hide}
        visible = rule.columns if rule.columns is not None else there
        if visible is not None:
            known = None if there is None else {column.casefold() for column in there}
            visible = tuple(c for c in visible if c.casefold() not in hide and (known is None or c.casefold() in known))
        if there is not None and visible is not None:
            hide |= {column.casefold() for column in there} - {column.casefold() for column in visible}
        partial = bool(hide) or rule.columns is not None  # a column may be there that was not yet when we looked
        return Readable(name, visible, frozenset(hide), partial, rule.note)


def near(name: str, names: Iterable[str], most: int = 3) -> list[str]:
    """Names that a slip of the pen could have turned into `name`, the nearest first."""
    by_fold = {other.casefold(): other for other in names}
    found = difflib.get_close_matches(name.casefold(), list(by_fold), n=most, cutoff=0.5)
    return [by_fold[fold] for fold in found]


def read_join(text: str) -> Pair:
    """`"orders.customer_id = customers.id"` -> its two sides. Raises ConfigError."""
    match = JOIN.fullmatch(text.strip())
    if not match:
        raise ConfigError(f"joins: {text[:80]!r} should read like 'orders.customer_id = customers.id'")
    left_table, left, right_table, right = (part.strip() for part in match.groups())
    return frozenset({(left_table, left.casefold()), (right_table, right.casefold())})


def parse_policy(content: Mapping[str, Any]) -> Policy:
    """The policy that a TOML document holds. Raises ConfigError that says where it is wrong."""
    try:
        policy = Policy(PolicyFile.model_validate(content))
    except ValidationError as error:
        faults = (f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())
        raise ConfigError(f"the policy cannot be used: {'; '.join(faults)}") from None
    for pair in policy.joins or ():
        for table, _ in pair:
            if table not in policy.file.tables:
                raise ConfigError(f"the policy cannot be used: joins names {table!r}, which is none of its tables")
    return policy


def load_policy(file: str) -> Policy:
    """The policy in a file. Raises ConfigError."""
    try:
        content = tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"the policy {file} cannot be read as TOML: {error}") from None
    return parse_policy(content)


def write_policy(catalogue: Catalogue, joins: Iterable[str]) -> str:
    """A policy that permits all there is, for the operator to strike out what may not be read."""
    lines = [
        "# What the model may read. Strike out what it may not; a table or column that is not here cannot be read.",
        "max_rows = 200",
        "max_bytes = 64000",
        "model_rows = 50",
        "model_bytes = 8000",
        "time_limit_s = 5.0",
        "# Only these joins; without this line readable tables may be joined in any way.",
        "joins = [",
        *(f"  {quoted(join)}," for join in joins),
        "]",
    ]
    for table, columns in sorted(catalogue.items()):
        lines += ["", f"[tables.{quoted(table)}]", f"columns = [{', '.join(quoted(column) for column in columns)}]"]
    return "\n".join(lines) + "\n"


def quoted(text: str) -> str:
    """A basic string of TOML."""
    return json.dumps(text, ensure_ascii=False)
