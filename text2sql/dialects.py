"""The dialects as we read and write them: sqlglot's, but that reading ends, and that what is written runs.

sqlglot tries one reading after the other, nested ones again within each; some texts of a hundred characters would keep
it for years. Ours counts the steps. A statement that people write takes one or two for each word.
"""

from typing import Any, ClassVar

from sqlglot import Dialect, Token, exp
from sqlglot.dialects.mysql import MySQL
from sqlglot.dialects.postgres import Postgres
from sqlglot.dialects.sqlite import SQLite
from sqlglot.errors import SqlglotError
from sqlglot.generators.sqlite import SQLiteGenerator
from sqlglot.parser import Parser
from sqlglot.parsers.mysql import MySQLParser
from sqlglot.parsers.postgres import PostgresParser
from sqlglot.parsers.sqlite import SQLiteParser

from .refusal import Refused, dialect_hint, first_line, too_complex

MAX_STEPS = 16_000  # of one reading


class Counted(Parser):
    """A parser that gives up. Raises Refused."""

    steps = 0

    def _advance(self, times: int = 1) -> None:
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise too_complex("the statement takes too long to read")
        super()._advance(times)


class OurMySQL(MySQL):
    class Parser(Counted, MySQLParser):
        pass


class OurPostgres(Postgres):
    class Parser(Counted, PostgresParser):
        pass


class OurSQLite(SQLite):
    class Parser(Counted, SQLiteParser):
        pass

    class Generator(SQLiteGenerator):
        TRANSFORMS: ClassVar[dict[Any, Any]] = {
            **SQLiteGenerator.TRANSFORMS,
            exp.IntDiv: lambda self, node: self.binary(node, "DIV"),  # which SQLite does not have
        }


DIALECTS: dict[str, type[Dialect]] = {"mysql": OurMySQL, "postgres": OurPostgres, "sqlite": OurSQLite}


def words(sql: str, dialect: str) -> list[Token]:
    """The tokens of a text. Raises Refused."""
    try:
        return DIALECTS[dialect]().tokenize(sql)
    except Exception as error:
        raise not_sql(error, sql, dialect) from None


def read(sql: str, dialect: str) -> list[exp.Expr | None]:
    """The trees of a text; sqlglot fails in many ways at what it does not know. Raises Refused."""
    try:
        return DIALECTS[dialect]().parse(sql)
    except (Refused, RecursionError):
        raise
    except Exception as error:
        raise not_sql(error, sql, dialect) from None


def write(tree: exp.Expr, dialect: str) -> str:
    """The text of a tree, without comments. Raises Refused."""
    try:
        return tree.sql(dialect=DIALECTS[dialect], comments=False, copy=True)
    except RecursionError:
        raise
    except Exception as error:
        raise not_sql(error, "", dialect) from None


def not_sql(error: Exception, sql: str, dialect: str) -> Refused:
    """The refusal of a text that sqlglot does not understand."""
    what = first_line(error) if isinstance(error, SqlglotError) else "a part of it cannot be understood"
    return Refused("syntax", f"this is not {dialect} SQL: {what}", dialect_hint(sql, dialect))
