"""The database that is asked: one read-only session for each statement, with a time limit that its server keeps.

Each statement gets a connection of its own, so that no lock, setting or transaction is left for the next one. What the
four servers do differently is in one class each: MySQL and MariaDB, PostgreSQL, SQLite.
"""

import contextlib
import logging
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import sqlalchemy
from sqlalchemy.engine import URL, make_url
from sqlalchemy.pool import NullPool

from errors import ConfigError

from .results import Cell, Table, binary, bit, number

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 5
GRACE_S = 1.0  # after its limit a statement is killed, should the server not have ended it
READ_MARGIN_S = 2.0
CATALOGUE_S = 60.0  # how long the columns are taken to be as they were
SQLITE_CELL_BYTES = 10_000_000
# Rights that reach beyond what a read-only session prevents, as `too_many_rights` names them.
DANGEROUS = frozenset({"FILE", "SUPER", "SUPERUSER", "files of the server"})

Rows = tuple[list[str], list[Cell], Iterator[Sequence[Any]]]


@dataclass(frozen=True)
class ColumnInfo:
    """One column as the database describes it."""

    name: str
    type: str
    nullable: bool
    comment: str = ""


class Server:
    """What a kind of server does in its own way. `url` has a password: it is never shown."""

    dialect: ClassVar[str]  # as sqlglot calls it
    title: ClassVar[str]  # as people call it

    def __init__(self, url: URL, schema: str | None = None) -> None:
        self.url = url
        self.schema = schema or self.usual_schema()  # whose tables are meant

    def usual_schema(self) -> str:
        """The schema where the policy names none."""
        raise NotImplementedError

    def open(self, limit_s: float) -> Any:
        """A new session that may only read, each statement for `limit_s` at most."""
        raise NotImplementedError

    def rows(self, connection: Any, sql: str) -> Rows:
        """Run a statement, without arguments; names, kinds and rows, which come as they are asked for."""
        raise NotImplementedError

    def kill(self, connection: Any) -> None:
        """End what a session does, from another thread."""
        raise NotImplementedError

    def close(self, connection: Any) -> None:
        """End a session at once, whatever it is doing."""
        connection.close()

    def too_many_rights(self, connection: Any) -> list[str]:
        """What the account may do besides reading."""
        raise NotImplementedError

    def all(self, connection: Any, sql: str) -> list[Sequence[Any]]:
        """Every row of a statement of ours."""
        return list(self.rows(connection, sql)[2])

    COLUMNS: ClassVar[str]

    def columns(self, connection: Any) -> dict[str, list[ColumnInfo]]:
        """The tables and views that the account sees, with their columns."""
        found: dict[str, list[ColumnInfo]] = {}
        for table, name, kind, nullable, comment in self.all(connection, self.COLUMNS):
            found.setdefault(str(table), []).append(ColumnInfo(str(name), str(kind), nullable == "YES", comment or ""))
        return found


