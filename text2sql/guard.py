"""The guard: may this statement run, and as which text?

The text is parsed; everything in the tree has to be on a list (allowed.py) and every table and column is looked up in
the policy, through aliases, subqueries, CTEs and stars. What runs is written anew from the checked tree, so that the
server reads exactly what was judged here. The guard is the first of three barriers: the session is read-only and the
account should have no right to write (database.py).
"""

import logging
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import sqlglot
from sqlglot import TokenType, exp

from .allowed import CHARSETS, FUNCTIONS, NAMED, NODES, PARTS, TYPES
from .bounds import check_texts
from .dialects import read, words, write
from .policy import Policy, Readable, near
from .refusal import Refused as Refused
from .refusal import dialect_hint, too_complex

MAX_SQL_CHARS = 20_000
MAX_NODES = 5_000
MAX_TOKENS = 8_000
MAX_DEPTH, MAX_BRACKETS = 60, 6  # of (…) and of […]
CTE_NAME = re.compile(r"^cte\d+_")  # what a CTE is called in text that was written here before
MAX_SUBSCRIPTS = 60  # each copies all that stands before it
CATALOGS = frozenset("information_schema performance_schema mysql sys pg_catalog pg_toast sqlite_master".split())
logging.getLogger("sqlglot").setLevel(logging.ERROR)  # it warns of what is refused here anyway
TEXTS = {TokenType.STRING, TokenType.NATIONAL_STRING, TokenType.BYTE_STRING, TokenType.NUMBER}
NAMES = {TokenType.IDENTIFIER, TokenType.VAR}
CONTROL = {chr(code) for code in (*range(32), 127)} - set("\t\n\r")


@dataclass(frozen=True)
class Checked:
    """A statement that may run. sql: the text to run. tables: what it reads."""

    sql: str
    tables: tuple[str, ...]


Origin = tuple[str, str]  # the table and the (casefolded) column that a value comes from unchanged
Outputs = dict[str, Origin | None]  # the columns of a query, casefolded


@dataclass
class Source:
    """What stands in a FROM. table: None for anything but a real table. outputs: None where they are not known."""

    name: str
    table: Readable | None = None
    outputs: Outputs | None = None
    tables: frozenset[str] = frozenset()  # real tables behind it

    @property
    def partial(self) -> bool:
        return self.table is not None and self.table.partial

    @property
    def is_open(self) -> bool:
        """It may have columns whose names are not known; all of them may be read where it is no table."""
        if self.outputs is None:
            return True
        return self.table is None and any(name.startswith(UNNAMED) for name in self.outputs)

    def has(self, name: str) -> bool:
        """Whether it is known to have a column of this name that may be read."""
        return name.casefold() in (self.outputs or ())

    def hides(self, name: str) -> bool:
        """Whether a server might take the name for a hidden column: MySQL takes İ for i."""
        if self.table is None or not self.table.hidden:
            return False
        hidden = self.table.hidden
        return name.casefold() in hidden or (not self.has(name) and alike(name) in {alike(other) for other in hidden})


@dataclass
class Scope:
    """The sources that the names of one SELECT can mean, and the names that it gives itself.

    part: the clause that is being checked. merged: what USING and NATURAL make one column of. outer: the sources of
    queries around it that it speaks of.
    """

    sources: list[Source] = field(default_factory=list)
    aliases: set[str] = field(default_factory=set)
    part: str = ""
    merged: set[str] = field(default_factory=set)
    outer: list[Source] = field(default_factory=list)


@dataclass(frozen=True)
class Cte:
    """A query with a name. new_name: what it is called in the text that runs, so that no table can be meant."""

    new_name: str
    outputs: Outputs | None
    tables: frozenset[str]


Chain = tuple[Scope, ...]  # innermost first
Known = dict[str, Cte]

UNNAMED = "\n"  # begins the name of a column that has none
# Columns that every table has although nobody made them.
PSEUDO = {
    "mysql": frozenset({"_rowid"}),
    "postgres": frozenset("ctid oid xmin xmax cmin cmax tableoid".split()),
    "sqlite": frozenset({"rowid", "_rowid_", "oid"}),
}
# The clauses in which a name of the SELECT list stands for its item.
ALIAS_PARTS = dict.fromkeys(PSEUDO, {"group", "having", "order", "distinct"})
ALIAS_PARTS["sqlite"] = ALIAS_PARTS["sqlite"] | {"where"}


