"""The layers `charset`, `privileges` and `schema`: our tables are there, the account may use them, text stays whole."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from dev.doctor.case import Case, Finding, fail, ok
from dev.doctor.login import for_administrators

if TYPE_CHECKING:
    from pymysql.cursors import Cursor

# ---------------------------------------------------------------------------------------- charset

SAMPLE = "中文 😀"
CHARSETS = """\
SELECT @@character_set_database, @@character_set_client, @@character_set_connection, @@character_set_results"""
NOT_UTF8MB4 = """\
SELECT table_name, column_name, character_set_name FROM information_schema.columns
WHERE table_schema = DATABASE() AND table_name IN ('conversations', 'messages')
  AND character_set_name NOT IN ('utf8mb4', 'ascii') ORDER BY 1, 2"""


def check_charset(case: Case) -> Finding:
    """Every character comes through: utf8mb4 on the connection, the columns and the database."""
    [(default, *sets)] = case.rows(CHARSETS)
    if set(sets) != {"utf8mb4"}:
        hint = "The server overrides what the client asks for: remove skip-character-set-client-handshake there."
        return fail(f"client, connection and results are {', '.join(sets)}, not utf8mb4", hint)
    [(back, seen)] = case.rows("SELECT %s, HEX(%s)", SAMPLE, SAMPLE)
    if back != SAMPLE or seen != SAMPLE.encode().hex().upper():
        return fail(f"{SAMPLE} came back as {back!r}", "Something between us and the server changes text: a proxy?")
    if rows := case.rows(NOT_UTF8MB4):
        columns = ", ".join(f"{table}.{column} ({charset})" for table, column, charset in rows)
        convert = "ALTER TABLE … CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;"
        return fail(f"not utf8mb4: {columns}", f"Save what is in these tables, then use another DB_NAME, or {convert}")
    found = f"{SAMPLE} comes back whole"
    if default == "utf8mb4":
        return ok(f"utf8mb4 on the connection and the database; {found}")
    name = case.settings.db_name.replace("`", "``")
    hint = f"Our tables name their own, others may not: ALTER DATABASE `{name}` CHARACTER SET utf8mb4;"
    return ok(found, (f"but the default of the database is {default}", hint))


# ---------------------------------------------------------------------------------------- privileges

# EXPLAIN wants the privilege of the statement and does not carry it out; that the table is absent is no hindrance.
PROBES = {
    "SELECT": "EXPLAIN SELECT 1 FROM {table}",
    "INSERT": "EXPLAIN INSERT INTO {table} () VALUES ()",
    "UPDATE": "EXPLAIN UPDATE {table} SET {column} = {column} WHERE 1 = 0",
    "DELETE": "EXPLAIN DELETE FROM {table} WHERE 1 = 0",
}
# Where not all of them are needed; rows of the last two go with those they belong to, by cascade.
ENOUGH = {"schema_migrations": ["SELECT"], "messages": ["SELECT", "INSERT"], "run_records": ["SELECT", "INSERT"]}
DENIED = {1044, 1142, 1143, 1227}
TO_CHANGE_TABLES = {"CREATE", "ALTER", "DROP", "INDEX", "REFERENCES"}
TOO_MUCH = {"SUPER", "FILE", "SHUTDOWN", "CREATE USER", "DROP"}  # on every database
EVEN_IF_READ_ONLY = {"SUPER", "READ_ONLY ADMIN", "READ ONLY ADMIN", "CONNECTION_ADMIN"}
GRANT = re.compile(r"GRANT (.+?) ON (?:\*|`((?:[^`]|``)+)`)\.(\*|`(?:[^`]|``)+`) TO ")


def check_privileges(case: Case) -> Finding:
    """The account may do what the service does, perhaps what `migrate` does, and not far more."""
    denied = [
        f"{privilege} on {table}"
        for table, columns in our_tables().items()
        for privilege in ENOUGH.get(table, PROBES)
        if is_denied(case, PROBES[privilege].format(table=table, column=columns[0]))
    ]
    user, statements = case.settings.db_user, for_administrators(case)
    if denied:
        return fail(f"{user} may not {', '.join(denied)}", f"As an administrator: {statements['grant']}")
    everywhere, here = granted(case)
    [(read_only,)] = case.rows("SELECT @@read_only")
    if str(read_only) not in ("0", "OFF") and not everywhere & EVEN_IF_READ_ONLY:
        return fail("the server is read-only", "It is a replica, or being cared for: use the one that takes writes.")
    may = "may" if TO_CHANGE_TABLES <= everywhere | here else "may not"
    found = f"{user} may read and write, and {may} change tables, as `migrate` does"
    if not everywhere & TOO_MUCH:
        return ok(found)
    own = f"Give the service an account of its own: {statements['account']}"
    return ok(found, ("but also far more, on every database", own))


def is_denied(case: Case, statement: str) -> bool:
    """Whether the server refuses a statement for want of a privilege, and for nothing else."""
    import pymysql

    from db import error_number, is_dead

    try:
        case.rows(statement)
    except pymysql.err.MySQLError as error:
        if is_dead(error):
            raise
        return error_number(error) in DENIED
    return False


def granted(case: Case) -> tuple[set[str], set[str]]:
    """The privileges on every database, and those on all tables of ours; by roles that are in force, too."""
    everywhere: set[str] = set()
    here: set[str] = set()
    for (line,) in case.rows("SHOW GRANTS"):
        grant = GRANT.match(line)
        if grant is None or grant[3] != "*":
            continue
        names = set(grant[1].split(", "))
        if names & {"ALL PRIVILEGES", "ALL"}:
            names |= TO_CHANGE_TABLES | TOO_MUCH | EVEN_IF_READ_ONLY
        if grant[2] is None:
            everywhere |= names
        elif fits(grant[2].replace("``", "`"), case.settings.db_name):
            here |= names
    return everywhere, here


def fits(pattern: str, name: str) -> bool:
    r"""Whether a database's name fits that of a grant, where % and _ stand for anything unless after a \."""
    wild = {"%": ".*", "_": "."}
    parts = re.findall(r"\\.|.", pattern, re.DOTALL)
    expression = "".join(wild.get(part) or re.escape(part[-1]) for part in parts)
    return re.fullmatch(expression, name, re.IGNORECASE) is not None


