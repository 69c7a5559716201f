"""The guard's judgement of joins: where the policy lists them, tables meet by these and in no other way."""

from collections import Counter
from collections.abc import Iterable

from sqlglot import exp

from .columns import Columns
from .refusal import Refused
from .sources import Chain, Origin, Scope, Source


class Joins(Columns):
    """Judges how the tables of one statement are put together."""

    def merged(self, joins: list[exp.Expr], scope: Scope) -> set[str]:
        """The columns that joins make one of."""
        found = {self.name(column).casefold() for join in joins for column in join.args.get("using") or ()}
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
