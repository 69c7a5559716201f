"""The database that is asked: one read-only session for each statement, with a time limit that its server keeps.

Each statement gets a connection of its own, so that no lock, setting or transaction is left for the next one. What the
four servers do differently is in one class each: MySQL and MariaDB, PostgreSQL, SQLite.
"""

import contextlib
import hashlib
import logging
import math
import sqlite3
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import sqlalchemy
from sqlalchemy.engine import URL, make_url

from db import open_connection
from errors import ConfigError

from .results import Cell, Table, binary, bit, number

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 5
GRACE_S = 1.0  # after its limit a statement is killed, should the server not have ended it
READ_MARGIN_S = 2.0
CATALOGUE_S = 60.0  # how long the columns are taken to be as they were
CATALOGUE_LIMIT_S = 30.0  # of each statement that asks for them
MAX_NAME_CHARS = 255
MAX_GROUP_BYTES = 1_000_000  # of one GROUP_CONCAT
# SQLite works in our own process, and nothing stops it in the middle of one function.
SQLITE_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 4_000_000,  # bytes of one value
    sqlite3.SQLITE_LIMIT_COLUMN: 300,  # of a result
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 500,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 200,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 1_000,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
}
# Rights that reach beyond what a read-only session prevents, as `too_many_rights` names them.
DANGEROUS = frozenset({"FILE", "SUPER", "SUPERUSER", "files of the server"})

Rows = tuple[list[str], list[Cell], Iterator[Sequence[Any]]]
Structure = dict[str, dict[str, Any]]  # table or view -> what describes it, as JSON has it; see Server.structure
T = TypeVar("T")


@dataclass(frozen=True)
class ColumnInfo:
    """One column as the database describes it."""

    name: str
    type: str
    nullable: bool
    comment: str = ""


class Server(ABC):
    """What a kind of server does in its own way. `url` has a password: it is never shown."""

    dialect: ClassVar[str]  # as sqlglot calls it
    title: ClassVar[str]  # as people call it

    def __init__(self, url: URL, schema: str | None = None) -> None:
        self.url = url
        self.schema = schema or self.usual_schema()  # whose tables are meant

    @abstractmethod
    def usual_schema(self) -> str:
        """The schema where the policy names none."""

    @abstractmethod
    def open(self, limit_s: float) -> Any:
        """A new session that may only read, each statement for `limit_s` at most."""

    @abstractmethod
    def rows(self, connection: Any, sql: str) -> Rows:
        """Run a statement, without arguments; names, kinds and rows, which come as they are asked for."""

    @abstractmethod
    def kill(self, connection: Any) -> None:
        """End what a session does, from another thread."""

    def close(self, connection: Any) -> None:
        """End a session at once, whatever it is doing."""
        connection.close()

    @abstractmethod
    def too_many_rights(self, connection: Any) -> list[str]:
        """What the account may do besides reading."""

    def all(self, connection: Any, sql: str) -> list[Sequence[Any]]:
        """Every row of a statement of ours."""
        return list(self.rows(connection, sql)[2])

    # What describes the tables and views of the schema, each ordered by table; no row of any of them is read.
    TABLES: ClassVar[str]  # name, `view` or something else, comment, estimated rows or NULL
    COLUMNS: ClassVar[str]  # table, column, type, YES where it may be NULL, comment
    INDEXES: ClassVar[str]  # table, index, PRIMARY, UNIQUE or another word, column; columns in their order
    FOREIGN_KEYS: ClassVar[str]  # table, key, column, the other table, its column or NULL for its primary key

    def columns(self, connection: Any) -> dict[str, list[ColumnInfo]]:
        """The tables and views that the account sees, with their columns."""
        found: dict[str, list[ColumnInfo]] = {}
        for table, name, kind, nullable, comment in self.all(connection, self.COLUMNS):
            found.setdefault(str(table), []).append(ColumnInfo(str(name), str(kind), nullable == "YES", comment or ""))
        return found

    def comments(self, connection: Any) -> dict[str, str]:
        """What the database itself says of its tables and views."""
        return {str(table): str(comment) for table, _, comment, _ in self.all(connection, self.TABLES) if comment}

    def structure(self, connection: Any) -> Structure:
        """The tables and views that the account sees: kind, comment, rows (an estimate), columns and keys."""
        columns = self.columns(connection)
        found: Structure = {
            table: {
                "kind": "view" if kind == "view" else "table",
                "comment": comment or "",
                "rows": rows,
                "columns": {
                    column.name: {"type": column.type, "nullable": column.nullable, "comment": column.comment}
                    for column in columns[table]
                },
                "primary_key": [],
                "foreign_keys": [],
                "indexes": [],
            }
            for table, kind, comment, rows in self.all(connection, self.TABLES)
            if table in columns  # else it came or went between the two statements
        }
        self.add_indexes(connection, found)
        self.add_foreign_keys(connection, found)
        return found

    def add_indexes(self, connection: Any, found: Structure) -> None:
        """The primary keys, and the other indexes by name."""
        named: dict[tuple[str, str], dict[str, Any]] = {}
        for table, name, kind, column in self.all(connection, self.INDEXES):
            if table in found and kind == "PRIMARY":
                found[table]["primary_key"].append(column)
            elif table in found:
                if (table, name) not in named:
                    named[table, name] = {"name": name, "columns": [], "unique": kind == "UNIQUE"}
                    found[table]["indexes"].append(named[table, name])
                named[table, name]["columns"].append(column or "(expression)")

    def add_foreign_keys(self, connection: Any, found: Structure) -> None:
        """The foreign keys; their own names, which SQLite does not have, are left out."""
        named: dict[tuple[str, Any], dict[str, Any]] = {}
        for table, name, column, other, there in self.all(connection, self.FOREIGN_KEYS):
            if table in found:
                if (table, name) not in named:
                    named[table, name] = {"columns": [], "table": other, "references": []}
                    found[table]["foreign_keys"].append(named[table, name])
                key = named[table, name]
                primary = found.get(other, {}).get("primary_key", [])[len(key["columns"]) :]
                key["columns"].append(column)
                key["references"].append(there or (primary[0] if primary else "(primary key)"))
        for facts in found.values():
            facts["foreign_keys"].sort(key=lambda key: (key["columns"], key["table"]))