# ---------------------------------------------------------------------------------------- schema


def check_schema(case: Case) -> Finding:
    """The tables are there, are ours and as new as this checkout, and the largest turn fits into a packet."""
    from migrate import applied, migrations

    with case.connection.cursor() as cursor:
        done, lacking = applied(cursor), missing_columns(cursor)
    files = migrations()
    missing = [file.name for version, file in files.items() if version not in done or not done[version][2]]
    everywhere, here = granted(case)
    migrate = "`python3 -m dev migrate`"
    if not TO_CHANGE_TABLES <= everywhere | here:
        migrate += f" with an account that may change tables, which {case.settings.db_user} may not"
    if not done and lacking:
        hint = "Tables of another program may be in the way: use another DB_NAME, or rename them, then"
        return fail("; ".join(lacking), f"{hint} {migrate}.")
    if not done:
        hint = f"Make them: {migrate}; `python3 -m dev up` does it, too."
        return fail(f"no tables of ours in {case.settings.db_name}", hint)
    if missing:
        return fail(f"the tables lack {', '.join(missing)}", f"Bring them up to date: {migrate}.")
    if lacking:
        return fail("; ".join(lacking), "Somebody changed the tables: restore a backup, or use another DB_NAME.")
    if newer := [str(version) for version in done if version not in files]:
        odd = f"newer than this checkout, which has no migration {', '.join(newer)}"
        return ok(f"version {max(done)}", (odd, "Update the checkout: `git pull`."))
    return check_packet(case, f"version {max(done)}, up to date")


def our_tables() -> dict[str, list[str]]:
    """The tables of schema.sql with their columns."""
    from migrate import HERE, statements_of

    made = [re.match(r"CREATE TABLE IF NOT EXISTS (\w+)", text) for text in statements_of(HERE / "schema.sql")]
    return {one[1]: re.findall(r"^  ([a-z]\w*) +[A-Z]", one.string, re.MULTILINE) for one in made if one}


def missing_columns(cursor: Cursor) -> list[str]:
    """What our tables lack. Where there is no schema_migrations, those that are not there lack nothing."""
    cursor.execute("SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = DATABASE()")
    there: dict[str, list[str]] = {}
    for table, column in cursor.fetchall():
        there.setdefault(table, []).append(column)
    lacking = []
    for table, columns in our_tables().items():
        missing = [name for name in columns if name not in there.get(table, [])]
        if table in there and missing:
            lacking.append(f"the table {table} lacks {', '.join(missing)} (it has {', '.join(there[table])})")
        elif missing and "schema_migrations" in there:
            lacking.append(f"there is no table {table}")
    return lacking


def check_packet(case: Case, found: str) -> Finding:
    """Both messages of a turn go to the server in one statement; a character takes up to 4 bytes."""
    [(size,)] = case.rows("SELECT @@max_allowed_packet")
    needed = 4 * (case.settings.max_message_chars + case.settings.max_answer_chars) + 65_536
    if size >= needed:
        return ok(f"{found}; max_allowed_packet {size / 2**20:.0f} MiB is enough")
    mib = -(-needed // 2**20)
    return fail(
        f"max_allowed_packet is {size} bytes, and a turn may take {needed}",
        f"On the server: SET GLOBAL max_allowed_packet = {mib * 2**20}; and max_allowed_packet={mib}M in its file.",
        f"Or lower {case.origin('MAX_ANSWER_CHARS', 'MAX_MESSAGE_CHARS')}.",
    )
