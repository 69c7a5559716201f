"""What text functions are, for the bounds of what they may do: which lengthen a text or look for one, what is short."""

import math
import re
from collections.abc import Callable, Iterator

from sqlglot import exp

MAX_MADE = 1_000  # characters, or times
MAX_SOUGHT = 255  # characters of a literal
MAX_TOGETHER = 5_000  # characters of all that is looked for
MAX_CHARS = 300_000  # of a text that a statement makes
MAX_COMPARED = 20_000  # of one that a function compares each part with each of
MAX_SHAPE = 1_000  # of the text of a shape
CHARACTER_BYTES = 4  # at most, of one character
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
# What each function compares part by part, and how long that may be where the statement made it.
COMPARED: dict[str, tuple[str | int, ...]] = {
    "Sub": ("this", "expression"),  # of jsonb and an array
    **dict.fromkeys("RegexpLike RegexpILike SimilarTo RegexpCount RegexpExtract RegexpExtractAll".split(), ("this",)),
    **dict.fromkeys("RegexpInstr RegexpReplace RegexpSplit RegexpSubstr JSONExists JSONValue".split(), ("this",)),
    **{"JSONTable": ("this",), "MatchAgainst": (0,)},
    **dict.fromkeys("ArrayOverlaps ArrayContainsAll".split(), ("this", "expression")),
    **dict.fromkeys("regexp_instr regexp_like regexp_match regexp_matches regexp_split_to_array".split(), (0,)),
    **dict.fromkeys("regexp_split_to_table jsonb_path_exists jsonb_path_query".split(), (0,)),
    **dict.fromkeys("jsonb_path_query_array jsonb_path_query_first json_value json_query json_exists".split(), (0,)),
    **dict.fromkeys("json_overlaps json_contains json_merge_patch json_merge_preserve".split(), (0, 1, 2, 3)),
}
SHAPES = frozenset("st_geomfromtext st_geometryfromtext st_pointfromtext".split())
GATHERING = frozenset(
    """
    GroupConcat ArrayAgg JSONArrayAgg JSONObjectAgg JSONBObjectAgg group_concat string_agg json_agg jsonb_agg
    json_arrayagg json_objectagg
    """.split()
)
# Short where all that they are made of is, and short whatever they are made of.
JOINING = "Concat ConcatWs DPipe Paren Upper Lower Trim Cast TryCast Coalesce Collate Substring Left Right Reverse"
QUERIES = "to_tsvector to_tsquery plainto_tsquery"
ARITHMETIC = "Add Sub Mul Div IntDiv Mod Neg Sum Avg Abs Ceil Floor Round"
AS_SHORT = frozenset(
    f"{JOINING} {QUERIES} {ARITHMETIC} National Introducer Nullif Escape Any All Array Tuple Max Min AnyValue".split()
)
NUMBERS = "Count Length Sign Ascii Chr StrPosition"
NUMERIC = frozenset(f"{ARITHMETIC} {NUMBERS}".split())
DATES = "Year Month Day Hour Minute Second Quarter Week DayOfMonth DayOfWeek DayOfYear Dayname Monthname Extract Date"
DATES += " DateAdd DateSub DateDiff DateTrunc TimestampTrunc LastDay"
ALWAYS_SHORT = frozenset(f"{NUMBERS} {DATES} CurrentDate CurrentTimestamp Null Boolean get_format char year".split())
DOUBLING = frozenset(
    """
    Hex LowerHex ToBase64 Encode JSONArray JSONObject JSONFormat quote json_quote quote_ident quote_literal
    quote_nullable to_json to_jsonb row_to_json json_build_array json_build_object jsonb_build_array
    jsonb_build_object json_pretty json_array json_object JSONArrayAgg JSONObjectAgg JSONBObjectAgg json_agg jsonb_agg
    json_arrayagg json_objectagg array_to_json
    """.split()
)
PUTTING_TOGETHER = frozenset(
    """
    Concat ConcatWs DPipe Stuff Overlay Format JSONArray JSONObject insert printf sformat json_array json_build_array
    json_build_object jsonb_build_array jsonb_build_object json_set json_insert json_replace json_array_append
    json_array_insert json_merge_patch json_merge_preserve jsonb_set jsonb_insert row Tuple Array ArrayConcat
    ArrayAppend ArrayPrepend
    """.split()
)
PADDED = frozenset({exp.DType.CHAR, exp.DType.NCHAR, exp.DType.BPCHAR, exp.DType.BIT, exp.DType.BINARY})


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


def is_short(node: exp.Expr, stored: Stored) -> bool:
    """Whether what is looked for cannot be a long text that the statement made."""
    name = name_of(node)
    if isinstance(node, exp.Literal):
        return len(node.name) <= MAX_SOUGHT and (node.is_string or bool(re.fullmatch(r"[\d.]+", node.name)))
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
    if isinstance(node, exp.Cast) and not is_short_cast(node, stored):
        return False
    if is_array_of_rows(node):
        return False
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


def is_short_cast(node: exp.Cast, stored: Stored) -> bool:
    """Whether a type neither fills a text up nor writes a great number out."""
    kind = node.to
    if kind.this in (exp.DType.BINARY, exp.DType.BIT) and size_of(kind) > MAX_SOUGHT:
        return False
    if kind.this not in exp.DataType.NUMERIC_TYPES or kind.this in exp.DataType.INTEGER_TYPES or kind.expressions:
        return True
    given = node.this.unnest()
    if isinstance(given, exp.Literal):
        return "e" not in given.name.lower()
    return isinstance(given, exp.Column) or name_of(given) in NUMERIC


def size_of(kind: exp.DataType) -> int:
    """The length that a type states, 0 where it states none."""
    sizes = [int(size.name) for size in kind.expressions if size.name.isdecimal() and len(size.name) < 10]
    return max(sizes, default=0)


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
    if isinstance(node, exp.Cast) and node.to.this == exp.DType.CHARACTER_SET:
        return CHARACTER_BYTES
    return 64 if name == "export_set" else 2 if name in DOUBLING else 1


def is_array_of_rows(node: exp.Expr) -> bool:
    """ARRAY(SELECT …)."""
    return isinstance(node, exp.Array) and any(isinstance(item.unnest(), exp.Query) for item in node.expressions)


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
