"""Keys grow old: an expired one is as good as new, and a sweep forgets it."""

import contextlib
import time
from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

import idempotency
import runtime
from db import Database
from idempotency import sweep_keys
from tests.conftest import MakeClient, MakeSettings, Store
from tests.support.gate import Beside
from tests.support.keyed import chat, expire, is_replay, key_row
from tests.support.pairs import pairs
from tests.support.scripted_model import ScriptedModel
from tests.support.waiting import LONG, until


@pytest.mark.parametrize("message", ["Hi", "another"])
def test_an_expired_key_is_as_good_as_new(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, key: str, message: str
) -> None:
    model.echoes()
    chat(client, conversation_id, "Hi", key)
    expire(store, key)
    answer = chat(client, conversation_id, message, key)
    assert (answer.json()["turn"], is_replay(answer)) == (2, False)
    assert is_replay(chat(client, conversation_id, message, key))
    assert [question for question, _ in pairs(store, conversation_id)] == ["Hi", message]


@pytest.fixture
def database(settings_for: MakeSettings) -> Iterator[Database]:
    with contextlib.closing(Database(settings_for())) as database:
        yield database


def sweep(database: Database) -> None:
    """Leave no expired key of another test."""
    while sweep_keys(database):
        pass


def make_keys(store: Store, names: list[str], expires: str) -> None:
    """Rows as the service makes them. expires: an expression of SQL."""
    statement = (
        "INSERT INTO idempotency_keys (name, fingerprint, conversation_id, run_id, state, leased_until, expires_at) "
        f"VALUES (%s, REPEAT('f', 64), 'old', REPEAT('r', 36), 'done', NOW(6), {expires})"
    )
    with contextlib.closing(store.connect(init_command="SET time_zone = '+00:00'")) as connection:
        with connection.cursor() as cursor:
            cursor.executemany(statement, [(name,) for name in names])


def test_a_sweep_forgets_what_has_expired_piece_by_piece_and_nothing_else(
    store: Store, database: Database, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep(database)
    monkeypatch.setattr(idempotency, "SWEEP_ROWS", 4)
    make_keys(store, [f"{key}-{number}" for number in range(10)], "NOW(6) - INTERVAL 1 SECOND")
    make_keys(store, [f"{key}-kept"], "NOW(6) + INTERVAL 1 HOUR")

    def left() -> int:
        return int(store.rows("SELECT COUNT(*) FROM idempotency_keys WHERE name LIKE %s", f"{key}%")[0][0])

    assert [(sweep_keys(database), left()) for _ in range(4)] == [(True, 7), (True, 3), (False, 1), (False, 1)]
    assert key_row(store, f"{key}-kept")


def test_one_process_at_a_time_sweeps(
    store: Store, database: Database, settings_for: MakeSettings, key: str, beside: Beside
) -> None:
    sweep(database)
    make_keys(store, [key], "NOW(6) - INTERVAL 1 SECOND")
    with contextlib.closing(Database(settings_for())) as other:
        with contextlib.closing(store.connect()) as rival, rival.cursor() as cursor:
            rival.begin()
            cursor.execute("SELECT name FROM idempotency_keys WHERE name = %s FOR UPDATE", (key,))
            sweeping = beside(database.call, sweep_keys)
            time.sleep(0.3)  # it waits for the rival
            assert other.call(sweep_keys) is False  # it does not wait: the server would give that up after 3 s
            assert not sweeping.done()
            rival.rollback()
        assert sweeping.result(LONG) is False
        assert key_row(store, key) is None
        make_keys(store, [key], "NOW(6) - INTERVAL 1 SECOND")
        assert other.call(sweep_keys) is False  # the lock was given back
        assert key_row(store, key) is None


def test_the_service_forgets_expired_keys_by_itself(
    client_for: MakeClient, store: Store, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "HOUSEKEEPING_S", 0.05)
    make_keys(store, [key], "NOW(6) - INTERVAL 1 SECOND")
    client_for()
    until(lambda: key_row(store, key) is None)
