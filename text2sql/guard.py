"""The guard: may this statement run, and as which text?

The text is parsed; everything in the tree has to be on a list (allowed.py) and every table and column is looked up in
the policy, through aliases, subqueries, CTEs and stars. What runs is written anew from the checked tree, so that the
server reads exactly what was judged here. The guard is the first of three barriers: the session is read-only and the
account should have no right to write (database.py).
"""

import logging
import re
from dataclasses import dataclass

from sqlglot import TokenType, exp

from .allowed import CHARSETS, FUNCTIONS, NAMED, NODES, PARTS, TYPES
from .bounds import check_texts
from .dialects import TEXTS, read, words, write
from .policy import Policy
from .queries import Check
from .refusal import Refused as Refused
from .refusal import dialect_hint, too_complex
from .sizes import check_size

MAX_SQL_CHARS = 20_000
MAX_NODES = 5_000
MAX_NAME_BYTES = 63
MAX_TOKENS = 8_000
MAX_DEPTH, MAX_BRACKETS = 60, 6  # of (…) and of […]
MAX_SUBSCRIPTS = 60  # each copies all that stands before it
logging.getLogger("sqlglot").setLevel(logging.ERROR)  # it warns of what is refused here anyway
NAMES = {TokenType.IDENTIFIER, TokenType.VAR}
CONTROL = {chr(code) for code in (*range(32), 127)} - set("\t\n\r")


@dataclass(frozen=True)
class Checked:
    """A statement that may run. sql: the text to run. tables: what it reads."""

    sql: str
    tables: tuple[str, ...]


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
                check_size(tree)
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
        elif isinstance(node, exp.Identifier) and dialect == "postgres" and len(node.name.encode()) > MAX_NAME_BYTES:
            raise Refused("syntax", f"a name has more than {MAX_NAME_BYTES} bytes", "PostgreSQL cuts it: shorten it.")
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
