"""The guard's judgement of joins: where the policy lists them, tables meet by these and in no other way."""

from collections import Counter
from collections.abc import Iterable, Iterator

from sqlglot import exp

from .columns import Columns
from .refusal import Refused
from .sources import Chain, Found, Origin, Scope, Source, folded


class Joins(Columns):
    """Judges how the tables of one statement are put together."""

    def merged(self, joins: list[exp.Expr], scope: Scope) -> set[str]:
        """The columns that joins make one of."""
        found = {folded(self.name(column)) for join in joins for column in join.args.get("using") or ()}
        if any(join.args.get("method") for join in joins):
            names = Counter(name for source in scope.sources for name in source.outputs or ())
            found |= {name for name, count in names.items() if count > 1}
        return found

    def check_compared(self, node: exp.Expr, chain: Chain) -> None:
        """Columns of two tables are set equal only where the policy permits that join. Raises Refused."""
        if (query := compared_query(node)) is not None:
            outputs, reads = self.found[id(query)]
            columns = list(node.this.find_all(exp.Column))
            mine = frozenset().union(*(source.tables for c in columns if (source := self.origin(c, chain)[0])))
            if mine and reads - mine:
                left = self.origin(node.this, chain)[1]
                right = outputs.places[0][1] if outputs and len(outputs.places) == 1 else None
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

    def check_sets(self, node: exp.SetOperation, left: Found, right: Found) -> None:
        """INTERSECT and EXCEPT compare the rows of two queries. Raises Refused."""
        if self.joins is None or isinstance(node, exp.Union) or left[1] == right[1] or not (left[1] and right[1]):
            return
        columns = [[origin for _, origin in outputs.places] if outputs else [] for outputs in (left[0], right[0])]
        if len(columns[0]) != len(columns[1]) or not columns[0] or None in (*columns[0], *columns[1]):
            tables = f"{', '.join(sorted(left[1]))} with {', '.join(sorted(right[1]))}"
            raise Refused("join_not_allowed", f"{tables}: not by plain columns", self.join_hint(left[1] | right[1]))
        for mine, other in zip(*columns, strict=True):
            if mine and other:
                self.check_pair(mine, other)

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
        for part in (part for condition in conditions for part in conjuncts(condition)):
            if isinstance(part, (exp.EQ, exp.NullSafeEQ)):
                (a, left), (b, right) = self.origin(part.this, here), self.origin(part.expression, here)
                if left and right:
                    pairs.append((a, b))
        reading = [source for source in (*scope.sources, *outer) if source.tables]
        pairs += [(a, b) for a in reading for b in reading if a.tables <= b.tables]  # a table and itself
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
                name = self.name(column)
                having = [s for s in scope.sources if s.outputs is None or s.has(name)]
                for other in (other for other in having[1:] if other.tables and having[0].tables):
                    left, right = having[0].origin(name), other.origin(name)
                    if left and right:
                        self.check_pair(left, right)
                        pairs.append((having[0], other))
        return pairs


def conjuncts(condition: exp.Expr | None) -> Iterator[exp.Expr]:
    """What has to hold together, brackets taken off."""
    inner = condition.unnest() if condition is not None else None
    if isinstance(inner, exp.And):
        yield from conjuncts(inner.this)
        yield from conjuncts(inner.expression)
    elif inner is not None:
        yield inner


def compared_query(node: exp.Expr) -> exp.Expr | None:
    """The query of `x IN (SELECT …)`, `x = ANY (SELECT …)` and `x = ANY (ARRAY(SELECT …))`."""
    if isinstance(node, exp.In):
        return node.args.get("query")
    inner = node.args.get("expression") if isinstance(node, exp.Binary) else None
    inner = inner.this if isinstance(inner, (exp.Any, exp.All)) else None
    while isinstance(inner, exp.Paren) or (isinstance(inner, exp.Array) and len(inner.expressions) == 1):
        inner = inner.this if isinstance(inner, exp.Paren) else inner.expressions[0]
    return inner if isinstance(inner, exp.Query) else None