class MySQL(Server):
    """MySQL and MariaDB, by PyMySQL."""

    dialect, title = "mysql", "MySQL"
    COLUMNS = (
        "SELECT table_name, column_name, column_type, is_nullable, column_comment FROM information_schema.columns "
        "WHERE table_schema = DATABASE() ORDER BY table_name, ordinal_position"
    )
    READS = frozenset({"USAGE", "SELECT", "SHOW VIEW", "SHOW DATABASES", "EXECUTE", "SHOW_ROUTINE"})

    def __init__(self, url: URL, schema: str | None = None) -> None:
        super().__init__(url)  # the database of the URL, and no other

    def usual_schema(self) -> str:
        return self.url.database or ""

    def connect(self) -> Any:
        """A connection whose values are the server's own text, but for whole numbers and fractions."""
        import pymysql
        from pymysql.constants import FIELD_TYPE
        from pymysql.converters import conversions

        conv: dict[Any, Any] = {key: value for key, value in conversions.items() if not isinstance(key, int)}
        for kind in (FIELD_TYPE.TINY, FIELD_TYPE.SHORT, FIELD_TYPE.LONG, FIELD_TYPE.LONGLONG, FIELD_TYPE.INT24):
            conv[kind] = int
        conv |= {FIELD_TYPE.YEAR: int, FIELD_TYPE.FLOAT: float, FIELD_TYPE.DOUBLE: float}
        _, given = self.url.get_dialect()().create_connect_args(self.url)
        near = given.get("host") in (None, "localhost", "127.0.0.1", "::1")
        usual = {"connect_timeout": CONNECT_TIMEOUT_S, "charset": "utf8mb4", **({"ssl_disabled": True} if near else {})}
        given.pop("client_flag", None)  # SQLAlchemy's; it makes UPDATE count other rows
        return pymysql.connect(**{**usual, **given, "conv": conv, "autocommit": True, "local_infile": False})

    def open(self, limit_s: float) -> Any:
        connection = self.connect()
        try:
            connection._read_timeout = limit_s + READ_MARGIN_S  # a server that is frozen
            mariadb = "mariadb" in connection.get_server_info().lower()
            limit = f"max_statement_time={limit_s:.3f}" if mariadb else f"max_execution_time={int(limit_s * 1000)}"
            with connection.cursor() as cursor:
                # Backslash escapes and quotes as the guard reads them, whatever the server is set to.
                cursor.execute(
                    "SET SESSION sql_mode=CONCAT_WS(',', IF(FIND_IN_SET('ONLY_FULL_GROUP_BY', @@SESSION.sql_mode), "
                    "'ONLY_FULL_GROUP_BY', NULL), 'STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION'), time_zone='+00:00', "
                    f"lock_wait_timeout={int(limit_s) + 1}, {limit}"
                )
                cursor.execute("START TRANSACTION READ ONLY")
        except BaseException:
            self.close(connection)
            raise
        return connection

    def rows(self, connection: Any, sql: str) -> Rows:
        from pymysql.constants import FIELD_TYPE
        from pymysql.cursors import SSCursor

        kinds: dict[str | int, Cell] = {FIELD_TYPE.BIT: bit, FIELD_TYPE.GEOMETRY: binary}
        cursor = SSCursor(connection)
        cursor.execute(sql)  # without arguments: a % in it is only a %
        described = cursor.description or ()
        cells = [kinds.get(column[1], number) for column in described]
        return [str(column[0]) for column in described], cells, iter(cursor.fetchone, None)

    def kill(self, connection: Any) -> None:
        beside = self.connect()
        try:
            with beside.cursor() as cursor:
                cursor.execute(f"KILL QUERY {int(connection.thread_id())}")
        finally:
            beside.close()

    def close(self, connection: Any) -> None:
        result = connection._result
        if result is not None:
            result.unbuffered_active = False  # rows that nobody wants are not waited for
        connection._result = None
        connection._force_close()

    def too_many_rights(self, connection: Any) -> list[str]:
        found: set[str] = set()
        for (grant,) in self.all(connection, "SHOW GRANTS"):
            head, _, on = str(grant).partition(" ON ")
            if not on or not head.startswith("GRANT "):
                continue  # a role; what it may do is told in a line of its own
            rights = {right.split("(")[0].strip() for right in head.removeprefix("GRANT ").split(", ")}
            found |= rights - self.READS
            if "ALL PRIVILEGES" in rights and on.startswith("*.*"):
                found |= {"FILE", "SUPER"}  # MariaDB does not write out what is in it
        return sorted(right for right in found if right and not right.endswith(")"))


