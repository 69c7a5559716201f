"""Where only the run cannot be stored, the turn is stored all the same."""

import contextlib

import pytest
from fastapi.testclient import TestClient

from tests.conftest import MakeClient, Store
from tests.support.runs import KEPT, NOTES, chat
from tests.support.scripted_model import ScriptedModel


@pytest.fixture
def fragile(client_for: MakeClient, fragile_store: Store) -> TestClient:
    """The service that keeps runs, on a database that a test may harm."""
    return client_for(environ=KEPT, **fragile_store.settings, **NOTES)


def set_packet(store: Store, size: int) -> int:
    """Another max_allowed_packet; the one before."""
    assert store.server
    with contextlib.closing(store.server.admin()) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT @@GLOBAL.max_allowed_packet")
        ((before,),) = cursor.fetchall()
        cursor.execute(f"SET GLOBAL max_allowed_packet = {size}")
        return int(before)


def test_a_table_that_is_missing_costs_the_run_and_not_the_turn(
    fragile: TestClient, fragile_store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    model.says("Kept.").then_says("Kept.").then_asks_for("note", text="x")
    for table in ("run_records", "runs"):
        fragile_store.rows(f"RENAME TABLE {table} TO away")
        try:
            body = chat(fragile, conversation_id, table)
            assert body["answer"] == "Kept."
            if table == "runs":
                early = chat(fragile, conversation_id, "early", max_steps=1)
                assert early["stop_reason"] == "max_steps"
        finally:
            fragile_store.rows(f"RENAME TABLE away TO {table}")
        assert fragile.get(f"/api/runs/{body['run_id']}").status_code == 404
    assert len(fragile_store.messages(conversation_id)) == 4
    assert fragile_store.rows("SELECT 1 FROM runs") == []  # no half of a run either


def test_a_record_larger_than_the_server_takes_costs_the_run_and_not_the_turn(
    client_for: MakeClient, fragile_store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    before = set_packet(fragile_store, 65_536)
    try:
        client = client_for(environ=KEPT, **fragile_store.settings, **NOTES)
        for _ in range(2):
            model.asks_for_all(*[("note", {"text": "x" * 20_000}) for _ in range(4)]).then_says("Small.")
            assert chat(client, conversation_id)["answer"] == "Small."
    finally:
        set_packet(fragile_store, before)
    assert len(fragile_store.messages(conversation_id)) == 4
    assert fragile_store.rows("SELECT 1 FROM runs WHERE conversation_id = %s", conversation_id) == []


def test_somebody_who_locks_the_runs_costs_the_run_and_not_the_turn(
    fragile: TestClient, fragile_store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    model.says("Before.").then_says("Kept.")
    chat(fragile, conversation_id)
    locker = fragile_store.connect()
    try:
        locker.begin()
        locker.cursor().execute("SELECT * FROM runs FOR UPDATE")
        assert chat(fragile, conversation_id)["answer"] == "Kept."
    finally:
        locker.close()
    assert len(fragile_store.messages(conversation_id)) == 4
    assert fragile_store.rows("SELECT turn FROM runs WHERE conversation_id = %s", conversation_id) == [(1,)]
