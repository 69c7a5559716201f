"""The guard's way through a statement: its queries, what stands in their FROM, and every expression in them."""

import re
from collections.abc import Iterable

from sqlglot import exp

from .joins import Joins
from .policy import Readable, near
from .refusal import Refused, dialect_hint
from .sources import Chain, Cte, Found, Known, Outputs, Scope, Source, alike, folded

CTE_NAME = re.compile(r"^cte\d+_")  # what a CTE is called in text that was written here before
JSON_COLUMNS = "key value type atom id parent fullkey path".split()  # of json_each and json_tree
CATALOGS = frozenset("information_schema performance_schema mysql sys pg_catalog pg_toast sqlite_master".split())


class Check(Joins):
    """Looks up every table and column of one statement, and writes tables down so that only they can be meant."""

    def query(self, node: exp.Expr, chain: Chain, known: Known) -> Outputs | None:
        """Check a query; its columns, None where they are not known."""
        known = self.with_ctes(node, chain, known)
        if isinstance(node, exp.Select):
            return self.select(node, chain, known)
        if isinstance(node, exp.SetOperation):
            if own := self.recursive.get(id(node)):
                self.recursive[id(node.this.unnest())] = own
            left = self.query_and_tables(node.this, chain, known)
            if own:
                known = begun(known, *own, left)
            right = self.query_and_tables(node.expression, chain, known)
            self.check_sets(node, left, right)
            outputs = common(left[0], right[0])
        elif isinstance(node, exp.Subquery):
            if node.args.get("order") and isinstance(node.unnest(), exp.Select):
                # Servers take it for the SELECT's own: it would see all columns of its tables.
                raise Refused(
                    "structure_not_allowed", "ORDER BY behind brackets is not allowed", "Put it inside the brackets."
                )
            outputs = self.query(node.this, chain, known)
        elif isinstance(node, exp.Values):
            outputs = None
            for row in node.expressions:
                self.expression(row, chain, known)
        else:
            raise Refused("structure_not_allowed", f"{node.key} is not allowed as a query", "Send one plain SELECT.")
        rest = Scope([Source("", None, outputs)])
        for part in ("where", "group", "having", "order", "limit", "offset"):
            if isinstance(value := node.args.get(part), exp.Expr):
                self.expression(value, (rest, *chain), known)
        if isinstance(node, exp.Subquery) and (node.args.get("joins") or node.args.get("laterals")):
            raise Refused("structure_not_allowed", "joins behind brackets are not allowed here", "Write a SELECT.")
        return outputs

    def query_and_tables(self, node: exp.Expr, chain: Chain, known: Known) -> Found:
        """The columns of a query, and the tables behind it."""
        before, self.reading = self.reading, frozenset()
        outputs = self.query(node, chain, known)
        inner = self.reading
        self.reading = before | inner
        return outputs, inner

    def with_ctes(self, node: exp.Expr, chain: Chain, known: Known) -> Known:
        """What is known below a WITH. Each of its queries gets a name that no table has."""
        clause = node.args.get("with_")
        if not clause:
            return known
        known = dict(known)
        for cte in clause.expressions:
            name, alias = self.name(cte.args["alias"].this), cte.args["alias"]
            self.ctes += 1
            short = CTE_NAME.sub("", name).encode()[:40].decode("utf-8", "ignore")
            new_name = f"cte{self.ctes}_{short}"
            columns = [self.name(column) for column in alias.args.get("columns") or ()]
            below = dict(known)
            if clause.args.get("recursive"):
                below[name] = Cte(new_name, nowhere(columns) if columns else None, frozenset())
                self.recursive[id(cte.this.unnest())] = below[name], columns
            outputs, reads = self.body(cte.this, chain, below)
            known[name] = Cte(new_name, renamed(outputs, columns), reads)
            alias.set("this", exp.to_identifier(new_name, quoted=True))
        return known

    def body(self, node: exp.Expr, chain: Chain, known: Known) -> Found:
        """The query of a CTE. In SQLite it sees nothing around it: what that is depends on where the CTE is used."""
        if self.dialect != "sqlite":
            return self.query_and_tables(node, chain, known)
        before, self.outside = self.outside, (*chain, *(self.outside or ()))
        found = self.query_and_tables(node, (), known)
        self.outside = before
        return found

    def select(self, node: exp.Select, chain: Chain, known: Known) -> Outputs | None:
        """Check one SELECT: its sources first, then everything that speaks of them."""
        scope = Scope()
        joins: list[exp.Expr] = []
        if start := node.args.get("from_"):
            self.source(start.this, scope, chain, known, joins)
        for lateral in node.args.get("laterals") or ():
            self.source(lateral, scope, chain, known, joins)
        self.join_sources(node, scope, chain, known, joins)
        here = (scope, *chain)
        for looking in scope.looking:
            self.look_around(looking, scope)
        scope.aliases = {folded(self.name(item.args["alias"])) for item in node.expressions if item.alias}
        scope.merged = self.merged(joins, scope)
        self.expand_stars(node, scope)
        for join in joins:
            self.join(join, here, known)
        for part, value in node.args.items():
            if part not in ("with_", "from_", "joins", "laterals"):
                scope.part = part
                for child in value if isinstance(value, list) else [value]:
                    if isinstance(child, exp.Expr):
                        self.expression(child, here, known)
        if self.joins is not None:
            self.check_connected(node, scope, here, joins)
        return self.outputs(node, scope, here)

    def join_sources(self, node: exp.Expr, scope: Scope, chain: Chain, known: Known, joins: list[exp.Expr]) -> None:
        """The sources that are joined to a FROM or to a table in brackets."""
        for join in node.args.get("joins") or ():
            joins.append(join)
            at = len(scope.sources)
            self.source(join.this, scope, chain, known, joins)
            scope.sources[at].joined = frozenset(folded(self.name(c)) for c in join.args.get("using") or ())

    def source(self, node: exp.Expr, scope: Scope, chain: Chain, known: Known, joins: list[exp.Expr]) -> None:
        """Add what stands in a FROM to its scope."""
        here = (scope, *chain)
        if isinstance(node, exp.Table):
            made = self.table(node, here, known)
        elif isinstance(node, exp.Lateral):
            made = self.derived(node, here, known)
        elif isinstance(node, exp.Subquery) and isinstance(node.this, exp.Table) and not node.alias:
            self.source(node.this, scope, chain, known, joins)  # FROM (a JOIN b ON …)
            self.join_sources(node, scope, chain, known, joins)
            return
        elif isinstance(node, (exp.Subquery, exp.Values, exp.Unnest)):
            made = self.derived(node, here, known)
        else:
            raise Refused("structure_not_allowed", f"{node.key} is not allowed in FROM")
        if made.name and any(alike(other.name) == alike(made.name) for other in scope.sources):
            raise Refused("syntax", f"two tables are called {made.name[:60]}", "Give each an alias of its own.")
        scope.sources.append(made)
        self.join_sources(node, scope, chain, known, joins)

    def table(self, node: exp.Table, here: Chain, known: Known) -> Source:
        """A table, a CTE by its name, or a function in FROM."""
        if not isinstance(node.this, exp.Identifier):
            return self.derived(node, here, known)
        name, schema = self.name(node.this), self.name(node.args["db"]) if node.args.get("db") else None
        alias = node.args.get("alias")
        called = self.name(alias.this) if alias and alias.this else name
        columns = [self.name(column) for column in alias.args.get("columns") or ()] if alias else []
        if schema is None and (cte := self.cte(name, known)):
            node.set("this", exp.to_identifier(cte.new_name, quoted=True))
            self.call(node, called)
            self.reading |= cte.tables
            return Source(called, None, renamed(cte.outputs, columns), cte.tables)
        if self.dialect == "mysql" and name.upper() == "DUAL" and schema is None:  # no table at all
            nothing = exp.TableAlias(this=exp.to_identifier(called, quoted=True))
            node.replace(exp.Subquery(this=exp.select("1"), alias=nothing))
            return Source(called, None, Outputs())
        readable = self.readable(name, schema)
        if columns:
            raise Refused(
                "structure_not_allowed", "columns of a table cannot be renamed in FROM", "Name them as they are."
            )
        self.tables.add(readable.name)
        self.reading |= {readable.name}
        node.set("this", exp.to_identifier(readable.name, quoted=True))
        if self.schema:
            node.set("db", exp.to_identifier(self.schema, quoted=True))
        self.call(node, called)
        outputs: Outputs | None = None
        if readable.visible is not None:
            outputs = Outputs((folded(column), (readable.name, column.casefold())) for column in readable.visible)
        return Source(called, readable, outputs, frozenset({readable.name}))

    def cte(self, name: str, known: Known) -> Cte | None:
        """The CTE of this name. Raises Refused where one server would take it for that and another for a table."""
        same = [other for other in known if other.casefold() == name.casefold()]
        if name in known or not same or self.dialect == "postgres":
            return known.get(name)
        if self.dialect == "mysql":
            hint = f"Write its name as WITH does: {same[0][:60]}."
            raise Refused("table_not_allowed", f"{name[:60]} may mean a table or the CTE {same[0][:60]}", hint)
        return known[same[0]]

    def call(self, node: exp.Table, name: str) -> None:
        """Give a table the alias under which the statement speaks of it."""
        alias = node.args.get("alias") or exp.TableAlias()
        alias.set("this", exp.to_identifier(name, quoted=True))
        node.set("alias", alias)

    def readable(self, name: str, schema: str | None) -> Readable:
        """What may be read of a table. Raises Refused."""
        fold = (schema or "").casefold()
        if fold in CATALOGS or name.casefold() in CATALOGS:
            hint = "Call list_tables and describe_table instead."
            raise Refused("catalogue_not_allowed", "the catalogs of the server cannot be read", hint)
        if schema is not None and (self.schema is None or schema != self.schema):
            raise Refused("schema_not_allowed", f"the schema {schema[:60]} cannot be read")
        found = self.policy.find(name, exact=self.dialect == "postgres")
        if found is None:
            nearest = near(name, self.policy.tables()) or self.policy.tables()[:20]
            raise Refused(
                "table_not_allowed", f"there is no readable table {name[:60]}", f"Near it: {', '.join(nearest)}."
            )
        return self.policy.readable(found)

    def derived(self, node: exp.Expr, here: Chain, known: Known) -> Source:
        """A subquery, a list of values or a function in FROM."""
        alias, inner = node.args.get("alias"), node.this if isinstance(node, (exp.Lateral, exp.Table)) else node
        called = self.name(alias.this) if alias and alias.this else ""
        columns = [self.name(column) for column in alias.args.get("columns") or ()] if alias else []
        outputs = columns_in_from(inner, self.dialect)
        if isinstance(inner, exp.Query):
            outputs, tables = self.query_and_tables(inner, here if isinstance(node, exp.Lateral) else here[1:], known)
        else:
            before, self.reading = self.reading, frozenset()
            for child in inner.expressions if isinstance(inner, exp.Unnest) else [inner]:
                self.expression(child, here, known)
            tables, self.reading = self.reading, before | self.reading
        if isinstance(node, exp.Lateral) or not isinstance(inner, exp.Query):
            here[0].looking.append(inner)
        if columns and outputs is None:
            outputs = nowhere(columns)
        return Source(called, None, renamed(outputs, columns), tables)

    def look_around(self, node: exp.Expr, scope: Scope) -> None:
        """Nothing in a FROM may mean a column that a source beside it hides: some servers look to the right as well."""
        for column in node.find_all(exp.Column):
            name, table = self.name(column.this), self.name(column.args["table"]) if column.table else ""
            for source in scope.sources:
                if alike(source.name) == alike(table or name):
                    if isinstance(column.this, exp.Star) or not table:
                        self.whole_row(source)
                    else:
                        self.look_up(name, [source])
                elif not table and source.hides(name):
                    raise self.no_column(name, [source])

    def expression(self, node: exp.Expr, chain: Chain, known: Known) -> None:
        """Check everything below a node that is no source."""
        if isinstance(node, exp.Query):
            self.found[id(node)] = self.query_and_tables(node, chain, known)
            return
        if isinstance(node, exp.Column):
            self.column(node, chain)
            return
        if isinstance(node, exp.Collate) and isinstance(node.expression, exp.Column):
            self.expression(node.this, chain, known)
            return
        for child in list(node.iter_expressions()):
            self.expression(child, chain, known)
        if self.joins is not None:
            self.check_compared(node, chain)

    def join(self, node: exp.Expr, here: Chain, known: Known) -> None:
        """What a join says besides its table."""
        scope = here[0]
        if self.dialect == "mysql" and node.args.get("side") == "FULL":
            raise Refused("syntax", "MySQL has no FULL JOIN", dialect_hint("FULL JOIN", self.dialect))
        if node.args.get("method") and (self.joins is not None or any(source.partial for source in scope.sources)):
            raise Refused("join_not_allowed", "NATURAL JOIN is not allowed here", "Write JOIN … ON ….")
        for column in map(self.name, node.args.get("using") or ()):
            having = [source for source in scope.sources if source.has(column) or source.is_open]
            if len(having) < 2 or any(source.hides(column) for source in scope.sources):
                raise self.no_column(column, scope.sources)
        if isinstance(on := node.args.get("on"), exp.Expr):
            self.expression(on, here, known)


