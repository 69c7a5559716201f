"""How much text a statement may make, and what it may look for in texts.

No server stops in the middle of a text function: searching some megabytes for some megabytes takes hours that no limit
and no KILL ends, and in SQLite these are hours of our own process. So what makes a text long says how long by a small
number, and what is looked for is a short literal or what stands in a table. Nor may a text that was gathered from rows,
or in a recursion, be what a function compares each part with each: patterns, arrays, JSON paths and shapes.
"""

import math
import re
from collections.abc import Callable, Iterator

from sqlglot import exp

from .refusal import Refused

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


def check_texts(tree: exp.Expr, dialect: str, is_stored: Stored | None = None) -> None:
    """No text function works for hours. is_stored: is this column one of a real table? Raises Refused."""
    stored = is_stored or of_plain_tables(tree)
    compared: list[tuple[exp.Expr, exp.Expr, int]] = []
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


def is_array_of_rows(node: exp.Expr) -> bool:
    """ARRAY(SELECT …)."""
    return isinstance(node, exp.Array) and any(isinstance(item.unnest(), exp.Query) for item in node.expressions)


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
    if fills and size_of(node) > MAX_MADE:
        raise Refused("too_complex", f"a text may be filled up to {MAX_MADE} characters", "Cast to a shorter type.")


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


# ------------------------------------------------------------------------------------------------- length


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
