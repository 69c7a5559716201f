"""A small shell for SQL, for machines without the client of MariaDB or MySQL."""

from __future__ import annotations

import re
import sys
import time
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import pymysql

from dev.common import DevError, say
from dev.mariadb import DATABASE

HELP = "Statements end with ; and may take several lines. Ctrl-D or exit leaves."
WIDEST_CELL = 100  # columns of the terminal
DROP = "\0"  # in place of a line: forget what was typed so far
# Quoted text, closed or not yet; a comment; the end of a statement; anything else.
PIECE = re.compile(r"""'(?:[^'\\]|\\.)*'?|"(?:[^"\\]|\\.)*"?|`[^`]*`?|(?:#|--\s)[^\n]*|;|[^'"`;#-]+|.""", re.DOTALL)


def main(settings: Mapping[str, str]) -> int:
    """Read statements from stdin and print what they return. Exit status 1 if one of them failed and nobody watches."""
    try:
        connection = connect(settings)
    except pymysql.Error as error:
        raise DevError(f"the database does not let us in: {error}") from error
    interactive = sys.stdin.isatty()
    if interactive:
        print(HELP)
        enable_line_editing()
    failed = False
    with closing(connection):
        for statement in statements(lines(interactive)):
            failed = not execute(connection, statement) or failed
    return int(failed and not interactive)


def connect(settings: Mapping[str, str]) -> pymysql.Connection[Any]:
    """As the application's account, each statement its own transaction."""
    return pymysql.connect(
        host=settings.get("DB_HOST") or "127.0.0.1",
        port=int(settings.get("DB_PORT") or 3306),
        unix_socket=settings.get("DB_SOCKET") or None,
        user=settings.get("DB_USER") or "root",
        password=settings.get("DB_PASSWORD", ""),
        database=settings.get("DB_NAME") or DATABASE,
        charset="utf8mb4",
        autocommit=True,
    )


def enable_line_editing() -> None:
    """Arrow keys and history, where Python has them."""
    try:
        import readline  # noqa: F401  (importing it changes `input`)
    except ImportError:
        pass


def lines(interactive: bool) -> Iterator[str]:
    """What is typed or piped in, until its end; Ctrl-C drops what was typed so far."""
    if not interactive:
        yield from sys.stdin
        return
    prompt = "sql> "
    while True:
        try:
            line = input(prompt)
        except KeyboardInterrupt:
            print()
            yield DROP
            continue
        except EOFError:
            print()
            return
        if line.strip().rstrip(";").lower() in ("exit", "quit", r"\q"):
            return
        yield line + "\n"


def statements(source: Iterator[str]) -> Iterator[str]:
    """Whole statements without their `;`, and at the end of the input what is left. DROP drops what is unfinished."""
    text = ""
    for line in source:
        text = "" if line == DROP else text + line
        while (end := end_of_statement(text)) is not None:
            if text[:end].strip():
                yield text[:end].strip()
            text = text[end + 1 :]
    if text.strip():
        yield text.strip()


def end_of_statement(text: str) -> int | None:
    """Where the first `;` is that stands neither in quotes nor in a comment."""
    return next((piece.start() for piece in PIECE.finditer(text) if piece[0] == ";"), None)


def execute(connection: pymysql.Connection[Any], statement: str) -> bool:
    """Run one statement and print its rows or the error. Whether it succeeded."""
    started = time.monotonic()
    try:
        with connection.cursor() as cursor:
            count = cursor.execute(statement)
            took = f"{time.monotonic() - started:.3f} s"
            if cursor.description is None:
                print(f"{count} rows affected, {took}\n")
                return True
            print(as_table([column[0] for column in cursor.description], cursor.fetchall()))
            print(f"{count} rows, {took}\n")
            return True
    except pymysql.Error as error:
        say(f"ERROR {': '.join(str(part) for part in error.args)}\n")
        return False


def as_table(names: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns under their names, numbers to the right, as wide as their widest cell."""
    grid = [list(names), *([as_cell(value) for value in row] for row in rows)]
    widths = [max(width(row[column]) for row in grid) for column in range(len(names))]
    numeric = [all(isinstance(row[column], int | float | None) for row in rows) for column in range(len(names))]

    def line(cells: Sequence[str]) -> str:
        padded = (
            " " * (widths[i] - width(cell)) + cell if numeric[i] else cell + " " * (widths[i] - width(cell))
            for i, cell in enumerate(cells)
        )
        return " | ".join(padded).rstrip()

    rule = "-+-".join("-" * size for size in widths)
    return "\n".join([line(grid[0]), rule, *(line(cells) for cells in grid[1:])])


def as_cell(value: object) -> str:
    """One value on one line, cut where it would push the rest off the screen."""
    if value is None:
        return "NULL"
    text = value.hex() if isinstance(value, bytes) else str(value)
    text = "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)
    if width(text) <= WIDEST_CELL:
        return text
    kept = ""
    for character in text:
        if width(kept) + width(character) > WIDEST_CELL - 1:
            break
        kept += character
    return kept + "…"


def width(text: str) -> int:
    """Columns that a terminal needs: two for a Chinese character, none for an accent that is its own character."""
    return sum(
        0 if unicodedata.combining(character) else 2 if unicodedata.east_asian_width(character) in "WF" else 1
        for character in text
    )
