"""How much text a statement may make, and what it may look for in texts.

No server stops in the middle of a text function: searching some megabytes for some megabytes takes hours that no limit
and no KILL ends, and in SQLite these are hours of our own process. So what makes a text long says how long by a small
number, and what is looked for is a short literal or what stands in a table. Nor may a text that was gathered from rows,
or in a recursion, be what a function compares each part with each: patterns, arrays, JSON paths and shapes.
"""

import re

from sqlglot import exp

from .growth import branches_of, check_recursion, longest, puts_together
from .paths import check_paths
from .refusal import Refused
from .texts import (
    COMPARED,
    FORMATS,
    GATHERING,
    LENGTHS,
    MAX_CHARS,
    MAX_COMPARED,
    MAX_MADE,
    MAX_SHAPE,
    MAX_SOUGHT,
    MAX_TOGETHER,
    NUMERIC,
    PADDED,
    SHAPES,
    SOUGHT,
    Stored,
    is_array_of_rows,
    is_short,
    name_of,
    of_plain_tables,
    part,
    said,
    size_of,
    sources_of,
)


def check_texts(tree: exp.Expr, dialect: str, is_stored: Stored | None = None) -> None:
    """No text function works for hours. is_stored: is this column one of a real table? Raises Refused."""
    stored = is_stored or of_plain_tables(tree)
    compared: list[tuple[exp.Expr, exp.Expr, int]] = []
    if dialect == "mysql":
        check_paths(tree, stored)
    for node in tree.walk():
        name = name_of(node)
        if name in LENGTHS:
            check_length(node, part(node, LENGTHS[name]))
        if name in FORMATS:
            check_format(node, part(node, FORMATS[name]))
        for place in SOUGHT.get(name, ()):
            sought = part(node, place)
            if sought is not None and not (is_short(sought, stored) and longest(sought, {}) <= MAX_TOGETHER):
                reason = f"what {said(node)} looks for may be at most {MAX_SOUGHT} characters, or a column of a table"
                raise Refused("too_complex", reason, "Write a short literal there, or a column of a table.")
        places = (0,) if name in SHAPES else COMPARED.get(name, ())
        if dialect == "postgres" and may_be_pattern(node):
            places = ("this", "start")
        parts = [text for place in places if (text := part(node, place)) is not None]
        compared += [(node, text, MAX_SHAPE if name in SHAPES else MAX_COMPARED) for text in parts]
        if isinstance(node, exp.DataType):
            check_type(node, dialect)
        if isinstance(node, exp.CTE):
            check_recursion(node, stored)
    chars = longest(tree, {})
    if chars > MAX_CHARS:
        raise Refused("too_complex", "the statement makes texts too long", "Repeat, replace and put together less.")
    plain = not gathers(tree)
    seen: dict[int, bool] = {}
    for node, text, most in compared:
        made = chars <= MAX_COMPARED and (plain or not is_gathered(text, tree, stored, seen))
        if not ((made or is_short(text, stored)) and longest(text, {}) <= most):
            reason = f"what {said(node)} works on may not be gathered from rows, nor have more than {most} characters"
            raise Refused("too_complex", reason, "Give it a column of a table.")


def may_be_pattern(node: exp.Expr) -> bool:
    """Whether a node is PostgreSQL's SUBSTRING(x FROM y), where y is perhaps not a number but a pattern."""
    if not isinstance(node, exp.Substring):
        return False
    numbers = [node.args.get("start"), node.args.get("length")]
    return not any(
        isinstance(number, exp.Expr)
        and (name_of(number) in NUMERIC or (isinstance(number, exp.Literal) and not number.is_string))
        for number in numbers
    )


def gathers(tree: exp.Expr) -> bool:
    """Whether a statement makes texts or arrays whose length its rows decide."""
    clauses = [clause for clause in tree.find_all(exp.With) if clause.args.get("recursive")]
    if any(puts_together(node) for clause in clauses for node in clause.walk()):
        return True
    return any(name_of(node) in GATHERING or is_array_of_rows(node) for node in tree.walk())


def is_gathered(node: exp.Expr, tree: exp.Expr, stored: Stored, seen: dict[int, bool]) -> bool:
    """Whether rows may decide how long a text is. seen: what is known of nodes, by their id, filled in here."""
    if id(node) not in seen:
        seen[id(node)] = True  # where it leads back here
        columns = [column for column in node.find_all(exp.Column) if not stored(column)]
        seen[id(node)] = any(name_of(part) in GATHERING or is_array_of_rows(part) for part in node.walk()) or any(
            not (values := values_of(column, tree)) or any(is_gathered(value, tree, stored, seen) for value in values)
            for column in columns
        )
    return seen[id(node)]


def values_of(column: exp.Column, tree: exp.Expr) -> list[exp.Expr]:
    """What a column of a CTE or of a query in FROM is, in each of its branches; nothing where that is not certain."""
    select = column.find_ancestor(exp.Select)
    sources = list(sources_of(select)) if select is not None else []
    meant = [source for source in sources if not column.table or source.alias_or_name == column.table]
    listed = {item.alias.casefold() for item in select.expressions} if select is not None else set()
    if len(meant) != 1 or (not column.table and (len(sources) != 1 or column.name.casefold() in listed)):
        return []
    query, alias = meant[0].this, meant[0].args.get("alias")
    if isinstance(meant[0], exp.Table):
        ctes = [cte for cte in tree.find_all(exp.CTE) if cte.alias.casefold() == meant[0].name.casefold()]
        query = ctes[0].this if len(ctes) == 1 else None
        alias = alias if alias and alias.args.get("columns") else ctes[0].args.get("alias") if len(ctes) == 1 else None
    if not isinstance(query, exp.Query) or (alias and alias.args.get("columns")):
        return []
    branches = branches_of(query)
    names = [item.alias_or_name.casefold() for branch in branches[:1] for item in branch.expressions]
    if names.count(column.name.casefold()) != 1 or any(len(branch.expressions) != len(names) for branch in branches):
        return []
    return [branch.expressions[names.index(column.name.casefold())].unalias() for branch in branches]


def check_length(node: exp.Expr, length: exp.Expr | None) -> None:
    """How long a text becomes is a small literal. Raises Refused."""
    inner = length.unnest() if length is not None else None
    number = inner.this if isinstance(inner, exp.Neg) else inner
    if not (isinstance(number, exp.Literal) and re.fullmatch(r"\d{1,9}", number.name) and int(number.name) <= MAX_MADE):
        reason = f"the length that {said(node)} gives has to be a number of at most {MAX_MADE}"
        raise Refused("too_complex", reason, "Write a small number there.")


def check_format(node: exp.Expr, pattern: exp.Expr | None) -> None:
    """A format is a literal that asks for no long text. Raises Refused."""
    text = pattern.name if isinstance(pattern, exp.Literal) and pattern.is_string else None
    widths = [int(digits) for digits in re.findall(r"\d{1,9}", text or "")]
    if text is None or "*" in text or "{:{" in text or sum(widths) > MAX_MADE:
        reason = f"the format of {said(node)} has to be a text whose widths are at most {MAX_MADE} together"
        raise Refused("too_complex", reason, "Write the format as a literal.")


def check_type(node: exp.DataType, dialect: str) -> None:
    """No type fills texts up to a great length. Raises Refused."""
    fills = node.this in PADDED and (dialect == "postgres" or node.this == exp.DType.BINARY)
    fills = fills or isinstance(node.parent, exp.WeightString)
    if fills and size_of(node) > MAX_MADE:
        raise Refused("too_complex", f"a text may be filled up to {MAX_MADE} characters", "Cast to a shorter type.")
