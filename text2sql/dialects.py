"""The dialects as we read and write them: sqlglot's, but that reading ends, and that what is written runs.

sqlglot tries one reading after the other, nested ones again within each; some texts of a hundred characters would keep
it for years. Ours counts the steps. A statement that people write takes one or two for each word. Writing is counted
likewise: what a dialect lacks sqlglot spells out, and says some part of it twice, nested ones again within each.
"""

from typing import Any, ClassVar

from sqlglot import Dialect, Token, TokenType, exp
from sqlglot.dialects.mysql import MySQL
from sqlglot.dialects.postgres import Postgres
from sqlglot.dialects.sqlite import SQLite
from sqlglot.errors import ErrorLevel, SqlglotError
from sqlglot.generator import Generator
from sqlglot.generators.mysql import MySQLGenerator
from sqlglot.generators.postgres import PostgresGenerator
from sqlglot.generators.sqlite import SQLiteGenerator
from sqlglot.parser import Parser
from sqlglot.parsers.mysql import MySQLParser
from sqlglot.parsers.postgres import PostgresParser
from sqlglot.parsers.sqlite import SQLiteParser

from .refusal import Refused, dialect_hint, first_line, too_complex

TEXTS = {TokenType.STRING, TokenType.NATIONAL_STRING, TokenType.BYTE_STRING, TokenType.NUMBER}
MAX_STEPS = 16_000  # of one reading
MAX_WRITTEN, MAX_WRITTEN_CHARS = 50_000, 20_000_000  # parts of one writing, and the characters of all of them

Table = dict[Any, Any]  # as sqlglot keeps what it does with each name or node
LOOSE = (exp.Binary, exp.Not, exp.Between, exp.In)  # stands in brackets beside an operator
BESIDE = (exp.Binary, exp.Unary, exp.Between, exp.In, exp.Escape, exp.Collate)  # where NOT would take in too much
BINDING_MORE = (exp.LT, exp.LTE, exp.GT, exp.GTE)  # than IN, in SQLite
AROUND = (exp.Paren, exp.And, exp.Or, exp.Not, exp.Where, exp.Having, exp.Join, exp.Alias, exp.Select)

SQLITE_TYPES = frozenset(
    """
    INT INTEGER TINYINT SMALLINT MEDIUMINT BIGINT UNSIGNED SIGNED BIG INT2 INT8 CHAR CHARACTER VARCHAR VARYING NATIVE
    NCHAR NVARCHAR TEXT CLOB STRING BLOB BINARY VARBINARY REAL DOUBLE PRECISION FLOAT NUMERIC NUMBER DECIMAL BOOLEAN
    DATE DATETIME TIMESTAMP TIME
    """.split()
)
AFFINITIES = {"INT": "INT", "CHAR": "TEXT", "CLOB": "TEXT", "TEXT": "TEXT", "BLOB": "BLOB"} | dict.fromkeys(
    ("REAL", "FLOA", "DOUB"), "DOUBLE"
)

FLAGS = {"i": "(?i)", "c": "(?-i)"}  # of REGEXP_LIKE, and in the pattern itself


class Counted(Parser):
    """A parser that gives up. Raises Refused."""

    steps = 0

    def _advance(self, times: int = 1) -> None:
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise too_complex("the statement takes too long to read")
        super()._advance(times)


class Measured(Generator):
    """A generator that gives up. Raises Refused."""

    written = chars = 0

    def sql(self, expression: str | exp.Expr | None, key: str | None = None, comment: bool = True) -> str:
        text = super().sql(expression, key, comment)
        self.written, self.chars = self.written + 1, self.chars + len(text)
        if self.written > MAX_WRITTEN or self.chars > MAX_WRITTEN_CHARS:
            raise too_complex("the statement becomes too long when it is written for this server")
        return text

    def not_sql(self, expression: exp.Not) -> str:
        """In brackets beside an operator: `1 = x NOT IN (2)` is read as `1 = (NOT x IN (2))`, and NOT binds less."""
        text = super().not_sql(expression)
        return f"({text})" if is_beside(expression) else text

    def bitwisenot_sql(self, expression: exp.BitwiseNot) -> str:
        return self.before("~", expression)

    def neg_sql(self, expression: exp.Neg) -> str:
        return self.before("-", expression)

    def before(self, sign: str, node: exp.Unary) -> str:
        """A sign before something: PostgreSQL takes `~-` for an operator of its own, and -- begins a comment."""
        text = self.sql(node, "this")
        return f"{sign} {text}" if text.startswith(("-", "~")) else f"{sign}{text}"


