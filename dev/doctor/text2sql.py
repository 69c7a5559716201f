"""The layer `text2sql`: the database that may be asked, the policy, and what the account could do besides."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dev.doctor.case import Case, Finding, fail, ok

if TYPE_CHECKING:
    from text2sql.database import ColumnInfo, Target
    from text2sql.policy import Policy

ACCOUNT = {
    "mysql": "CREATE USER reader@'…' IDENTIFIED BY '…'; GRANT SELECT ON `{}`.* TO reader@'…'",
    "postgres": "CREATE ROLE reader LOGIN PASSWORD '…'; GRANT USAGE ON SCHEMA {1} TO reader; "
    "GRANT SELECT ON ALL TABLES IN SCHEMA {1} TO reader; REVOKE CREATE ON SCHEMA {1} FROM PUBLIC",
}
TRY = "To try it without a database of yours: `python3 -m dev up --sample shop`."


def check_text2sql(case: Case) -> Finding:
    """The database answers, the policy fits what it has, and the account may only read."""
    from text2sql import Text2SqlSettings
    from text2sql.database import Target
    from text2sql.policy import load_policy
    from text2sql.recovery import classify

    settings = case.settings.section("text2sql", Text2SqlSettings)
    policy = load_policy(settings.policy)
    target = Target(settings.url.get_secret_value(), policy.file.schema_name)
    where = place(target)
    try:
        columns = target.columns()
        rights = target.too_many_rights()
    except Exception as error:
        code, message = classify(error, target.server.dialect)
        return unreachable(case, where, code, message or type(error).__name__)
    missing = [table for table in policy.file.tables if table not in columns]
    if len(missing) == len(policy.file.tables):
        hint = f"{case.origin('TEXT2SQL_POLICY')} or {case.origin('TEXT2SQL_URL')} is for another database; mend it."
        return fail(f"{where}: none of the {len(missing)} tables of {settings.policy} can be read", hint, writes_one())
    odd = [*absent(policy, columns, missing, settings.policy), *excessive(target, rights)]
    return ok(f"{where}: {len(policy.file.tables) - len(missing)} readable tables", *odd)


def place(target: Target) -> str:
    """The database, for people; without the password."""
    url = target.url
    if target.server.dialect == "sqlite":
        return f"{target.server.title} file {url.database}"
    port = f":{url.port}" if url.port else ""
    return f"{target.server.title} at {url.host or 'this machine'}{port}, database {url.database}, as {url.username}"


def unreachable(case: Case, where: str, code: str, message: str) -> Finding:
    """The database gives no answer to us."""
    way_out = {
        "connection_failed": "Start it, or mend the place in",
        "permission_denied": "Mend user and password in",
        "database_scope": "Mend the database's name, or the account's rights, in",
    }.get(code, "Mend")
    return fail(f"{where} cannot be asked ({code}): {message}", f"{way_out} {case.origin('TEXT2SQL_URL')}.", TRY)


def writes_one() -> str:
    return "`python -m text2sql policy` writes one that fits."


def absent(
    policy: Policy, columns: dict[str, list[ColumnInfo]], missing: list[str], file: str
) -> list[tuple[str, str]]:
    """What the policy names and the database does not have, as far as the account sees."""
    odd = []
    if missing:
        found = f"{file} names what is not there: {', '.join(missing)}"
        odd.append((found, f"Mend the names, or give the account SELECT on them; {writes_one()}"))
    for table, rule in policy.file.tables.items():
        there = {column.name.casefold() for column in columns.get(table, [])}
        unknown = [name for name in (*rule.hide, *(rule.columns or ())) if there and name.casefold() not in there]
        if unknown:
            hiding = " (nothing is hidden by such a name)" if set(unknown) & set(rule.hide) else ""
            odd.append((f"{table} has no {', '.join(unknown)}{hiding}", f"Mend [tables.{table}] in {file}."))
    return odd


def excessive(target: Target, rights: list[str]) -> list[tuple[str, str]]:
    """What the account may do besides reading; what no read-only session prevents comes first."""
    from text2sql.database import DANGEROUS

    if not rights:
        return []
    dangerous = [right for right in rights if right in DANGEROUS]
    found = f"the account may do more than read: {', '.join([*dangerous, *sorted(set(rights) - set(dangerous))][:12])}"
    if dangerous:
        found += f"; {', '.join(dangerous)} is dangerous: it reaches beyond what a read-only session prevents"
    made = ACCOUNT[target.server.dialect].format(target.url.database, target.server.schema)
    return [(found, f"Make one that may only read, and put it into TEXT2SQL_URL: {made}")]