class Postgres(Server):
    """PostgreSQL, by psycopg."""

    dialect, title = "postgres", "PostgreSQL"
    NOT_AS_TEXT: ClassVar[frozenset[str]] = frozenset({"int2", "int4", "int8", "float4", "float8", "bool", "bytea"})

    def usual_schema(self) -> str:
        return "public"

    COLUMNS = (
        "SELECT c.relname, a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod), "
        "CASE WHEN a.attnotnull THEN 'NO' ELSE 'YES' END, pg_catalog.col_description(c.oid, a.attnum) "
        "FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace "
        "JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped "
        "WHERE n.nspname = pg_catalog.current_schema() AND c.relkind IN ('r', 'v', 'm', 'p', 'f') "
        "ORDER BY c.relname, a.attnum"
    )

    def open(self, limit_s: float) -> Any:
        import psycopg
        from psycopg.types.string import TextLoader

        _, given = self.url.get_dialect()().create_connect_args(self.url)
        connection = psycopg.connect(**{"connect_timeout": CONNECT_TIMEOUT_S, **given, "autocommit": True})
        try:
            for known in psycopg.adapters.types:  # the server's own text is exact, and knows dates that Python does not
                for oid in (known.oid, known.array_oid):
                    if oid and (oid != known.oid or known.name not in self.NOT_AS_TEXT):
                        connection.adapters.register_loader(oid, TextLoader)
            quoted = '"' + self.schema.replace('"', '""') + '"'
            milliseconds = max(int(limit_s * 1000), 1)
            connection.execute(
                f"SET statement_timeout={milliseconds}; SET lock_timeout={milliseconds}; SET search_path={quoted}; "
                "SET standard_conforming_strings=on; SET DateStyle=ISO; SET TimeZone='UTC'; "
                "SET client_encoding='UTF8'; "
                f"SET idle_in_transaction_session_timeout={milliseconds + 5000}; SET bytea_output='hex'; "
                "BEGIN TRANSACTION READ ONLY"
            )
        except BaseException:
            connection.close()
            raise
        return connection

    def rows(self, connection: Any, sql: str) -> Rows:
        cursor = connection.cursor()
        stream = cursor.stream(sql)  # row by row, one statement only; closing it cancels what is left
        first = next(stream, None)
        described = cursor.description
        if described is None:  # no rows, and psycopg forgets the names with them
            described = connection.execute(f"SELECT * FROM ({sql}) AS named LIMIT 0").description or ()

        def rest() -> Iterator[Sequence[Any]]:
            if first is not None:
                yield first
                yield from stream

        return [column.name for column in described], [number] * len(described), rest()

    def kill(self, connection: Any) -> None:
        connection.cancel_safe(timeout=CONNECT_TIMEOUT_S)

    def too_many_rights(self, connection: Any) -> list[str]:
        asked = {
            "SUPERUSER": "SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user",
            "CREATE": "SELECT pg_catalog.has_schema_privilege(current_user, pg_catalog.current_schema(), 'CREATE')",
            "writing tables": "SELECT EXISTS (SELECT 1 FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n "
            "ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'p') AND n.nspname <> 'information_schema' "
            "AND n.nspname NOT LIKE 'pg\\_%' "
            "AND pg_catalog.has_table_privilege(c.oid, 'INSERT, UPDATE, DELETE, TRUNCATE'))",
            "files of the server": "SELECT EXISTS (SELECT 1 FROM pg_catalog.pg_roles r WHERE r.rolname IN "
            "('pg_read_server_files', 'pg_write_server_files', 'pg_execute_server_program') "
            "AND pg_catalog.pg_has_role(current_user, r.oid, 'USAGE'))",
        }
        return [right for right, sql in asked.items() if self.all(connection, sql)[0][0]]


class SQLite(Server):
    """A file of SQLite, opened to be read; an authorizer refuses whatever is no read."""

    dialect, title = "sqlite", "SQLite"

    def usual_schema(self) -> str:
        return "main"

    def open(self, limit_s: float) -> Any:
        file = Path(self.url.database or "")
        if not file.is_file():
            raise sqlite3.OperationalError("unable to open database file")
        connection = sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True, check_same_thread=False)
        connection.text_factory = lambda data: data.decode("utf-8", "replace")
        connection.execute("PRAGMA query_only=ON")
        connection.execute("PRAGMA trusted_schema=OFF")
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, SQLITE_CELL_BYTES)
        end = time.monotonic() + limit_s
        connection.set_progress_handler(lambda: time.monotonic() > end, 10_000)
        return connection

    def rows(self, connection: Any, sql: str) -> Rows:
        reads = {
            sqlite3.SQLITE_SELECT,
            sqlite3.SQLITE_READ,
            sqlite3.SQLITE_FUNCTION,
            sqlite3.SQLITE_RECURSIVE,
        }
        catalogue = "pragma_table_info" in sql and sql == self.COLUMNS

        def judge(action: int, first: str | None, *_: Any) -> int:
            ours = catalogue and action == sqlite3.SQLITE_PRAGMA
            loads = action == sqlite3.SQLITE_FUNCTION and first == "load_extension"
            return sqlite3.SQLITE_OK if (action in reads and not loads) or ours else sqlite3.SQLITE_DENY

        connection.set_authorizer(None if catalogue else judge)
        cursor = connection.execute(sql)
        names = [str(column[0]) for column in cursor.description or ()]
        return names, [number] * len(names), cursor

    COLUMNS = (
        "SELECT m.name, p.name, p.type, CASE WHEN p.\"notnull\" THEN 'NO' ELSE 'YES' END, '' FROM sqlite_master m, "
        "pragma_table_info(m.name) p WHERE m.type IN ('table', 'view') AND m.name NOT LIKE 'sqlite\\_%' ESCAPE '\\' "
        "ORDER BY m.name, p.cid"
    )

    def kill(self, connection: Any) -> None:
        connection.interrupt()

    def too_many_rights(self, connection: Any) -> list[str]:
        return []  # the file is opened to be read only, whoever we are