def is_beside(node: exp.Expr) -> bool:
    """Whether a node without brackets stands beside an operator that is neither AND, OR nor NOT."""
    return isinstance(node.parent, BESIDE) and not isinstance(node.parent, (exp.Connector, exp.Not, exp.Paren))


def without(functions: Table, names: str) -> Table:
    """A parser's functions without some: these are taken as they stand, and judged by name."""
    return {name: build for name, build in functions.items() if name not in names.split()}


class MySQLAsWritten(MySQL):
    """What MySQL and MariaDB both understand."""

    class Parser(Counted, MySQLParser):
        FUNCTIONS: ClassVar[Table] = without(
            MySQLParser.FUNCTIONS,
            "LOG10 LOG2 CONVERT_TZ MEDIAN TO_DAYS UTC_DATE UTC_TIME UTC_TIMESTAMP "
            "JSON_SET JSON_REMOVE JSON_ARRAY_APPEND JSON_ARRAY_INSERT",
        )
        FUNCTION_PARSERS: ClassVar[Table] = {
            **MySQLParser.FUNCTION_PARSERS,
            "GET_FORMAT": lambda self: self._parse_get_format(),
        }
        LAMBDAS: ClassVar[Table] = {}

        def _parse_get_format(self) -> exp.Expr:
            """GET_FORMAT(DATE, 'USA'): the first is a word."""
            word = self._parse_var(any_token=True, upper=True)
            self._match(TokenType.COMMA)
            return exp.Anonymous(this="GET_FORMAT", expressions=[word, self._parse_disjunction()])

        def _parse_interval(self, require_interval: bool = True, parse_function_unit: bool = True) -> Any:
            """INTERVAL(x, 1, 2), which is a function, beside INTERVAL 1 DAY."""
            index = self._index
            if self._match(TokenType.INTERVAL) and self._match(TokenType.L_PAREN):
                given = self._parse_csv(self._parse_disjunction)
                if len(given) > 1 and self._match(TokenType.R_PAREN):
                    return exp.Anonymous(this="INTERVAL", expressions=given)
            self._retreat(index)
            return super()._parse_interval(require_interval, parse_function_unit)

    class Generator(Measured, MySQLGenerator):
        TRANSFORMS: ClassVar[Table] = {
            **MySQLGenerator.TRANSFORMS,
            exp.JSONExtractScalar: lambda self, node: self.func(  # MariaDB has no ->> either
                "JSON_UNQUOTE", self.func("JSON_EXTRACT", node.this, node.expression)
            ),
            exp.RegexpLike: lambda self, node: self.regexp(node),
        }

        def regexp(self, node: exp.RegexpLike) -> str:
            """`x REGEXP y`, for MariaDB has no REGEXP_LIKE; in brackets wherever it was a function's call."""
            flag, pattern = node.args.get("flag"), node.expression
            if flag and flag.name not in FLAGS:
                return self.func("REGEXP_LIKE", node.this, pattern, flag)
            if flag:
                pattern = exp.Concat(expressions=[exp.Literal.string(FLAGS[flag.name]), pattern.copy()])
            left, right = (
                f"({self.sql(side)})" if isinstance(side, LOOSE) else self.sql(side) for side in (node.this, pattern)
            )
            text = f"{left} REGEXP {right}"
            return text if isinstance(node.parent, AROUND) else f"({text})"


class PostgresAsWritten(Postgres):
    class Parser(Counted, PostgresParser):
        FUNCTIONS: ClassVar[Table] = {
            **without(
                PostgresParser.FUNCTIONS,
                "TO_HEX LOG10 DATE_PART REGEXP_LIKE SHA224 SHA256 SHA384 SHA512 JSONB_SET JSONB_PRETTY",
            ),
            "ALL": lambda args: exp.All(this=args[0]),
        }
        FUNCTION_PARSERS: ClassVar[Table] = without(PostgresParser.FUNCTION_PARSERS, "DATE_PART")
        PLACEHOLDER_PARSERS: ClassVar[Table] = {
            **PostgresParser.PLACEHOLDER_PARSERS,
            TokenType.PARAMETER: lambda self: exp.Abs(this=self._parse_term()),  # @ -5
        }
        LAMBDAS: ClassVar[Table] = {TokenType.FARROW: PostgresParser.LAMBDAS[TokenType.FARROW]}

        def _parse_unnest(self, with_alias: bool = True) -> exp.Unnest | None:
            """WITH ORDINALITY AS t(x, n): the last name is a column like others."""
            node = super()._parse_unnest(with_alias)
            alias = node.args.get("alias") if node else None
            if node and alias and isinstance(number := node.args.get("offset"), exp.Identifier):
                alias.append("columns", number)
                node.set("offset", True)
            return node

    class Generator(Measured, PostgresGenerator):
        pass


