"""How large a statement is once every CTE, and every query in a FROM, stands written out wherever it is used.

Servers write them out so, and before any limit of time counts: where each level uses the one below it twice, a text of
a thousand characters fills all memory there is. Here nothing is written out, each part is counted once.
"""

from dataclasses import dataclass
from functools import cached_property

from sqlglot import exp

from .refusal import Refused
from .sources import alike

MAX_SIZE = 40_000  # nodes
QUERY_NODES = 10  # what a SELECT costs a server besides the nodes in it
STAR_COLUMNS = 20  # what is taken for the number of a table's columns

Named = list[tuple[str, int]]


@dataclass(eq=False)
class Size:
    """Of a query, or of what else stands in a FROM. A table has no columns here: one of it is one node.

    columns: the name of each, empty where that is unknown, and its nodes.
    """

    nodes: int
    columns: Named

    @cached_property
    def named(self) -> dict[str, int]:
        """The nodes of each name; of several columns of one name together."""
        found: dict[str, int] = {}
        for name, nodes in self.columns:
            found[name] = found.get(name, 0) + nodes
        return found

    @cached_property
    def row(self) -> int:
        return sum(nodes for _, nodes in self.columns)

    @cached_property
    def largest(self) -> int:
        return max((nodes for _, nodes in self.columns), default=1)

    def of(self, name: str) -> int:
        """The nodes of a column; of the largest where there is none of that name."""
        return self.named.get(name, self.largest)


Scope = list[tuple[str, Size]]  # what can be named, each with its name
Chain = tuple[Scope, ...]  # innermost first


def check_size(tree: exp.Expr) -> None:
    """No statement is too large when it is written out. Raises Refused."""
    sizes = Sizes()
    nodes = sizes.query(tree, ()).nodes
    within_limit(nodes + sum(size.nodes for name, size in sizes.ctes.items() if name not in sizes.used))


def within_limit(nodes: int) -> int:
    if nodes > MAX_SIZE:
        reason = "the statement is too large once each CTE and each query in FROM is written out where it is used"
        raise Refused("too_complex", reason, "Use fewer levels, and what is below each of them less often.")
    return nodes


class Sizes:
    """Counts one statement."""

    def __init__(self) -> None:
        self.ctes: dict[str, Size] = {}
        self.used: set[str] = set()

    def query(self, node: exp.Expr, chain: Chain) -> Size:
        """The size of a query. Raises Refused."""
        clause = node.args.get("with_")
        for cte in clause.expressions if clause else ():
            name = cte.alias.casefold()
            self.ctes[name] = Size(1, [])  # as a recursive one reads itself
            self.ctes[name] = renamed(self.query(cte.this, chain), cte.args["alias"])
        if isinstance(node, exp.Select):
            size = self.select(node, chain)
        elif isinstance(node, exp.SetOperation):
            left, right = self.query(node.this, chain), self.query(node.expression, chain)
            size = Size(1 + left.nodes + right.nodes, both(left, right))
            size.nodes += self.parts(node, ([("", size)], *chain), size, {"this", "expression"})
        elif isinstance(node, exp.Values):
            rows = [[self.node(value, chain) for value in row.expressions] for row in node.expressions]
            columns = [max(values) for values in zip(*rows, strict=False)]
            size = Size(1 + sum(map(sum, rows)), [("", nodes) for nodes in columns])
        else:
            below = self.query(node.this, chain)
            size = Size(1 + below.nodes, below.columns)
            size.nodes += self.parts(node, ([("", size)], *chain), size, {"this"})
        within_limit(size.nodes)
        return size

    def select(self, node: exp.Select, chain: Chain) -> Size:
        scope: Scope = []
        conditions: list[exp.Expr] = []
        start = node.args.get("from_")
        for source in [*([start.this] if start else []), *(node.args.get("laterals") or ())]:
            self.sources(source, scope, chain, conditions)
        self.joined(node, scope, chain, conditions)
        here = (scope, *chain)
        columns: Named = []
        for item in node.expressions:
            if isinstance(item, (exp.Star, exp.Column)) and item.is_star:
                table = alike(item.table) if isinstance(item, exp.Column) else ""
                meant = [size for name, size in scope if not table or name == table]
                for size in meant:
                    columns += size.columns or [("", 1)] * STAR_COLUMNS
            else:
                columns.append((item.alias_or_name.casefold(), self.node(item.unalias(), here)))
        size = Size(0, columns)
        size.nodes = QUERY_NODES + size.row + sum(below.nodes for _, below in scope)
        within_limit(size.nodes)
        size.nodes += sum(self.node(condition, here) for condition in conditions)
        size.nodes += self.parts(node, ([("", size)], *here), size, {"from_", "joins", "laterals", "expressions"})
        return size

    def parts(self, node: exp.Expr, chain: Chain, size: Size, but: set[str]) -> int:
        """The nodes of what a query says besides: conditions, groups, order. but: the parts that are counted."""
        found = 0
        for name, value in node.args.items():
            for part in value if isinstance(value, list) else [value]:
                if isinstance(part, exp.Expr) and name not in but and name not in ("with_", "alias"):
                    found += self.node(part, chain)
                    if isinstance(part, (exp.Group, exp.Order)):
                        numbers = [item for item in part.expressions if isinstance(inner(item), exp.Literal)]
                        found += len(numbers) * size.largest  # each a column of the list by its place
        return found

    def sources(self, node: exp.Expr, scope: Scope, chain: Chain, conditions: list[exp.Expr]) -> None:
        """What stands in a FROM, one after the other, for LATERAL may speak of those before it."""
        if isinstance(node, exp.Subquery) and isinstance(node.this, exp.Table):
            self.sources(node.this, scope, chain, conditions)
        else:
            scope.append((alike(node.alias_or_name), self.source(node, (scope, *chain))))
        self.joined(node, scope, chain, conditions)

    def joined(self, node: exp.Expr, scope: Scope, chain: Chain, conditions: list[exp.Expr]) -> None:
        for join in node.args.get("joins") or ():
            self.sources(join.this, scope, chain, conditions)
            conditions += [on] if isinstance(on := join.args.get("on"), exp.Expr) else []

    def source(self, node: exp.Expr, chain: Chain) -> Size:
        if isinstance(node, exp.Table) and isinstance(node.this, exp.Identifier):
            name = node.name.casefold()
            size = self.ctes.get(name, Size(1, [])) if not node.args.get("db") else Size(1, [])
            self.used.add(name)
        else:
            given = node.this if isinstance(node, (exp.Lateral, exp.Table)) else node
            size = self.query(given, chain) if isinstance(given, exp.Query) else Size(self.node(given, chain), [])
        return renamed(size, node.args.get("alias"))

    def node(self, node: exp.Expr, chain: Chain) -> int:
        """The nodes of an expression, with what its columns stand for in their place."""
        if isinstance(node, exp.Query):
            return self.query(node, chain).nodes
        if isinstance(node, exp.Column):
            return column(node, chain)
        found = 1
        for name, value in node.args.items():
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, exp.Expr):
                    nodes = self.node(child, chain)
                    found += nodes * copies(node) if name == "this" else nodes
        return found


