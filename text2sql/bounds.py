"""How much text a statement may make, and what it may look for in texts.

No server stops in the middle of a text function: searching some megabytes for some megabytes takes hours that no limit
and no KILL ends, and in SQLite these are hours of our own process. So what makes a text long says how long by a small
number, and what is looked for is a short literal or what stands in a table.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator

from sqlglot import exp

from .refusal import Refused

MAX_MADE = 1_000  # characters, or times
MAX_SOUGHT = 255  # characters of a literal
MAX_CHARS = 300_000  # of a text that a statement makes
COLUMN_CHARS = 100  # what is taken for the length of a text that stands in a table

Stored = Callable[[exp.Column], bool]

# Where each function has its length, its format and what it looks for: the name of a part, or the place of an argument.
LENGTHS: dict[str, str | int] = {
    **{"Repeat": "times", "Space": "this", "Pad": "expression"},
    **{"lpad": 1, "rpad": 1, "zeroblob": 0},
}
FORMATS: dict[str, str | int] = {"Format": "this", "printf": 0, "sformat": 0}
SOUGHT: dict[str, tuple[str | int, ...]] = {
    **dict.fromkeys("Like ILike SimilarTo Glob RegexpLike RegexpILike".split(), ("expression",)),
    **dict.fromkeys("RegexpCount RegexpExtract RegexpExtractAll RegexpInstr".split(), ("expression",)),
    **dict.fromkeys("RegexpSplit RegexpSubstr Split StringToArray ArrayToString Trim".split(), ("expression",)),
    **dict.fromkeys(("Replace", "RegexpReplace"), ("expression", "replacement")),
    **{"StrPosition": ("substr",), "SubstringIndex": ("delimiter",), "SplitPart": ("delimiter",)},
    **{"Translate": ("from_", "to"), "GroupConcat": ("separator",), "MatchAgainst": ("this",)},
    **{"TimeToStr": ("format",), "ToChar": ("format",)},
    **{"Levenshtein": ("this", "expression"), "similarity": (0, 1), "json_search": (2,)},
    **dict.fromkeys("locate find_in_set position".split(), (0,)),
    **dict.fromkeys("instr strpos btrim ltrim rtrim string_to_table group_concat string_agg".split(), (1,)),
    **dict.fromkeys("regexp_instr regexp_like regexp_match regexp_matches".split(), (1,)),
    **dict.fromkeys("regexp_split_to_array regexp_split_to_table".split(), (1,)),
}
# Short where all that they are made of is, and short whatever they are made of.
JOINING = "Concat ConcatWs DPipe Paren Upper Lower Trim Cast TryCast Coalesce Collate Substring Left Right Reverse"
AS_SHORT = frozenset(f"{JOINING} National Introducer Nullif Escape Any All Array Tuple Max Min AnyValue".split())
NUMBERS = "Add Sub Mul Div IntDiv Mod Neg Sum Avg Count Length Abs Ceil Floor Round Sign Ascii Chr"
DATES = "Year Month Day Hour Minute Second Quarter Week DayOfMonth DayOfWeek DayOfYear Dayname Monthname Extract Date"
ALWAYS_SHORT = frozenset(f"{NUMBERS} {DATES} CurrentDate CurrentTimestamp Null Boolean get_format char year".split())
DOUBLING = frozenset(
    """
    Hex LowerHex ToBase64 Encode JSONArray JSONObject JSONFormat quote json_quote quote_ident quote_literal
    quote_nullable to_json to_jsonb row_to_json json_build_array json_build_object jsonb_build_array
    jsonb_build_object json_pretty json_array json_object
    """.split()
)
PUTTING_TOGETHER = frozenset(
    """
    Concat ConcatWs DPipe Stuff Overlay Format JSONArray JSONObject insert printf sformat json_array json_build_array
    json_build_object jsonb_build_array jsonb_build_object json_set json_insert json_replace json_array_append
    json_array_insert json_merge_patch json_merge_preserve json_patch jsonb_set jsonb_insert
    """.split()
)
PADDED = frozenset({exp.DType.CHAR, exp.DType.NCHAR, exp.DType.BPCHAR, exp.DType.BIT, exp.DType.BINARY})


def check_texts(tree: exp.Expr, dialect: str, is_stored: Stored | None = None) -> None:
    """No text function works for hours. is_stored: is this column one of a real table? Raises Refused."""
    stored = is_stored or of_plain_tables(tree)
    for node in tree.walk():
        name = name_of(node)
        if name in LENGTHS:
            check_length(node, part(node, LENGTHS[name]))
        if name in FORMATS:
            check_format(node, part(node, FORMATS[name]))
        for place in SOUGHT.get(name, ()):
            sought = part(node, place)
            if sought is not None and not is_short(sought, stored):
                reason = f"what {said(node)} looks for may be at most {MAX_SOUGHT} characters, or a column of a table"
                raise Refused("too_complex", reason, "Write a short literal there, or a column of a table.")
        if isinstance(node, exp.DataType):
            check_type(node, dialect)
        if isinstance(node, exp.CTE):
            check_recursion(node, stored)
    if longest(tree, {}) > MAX_CHARS:
        raise Refused("too_complex", "the statement makes texts too long", "Repeat, replace and put together less.")


def name_of(node: exp.Expr) -> str:
    """What the lists here call a node: its class, or the name of a function that sqlglot does not know."""
    return node.name.lower() if isinstance(node, exp.Anonymous) else type(node).__name__


def said(node: exp.Expr) -> str:
    """What a person calls it."""
    return node.name.upper()[:60] if isinstance(node, exp.Anonymous) else node.key.upper()


def part(node: exp.Expr, place: str | int) -> exp.Expr | None:
    """A part of a node by its name, or an argument by its place."""
    if isinstance(place, int):
        arguments = node.expressions
        return arguments[place] if place < len(arguments) else None
    value = node.args.get(place)
    return value if isinstance(value, exp.Expr) else None


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
    sizes = [int(size.name) for size in node.expressions if size.name.isdecimal() and len(size.name) < 10]
    if fills and any(size > MAX_MADE for size in sizes):
        raise Refused("too_complex", f"a text may be filled up to {MAX_MADE} characters", "Cast to a shorter type.")


def is_short(node: exp.Expr, stored: Stored) -> bool:
    """Whether what is looked for cannot be a long text that the statement made."""
    name = name_of(node)
    if isinstance(node, exp.Literal):
        return not node.is_string or len(node.name) <= MAX_SOUGHT
    if isinstance(node, exp.Column):
        return stored(node)
    if isinstance(node, (exp.Case, exp.If)):
        branches = [node.args.get("true"), node.args.get("false"), node.args.get("default")]
        branches += [branch.args.get("true") for branch in node.args.get("ifs") or ()]
        return all(is_short(branch, stored) for branch in branches if isinstance(branch, exp.Expr))
    if isinstance(node, exp.Subquery):
        return is_short(node.this, stored)
    if isinstance(node, exp.Select):
        return len(node.expressions) == 1 and is_short(node.expressions[0].unalias(), stored)
    if isinstance(node, (exp.TimeToStr, exp.ToChar)):
        pattern = node.args.get("format")
        return isinstance(pattern, exp.Expr) and is_short(pattern, stored)
    if isinstance(node, exp.Replace):
        return factor(node) <= 1 and is_short(node.this, stored)
    if name in AS_SHORT:
        parts = [child for child in node.iter_expressions() if not isinstance(child, (exp.DataType, exp.Var))]
        if isinstance(node, exp.Collate):
            parts = [node.this]
        return all(is_short(child, stored) for child in parts)
    return name in ALWAYS_SHORT


# ------------------------------------------------------------------------------------------------- length


def longest(node: exp.Expr, named: dict[str, int]) -> int:
    """How many characters the longest text of a node may have. named: the same of each CTE, filled in here."""
    name = name_of(node)
    if isinstance(node, exp.Literal):
        return len(node.name)
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
    own, below = [1], COLUMN_CHARS
    for key, value in node.args.items():
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, exp.Expr) and key in ("from_", "joins", "laterals"):
                below = max(below, longest(child, named))
            elif isinstance(child, exp.Expr) and key != "with_":
                own.append(longest(child, named))
    chars = (sum(own) if name in PUTTING_TOGETHER else max(own)) * factor(node)
    return min(chars * below // COLUMN_CHARS, MAX_CHARS + 1)


def factor(node: exp.Expr) -> int:
    """How many times as long one function may make the text that it is given."""
    name = name_of(node)
    if isinstance(node, exp.Repeat):
        times = node.args["times"].unnest()
        return int(times.name) if isinstance(times, exp.Literal) else MAX_MADE
    if isinstance(node, (exp.Replace, exp.RegexpReplace)):
        sought, new = node.args.get("expression"), node.args.get("replacement")
        length = len(new.name) if isinstance(new, exp.Literal) else MAX_SOUGHT if new is not None else 0
        fixed = len(sought.name) if isinstance(sought, exp.Literal) and isinstance(node, exp.Replace) else 1
        return max(1, math.ceil(length / max(1, fixed)))
    return 64 if name == "export_set" else 2 if name in DOUBLING else 1


def puts_together(node: exp.Expr) -> bool:
    """Whether a node, and none around it in its query, makes one text of several."""
    if name_of(node) not in PUTTING_TOGETHER:
        return False
    above = node.parent
    while above is not None and not isinstance(above, exp.Query):
        if name_of(above) in PUTTING_TOGETHER:
            return False
        above = above.parent
    return True


def made_columns(node: exp.Expr, stored: Stored) -> Counter[str]:
    """How often each column that is not one of a table stands in a node, its subqueries left out."""
    inside = node.walk(prune=lambda part: isinstance(part, exp.Query) and part is not node)
    return Counter(part.name.casefold() for part in inside if isinstance(part, exp.Column) and not stored(part))


def check_recursion(cte: exp.CTE, stored: Stored) -> None:
    """A query that reads itself makes no text a multiple of what it was, again and again. Raises Refused."""
    name = cte.alias.casefold()
    if not any(table.name.casefold() == name for table in cte.this.find_all(exp.Table)):
        return
    for select in cte.this.find_all(exp.Select):
        made: Counter[str] = Counter()
        for node in (node for item in select.expressions for node in item.walk()):
            if puts_together(node):
                made += made_columns(node, stored)
            elif factor(node) > 1 and (columns := made_columns(node, stored)):
                made += columns + columns
        if any(times > 1 for times in made.values()):
            reason = "a recursive query makes a text a multiple of what it was, again and again"
            raise Refused("too_complex", reason, "Use each text of it once.")


# ------------------------------------------------------------------------------------------------- columns of tables


def of_plain_tables(tree: exp.Expr) -> Stored:
    """Whether a column is one of a real table, as far as the statement alone tells: no where it does not."""
    named = {cte.alias.casefold() for cte in tree.find_all(exp.CTE)}

    def is_table(source: exp.Expr) -> bool:
        plain = isinstance(source, exp.Table) and isinstance(source.this, exp.Identifier)
        return plain and source.name.casefold() not in named

    def is_stored(column: exp.Column) -> bool:
        fold, table = column.name.casefold(), column.table.casefold()
        select = column.find_ancestor(exp.Select)
        while select is not None:
            sources = list(sources_of(select))
            if table:
                alike = [source for source in sources if source.alias_or_name.casefold() == table]
                if alike:
                    return all(map(is_table, alike))
            elif not all(map(is_table, sources)) or fold in {item.alias.casefold() for item in select.expressions}:
                return False
            above = select.find_ancestor(exp.Select)
            if above is None:
                return not table and bool(sources)
            select = above
        return False

    return is_stored


def sources_of(select: exp.Select) -> Iterator[exp.Expr]:
    """What stands in the FROM of a SELECT, joined tables and those in brackets too."""
    start = select.args.get("from_")
    waiting = [start.this] if start else []
    waiting += [join.this for join in select.args.get("joins") or ()] + (select.args.get("laterals") or [])
    while waiting:
        source = waiting.pop()
        waiting += [join.this for join in source.args.get("joins") or ()]
        if isinstance(source, exp.Subquery) and isinstance(source.this, exp.Table) and not source.alias:
            waiting.append(source.this)
        else:
            yield source
