"""Load the sample shop into the private server, beside the conversations, with an account that may only read it.

Two accounts, never one: the server's administrator loads, the service asks as `shop_reader`, which has SELECT on this
database and nothing else.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterator
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

from dev.common import say
from dev.locks import file_lock
from dev.mariadb import PrivateServer, write_private
from dev.shop.rows import tables

if TYPE_CHECKING:
    from pymysql.cursors import Cursor

DATABASE, READER = "sample_shop", "shop_reader"
HERE = Path(__file__).resolve().parent
POLICY, NOTES, SCHEMA = HERE / "policy.toml", HERE / "notes.toml", HERE / "schema.sql"
ROWS_OF_ONE_INSERT = 500


def statements() -> Iterator[str]:
    """What fills an empty database."""
    lines = SCHEMA.read_text("utf-8").splitlines()
    yield from filter(None, map(str.strip, "\n".join(x for x in lines if not x.startswith("--")).split(";\n")))
    for table, rows in tables():
        for at in range(0, len(rows), ROWS_OF_ONE_INSERT):
            values = ",\n".join(f"({', '.join(map(literal, row))})" for row in rows[at : at + ROWS_OF_ONE_INSERT])
            yield f"INSERT INTO `{table}` VALUES\n{values}"


def literal(value: object) -> str:
    """A value in SQL; none of ours holds a quote or a backslash."""
    if value is None:
        return "NULL"
    return str(value) if isinstance(value, int | Decimal) else f"'{value}'"


def as_sql() -> str:
    """The whole sample as a script."""
    head = [f"CREATE DATABASE {DATABASE} CHARACTER SET utf8mb4", f"USE {DATABASE}", "SET NAMES utf8mb4"]
    return "".join(f"{statement};\n" for statement in [*head, *statements()])


def load(server: PrivateServer) -> str:
    """Have the sample there, and give the URL with which it can only be read. Does nothing that is done already."""
    file = server.folder / f"{DATABASE}.json"
    with file_lock(server.folder / f"{DATABASE}.lock", "Waiting for another run that loads the sample …"):
        noted = json.loads(file.read_text("utf-8")) if file.exists() else {}
        password = noted.get("password") or secrets.token_urlsafe(24)
        content = hashlib.sha256("\n".join(statements()).encode()).hexdigest()
        with closing(server.admin()) as connection, connection.cursor() as cursor:
            if noted.get("content") != content or not there(cursor):
                say(f"Loading the sample {DATABASE} …")
                fill(cursor)
            permit_reading(cursor, password)
        write_private(file, json.dumps({"password": password, "content": content}))
    return f"mysql://{READER}:{password}@127.0.0.1:{server.port}/{DATABASE}"


def there(cursor: Cursor) -> bool:
    """Whether all tables of the sample still are."""
    asked = "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = %s"
    cursor.execute(asked, (DATABASE,))
    return bool(cursor.fetchall()[0][0] == len(list(tables())))


def fill(cursor: Cursor) -> None:
    """Make the database anew."""
    cursor.execute(f"DROP DATABASE IF EXISTS {DATABASE}")
    cursor.execute(f"CREATE DATABASE {DATABASE} CHARACTER SET utf8mb4")
    cursor.execute(f"USE {DATABASE}")
    for statement in statements():
        cursor.execute(statement)


def permit_reading(cursor: Cursor, password: str) -> None:
    """The account that asks, with SELECT on the sample and no other right, whatever it had."""
    account = (READER, "127.0.0.1")
    cursor.execute("CREATE USER IF NOT EXISTS %s@%s", account)
    cursor.execute("ALTER USER %s@%s IDENTIFIED BY %s", (*account, password))
    cursor.execute("REVOKE ALL PRIVILEGES, GRANT OPTION FROM %s@%s", account)
    escaped = DATABASE.replace("_", r"\_")  # a bare _ would grant every database whose name fits the pattern
    cursor.execute(f"GRANT SELECT ON `{escaped}`.* TO %s@%s", account)