class SQLiteAsWritten(SQLite):
    class Parser(Counted, SQLiteParser):
        FUNCTIONS: ClassVar[Table] = without(
            SQLiteParser.FUNCTIONS, "LOG10 LOG2 JSON_SET JSON_REMOVE JSON_INSERT JSON_REPLACE"
        )
        FUNCTION_PARSERS: ClassVar[Table] = {
            **SQLiteParser.FUNCTION_PARSERS,
            "CAST": lambda self: self._parse_cast_as_written(),
        }
        LAMBDAS: ClassVar[Table] = {}
        JOINS_HAVE_EQUAL_PRECEDENCE = False  # with it a comma became CROSS JOIN, which keeps SQLite from reordering

        def _parse_cast_as_written(self) -> exp.Expr:
            """CAST(x AS type): SQLite takes any words for a type, and other ones give other values."""
            value = self._parse_disjunction()
            if not self._match(TokenType.ALIAS):
                self.raise_error("Expected AS after CAST")
            names, sizes = [], []
            while self._curr and self._curr.text.upper() in SQLITE_TYPES:
                names.append(self._curr.text.upper())
                self._advance()
            if not names:
                return self.expression(exp.Cast(this=value, to=self._parse_types()))
            if self._match(TokenType.L_PAREN):
                sizes = self._parse_csv(self._parse_number)
                self._match_r_paren()
            name = " ".join(names)
            written = f"{name}({', '.join(size.name for size in sizes)})" if sizes else name
            affinity = next((kind for part, kind in AFFINITIES.items() if part in name), "DECIMAL")
            kind = exp.DataType(this=exp.DType[affinity], kind=exp.Var(this=written))
            return self.expression(exp.Cast(this=value, to=kind))

        def _parse_term(self, parse_mod: bool = True) -> exp.Expr | None:
            return super()._parse_term()  # in LIMIT too, where some write 10 % for a share of the rows

    class Generator(Measured, SQLiteGenerator):
        TRANSFORMS: ClassVar[Table] = {
            **SQLiteGenerator.TRANSFORMS,
            exp.IntDiv: lambda self, node: self.binary(node, "DIV"),  # which SQLite does not have
        }

        def not_sql(self, expression: exp.Not) -> str:
            """SQLite reads `1 = x NOT IN (2)` from the left, and `x NOT BETWEEN 1 AND 2 < 3` from the right."""
            around = expression.parent
            if is_beside(expression) and isinstance(around, (exp.Binary, exp.Unary)):
                on_the_right = isinstance(around, exp.Unary) or around.expression is expression
                if on_the_right or isinstance(around, BINDING_MORE):
                    reason = "NOT, and NOT IN and the like, need brackets beside an operator"
                    raise Refused("syntax", reason, "Write (x NOT IN …), or (NOT x).")
            return super().not_sql(expression)

        def datatype_sql(self, expression: exp.DataType) -> str:
            kind = expression.args.get("kind")
            return kind.name if isinstance(kind, exp.Var) else super().datatype_sql(expression)


DIALECTS: dict[str, type[Dialect]] = {
    "mysql": MySQLAsWritten,
    "postgres": PostgresAsWritten,
    "sqlite": SQLiteAsWritten,
}


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
        return tree.sql(dialect=DIALECTS[dialect], comments=False, copy=True, unsupported_level=ErrorLevel.RAISE)
    except (Refused, RecursionError):
        raise
    except Exception as error:
        raise not_sql(error, "", dialect) from None


def not_sql(error: Exception, sql: str, dialect: str) -> Refused:
    """The refusal of a text that sqlglot does not understand."""
    what = first_line(error) if isinstance(error, SqlglotError) else "a part of it cannot be understood"
    return Refused("syntax", f"this is not {dialect} SQL: {what}", dialect_hint(sql, dialect))