class MySQL(Server):
    """MySQL and MariaDB, by PyMySQL."""

    dialect, title = "mysql", "MySQL"
    COLUMNS = (
        "SELECT table_name, column_name, column_type, is_nullable, column_comment FROM information_schema.columns "
        "WHERE table_schema = DATABASE() ORDER BY table_name, ordinal_position"
    )
    TABLES = (
        "SELECT table_name, LOWER(table_type), IF(table_type = 'VIEW', '', table_comment), table_rows "
        "FROM information_schema.tables WHERE table_schema = DATABASE() ORDER BY table_name"
    )
    INDEXES = (
        "SELECT table_name, index_name, IF(index_name = 'PRIMARY', 'PRIMARY', IF(non_unique, 'INDEX', 'UNIQUE')), "
        "column_name FROM information_schema.statistics WHERE table_schema = DATABASE() "
        "ORDER BY table_name, index_name, seq_in_index"
    )
    # Not by table_constraints, which says nothing to an account that may only SELECT.
    FOREIGN_KEYS = (
        "SELECT table_name, constraint_name, column_name, IF(referenced_table_schema = table_schema, "
        "referenced_table_name, CONCAT(referenced_table_schema, '.', referenced_table_name)), referenced_column_name "
        "FROM information_schema.key_column_usage WHERE table_schema = DATABASE() "
        "AND referenced_table_name IS NOT NULL ORDER BY table_name, constraint_name, ordinal_position"
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
        ours = {"conv": conv, "autocommit": True, "local_infile": False, "defer_connect": True}
        connection = pymysql.connect(**{**usual, **given, **ours})
        open_connection(connection)
        return connection

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
                    f"lock_wait_timeout={int(limit_s) + 1}, {limit}, "
                    f"group_concat_max_len=CAST(LEAST(@@SESSION.group_concat_max_len, {MAX_GROUP_BYTES}) AS UNSIGNED)"
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
    TABLES = (
        "SELECT c.relname, CASE WHEN c.relkind IN ('v', 'm') THEN 'view' ELSE 'table' END, "
        "pg_catalog.obj_description(c.oid, 'pg_class'), "
        "CASE WHEN c.relkind IN ('r', 'm', 'p') AND c.reltuples >= 0 THEN c.reltuples::bigint END "
        "FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace "
        "WHERE n.nspname = pg_catalog.current_schema() AND c.relkind IN ('r', 'v', 'm', 'p', 'f') ORDER BY c.relname"
    )
    INDEXES = (
        "SELECT c.relname, i.relname, CASE WHEN x.indisprimary THEN 'PRIMARY' WHEN x.indisunique THEN 'UNIQUE' "
        "ELSE 'INDEX' END, a.attname FROM pg_catalog.pg_index x JOIN pg_catalog.pg_class c ON c.oid = x.indrelid "
        "JOIN pg_catalog.pg_class i ON i.oid = x.indexrelid "
        "JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace "
        "CROSS JOIN LATERAL pg_catalog.generate_series(1, x.indnkeyatts) AS k(place) "
        "LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum = x.indkey[k.place - 1] "
        "WHERE n.nspname = pg_catalog.current_schema() ORDER BY c.relname, i.relname, k.place"
    )
    FOREIGN_KEYS = (
        "SELECT c.relname, f.conname, a.attname, CASE WHEN r.relnamespace = c.relnamespace THEN r.relname "
        "ELSE m.nspname || '.' || r.relname END, b.attname FROM pg_catalog.pg_constraint f "
        "JOIN pg_catalog.pg_class c ON c.oid = f.conrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace "
        "JOIN pg_catalog.pg_class r ON r.oid = f.confrelid JOIN pg_catalog.pg_namespace m ON m.oid = r.relnamespace "
        "CROSS JOIN LATERAL unnest(f.conkey, f.confkey) WITH ORDINALITY AS k(here, there, place) "
        "JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.here "
        "JOIN pg_catalog.pg_attribute b ON b.attrelid = r.oid AND b.attnum = k.there "
        "WHERE f.contype = 'f' AND n.nspname = pg_catalog.current_schema() ORDER BY c.relname, f.conname, k.place"
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
        connection.execute("SELECT 1 FROM sqlite_master")  # the tables themselves may be wider than a result
        with contextlib.suppress(sqlite3.OperationalError):  # set up once, by a write that the authorizer would refuse
            connection.execute("SELECT 1 FROM json_each('[]'), json_tree('[]')")
        for limit, value in SQLITE_LIMITS.items():
            connection.setlimit(limit, value)
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

        def judge(action: int, first: str | None, *_: Any) -> int:
            loads = action == sqlite3.SQLITE_FUNCTION and first == "load_extension"
            return sqlite3.SQLITE_OK if action in reads and not loads else sqlite3.SQLITE_DENY

        ours = sql in (self.COLUMNS, self.INDEXES, self.FOREIGN_KEYS)  # they ask by PRAGMA
        connection.set_authorizer(None if ours else judge)
        cursor = connection.execute(sql)
        names = [str(column[0]) for column in cursor.description or ()]
        return names, [number] * len(names), cursor

    LISTED = "m.type IN ('table', 'view') AND m.name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
    TABLES = f"SELECT m.name, m.type, '', NULL FROM sqlite_master m WHERE {LISTED} ORDER BY m.name"
    COLUMNS = (
        "SELECT m.name, p.name, p.type, CASE WHEN p.\"notnull\" THEN 'NO' ELSE 'YES' END, '' FROM sqlite_master m, "
        f"pragma_table_xinfo(m.name) p WHERE {LISTED} AND p.hidden <> 1 ORDER BY m.name, p.cid"
    )
    INDEXES = (
        "SELECT t, i, kind, c FROM (SELECT m.name AS t, '' AS i, 'PRIMARY' AS kind, p.name AS c, p.pk AS place "
        f"FROM sqlite_master m, pragma_table_info(m.name) p WHERE {LISTED} AND p.pk > 0 "
        "UNION ALL SELECT m.name, l.name, CASE WHEN l.\"unique\" THEN 'UNIQUE' ELSE 'INDEX' END, x.name, x.seqno "
        "FROM sqlite_master m, pragma_index_list(m.name) l, pragma_index_info(l.name) x "
        f"WHERE {LISTED} AND l.origin <> 'pk') ORDER BY t, i, place"
    )
    FOREIGN_KEYS = (
        'SELECT m.name, f.id, f."from", f."table", f."to" FROM sqlite_master m, pragma_foreign_key_list(m.name) f '
        f"WHERE {LISTED} ORDER BY m.name, f.id, f.seq"
    )

    def structure(self, connection: Any) -> Structure:
        found = super().structure(connection)
        if self.all(connection, "SELECT 1 FROM sqlite_master WHERE name = 'sqlite_stat1'"):  # ANALYZE has been run
            counted = "SELECT tbl, MAX(CAST(stat AS INTEGER)) FROM sqlite_stat1 GROUP BY tbl"
            for table, rows in self.all(connection, counted):
                if table in found:
                    found[table]["rows"] = rows
        return found

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


class Kept(Generic[T]):
    """What `read` gave, for so many seconds; then, or once it is forgotten, it is read again."""

    def __init__(self, read: Callable[[], T], for_s: float) -> None:
        self._read, self._for_s = read, for_s
        self._value: tuple[float, T] | None = None
        self._lock = threading.Lock()

    def get(self) -> T:
        with self._lock:
            if self._value is None or time.monotonic() - self._value[0] >= self._for_s:
                self._value = time.monotonic(), self._read()
            return self._value[1]

    @property
    def last(self) -> T | None:
        """What was read last, however long ago; None before that. Reads nothing."""
        return self._value[1] if self._value else None

    def forget(self) -> None:
        """Have it read again: something is not as it was."""
        if self._value:
            self._value = -math.inf, self._value[1]


class Target:
    """The database of TEXT2SQL_URL. Building one opens nothing."""

    def __init__(self, url: str, schema: str | None = None) -> None:
        self.url = read_url(url)
        self.server = SERVERS[self.url.drivername.split("+")[0]](self.url, schema)
        self._columns = Kept(lambda: self._ask(self.server.columns), CATALOGUE_S)
        self._comments = Kept(lambda: self._ask(self.server.comments), CATALOGUE_S)
        self._rights: list[str] | None = None

    @property
    def name(self) -> str:
        """Which database it is, without user and password, the same however the URL is written."""
        url, kind = self.url, self.server.dialect
        if kind == "sqlite":
            name = f"sqlite:///{Path(url.database or '').resolve()}"
        else:
            port = url.port or {"mysql": 3306, "postgres": 5432}[kind]
            socket = url.query.get("unix_socket") or url.query.get("host")
            place = socket if socket and not url.host else f"{url.host or 'localhost'}:{port}"
            name = f"{kind}://{place}/{url.database}"
            if kind == "postgres":
                name += f"/{self.server.schema}"
        if len(name) > MAX_NAME_CHARS:
            name = f"{name[: MAX_NAME_CHARS - 17]}…{hashlib.sha256(name.encode()).hexdigest()[:16]}"
        return name

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

    def _ask(self, what: Callable[[Any], T]) -> T:
        """What the server tells of its tables. Raises the driver's errors."""
        with self.session(CATALOGUE_LIMIT_S) as connection:
            return what(connection)

    def columns(self) -> dict[str, list[ColumnInfo]]:
        """Tables and views with their columns, at most CATALOGUE_S old. Raises the driver's errors."""
        return self._columns.get()

    def columns_so_far(self) -> dict[str, list[ColumnInfo]]:
        """The same as they were when they were read last; none before that. Asks nobody."""
        return self._columns.last or {}

    def comments(self) -> dict[str, str]:
        """The comments of tables, likewise."""
        return self._comments.get()

    def structure(self) -> Structure:
        """All that describes the tables, as it is now. Raises the driver's errors."""
        return self._ask(self.server.structure)

    def forget_columns(self) -> None:
        """Have the columns read again: something was not as it was."""
        self._columns.forget()

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