def alike(name: str) -> str:
    """A name without case and accents: the same for names that some server could take for one."""
    plain = unicodedata.normalize("NFKD", name)
    return "".join(character for character in plain if not unicodedata.combining(character)).casefold()


def check_statement(sql: str, policy: Policy, dialect: str) -> Checked:
    """The statement that may run in place of `sql`. dialect: mysql, postgres or sqlite. Raises Refused."""
    try:
        tree, text = parse(sql, dialect), ""
        for _ in range(3):
            check_nodes(tree, policy, dialect)
            check = Check(policy, dialect)
            check.query(tree, (), {})
            if write(tree, dialect) == text:
                check.no_hidden_words(text, tree)
                check_nothing_lost(sql, text, dialect)
                check_texts(tree, dialect)
                return Checked(text, tuple(sorted(check.tables)))
            text, tree = written_plainly(tree, dialect)  # it may say more than the tree before: that is judged too
    except RecursionError:
        raise too_complex("the statement is nested too deeply") from None
    raise not_in_one_way()


def not_in_one_way() -> Refused:
    return Refused("syntax", "the statement cannot be written down in one way only", "Write it more simply.")


def written_plainly(tree: exp.Expr, dialect: str) -> tuple[str, exp.Expr]:
    """The text of a tree that says the same when it is read and written again, and its tree. Raises Refused."""
    text = write(tree, dialect)
    for _ in range(3):
        again = read(text, dialect)
        if len(again) != 1 or again[0] is None:
            break
        if (same := write(again[0], dialect)) == text:
            return text, again[0]
        text = same
    raise not_in_one_way()


def check_nothing_lost(sql: str, text: str, dialect: str) -> None:
    """No text or number was left out, as sqlglot does with some that it does not expect. Raises Refused."""
    given = [token for token in words(unfenced(sql), dialect) if token.token_type in TEXTS]
    written = words(text, dialect)
    kept = "\n".join(token.text for token in written if token.token_type in (*TEXTS, *NAMES)).casefold()
    lost = [token.text for token in given if token.text.casefold() not in kept]
    if lost and len(given) > sum(token.token_type in TEXTS for token in written):
        raise Refused("syntax", f"{lost[0][:60]!r} stands where it means nothing", dialect_hint(sql, dialect))


def parse(sql: str, dialect: str) -> exp.Expr:
    """The tree of exactly one query. Raises Refused."""
    sql = unfenced(sql)
    if len(sql) > MAX_SQL_CHARS:
        raise Refused("too_complex", f"the statement has more than {MAX_SQL_CHARS} characters")
    if "/*!" in sql or re.search(r"/\*M!", sql, re.I):
        raise Refused("executable_comment", "comments that the server executes are not allowed", "Leave the comment.")
    if CONTROL & set(sql) or any("\ud800" <= character <= "\udfff" for character in sql):
        raise Refused("syntax", "the statement holds control characters")
    if dialect == "mysql" and re.search(r'\b(FROM|JOIN)\s+"', sql, re.I):
        raise Refused("syntax", "a string stands where a table should", dialect_hint('"', dialect))
    check_depth(sql, dialect)
    trees = [tree for tree in read(sql, dialect) if tree is not None and not is_nothing(tree)]
    if not trees:
        raise Refused("empty", "there is no statement", "Send one SELECT.")
    if len(trees) > 1:
        raise Refused("several_statements", f"there are {len(trees)} statements; one is allowed", "Send one SELECT.")
    tree = trees[0]
    if not isinstance(tree, exp.Query) or isinstance(tree, exp.Table):
        raise Refused("not_select", f"only SELECT is allowed, this is {tree.key.upper()}", "Send one SELECT.")
    return tree


def unfenced(sql: str) -> str:
    """What stands in a Markdown fence, where the text is one."""
    text = sql.strip()
    if len(text) < 6 or not (text.startswith("```") and text.endswith("```")):
        return sql
    word, newline, inside = text[3:-3].partition("\n")
    word = word.strip()
    return inside.strip() if newline and (not word or (word.isascii() and word.isalnum())) else sql


def check_depth(sql: str, dialect: str) -> None:
    """Nothing is nested so deeply, or so long, that reading it takes for ever. Raises Refused."""
    depth, subscripts = {"(": 0, "[": 0}, 0
    tokens = words(sql, dialect)
    if len(tokens) > MAX_TOKENS:
        raise too_complex("the statement is too long")
    for token in tokens:
        if token.text in depth and token.token_type != TokenType.STRING:
            depth[token.text] += 1
            subscripts += token.text == "["
        elif token.text in (")", "]") and token.token_type != TokenType.STRING:
            depth["(" if token.text == ")" else "["] -= 1
        if depth["("] > MAX_DEPTH or depth["["] > MAX_BRACKETS or subscripts > MAX_SUBSCRIPTS:
            raise too_complex("the statement is nested too deeply")


