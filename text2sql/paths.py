"""JSON paths in MySQL and MariaDB, where `**` looks at every depth.

Several of them look at every depth below each that the one before found, and so does one in what another gave: minutes
that no limit and no KILL ends. So a statement has one, where all its paths can be seen.
"""

from sqlglot import exp

from .refusal import Refused
from .texts import NUMERIC, Stored, name_of, said

# Where each function has its paths: the name of a part, or the place of the first of its arguments that is one.
PATHS: dict[str, str | int] = {
    **dict.fromkeys("JSONExtract JSONExtractScalar JSONKeys".split(), "expression"),
    **dict.fromkeys("JSONExists JSONValue JSONTable JSONColumnDef".split(), "path"),
    **dict.fromkeys("json_keys json_length json_depth json_value json_query json_exists json_remove".split(), 1),
    **dict.fromkeys("json_contains json_contains_path".split(), 2),
    **{"json_search": 4},
}


def check_paths(tree: exp.Expr, stored: Stored) -> None:
    """At most one `**` is in the paths of a statement, and none in a recursion. Raises Refused."""
    found = 0
    for node in tree.walk():
        for path in paths_of(node):
            text = text_of(path, stored)
            if text is None:
                reason = f"a path of {said(node)} has to be a text, perhaps with numbers or columns of a table in it"
                raise Refused("too_complex", reason, "Write CONCAT('$[', CAST(n AS UNSIGNED), ']') for a number n.")
            deep = "".join(text.split()).count("**")
            found += deep
            clause = node.find_ancestor(exp.With)
            while deep and clause is not None and not clause.args.get("recursive"):
                clause = clause.find_ancestor(exp.With)
            if found > 1 or (deep and clause is not None):
                reason = "a statement may have one ** in its JSON paths, and none in a recursive query"
                raise Refused("too_complex", reason, "Name the keys on the way instead of **.")


def paths_of(node: exp.Expr) -> list[exp.Expr]:
    """The paths that a node is given."""
    place = PATHS.get(name_of(node))
    if isinstance(place, int):
        return node.expressions[place:]
    given = [node.args.get(place)] if place else []
    if isinstance(node, (exp.JSONExtract, exp.JSONExtractScalar)):
        given += node.expressions
    return [path for path in given if isinstance(path, exp.Expr)]


def text_of(path: exp.Expr, stored: Stored) -> str | None:
    """The text of a path, 0 for a number or a stored value in it; None where it cannot be seen."""
    if isinstance(path, exp.JSONPath):
        return path.sql("mysql")
    if isinstance(path, exp.Literal):
        return path.name
    if isinstance(path, exp.Paren):
        return text_of(path.this, stored)
    if isinstance(path, exp.Concat):
        texts = [text_of(part, stored) for part in path.expressions]
        return None if None in texts else "".join(text for text in texts if text is not None)
    if isinstance(path, exp.Cast) and path.to.this in exp.DataType.TEXT_TYPES:
        return text_of(path.this, stored)
    number = isinstance(path, exp.Cast) and path.to.this in exp.DataType.INTEGER_TYPES
    seen = number or name_of(path) in NUMERIC or (isinstance(path, exp.Column) and stored(path))
    return "0" if seen else None
