"""`Idempotency-Key` on `/api/runs`: within a conversation as on `/chat`; outside any nothing is kept to give again."""

import uuid
from typing import Any

import httpx2
import pytest
from fastapi.testclient import TestClient

from tests.conftest import MakeClient, Store, path_of
from tests.support.keyed import CONFLICT, INVALID, MISMATCH, Row, body_of, is_replay, key_row, post, refused
from tests.support.pairs import pairs
from tests.support.runs import KEPT, SUM
from tests.support.scripted_model import Json, ScriptedModel

WAYS = ["/api/runs", "/api/runs/stream"]


@pytest.fixture
def key() -> str:
    """A key that nobody has used."""
    return str(uuid.uuid4())


def ask(client: TestClient, conversation_id: str, key: str, way: str = "/api/runs", **more: Any) -> httpx2.Response:
    return post(client, way, {"conversation_id": conversation_id, "question": "2 + 3?", **more}, key)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("then_way", WAYS)
def test_a_question_sent_again_is_answered_again_byte_for_byte_and_not_done_again(
    kept: TestClient, store: Store, model: ScriptedModel, conversation_id: str, key: str, way: str, then_way: str
) -> None:
    model.asks_for("calculator", **SUM).then_says("Das ist 5 – 五.")
    first = ask(kept, conversation_id, key, way)
    assert (first.status_code, is_replay(first)) == (200, False)
    for written in ({}, {"max_steps": 4, "model": None, "include_trace": True}):
        again = ask(kept, conversation_id, key, then_way, **written)
        assert is_replay(again)
        assert body_of(again) == body_of(first)
    assert pairs(store, conversation_id) == [("2 + 3?", "Das ist 5 – 五.")]
    (run_id,) = store.rows("SELECT run_id FROM runs WHERE conversation_id = %s", conversation_id)[0]
    assert key_row(store, key) == Row("done", body_of(first), run_id, conversation_id)


OTHER = [
    ("/api/runs", {"question": "2 + 4?"}),
    ("/api/runs", {"max_steps": 3}),
    ("/api/runs/stream", {"include_trace": False}),
]


@pytest.mark.parametrize(("way", "other"), OTHER, ids=str)
def test_a_key_used_for_another_question_is_refused(
    kept: TestClient,
    store: Store,
    model: ScriptedModel,
    conversation_id: str,
    key: str,
    way: str,
    other: Json,
) -> None:
    model.says("5")
    ask(kept, conversation_id, key)
    assert refused(ask(kept, conversation_id, key, way, **other)) == MISMATCH
    assert pairs(store, conversation_id) == [("2 + 3?", "5")]


@pytest.mark.parametrize("first", ["/chat", "/api/runs"])
def test_a_key_of_a_message_is_none_of_the_same_question(
    kept: TestClient, store: Store, model: ScriptedModel, conversation_id: str, key: str, first: str
) -> None:
    model.says("5")
    ways: dict[str, Json] = {
        "/chat": {"message": "2 + 3?"},
        "/api/runs": {"question": "2 + 3?"},
    }
    same = {"conversation_id": conversation_id, "max_steps": 4, "max_tool_calls": 8, "include_trace": True}
    assert post(kept, first, same | ways.pop(first), key).status_code == 200
    for way, said in ways.items():
        assert refused(post(kept, way, same | said, key)) == MISMATCH
    assert len(pairs(store, conversation_id)) == 1


def test_a_run_that_stopped_early_gives_its_key_back(
    kept: TestClient, store: Store, model: ScriptedModel, conversation_id: str, key: str
) -> None:
    model.asks_for("calculator", **SUM)
    stopped = ask(kept, conversation_id, key, max_steps=1)
    assert (stopped.json()["status"], key_row(store, key)) == ("incomplete", None)
    model.says("5")
    assert ask(kept, conversation_id, key).json()["turn"] == 1


def test_a_question_of_a_deleted_conversation_does_not_revive_it(
    kept: TestClient, store: Store, model: ScriptedModel, conversation_id: str, key: str
) -> None:
    model.says("5")
    ask(kept, conversation_id, key)
    assert kept.delete(path_of(conversation_id)).status_code == 204
    for way in WAYS:
        assert refused(ask(kept, conversation_id, key, way)) == CONFLICT
    assert pairs(store, conversation_id) == []


@pytest.mark.parametrize("way", WAYS)
def test_a_key_outside_any_conversation_is_refused_by_its_name_and_nothing_is_asked(
    client_for: MakeClient, store: Store, model: ScriptedModel, key: str, way: str
) -> None:
    client = client_for(environ=KEPT)
    for body in ({"question": "2 + 3?"}, {"question": "2 + 3?", "conversation_id": None}):
        answer = post(client, way, body, key)
        assert refused(answer) == INVALID
        assert [fault["field"] for fault in answer.json()["errors"]] == ["Idempotency-Key"]
        assert "conversation_id" in answer.json()["detail"]
    assert model.requests == []
    assert key_row(store, key) is None


@pytest.mark.parametrize("way", WAYS)
def test_a_key_that_is_none_is_refused(kept: TestClient, conversation_id: str, way: str) -> None:
    for bad in ("a b", "k" * 256, ""):
        answer = ask(kept, conversation_id, bad, way)
        assert refused(answer) == INVALID
        assert [fault["field"] for fault in answer.json()["errors"]] == ["Idempotency-Key"]
