"""The tables, made or brought up to date: schema.sql for an empty database, migrations/NNNN_*.sql for an older one."""

import contextlib
import hashlib
import logging
import re
from pathlib import Path

import pymysql
from pymysql.cursors import Cursor

from db import Database, error_number
from errors import ConfigError, StoreUnavailable

log = logging.getLogger(__name__)
HERE = Path(__file__).resolve().parent

MIGRATION_TIMEOUT_S = 3600.0  # changing a large table takes long
# What a change says that was made before: the table, column, key or constraint (1826, 3822) is there; the column or
# key, the table, the constraint (3821, 3940) is not there to be dropped. Changes that say anything else cannot be used.
DONE_ALREADY = {1050, 1060, 1061, 1826, 3822, 1091, 1051, 3821, 3940}


def migrations() -> dict[int, Path]:
    """The numbered files: {1: …/migrations/0001_….sql, …} in order."""
    return {int(file.name[:4]): file for file in sorted((HERE / "migrations").glob("[0-9]*.sql"))}


def statements_of(file: Path) -> list[str]:
    """The statements of one of our SQL files: comment lines fall away, each statement ends a line with `;`."""
    lines = [line for line in file.read_text(encoding="utf-8").splitlines() if not line.startswith("--")]
    return [text.strip() for text in re.split(r";$", "\n".join(lines), flags=re.MULTILINE) if text.strip()]


def schema_version(database: Database) -> int:
    """The newest migration this database has had; 0 where there is none of our tables."""
    try:
        rows = database.read("SELECT MAX(version) FROM schema_migrations WHERE applied_at IS NOT NULL")
    except pymysql.err.ProgrammingError as error:
        if error_number(error) == 1146:  # no such table
            return 0
        raise
    return int(rows[0][0] or 0)


def migrate(database: Database) -> list[int]:
    """Make or bring up to date the tables; the versions applied now. However many start it together, it is done once.

    An empty database gets schema.sql, an older one the migrations it lacks. Broken off, it goes on where it stopped:
    the server commits each change of a table by itself, so each is counted. Raises ConfigError, StoreUnavailable.
    """
    with contextlib.closing(database.connect(MIGRATION_TIMEOUT_S)) as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION lock_wait_timeout=60")
        name = "turnkeeper-" + hashlib.sha256(database.settings.db_name.encode()).hexdigest()[:32]
        cursor.execute("SELECT GET_LOCK(%s, 120)", (name,))
        if cursor.fetchone() != (1,):
            log.error("another process has been changing the schema for two minutes")
            raise StoreUnavailable
        before = applied(cursor)
        if not before:
            for statement in statements_of(HERE / "schema.sql"):
                cursor.execute(statement)
            return sorted(applied(cursor))
        for version, file in migrations().items():
            apply(cursor, version, file, *before.get(version, (None, 0, False)))
        return sorted(applied(cursor).keys() - {version for version, row in before.items() if row[2]})


def applied(cursor: Cursor) -> dict[int, tuple[str | None, int, bool]]:
    """What the database has had: {version: (checksum, statements carried out, finished)}."""
    cursor.execute("SHOW TABLES LIKE 'schema_migrations'")
    if not cursor.fetchone():
        return {}
    cursor.execute("SELECT version, checksum, statements, applied_at IS NOT NULL FROM schema_migrations")
    return {version: (checksum, done, bool(finished)) for version, checksum, done, finished in cursor.fetchall()}


def apply(cursor: Cursor, version: int, file: Path, checksum: str | None, done: int, finished: bool) -> None:
    """Carry out what is left of one migration file, counting each statement."""
    now = hashlib.sha256(file.read_bytes()).hexdigest()
    if checksum not in (None, now):
        raise ConfigError(f"{file.name} was changed after it was applied; restore it and add a new migration instead")
    if finished:
        return
    cursor.execute("INSERT IGNORE INTO schema_migrations (version, checksum) VALUES (%s, %s)", (version, now))
    for number, statement in enumerate(statements_of(file), 1):
        if number <= done:
            continue
        try:
            cursor.execute(statement)
        except pymysql.Error as error:
            # Broken off between a change and its count: the change is there.
            if error_number(error) not in DONE_ALREADY:
                raise
        cursor.execute("UPDATE schema_migrations SET statements = %s WHERE version = %s", (number, version))
    cursor.execute("UPDATE schema_migrations SET applied_at = NOW(6) WHERE version = %s", (version,))
    log.info("migration %s applied", file.name)
