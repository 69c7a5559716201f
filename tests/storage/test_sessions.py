"""Our session settings hold whatever the server's are."""

import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pymysql
import pytest

import memory
from config import Settings
from db import Database
from memory import delete_conversation, save_turn
from tests.conftest import Store
from tests.support.storage import load, say, texts

HOSTILE = {
    "sql_mode": "''",
    "time_zone": "'+09:30'",
    "character_set_server": "latin1",
    "collation_server": "latin1_swedish_ci",
    "wait_timeout": "3",
    "innodb_lock_wait_timeout": "1000",
    "lock_wait_timeout": "1000",
    "init_connect": "'SET autocommit = 0, NAMES latin1'",
    "completion_type": "1",
    "foreign_key_checks": "0",
    "sql_select_limit": "1",
}


@pytest.fixture
def hostile_store(fragile_store: Store) -> Iterator[Store]:
    """A server whose defaults are not what anybody would want."""
    assert fragile_store.server
    with contextlib.closing(fragile_store.server.admin()) as admin, admin.cursor() as cursor:
        usual = {}
        for name, value in HOSTILE.items():
            cursor.execute(f"SELECT @@GLOBAL.{name}")
            usual[name] = cursor.fetchone()[0]
            cursor.execute(f"SET GLOBAL {name} = {value}")
        cursor.execute("SET GLOBAL TRANSACTION ISOLATION LEVEL SERIALIZABLE, READ ONLY")
        yield fragile_store
        cursor.execute("SET GLOBAL TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ WRITE")
        for name, value in usual.items():
            cursor.execute(f"SET GLOBAL {name} = %s", (value,))


def test_the_session_is_ours_whatever_the_servers_defaults_are(hostile_store: Store) -> None:
    names = (
        "time_zone",
        "tx_isolation",
        "transaction_isolation",
        "tx_read_only",
        "transaction_read_only",
        "autocommit",
        "character_set_client",
        "character_set_results",
        "character_set_connection",
        "collation_connection",
        "innodb_lock_wait_timeout",
        "foreign_key_checks",
        "completion_type",
    )
    with contextlib.closing(Database(Settings(**hostile_store.settings))) as database:
        rows = database.read(f"SHOW SESSION VARIABLES WHERE Variable_name IN {names}")
        found = dict(rows)
        modes = str(database.read("SELECT @@sql_mode")[0][0]).split(",")
        wait, lock_wait = database.read("SELECT @@wait_timeout, @@lock_wait_timeout")[0]
    # MySQL and MariaDB name these two differently, some versions both ways.
    assert {found.pop(name, None) for name in ("tx_isolation", "transaction_isolation")} - {None} == {"READ-COMMITTED"}
    assert {found.pop(name, None) for name in ("tx_read_only", "transaction_read_only")} - {None} == {"OFF"}
    assert found == {
        "time_zone": "+00:00",
        "autocommit": "ON",
        "character_set_client": "utf8mb4",
        "character_set_results": "utf8mb4",
        "character_set_connection": "utf8mb4",
        "collation_connection": "utf8mb4_bin",
        "innodb_lock_wait_timeout": "3",
        "foreign_key_checks": "ON",
        "completion_type": "NO_CHAIN",
    }
    assert {"STRICT_ALL_TABLES", "NO_ZERO_DATE"} <= set(modes)
    assert wait >= 300
    assert lock_wait <= 10


def test_turns_are_kept_and_deleted_right_whatever_the_servers_defaults_are(
    hostile_store: Store, conversation_id: str
) -> None:
    with contextlib.closing(Database(Settings(**hostile_store.settings))) as database:
        for number in (1, 2):
            say(database, conversation_id, f"😀 {number}", "𠮷")
        assert texts(load(database, conversation_id)) == ["😀 1", "𠮷", "😀 2", "𠮷"]
        created = memory.get_conversation(database, "", conversation_id)["created_at"]
        assert abs(created - datetime.now(UTC)) < timedelta(minutes=5)
        with pytest.raises(pymysql.err.DataError):
            save_turn(database, load(database, conversation_id).place, "Q", "A", "r" * 37)
        delete_conversation(database, "", conversation_id)
        assert count_messages(hostile_store, conversation_id) == 0  # seen by others at once, so it is committed
        say(database, conversation_id, "new", "new")
        assert count_messages(hostile_store, conversation_id) == 2


def count_messages(store: Store, conversation_id: str) -> int:
    """As root, who is spared `init_connect`."""
    assert store.server
    with contextlib.closing(store.server.admin()) as admin, admin.cursor() as cursor:
        admin.select_db(store.settings["db_name"])
        cursor.execute("SELECT COUNT(*) FROM messages WHERE conversation_id = %s", (conversation_id,))
        return int(cursor.fetchone()[0])