def begun(known: Known, own: Cte, columns: list[str], left: Found) -> Known:
    """What is known right of a UNION in the body of a recursive query: what stands to its left is what it reads."""
    names = columns or [name for name, _ in left[0].places] if left[0] else columns
    now = Cte(own.new_name, nowhere(names) if names else None, left[1])
    return {name: now if cte is own else cte for name, cte in known.items()}


def nowhere(names: Iterable[str]) -> Outputs:
    """Columns of these names whose values come from no column of a table."""
    return Outputs((folded(name), None) for name in names)


def columns_in_from(node: exp.Expr, dialect: str) -> Outputs | None:
    """The columns of what stands in FROM and is no query; None where they are not known."""
    if dialect != "sqlite":
        return None
    if isinstance(node, exp.Values):
        return nowhere(f"column{at + 1}" for at in range(len(node.expressions[0].expressions)))
    return nowhere(JSON_COLUMNS) if node.name.casefold() in ("json_each", "json_tree") else None


def common(left: Outputs | None, right: Outputs | None) -> Outputs | None:
    """The columns of two queries put below one another, with the origins that they share."""
    if left is None:
        return None
    others = right.places if right else []
    same = [at < len(others) and origin == others[at][1] for at, (_, origin) in enumerate(left.places)]
    return Outputs((name, origin if kept else None) for (name, origin), kept in zip(left.places, same, strict=True))


def renamed(outputs: Outputs | None, columns: list[str]) -> Outputs | None:
    """The columns of a query under the names that its alias gives the first of them."""
    if not columns:
        return outputs
    if outputs is None:
        return nowhere(columns)
    places = outputs.places
    new = [(folded(column), places[at][1] if at < len(places) else None) for at, column in enumerate(columns)]
    return Outputs(new + places[len(columns) :] if outputs.placed else new)
