"""What the doctor has learned of a checkout so far, and what a layer has shown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from dev import database

if TYPE_CHECKING:
    from config import Settings
    from db import Connection, Database
    from dev.mariadb import PrivateServer

Status = Literal["ok", "warn", "FAIL"]
SECRET = re.compile(r"(KEY|KEYS|PASSWORD|SECRET|TOKEN)$")
# Where settings come from, beside `.env`.
ENVIRONMENT, DEV_UP, PRIVATE, DEFAULT = "environment", "dev up", "private server", "default"
FROM = {ENVIRONMENT: "from the environment", PRIVATE: "from the private server", DEFAULT: "by default"}


@dataclass(frozen=True)
class Finding:
    """What a layer has shown. way_out: what to do, each a sentence. ends: what needs this layer cannot be looked at."""

    status: Status
    found: str
    way_out: tuple[str, ...] = ()
    ends: bool = False
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # for programs, by name


def ok(found: str, *warnings: tuple[str, str]) -> Finding:
    """All is well, or with `warnings`, pairs of what is odd and the way out, not quite."""
    if not warnings:
        return Finding("ok", found)
    return Finding("warn", "; ".join([found, *(odd for odd, _ in warnings)]), tuple(hint for _, hint in warnings))


def fail(found: str, *way_out: str) -> Finding:
    """The layer does not work."""
    return Finding("FAIL", found, way_out, ends=True)


@dataclass
class Case:
    """What the layers have learned so far; each may use what those before it have found."""

    ask: bool
    stack: ExitStack
    modules: list[str] = field(default_factory=list)  # ours, those that others import first
    environ: dict[str, str] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)  # name of a setting -> where its value comes from
    private: PrivateServer | None = None  # the database is, or would be, this one
    has_database: bool = False
    demo: bool = False
    version: str = ""  # as the server reports it
    settings: Settings = field(init=False)
    database: Database = field(init=False)
    connection: Connection = field(init=False)

    @property
    def where(self) -> str:
        """The database, for people."""
        return database.place(self.environ)

    def origin(self, *names: str) -> str:
        """`DB_HOST (from .env), DB_PORT (by default)`."""
        sources = [(name, self.sources.get(name, DEFAULT)) for name in names]
        return ", ".join(f"{name} ({FROM.get(source, f'from {source}')})" for name, source in sources)

    def rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """What a statement that only reads gives."""
        with self.connection.cursor() as cursor:
            cursor.execute(statement, values or None)
            return list(cursor.fetchall())
