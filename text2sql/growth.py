"""How long a text a statement can make, by putting together, replacing, repeating, and reading itself."""

import re

from sqlglot import exp

from .refusal import Refused
from .texts import (
    COLUMN_CHARS,
    GATHERING,
    LENGTHS,
    MAX_CHARS,
    MAX_MADE,
    NUMERIC,
    PADDED,
    PUTTING_TOGETHER,
    Stored,
    factor,
    is_short,
    name_of,
    part,
    size_of,
    sources_of,
)


def longest(node: exp.Expr, named: dict[str, int]) -> int:
    """How many characters the longest text of a node may have. named: the same of each CTE, filled in here."""
    name = name_of(node)
    if isinstance(node, exp.Literal):
        power = re.fullmatch(r"[\d.]+e\+?(\d{1,6})", node.name.strip(), re.I)  # PostgreSQL writes all digits out
        return len(node.name) + (int(power[1]) if power else 0)
    if isinstance(node, exp.Column):
        return COLUMN_CHARS
    if isinstance(node, exp.Table) and node.name.casefold() in named:
        return named[node.name.casefold()]
    if name in LENGTHS and not isinstance(node, exp.Repeat):
        length = part(node, LENGTHS[name])
        return int(length.unnest().name) if length else MAX_MADE  # which is a number: check_length has looked
    if isinstance(clause := node.args.get("with_"), exp.With):
        for cte in clause.expressions:
            named[cte.alias.casefold()] = longest(cte.this, named)
    fills = isinstance(node, exp.Cast) and node.to.this in PADDED
    own, below = [min(size_of(node.args["to"]), MAX_MADE) if fills else 1], COLUMN_CHARS
    for key, value in node.args.items():
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, exp.Expr) and key in ("from_", "joins", "laterals"):
                chars = longest(child, named)
                below = below * max(chars, COLUMN_CHARS) // COLUMN_CHARS if is_lateral(child) else max(below, chars)
                below = min(below, MAX_CHARS + 1)
            elif isinstance(child, exp.Expr) and key != "with_":
                own.append(longest(child, named))
    chars = (sum(own) if name in PUTTING_TOGETHER else max(own)) * factor(node)
    return min(chars * below // COLUMN_CHARS, MAX_CHARS + 1)


def is_lateral(node: exp.Expr) -> bool:
    """Whether what stands in FROM may be made of the sources before it: LATERAL, and functions without it too."""
    source = node.this if isinstance(node, (exp.Join, exp.From)) else node
    plain = isinstance(source, exp.Table) and isinstance(source.this, exp.Identifier)
    return not (plain or isinstance(source, exp.Subquery))


def puts_together(node: exp.Expr) -> bool:
    """Whether a node, and none around it in what its query selects, makes one text of several."""
    if name_of(node) not in PUTTING_TOGETHER:
        return False
    above = node.parent
    while above is not None and not isinstance(above, exp.CTE):
        if name_of(above) in PUTTING_TOGETHER:
            return False
        above = above.parent
    return True


def check_recursion(cte: exp.CTE, stored: Stored) -> None:
    """A query that reads itself makes no text a multiple of what it was, again and again. Raises Refused."""
    name = cte.alias.casefold()
    if not any(table.name.casefold() == name for table in cte.this.find_all(exp.Table)):
        return
    still = unchanging(cte, stored)
    sources = [source for select in cte.this.find_all(exp.Select) for source in sources_of(select)]
    read = [source for source in sources if isinstance(source, exp.Table) and source.name.casefold() == name]
    own = {source.alias_or_name.casefold() for source in read}
    own -= {source.alias_or_name.casefold() for source in sources if source not in read}

    def is_own(column: exp.Column) -> bool:
        select = column.find_ancestor(exp.Select)
        alone = select is not None and all(source in read for source in sources_of(select))
        return column.table.casefold() in own or (alone and not column.table)

    def growing(node: exp.Expr) -> int:
        columns = [column for column in node.find_all(exp.Column) if not stored(column)]
        return sum(column.name.casefold() not in still or not is_own(column) for column in columns)

    for select in cte.this.find_all(exp.Select):
        for item in select.expressions:
            times = sum(growing(node) for node in item.walk() if puts_together(node))
            grown = [node for node in item.walk() if factor(node) > 1 or name_of(node) in GATHERING]
            if times > 1 or any(map(growing, grown)):
                reason = "a recursive query makes a text a multiple of what it was, again and again"
                raise Refused("too_complex", reason, "Use one text of it, and that once.")


def unchanging(cte: exp.CTE, stored: Stored) -> set[str]:
    """The columns of a recursive query that are numbers, short, or handed on as they are, in each of its branches."""
    name, branches = cte.alias.casefold(), branches_of(cte.this)
    names = [column.name.casefold() for column in cte.args["alias"].args.get("columns") or ()]
    names = names or [item.alias_or_name.casefold() for branch in branches[:1] for item in branch.expressions]
    still: set[str] = set()
    for place, column in enumerate(names):
        for branch in branches:
            sources = [source for source in sources_of(branch) if isinstance(source, exp.Table)]
            own = {source.alias_or_name.casefold() for source in sources if source.name.casefold() == name}
            value = branch.expressions[place].unalias() if place < len(branch.expressions) else None
            tables = own | {""} if len(own) == len(list(sources_of(branch))) else own
            handed_on = isinstance(value, exp.Column) and value.table.casefold() in tables
            if value is None or not (
                (handed_on and value.name.casefold() == column) or name_of(value) in NUMERIC or is_short(value, stored)
            ):
                break
        else:
            still.add(column)
    return still if len(names) == len(set(names)) else set()


def branches_of(query: exp.Expr) -> list[exp.Select]:
    """The SELECTs that a set operation puts one below the other."""
    if isinstance(query, exp.SetOperation):
        return branches_of(query.this) + branches_of(query.expression)
    if isinstance(query, exp.Subquery):
        return branches_of(query.this)
    return [query] if isinstance(query, exp.Select) else []