def copies(node: exp.Expr) -> int:
    """How often PostgreSQL writes down what is compared: once for each bound, and for each value that is no literal."""
    if isinstance(node, exp.Between):
        return 4 if node.args.get("symmetric") else 2
    values = node.expressions if isinstance(node, exp.In) else []
    return max(1, sum(not isinstance(value, exp.Literal) for value in values) + 1 if values else 1)


def column(node: exp.Column, chain: Chain) -> int:
    """The nodes of what a column stands for: all that it may be, where that is not certain."""
    name, table = node.name.casefold(), alike(node.table)
    for scope in chain if table else ():
        if meant := [size for called, size in scope if called == table]:
            return sum(size.row if isinstance(node.this, exp.Star) else size.of(name) for size in meant) or 1
    sizes = [(called, size) for scope in chain for called, size in scope]
    rows = sum(size.row for called, size in sizes if called == alike(name))  # PostgreSQL: a whole row
    having = [size.named[name] for _, size in sizes if name in size.named]
    return max(1, rows + (sum(having) or max((size.largest for _, size in sizes), default=1)))


def both(left: Size, right: Size) -> Named:
    """The columns of two queries put below one another, which a server may write out for each."""
    if len(left.columns) == len(right.columns):
        pairs = zip(left.columns, right.columns, strict=True)
        return [(name, nodes + others) for (name, nodes), (_, others) in pairs]
    return [(name, left.largest + right.largest) for name, _ in left.columns]


def renamed(size: Size, alias: exp.Expr | None) -> Size:
    """A size with the names that an alias gives its first columns; any may be meant, where a star stands among them."""
    names = [item.name.casefold() for item in (alias.args.get("columns") or () if alias else ())]
    if not names or not size.columns:
        return size
    if len(names) <= len(size.columns) and all(name for name, _ in size.columns):
        again = [(name, nodes) for name, (_, nodes) in zip(names, size.columns, strict=False)]
        return Size(size.nodes, again + size.columns[len(names) :])
    return Size(size.nodes, [(name, size.largest) for name in names] + size.columns[len(names) :])


def inner(item: exp.Expr) -> exp.Expr:
    return item.this if isinstance(item, exp.Ordered) else item
