"""The layers `charset`, `privileges` and `schema`: tables, accounts and packets that do not do."""

import contextlib
import os
from collections.abc import Callable

from config import Settings
from db import Database
from migrate import migrate, migrations
from tests.conftest import Store
from tests.support.examination import Account, Examine


def test_a_latin1_database(
    examine: Examine, execute: Callable[..., None], account: Account, other_database: str
) -> None:
    execute(f"ALTER DATABASE {other_database} CHARACTER SET latin1")
    settings = account("ALL ON {dbs}.*", database=other_database)
    make_tables(settings, examine)
    report = examine(**settings)
    report.assert_warns("charset", "中文 😀 comes back whole", "is latin1", "ALTER DATABASE `doctor_other`")
    execute(
        f"ALTER TABLE {other_database}.messages MODIFY content MEDIUMTEXT CHARACTER SET latin1 NOT NULL",
    )
    examine(**settings).assert_fails("charset", "messages.content (latin1)", "CONVERT TO CHARACTER SET utf8mb4")


def make_tables(settings: dict[str, str], examine: Examine) -> None:
    """Our tables in another database of the same server."""
    empty = examine(**settings)
    empty.assert_fails("schema", f"no tables of ours in {settings['DB_NAME']}", "python3 -m dev migrate")
    given = {name: os.environ[name] for name in ("DB_HOST", "DB_PORT", "DB_USER", "DB_PASSWORD", "DB_NAME")}
    with contextlib.closing(Database(Settings.from_env(given))) as database:
        assert database.read("SHOW TABLES") == []  # the doctor has made none
        migrate(database)


def test_an_account_without_privileges_on_the_tables(examine: Examine, account: Account) -> None:
    report = examine(**account("SELECT, UPDATE ON {dbs}.*"))
    words = "INSERT on conversations, DELETE on conversations, INSERT on messages"
    report.assert_fails("privileges", words, "As an administrator: GRANT SELECT, INSERT")
    assert report.told["not_looked_at"] == ["schema"]


def test_an_account_that_reads_and_writes_is_enough_until_tables_change(
    examine: Examine, account: Account, other_database: str
) -> None:
    report = examine(**account("SELECT, INSERT, UPDATE, DELETE ON {db}.*"))
    assert report.status == 0
    report.assert_says("privileges", "ok", "may not change tables")
    report = examine(**account("SELECT, INSERT, UPDATE, DELETE ON {dbs}.*", database=other_database))
    report.assert_fails("schema", "no tables of ours", "with an account that may change tables")


def test_privileges_by_a_role(examine: Examine, account: Account, execute: Callable[..., None], store: Store) -> None:
    name = store.settings["db_name"].replace("_", r"\_")
    execute("DROP ROLE IF EXISTS doctor_role", "CREATE ROLE doctor_role", f"GRANT ALL ON `{name}`.* TO doctor_role")
    try:
        settings = account("SELECT ON {db}.messages")
        execute("GRANT doctor_role TO 'doctor_0'@'%'")
        mysql = store.server is None and "MariaDB" not in str(store.rows("SELECT VERSION()"))
        execute(f"SET DEFAULT ROLE doctor_role {'TO' if mysql else 'FOR'} 'doctor_0'@'%'")
        examine(**settings).assert_says("privileges", "ok", "may change tables")
    finally:
        execute("DROP ROLE doctor_role")


def test_an_account_that_may_do_anything_is_warned_of(examine: Examine, account: Account) -> None:
    examine(**account("ALL ON *.*")).assert_warns("privileges", "far more", "an account of its own", "CREATE USER")


def test_a_read_only_server(examine: Examine, account: Account, execute: Callable[..., None]) -> None:
    settings = account("ALL ON {dbs}.*")
    execute("SET GLOBAL read_only = 1")
    try:
        examine(**settings).assert_fails("privileges", "read-only", "takes writes")
    finally:
        execute("SET GLOBAL read_only = 0")


def test_tables_of_another_program(
    examine: Examine, execute: Callable[..., None], account: Account, other_database: str
) -> None:
    execute(f"CREATE TABLE {other_database}.messages (conversion_id VARCHAR(100), role VARCHAR(20), message TEXT)")
    report = examine(**account("ALL ON {dbs}.*", database=other_database))
    report.assert_fails("schema", "messages lacks conversation_id", "conversion_id", "another DB_NAME")


def test_tables_that_are_older_or_newer_than_the_checkout(
    examine: Examine, execute: Callable[..., None], account: Account, other_database: str
) -> None:
    settings = account("ALL ON {dbs}.*", database=other_database)
    make_tables(settings, examine)
    version, file = list(migrations().items())[-1]
    table = f"{other_database}.schema_migrations"
    execute(f"INSERT INTO {table} (version, applied_at) VALUES (9999, NOW(6))")
    examine(**settings).assert_warns("schema", "newer", "9999", "git pull")
    execute(f"ALTER TABLE {other_database}.conversations DROP COLUMN title")
    execute(f"DELETE FROM {table} WHERE version = 9999")
    execute(f"DROP TABLE {other_database}.idempotency_keys")
    words = "conversations lacks title", "no table idempotency_keys", "Somebody changed the tables"
    examine(**settings).assert_fails("schema", *words)
    execute(f"UPDATE {table} SET applied_at = NULL WHERE version = {version}")
    examine(**settings).assert_fails("schema", f"lack {file.name}", "python3 -m dev migrate")


def test_a_packet_that_cannot_hold_an_answer(examine: Examine, execute: Callable[..., None], store: Store) -> None:
    [(before,)] = store.rows("SELECT @@max_allowed_packet")
    execute("SET GLOBAL max_allowed_packet = 1048576")
    try:
        report = examine(MAX_ANSWER_CHARS="1000000")
    finally:
        execute(f"SET GLOBAL max_allowed_packet = {before}")
    report.assert_fails(
        "schema", "max_allowed_packet is 1048576", "4193536", "SET GLOBAL", "MAX_ANSWER_CHARS (from the"
    )
