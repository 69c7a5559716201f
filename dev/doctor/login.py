"""The layers `login` and `server`: the account is let in, and the server is new enough."""

from __future__ import annotations

import ssl
from contextlib import closing

from dev import mariadb
from dev.doctor.case import Case, Finding, fail, ok

# What to do, by error number. It stands after the server's own words, which hold no secret.
LOGIN = {
    1045: "Check {origin}. In .env a value with #, quotes or spaces stands in '…'. An account also has a host that it "
    "may come from: the server names the one it saw.",
    1698: "This account gets in by the socket only, as the system's user of that name. Make another one: {account}",
    1044: "The account may not use {database}, or there is none of that name. As an administrator: {create} {grant}",
    1049: "Check DB_NAME, which is {database}, or make it: {create}",
    1130: "The server admits nobody from this machine. As an administrator: {account}",
    1040: "No connection is left: end programs that hold some, or raise max_connections of the server.",
    1203: "No connection is left for this account: end programs that hold some, or raise its limit on the server.",
    1226: "No connection is left for this account: end programs that hold some, or raise its limit on the server.",
    1129: "Too many broken connections came from here. As an administrator: FLUSH HOSTS.",
    1820: "The password has expired: log in with a client and use ALTER USER.",
    1862: "The password has expired. As an administrator: ALTER USER … IDENTIFIED BY '…'.",
    3118: "The account is locked. As an administrator: ALTER USER … ACCOUNT UNLOCK.",
    4151: "The account is locked. As an administrator: ALTER USER … ACCOUNT UNLOCK.",
    1251: "The driver cannot do this login method. As an administrator: ALTER USER … IDENTIFIED BY '…'.",
    2059: "The driver cannot do this login method. As an administrator: ALTER USER … IDENTIFIED BY '…', on MySQL "
    "IDENTIFIED WITH caching_sha2_password BY '…'.",
    3159: "The server wants TLS: let DB_SSL_CA name the file of the authority that signed its certificate.",
    2026: "The server offers no TLS, which DB_SSL_CA demands: switch it on there, or unset DB_SSL_CA.",
}
NEEDED = "SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, DROP, INDEX, REFERENCES"


def check_login(case: Case) -> Finding:
    """The account is let in, to the database."""
    import pymysql

    from db import error_number
    from errors import StoreUnavailable

    try:
        case.connection = case.database.connect()
        case.stack.enter_context(closing(case.connection))
        case.rows("SELECT 1")  # a password that has expired lets in, and no further
    except StoreUnavailable:  # let in, and too old for us: the next layer tells
        return ok(f"as {case.settings.db_user}")
    except pymysql.Error as error:
        number, text = error_number(error), str(error.args[-1])
        if isinstance(getattr(error, "original_exception", None), ssl.SSLError):
            hint = f"{case.origin('DB_SSL_CA')} has to hold who signed the server's certificate, and that DB_HOST."
            return fail(f"{case.where}: no TLS, {text}", hint)
        hint = LOGIN.get(number, "The server's log may say more.").format(
            origin=case.origin("DB_USER", "DB_PASSWORD"), database=case.settings.db_name, **for_administrators(case)
        )
        return fail(f"{case.where}: error {number}, {text}", hint)
    return ok(f"as {case.settings.db_user}")


def for_administrators(case: Case) -> dict[str, str]:
    """Statements for someone who may do more than our account: a database, a new account, more for the one there is."""
    name = case.settings.db_name.replace("`", "``")
    escaped = name.replace("_", r"\_")
    grant = f"GRANT {NEEDED} ON `{escaped}`.* TO"
    return {
        "create": f"CREATE DATABASE `{name}` CHARACTER SET utf8mb4;",
        "account": f"CREATE USER '{mariadb.USER}'@'…' IDENTIFIED BY '…'; {grant} '{mariadb.USER}'@'…';",
        "grant": f"{grant} '{case.settings.db_user}'@'…';",
    }


def check_server(case: Case) -> Finding:
    """The server is of a kind and a version that understands our statements."""
    from db import OLDEST, check_version
    from errors import StoreUnavailable

    try:
        check_version(case.version)
    except StoreUnavailable:
        oldest = " or ".join(f"{kind} {major}.{minor}" for kind, (major, minor) in OLDEST.items())
        own = "`python3 -m dev up` without DB_HOST brings one."
        return fail(f"{case.where}: {case.version} is too old", f"Use {oldest}, or newer; {own}")
    [(version, comment, most)] = case.rows("SELECT VERSION(), @@version_comment, @@max_connections")
    kind = "MariaDB" if "mariadb" in version.lower() else "MySQL"
    found, wanted = f"{kind} {version}, {comment.strip('()')}", case.settings.db_pool_size
    if most >= wanted:
        return ok(found)
    hint = f"Lower {case.origin('DB_POOL_SIZE')}, or raise max_connections of the server."
    return ok(found, (f"it takes {most} connections, and DB_POOL_SIZE is {wanted}", hint))