def is_nothing(tree: exp.Expr) -> bool:
    """A lone semicolon, perhaps with a comment."""
    return isinstance(tree, exp.Semicolon)


# ---------------------------------------------------------------------------------------- what it is made of


def check_nodes(tree: exp.Expr, policy: Policy, dialect: str) -> None:
    """Every node, part, function and type is on its list. Takes hints to the optimizer out. Raises Refused."""
    more = {name.casefold() for name in policy.file.functions}
    for count, node in enumerate(tree.walk()):
        if count > MAX_NODES:
            raise too_complex("the statement is too long")
        kind = type(node).__name__
        if isinstance(node, exp.Select):
            node.set("hint", None)
            node.set("operation_modifiers", None)
        if isinstance(node, exp.Anonymous):
            check_named(node, more, dialect)
        elif isinstance(node, exp.Func) and kind not in NODES:
            if kind not in FUNCTIONS and not any(name.casefold() in more for name in node.sql_names()):
                raise Refused("function_not_allowed", f"the function {node.sql_name()} is not allowed")
        elif kind not in NODES:
            raise Refused("structure_not_allowed", f"{kind} is not allowed in a statement", "Send one plain SELECT.")
        check_parts(node, kind)
        if isinstance(node, exp.DataType) and not is_listed(node):
            raise Refused("type_not_allowed", f"the type {node.sql(dialect)[:40]} is not allowed")
        if isinstance(node, exp.ByteString):
            plain_string(node, dialect)
        elif isinstance(node, (exp.Literal, exp.Identifier)) and "\0" in node.name:
            raise Refused("syntax", "the statement holds control characters")


def is_listed(node: exp.DataType) -> bool:
    """Whether a type, or the character set of a text, is on its list."""
    if node.this == exp.DType.CHARACTER_SET:
        return isinstance(kind := node.args.get("kind"), exp.Var) and kind.name.lower() in CHARSETS
    return node.this.name in TYPES


def check_named(node: exp.Anonymous, more: set[str], dialect: str) -> None:
    """A function that is judged by its name. Raises Refused."""
    name = node.name.casefold()
    quoted = isinstance(node.this, exp.Identifier) and node.this.args.get("quoted")
    if quoted or (name not in NAMED[dialect] and name not in more):
        hint = dialect_hint(node.name + "(", dialect)
        raise Refused("function_not_allowed", f"the function {node.name[:60]} is not allowed", hint)


def check_parts(node: exp.Expr, kind: str) -> None:
    """A node has no part beyond those on its list. Raises Refused."""
    parts = PARTS.get(kind)
    if parts is None:
        return
    for part, value in node.args.items():
        if value and part not in parts:
            words = {"into": "INTO", "locks": "FOR UPDATE and FOR SHARE"}
            raise Refused("structure_not_allowed", f"{words.get(part, part)} is not allowed in a statement")


def plain_string(node: exp.ByteString, dialect: str) -> None:
    """PostgreSQL's E'…' as a plain string. Raises Refused for one that has no plain form."""
    text = str(node.this)
    if dialect != "postgres" or "\\" in text:
        raise Refused("structure_not_allowed", "strings with escapes are not allowed", "Write a plain 'string'.")
    node.replace(exp.Literal.string(text))


# ---------------------------------------------------------------------------------------- what its names mean