SERVERS: Mapping[str, type[Server]] = {
    "mysql": MySQL,
    "mariadb": MySQL,
    "postgresql": Postgres,
    "sqlite": SQLite,
}
DRIVERS = {"mysql": "mysql+pymysql", "mariadb": "mysql+pymysql", "postgresql": "postgresql+psycopg"}


def read_url(text: str) -> URL:
    """The URL of the database. Raises ConfigError, without showing it."""
    what = "TEXT2SQL_URL should be an SQLAlchemy URL such as mysql://reader:password@127.0.0.1:3306/shop"
    try:
        url = make_url(text)
    except (sqlalchemy.exc.ArgumentError, ValueError):
        raise ConfigError(what) from None
    kind = url.drivername.split("+")[0]
    if kind not in SERVERS:
        raise ConfigError(f"{what}; it should begin with mysql, mariadb, postgresql or sqlite")
    if not url.database:
        raise ConfigError(f"{what}; it should name a database")
    return url.set(drivername=DRIVERS.get(kind, kind))


class Target:
    """The database of TEXT2SQL_URL. Building one opens nothing."""

    def __init__(self, url: str, schema: str | None = None) -> None:
        self.url = read_url(url)
        self.server = SERVERS[self.url.drivername.split("+")[0]](self.url, schema)
        self._columns: dict[str, list[ColumnInfo]] = {}
        self._read_at = -CATALOGUE_S
        self._lock = threading.Lock()
        self._rights: list[str] | None = None

    @contextlib.contextmanager
    def session(self, limit_s: float) -> Iterator[Any]:
        """A session that may only read; after its limit it is killed, should the server not have ended it."""
        connection = self.server.open(limit_s)
        watchdog = threading.Timer(limit_s + GRACE_S, self._kill, [connection])
        watchdog.daemon = True
        watchdog.start()
        try:
            yield connection
        finally:
            watchdog.cancel()
            with contextlib.suppress(Exception):
                self.server.close(connection)

    def _kill(self, connection: Any) -> None:
        try:
            self.server.kill(connection)
        except Exception as error:
            log.warning("a statement over its time limit could not be killed: %s", type(error).__name__)

    def run(self, sql: str, limit_s: float, max_rows: int, max_bytes: int) -> Table:
        """The rows of a checked statement, no more than permitted. Raises the driver's errors."""
        with self.session(limit_s) as connection:
            names, cells, rows = self.server.rows(connection, sql)
            table = Table(names, cells, max_rows, max_bytes)
            for row in rows:
                if not table.add(row):
                    break
            if close := getattr(rows, "close", None):
                with contextlib.suppress(Exception):
                    close()
            return table

    def columns(self) -> dict[str, list[ColumnInfo]]:
        """Tables and views with their columns, at most CATALOGUE_S old. Raises the driver's errors."""
        with self._lock:
            if time.monotonic() - self._read_at >= CATALOGUE_S:
                with self.session(30.0) as connection:
                    self._columns = self.server.columns(connection)
                self._read_at = time.monotonic()
            return self._columns

    def forget_columns(self) -> None:
        """Have the columns read again: something was not as it was."""
        self._read_at = -CATALOGUE_S

    def too_many_rights(self) -> list[str]:
        """What the account may do besides reading; asked once, logged when there is something."""
        if self._rights is None:
            with self.session(10.0) as connection:
                self._rights = self.server.too_many_rights(connection)
            if self._rights:
                log.warning(
                    "the account of TEXT2SQL_URL may do more than read: %s; give it SELECT only",
                    ", ".join(self._rights[:12]),
                )
        return self._rights

    def foreign_keys(self, tables: Mapping[str, Any]) -> list[str]:
        """The joins that the schema itself names: "orders.customer_id = customers.id"."""
        engine = sqlalchemy.create_engine(self.url, poolclass=NullPool)
        try:
            inspector = sqlalchemy.inspect(engine)
            return [
                f"{table}.{here} = {key['referred_table']}.{there}"
                for table in sorted(tables)
                for key in inspector.get_foreign_keys(table, schema=self.server.schema)
                if key["referred_table"] in tables
                for here, there in zip(key["constrained_columns"], key["referred_columns"], strict=True)
            ]
        finally:
            engine.dispose()
