"""What frees a key: a run that stores nothing, whatever kept it from that."""

import contextlib
import json
from collections.abc import Callable

import pytest
from fastapi.testclient import TestClient

import db
from dev.proxy import CuttableProxy
from tests.conftest import MakeClient, Store
from tests.support.keyed import (
    IN_PROGRESS,
    MISMATCH,
    UNAVAILABLE,
    body_of,
    chat,
    end_lease,
    is_replay,
    key_row,
    post,
    refused,
)
from tests.support.pairs import pairs
from tests.support.scripted_model import Json, ScriptedModel, completion
from tests.support.ways import WAYS

Script = Callable[[ScriptedModel], object]
FAILURES: dict[str, tuple[Script, Json, int]] = {
    "model refuses": (lambda model: model.fails(400, "no"), {}, 502),
    "model away": (lambda model: model.resets().resets().resets(), {}, 503),
    "model too slow": (lambda model: model.hangs(), {"model_timeout_s": 0.3, "turn_timeout_s": 20}, 504),
    "nonsense": (lambda model: model.raw(b"<html>").raw(b"<html>").raw(b"<html>"), {}, 502),
    "cut": (lambda model: model.says("half", finish_reason="length"), {}, 200),
    "filtered": (lambda model: model.says("", finish_reason="content_filter"), {}, 200),
    "empty": (lambda model: model.says("").says(""), {}, 200),
    "turn too long": (lambda model: model.hangs(), {"turn_timeout_s": 0.5}, 200),
    "too many steps": (
        lambda model: model.asks_for("calculator", a=1, b=1, operation="add"),
        {"max_steps": 1},
        200,
    ),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("script", "settings", "status"), FAILURES.values(), ids=FAILURES.keys())
def test_a_run_that_stores_nothing_gives_its_key_back(
    client_for: MakeClient,
    store: Store,
    model: ScriptedModel,
    conversation_id: str,
    key: str,
    way: str,
    script: Script,
    settings: Json,
    status: int,
) -> None:
    client = client_for(**settings)
    body = {"conversation_id": conversation_id, "message": "Hi"}
    script(model)
    first = post(client, way, body, key)
    told = json.loads(body_of(first))
    assert told.get("status") in ("incomplete", status)
    assert told.get("answer") is None
    assert key_row(store, key) is None
    assert pairs(store, conversation_id) == []
    model.says("Hello.")
    again = post(client, way, body, key)
    assert not is_replay(again)
    assert json.loads(body_of(again))["answer"] == "Hello."
    assert json.loads(body_of(again))["run_id"] != told["run_id"]
    assert pairs(store, conversation_id) == [("Hi", "Hello.")]


def test_a_key_given_back_may_be_used_for_another_request(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, key: str
) -> None:
    model.fails(400, "no").says("Hello.")
    assert chat(client, conversation_id, "Hi", key).status_code == 502
    assert chat(client, conversation_id, "Hello?", key).json()["answer"] == "Hello."
    assert pairs(store, conversation_id) == [("Hello?", "Hello.")]


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store is given up sooner."""
    monkeypatch.setattr(db, "RETRY_S", 1.0)
    assert "innodb_lock_wait_timeout=3" in db.SESSION
    session = db.SESSION.replace("innodb_lock_wait_timeout=3", "innodb_lock_wait_timeout=1")
    monkeypatch.setattr(db, "SESSION", session)


@pytest.mark.usefixtures("soon")
def test_a_turn_that_could_not_be_stored_gives_its_key_back(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, key: str
) -> None:
    model.echoes()
    client.post("/chat", json={"conversation_id": conversation_id, "message": "Q1"})
    with contextlib.closing(store.connect()) as rival, rival.cursor() as cursor:
        rival.begin()
        cursor.execute("SELECT id FROM conversations WHERE conversation_id = %s FOR UPDATE", (conversation_id,))
        assert refused(chat(client, conversation_id, "Q2", key)) == UNAVAILABLE
        rival.rollback()
    assert key_row(store, key) is None
    answer = chat(client, conversation_id, "Q2", key)
    assert (answer.json()["turn"], is_replay(answer)) == (2, False)
    assert pairs(store, conversation_id) == [("Q1", "echo: Q1"), ("Q2", "echo: Q2")]


@pytest.mark.usefixtures("soon")
def test_a_key_that_could_not_be_given_back_is_free_when_its_lease_ends(
    client_for: MakeClient,
    store: Store,
    model: ScriptedModel,
    conversation_id: str,
    key: str,
    proxy: CuttableProxy,
) -> None:
    def answer(request: Json) -> Json:
        proxy.refuse()
        proxy.cut_all()
        return completion({"role": "assistant", "content": "lost"}, "stop")(request)

    model.answers_by(answer, forever=False).says("Hello.")
    client = client_for(db_port=proxy.port)
    assert refused(chat(client, conversation_id, "Hi", key)) == UNAVAILABLE
    proxy.accept()
    assert pairs(store, conversation_id) == []
    assert refused(chat(client, conversation_id, "Hi", key)) == IN_PROGRESS
    end_lease(store, key)
    assert refused(chat(client, conversation_id, "other", key)) == MISMATCH
    assert chat(client, conversation_id, "Hi", key).json()["answer"] == "Hello."
    assert pairs(store, conversation_id) == [("Hi", "Hello.")]


@pytest.mark.usefixtures("soon")
def test_a_claim_that_cannot_be_made_asks_no_model_and_leaves_no_key(
    client_for: MakeClient, store: Store, model: ScriptedModel, conversation_id: str, key: str, proxy: CuttableProxy
) -> None:
    client = client_for(db_port=proxy.port)
    proxy.refuse()
    for way in WAYS:
        answer = post(client, way, {"conversation_id": conversation_id, "message": "Hi"}, key)
        assert (answer.status_code, refused(answer)) == (503, UNAVAILABLE)
    proxy.accept()
    assert model.requests == []
    assert key_row(store, key) is None