class Check:
    """Looks up every table and column of one statement, and writes tables down so that only they can be meant."""

    def __init__(self, policy: Policy, dialect: str) -> None:
        self.policy, self.dialect = policy, dialect
        self.schema = policy.file.schema_name or {"postgres": "public", "sqlite": "main"}.get(dialect)
        self.joins = policy.joins
        self.tables: set[str] = set()
        self.reading: frozenset[str] = frozenset()  # what the query under way reads, subqueries included
        self.found: dict[int, tuple[Outputs | None, frozenset[str]]] = {}  # of subqueries, by the id of their node
        self.ctes = 0

    def name(self, node: Any) -> str:
        """An identifier as the server takes it."""
        if self.dialect == "postgres" and isinstance(node, exp.Identifier) and not node.args.get("quoted"):
            return node.name.translate(LOWER)
        return str(node.name)

    def no_hidden_words(self, text: str, tree: exp.Expr) -> None:
        """No hidden column's name stands in the text other than as a name that was looked up. Raises Refused."""
        hidden = {column for table in self.tables for column in self.policy.readable(table).hidden}
        if not hidden:
            return
        said = Counter(
            token.text.casefold()
            for token in sqlglot.tokenize(text, read=self.dialect)
            if token.token_type not in TEXTS
        )
        looked_up = Counter(name.name.casefold() for name in tree.find_all(exp.Identifier))
        for column in hidden:
            if said[column] > looked_up[column]:
                raise self.no_column(column, [])

    # ------------------------------------------------------------------ queries

    def query(self, node: exp.Expr, chain: Chain, known: Known) -> Outputs | None:
        """Check a query; its columns, None where they are not known."""
        known = self.with_ctes(node, chain, known)
        if isinstance(node, exp.Select):
            return self.select(node, chain, known)
        if isinstance(node, exp.SetOperation):
            outputs = self.query(node.this, chain, known)
            self.query(node.expression, chain, known)
        elif isinstance(node, exp.Subquery):
            if node.args.get("order") and isinstance(node.unnest(), exp.Select):
                # Servers take it for the SELECT's own: it would see all columns of its tables.
                raise Refused(
                    "structure_not_allowed", "ORDER BY behind brackets is not allowed", "Put it inside the brackets."
                )
            outputs = self.query(node.this, chain, known)
        elif isinstance(node, exp.Values):
            outputs = None
            for row in node.expressions:
                self.expression(row, chain, known)
        else:
            raise Refused("structure_not_allowed", f"{node.key} is not allowed as a query", "Send one plain SELECT.")
        rest = Scope([Source("", None, outputs)])
        for part in ("where", "group", "having", "order", "limit", "offset"):
            if isinstance(value := node.args.get(part), exp.Expr):
                self.expression(value, (rest, *chain), known)
        if isinstance(node, exp.Subquery) and (node.args.get("joins") or node.args.get("laterals")):
            raise Refused("structure_not_allowed", "joins behind brackets are not allowed here", "Write a SELECT.")
        return outputs

    def query_and_tables(self, node: exp.Expr, chain: Chain, known: Known) -> tuple[Outputs | None, frozenset[str]]:
        """The columns of a query, and the tables behind it."""
        before, self.reading = self.reading, frozenset()
        outputs = self.query(node, chain, known)
        inner = self.reading
        self.reading = before | inner
        return outputs, inner

    def with_ctes(self, node: exp.Expr, chain: Chain, known: Known) -> Known:
        """What is known below a WITH. Each of its queries gets a name that no table has."""
        clause = node.args.get("with_")
        if not clause:
            return known
        known = dict(known)
        for cte in clause.expressions:
            name, alias = self.name(cte.args["alias"].this), cte.args["alias"]
            self.ctes += 1
            new_name = f"cte{self.ctes}_{CTE_NAME.sub('', name)}"[:60]
            columns = [self.name(column) for column in alias.args.get("columns") or ()]
            below = dict(known)
            if clause.args.get("recursive"):
                below[name] = Cte(new_name, dict.fromkeys(map(str.casefold, columns)) if columns else None, frozenset())
            outputs, reads = self.query_and_tables(cte.this, chain, below)
            known[name] = Cte(new_name, renamed(outputs, columns), reads)
            alias.set("this", exp.to_identifier(new_name, quoted=True))
        return known

    def select(self, node: exp.Select, chain: Chain, known: Known) -> Outputs | None:
        """Check one SELECT: its sources first, then everything that speaks of them."""
        scope = Scope()
        joins: list[exp.Expr] = []
        if start := node.args.get("from_"):
            self.source(start.this, scope, chain, known, joins)
        for lateral in node.args.get("laterals") or ():
            self.source(lateral, scope, chain, known, joins)
        self.join_sources(node, scope, chain, known, joins)
        here = (scope, *chain)
        scope.aliases = {self.name(item.args["alias"]).casefold() for item in node.expressions if item.alias}
        scope.merged = self.merged(joins, scope)
        self.expand_stars(node, scope)
        for join in joins:
            self.join(join, here, known)
        for part, value in node.args.items():
            if part not in ("with_", "from_", "joins", "laterals"):
                scope.part = part
                for child in value if isinstance(value, list) else [value]:
                    if isinstance(child, exp.Expr):
                        self.expression(child, here, known)
        if self.joins is not None:
            self.check_connected(node, scope, here, joins)
        return self.outputs(node, scope, here)

    def join_sources(self, node: exp.Expr, scope: Scope, chain: Chain, known: Known, joins: list[exp.Expr]) -> None:
        """The sources that are joined to a FROM or to a table in brackets."""
        for join in node.args.get("joins") or ():
            joins.append(join)
            self.source(join.this, scope, chain, known, joins)

    def source(self, node: exp.Expr, scope: Scope, chain: Chain, known: Known, joins: list[exp.Expr]) -> None:
        """Add what stands in a FROM to its scope."""
        here = (scope, *chain)
        if isinstance(node, exp.Table):
            made = self.table(node, here, known)
        elif isinstance(node, exp.Lateral):
            made = self.derived(node, here, known)
        elif isinstance(node, exp.Subquery) and isinstance(node.this, exp.Table) and not node.alias:
            self.source(node.this, scope, chain, known, joins)  # FROM (a JOIN b ON …)
            self.join_sources(node, scope, chain, known, joins)
            return
        elif isinstance(node, (exp.Subquery, exp.Values, exp.Unnest)):
            made = self.derived(node, here, known)
        else:
            raise Refused("structure_not_allowed", f"{node.key} is not allowed in FROM")
        if made.name and any(other.name.casefold() == made.name.casefold() for other in scope.sources):
            raise Refused("syntax", f"two tables are called {made.name[:60]}", "Give each an alias of its own.")
        scope.sources.append(made)
        self.join_sources(node, scope, chain, known, joins)

    def table(self, node: exp.Table, here: Chain, known: Known) -> Source:
        """A table, a CTE by its name, or a function in FROM."""
        if not isinstance(node.this, exp.Identifier):
            return self.derived(node, here, known)
        name, schema = self.name(node.this), self.name(node.args["db"]) if node.args.get("db") else None
        alias = node.args.get("alias")
        called = self.name(alias.this) if alias and alias.this else name
        columns = [self.name(column) for column in alias.args.get("columns") or ()] if alias else []
        if schema is None and (cte := self.cte(name, known)):
            node.set("this", exp.to_identifier(cte.new_name, quoted=True))
            self.call(node, called)
            self.reading |= cte.tables
            return Source(called, None, renamed(cte.outputs, columns), cte.tables)
        if self.dialect == "mysql" and name.upper() == "DUAL" and schema is None:  # no table at all
            nothing = exp.TableAlias(this=exp.to_identifier(called, quoted=True))
            node.replace(exp.Subquery(this=exp.select("1"), alias=nothing))
            return Source(called, None, {})
        readable = self.readable(name, schema)
        if columns:
            raise Refused(
                "structure_not_allowed", "columns of a table cannot be renamed in FROM", "Name them as they are."
            )
        self.tables.add(readable.name)
        self.reading |= {readable.name}
        node.set("this", exp.to_identifier(readable.name, quoted=True))
        if self.schema:
            node.set("db", exp.to_identifier(self.schema, quoted=True))
        self.call(node, called)
        outputs: Outputs | None = None
        if readable.visible is not None:
            outputs = {column.casefold(): (readable.name, column.casefold()) for column in readable.visible}
        return Source(called, readable, outputs, frozenset({readable.name}))

    def cte(self, name: str, known: Known) -> Cte | None:
        """The CTE of this name. Raises Refused where one server would take it for that and another for a table."""
        same = [other for other in known if other.casefold() == name.casefold()]
        if name in known or not same or self.dialect == "postgres":
            return known.get(name)
        if self.dialect == "mysql":
            hint = f"Write its name as WITH does: {same[0][:60]}."
            raise Refused("table_not_allowed", f"{name[:60]} may mean a table or the CTE {same[0][:60]}", hint)
        return known[same[0]]

    def call(self, node: exp.Table, name: str) -> None:
        """Give a table the alias under which the statement speaks of it."""
        alias = node.args.get("alias") or exp.TableAlias()
        alias.set("this", exp.to_identifier(name, quoted=True))
        node.set("alias", alias)

    def readable(self, name: str, schema: str | None) -> Readable:
        """What may be read of a table. Raises Refused."""
        fold = (schema or "").casefold()
        if fold in CATALOGS or name.casefold() in CATALOGS:
            hint = "Call list_tables and describe_table instead."
            raise Refused("catalogue_not_allowed", "the catalogs of the server cannot be read", hint)
        if schema is not None and (self.schema is None or schema != self.schema):
            raise Refused("schema_not_allowed", f"the schema {schema[:60]} cannot be read")
        found = self.policy.find(name, exact=self.dialect == "postgres")
        if found is None:
            nearest = near(name, self.policy.tables()) or self.policy.tables()[:20]
            raise Refused(
                "table_not_allowed", f"there is no readable table {name[:60]}", f"Near it: {', '.join(nearest)}."
            )
        return self.policy.readable(found)

    def derived(self, node: exp.Expr, here: Chain, known: Known) -> Source:
        """A subquery, a list of values or a function in FROM."""
        alias, inner = node.args.get("alias"), node.this if isinstance(node, (exp.Lateral, exp.Table)) else node
        called = self.name(alias.this) if alias and alias.this else ""
        columns = [self.name(column) for column in alias.args.get("columns") or ()] if alias else []
        outputs: Outputs | None = None
        tables: frozenset[str] = frozenset()
        if isinstance(inner, exp.Query):
            outputs, tables = self.query_and_tables(inner, here if isinstance(node, exp.Lateral) else here[1:], known)
        elif isinstance(inner, exp.Unnest):
            for child in inner.expressions:
                self.expression(child, here, known)
        else:
            self.expression(inner, here, known)
        if columns and outputs is None:
            outputs = dict.fromkeys(map(str.casefold, columns))
        return Source(called, None, renamed(outputs, columns), tables)

    # ------------------------------------------------------------------ columns

    def expression(self, node: exp.Expr, chain: Chain, known: Known) -> None:
        """Check everything below a node that is no source."""
        if isinstance(node, exp.Query):
            self.found[id(node)] = self.query_and_tables(node, chain, known)
            return
        if isinstance(node, exp.Column):
            self.column(node, chain)
            return
        if isinstance(node, exp.Collate) and isinstance(node.expression, exp.Column):
            self.expression(node.this, chain, known)
            return
        for child in list(node.iter_expressions()):
            self.expression(child, chain, known)
        if self.joins is not None:
            self.check_compared(node, chain)

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
            if self.dialect == "sqlite" and node.this.args.get("quoted"):
                node.replace(exp.Literal.string(node.name))  # as SQLite itself takes "text" that is no name
                return
            raise self.no_column(name, [source for scope in chain for source in scope.sources])

    def bind(self, node: exp.Column, name: str, chain: Chain) -> bool:
        """Whether a name without a table may stand here.

        Where one source is known to have such a column its name is written before it, so that the server can take no
        other. What is left as it was must be harmless whatever the server takes it for.
        """
        fold, may_be = name.casefold(), False
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
            may_be = bool(having) or own or any(source.is_open for source in scope.sources)
            if may_be:
                break
        around = [source for scope in chain for source in scope.sources]
        for source in around:
            if source.hides(name):
                raise self.no_column(name, [source])
        if self.dialect == "postgres":
            for source in around:
                if source.name.casefold() == fold:
                    self.whole_row(source)
                    may_be = True
        return may_be and (fold not in PSEUDO[self.dialect] or not any(source.table for source in around))

    def reach(self, source: Source, chain: Chain) -> None:
        """Remember that a query speaks of a source of a query around it."""
        if source not in chain[0].sources and source not in chain[0].outer:
            chain[0].outer.append(source)

    def sources_of(self, name: str, chain: Chain) -> list[Source]:
        """The sources that a name before a dot can mean, the likeliest first. Raises Refused if there is none."""
        sources = [source for scope in chain for source in scope.sources]
        alike = [source for source in sources if source.name.casefold() == name.casefold()]
        if not alike:
            there = [source.name for source in sources if source.name]
            hint = f"The names here are: {', '.join(there)}." if there else ""
            reason = f"there is no table or alias {name[:60]} in this part of the statement"
            raise Refused("unknown_table", reason, hint)
        return sorted(alike, key=lambda source: source.name != name)

    def look_up(self, name: str, sources: list[Source]) -> None:
        """Raise Refused unless every source that may be meant has a column of this name, or may have it.

        A server does not see a source in the ON of a join before its own, and takes one of the same name further out.
        """
        for source in sources:
            unknown = source.is_open and not (source.table and name.casefold() in PSEUDO[self.dialect])
            if source.hides(name) or not (source.has(name) or unknown):
                raise self.no_column(name, sources)

    def no_column(self, name: str, sources: list[Source]) -> Refused:
        """The refusal of a column; the same whether it is hidden or not there."""
        names = [column for source in sources for column in self.columns_of(source)]
        nearest = near(name, names) or names[:20]
        hint = f"Near it: {', '.join(nearest)}." if nearest else "Call describe_table for the columns."
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
            once = scope.merged if isinstance(item, exp.Star) else set()
            items += [exp.column(column, quoted=True) for column in sorted(once)]
            for source in sources:
                items += self.written_out(source, once)
        node.set("expressions", items)

    def written_out(self, source: Source, but: set[str]) -> Iterable[exp.Expr]:
        """The columns of a source one by one, or its own star where that hides nothing. but: what stands there."""
        columns = self.columns_of(source)
        if source.partial and not columns:
            raise Refused("star_not_allowed", f"not all of {source.name} can be read", "Name the columns instead of *.")
        if not source.partial and not (source.table and columns):
            return [exp.Column(this=exp.Star(), table=exp.to_identifier(source.name, quoted=True))]
        wanted = [column for column in columns if column.casefold() not in but]
        return [exp.column(column, table=source.name, quoted=True) for column in wanted]

    def outputs(self, node: exp.Select, scope: Scope, here: Chain) -> Outputs | None:
        """The columns of a SELECT."""
        found: Outputs = {}
        for item in node.expressions:
            if isinstance(item, exp.Star) or (isinstance(item, exp.Column) and isinstance(item.this, exp.Star)):
                table = item.args.get("table")
                for source in self.sources_of(self.name(table), here)[:1] if table else scope.sources:
                    if source.outputs is None:
                        return None
                    found |= source.outputs
            else:
                name = self.output_name(item) or f"{UNNAMED}{len(found)}"
                found[name.casefold()] = self.origin(item.unalias(), here)[1]
        return found

    def output_name(self, item: exp.Expr) -> str:
        """What a column of the list is called; empty where that is the server's own business."""
        alias = item.args.get("alias")
        if isinstance(alias, exp.Identifier):
            return self.name(alias)
        return self.name(item.this) if isinstance(item, exp.Column) else ""

    # ------------------------------------------------------------------ joins

    def join(self, node: exp.Expr, here: Chain, known: Known) -> None:
        """What a join says besides its table."""
        scope = here[0]
        if self.dialect == "mysql" and node.args.get("side") == "FULL":
            raise Refused("syntax", "MySQL has no FULL JOIN", dialect_hint("FULL JOIN", self.dialect))
        if node.args.get("method") and (self.joins is not None or any(source.partial for source in scope.sources)):
            raise Refused("join_not_allowed", "NATURAL JOIN is not allowed here", "Write JOIN … ON ….")
        for column in map(self.name, node.args.get("using") or ()):
            having = [source for source in scope.sources if source.has(column) or source.is_open]
            if len(having) < 2 or any(source.hides(column) for source in scope.sources):
                raise self.no_column(column, scope.sources)
        if isinstance(on := node.args.get("on"), exp.Expr):
            self.expression(on, here, known)

    def merged(self, joins: list[exp.Expr], scope: Scope) -> set[str]:
        """The columns that joins make one of."""
        found = {self.name(column).casefold() for join in joins for column in join.args.get("using") or ()}
        if any(join.args.get("method") for join in joins):
            names = Counter(name for source in scope.sources for name in source.outputs or ())
            found |= {name for name, count in names.items() if count > 1}
        return found

    def origin(self, node: exp.Expr, chain: Chain) -> tuple[Source | None, Origin | None]:
        """The source and the column of a table that a value is taken from, where it is one unchanged."""
        node = node.unnest()
        if not isinstance(node, exp.Column) or isinstance(node.this, exp.Star):
            return None, None
        fold, table = self.name(node.this).casefold(), node.args.get("table")
        if table:
            sources = self.sources_of(self.name(table), chain)[:1]
        else:
            sources = [source for scope in chain for source in scope.sources if fold in (source.outputs or ())][:1]
            if not sources and len(chain) and len(chain[0].sources) == 1:
                sources = chain[0].sources
        if not sources:
            return None, None
        source = sources[0]
        if source.outputs is None:
            return source, (source.table.name, fold) if source.table else None
        return source, source.outputs.get(fold)

    def check_compared(self, node: exp.Expr, chain: Chain) -> None:
        """Columns of two tables are set equal only where the policy permits that join. Raises Refused."""
        if (query := compared_query(node)) is not None:
            outputs, reads = self.found[id(query)]
            columns = list(node.this.find_all(exp.Column))
            mine = frozenset().union(*(source.tables for c in columns if (source := self.origin(c, chain)[0])))
            if mine and reads - mine:
                left = self.origin(node.this, chain)[1]
                right = next(iter(outputs.values())) if outputs and len(outputs) == 1 else None
                if not (left and right):
                    tables = f"{', '.join(sorted(mine))} with {', '.join(sorted(reads - mine))}"
                    raise Refused("join_not_allowed", f"{tables}: not by plain columns", self.join_hint(mine | reads))
                self.check_pair(left, right)
        elif isinstance(node, (exp.EQ, exp.NullSafeEQ)):
            (left_source, left), (right_source, right) = (
                self.origin(node.this, chain),
                self.origin(node.expression, chain),
            )
            if left and right and left_source is not right_source:
                self.check_pair(left, right)

    def check_pair(self, left: Origin, right: Origin) -> None:
        if self.joins is not None and left != right and frozenset({left, right}) not in self.joins:
            text = f"{left[0]}.{left[1]} = {right[0]}.{right[1]}"
            raise Refused("join_not_allowed", f"the join {text} is not allowed", self.join_hint({left[0], right[0]}))

    def join_hint(self, tables: Iterable[str]) -> str:
        """The allowed joins of these tables."""
        wanted = set(tables)
        texts = [text for text in self.policy.file.joins or () if any(f"{table}." in text for table in wanted)]
        return f"Allowed joins: {'; '.join(texts[:20])}." if texts else "No join of these tables is allowed."

    def check_connected(self, node: exp.Select, scope: Scope, here: Chain, joins: list[exp.Expr]) -> None:
        """Tables of one SELECT, and those around it that it names, hang together by allowed joins. Raises Refused."""
        own = frozenset().union(*(source.tables for source in scope.sources))
        outer = [source for source in scope.outer if own and source.tables - own]
        groups = [{id(source)} for source in (*scope.sources, *outer) if source.tables]
        conditions = [join.args.get("on") for join in joins]
        if where := node.args.get("where"):
            conditions.append(where.this)
        pairs: list[tuple[Source | None, Source | None]] = []
        for condition in conditions:
            for part in condition.flatten() if isinstance(condition, exp.And) else [condition]:
                part = part.unnest() if part is not None else None
                if isinstance(part, (exp.EQ, exp.NullSafeEQ)):
                    (a, left), (b, right) = self.origin(part.this, here), self.origin(part.expression, here)
                    if left and right:
                        pairs.append((a, b))
        pairs += self.using_pairs(joins, scope)
        for a, b in pairs:
            touched = [group for group in groups if id(a) in group or id(b) in group]
            if len(touched) == 2:
                touched[0].update(touched[1])
                groups.remove(touched[1])
        if len(groups) > 1:
            tables = {table for source in (*scope.sources, *outer) for table in source.tables}
            reason = f"{', '.join(sorted(tables))} are put together without an allowed join"
            raise Refused("join_not_allowed", reason, self.join_hint(tables))

    def using_pairs(self, joins: list[exp.Expr], scope: Scope) -> list[tuple[Source | None, Source | None]]:
        """The sources that JOIN … USING puts together, each join checked."""
        pairs: list[tuple[Source | None, Source | None]] = []
        for join in joins:
            for column in join.args.get("using") or ():
                fold = self.name(column).casefold()
                having = [s for s in scope.sources if s.outputs is None or fold in s.outputs]
                for other in having[1:]:
                    left, right = (
                        (s.outputs or {}).get(fold) or (s.table.name if s.table else "", fold)
                        for s in (having[0], other)
                    )
                    self.check_pair(left, right)
                    pairs.append((having[0], other))
        return pairs


def compared_query(node: exp.Expr) -> exp.Expr | None:
    """The query of `x IN (SELECT …)` and `x = ANY (SELECT …)`."""
    if isinstance(node, exp.In):
        return node.args.get("query")
    inner = node.args.get("expression") if isinstance(node, exp.Binary) else None
    inner = inner.this if isinstance(inner, (exp.Any, exp.All)) else None
    while isinstance(inner, exp.Paren):
        inner = inner.this
    return inner if isinstance(inner, exp.Query) else None


LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


def renamed(outputs: Outputs | None, columns: list[str]) -> Outputs | None:
    """The columns of a query under the names that its alias gives the first of them."""
    if not columns:
        return outputs
    if outputs is None:
        return dict.fromkeys(column.casefold() for column in columns)
    values = list(outputs.items())
    new = [(column.casefold(), values[at][1] if at < len(values) else None) for at, column in enumerate(columns)]
    return dict(new + values[len(columns) :])
