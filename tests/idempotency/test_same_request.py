"""Which requests a key makes one: the same of the same owner, however it is written, and no other."""

import json

import pytest
from fastapi import FastAPI, Header
from fastapi.testclient import TestClient

from main import chat_router
from runtime import Runtime
from tests.conftest import MakeClient, MakeSettings, Store, path_of
from tests.support.gate import Beside, Gate
from tests.support.keyed import (
    CONFLICT,
    INVALID,
    MISMATCH,
    Reply,
    Row,
    body_of,
    chat,
    is_replay,
    key_row,
    post,
    refused,
)
from tests.support.pairs import pairs
from tests.support.scripted_model import Json, ScriptedModel
from tests.support.waiting import LONG
from tests.support.ways import WAYS, read_events


@pytest.mark.parametrize("way", WAYS)
def test_a_request_sent_again_is_answered_again_byte_for_byte_and_not_done_again(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, key: str, way: str
) -> None:
    model.asks_for("calculator", a=12, b=8, operation="multiply").then_says("Das ist 96 – 九十六 😀\u2028.")
    body = {"conversation_id": conversation_id, "message": "12 × 8?\r\n", "include_trace": True}
    first = post(client, way, body, key)
    assert (first.status_code, is_replay(first)) == (200, False)
    for _ in range(3):
        again = post(client, way, body, key)
        assert is_replay(again)
        assert again.headers["content-type"] == first.headers["content-type"]
        assert body_of(again) == body_of(first)
        if way == "/chat":
            assert again.content == first.content
    assert pairs(store, conversation_id) == [("12 × 8?\r\n", "Das ist 96 – 九十六 😀\u2028.")]
    assert len(model.requests) == 2  # one run of two rounds
    told = json.loads(body_of(first))
    assert key_row(store, key) == Row("done", body_of(first), told["run_id"], conversation_id)


@pytest.mark.parametrize(("first_way", "then_way"), [WAYS, WAYS[::-1]])
def test_a_key_is_the_same_key_on_both_ways_and_gives_the_same_body(
    client: TestClient,
    store: Store,
    model: ScriptedModel,
    conversation_id: str,
    key: str,
    first_way: str,
    then_way: str,
) -> None:
    model.says("Hello.")
    body = {"conversation_id": conversation_id, "message": "Hi"}
    first, then = post(client, first_way, body, key), post(client, then_way, body, key)
    assert (is_replay(first), is_replay(then)) == (False, True)
    assert body_of(then) == body_of(first)
    assert pairs(store, conversation_id) == [("Hi", "Hello.")]


def test_a_replayed_stream_is_the_result_and_nothing_else(
    client: TestClient, model: ScriptedModel, conversation_id: str, key: str
) -> None:
    model.says("Hello.")
    body = {"conversation_id": conversation_id, "message": "Hi"}
    first = read_events(post(client, "/chat/stream", body, key).content)
    assert [event.name for event in first][:1] == ["started"]
    again = read_events(post(client, "/chat/stream", body, key).content)
    assert [(event.id, event.name, event.data) for event in again] == [("1", "result", first[-1].data)]


def test_a_request_without_a_key_is_done_each_time(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    model.echoes()
    before = store.rows("SELECT COUNT(*) FROM idempotency_keys")
    for turn in (1, 2):
        answer = client.post("/chat", json={"conversation_id": conversation_id, "message": "Hi"})
        assert (answer.json()["turn"], is_replay(answer)) == (turn, False)
    assert store.rows("SELECT COUNT(*) FROM idempotency_keys") == before


def test_two_keys_are_two_requests_and_keys_are_compared_exactly(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, key: str
) -> None:
    model.echoes()
    for turn, one in enumerate([f"Key-{key}", f"key-{key}", f"key-{key}.", "!" + "~" * 254], 1):
        store.rows("DELETE FROM idempotency_keys WHERE name = %s", one)  # the last one is of every run of this test
        assert chat(client, conversation_id, "Hi", one).json()["turn"] == turn


SAME = {
    "other order": '{"message": "Hé 😀", "conversation_id": "%s"}',
    "other spacing": ' {\n"conversation_id" :\t"%s" , "message":"Hé 😀"}\r\n',
    "escaped": r'{"conversation_id": "%s", "mess\u0061ge": "\u0048\u00e9 \ud83d\ude00"}',
    "defaults given": '{"conversation_id": "%s", "message": "Hé 😀", "max_steps": null, "max_tool_calls": null, '
    '"model": null, "include_trace": false}',
    "given twice": '{"conversation_id": "%s", "message": "other", "message": "Hé 😀"}',
}


@pytest.mark.parametrize("written", SAME.values(), ids=SAME.keys())
def test_the_same_request_may_be_written_in_another_way(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, key: str, written: str
) -> None:
    model.says("Hello.")
    first = chat(client, conversation_id, "Hé 😀", key)
    headers = {"Idempotency-Key": key, "Content-Type": "application/json"}
    again = client.post("/chat", content=(written % conversation_id).encode(), headers=headers)
    assert is_replay(again)
    assert again.content == first.content
    assert pairs(store, conversation_id) == [("Hé 😀", "Hello.")]


OTHER = [
    {"message": "Hi "},
    {"message": "hi"},
    {"message": "Hi\u200b"},
    {"conversation_id": "another"},
    {"max_steps": 10},
    {"max_tool_calls": 30},
    {"model": "scripted"},
    {"include_trace": True},
]


@pytest.mark.parametrize("other", OTHER, ids=str)
@pytest.mark.parametrize("way", WAYS)
def test_a_key_used_for_another_request_is_refused_and_nothing_is_done(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, key: str, way: str, other: Json
) -> None:
    model.says("Hello.")
    body = {"conversation_id": conversation_id, "message": "Hi"}
    first = post(client, "/chat", body, key)
    answer = post(client, way, body | other, key)
    assert answer.status_code == 422
    assert refused(answer) == MISMATCH
    assert len(model.requests) == 1
    assert pairs(store, conversation_id) == [("Hi", "Hello.")]
    assert post(client, "/chat", body, key).content == first.content


BAD_KEYS = {
    "empty": b"",
    "too long": b"k" * 256,
    "a space": b" ",
    "a space within": b"a b",
    "two, joined on the way": b"a, b",
    "a tab": b"a\tb",
    "latin": "clé".encode("latin-1"),
    "UTF-8": "键".encode(),
    "control": b"a\x01b",
    "delete": b"a\x7fb",
}


@pytest.mark.parametrize("bad", BAD_KEYS.values(), ids=BAD_KEYS.keys())
@pytest.mark.parametrize("way", WAYS)
def test_a_key_that_is_none_is_refused_before_anything_happens(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, way: str, bad: bytes
) -> None:
    body = {"conversation_id": conversation_id, "message": "Hi"}
    answer = client.post(way, json=body, headers=[(b"Idempotency-Key", bad)])
    assert refused(answer) == INVALID
    assert "key" in json.dumps(answer.json()["errors"]).lower()
    assert model.requests == []
    assert store.rows("SELECT name FROM idempotency_keys WHERE conversation_id = %s", conversation_id) == []


def test_a_key_of_255_characters_is_one_and_counts_to_its_last_character(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, key: str
) -> None:
    model.echoes()
    first, second = key.ljust(254, "k") + "1", key.ljust(254, "k") + "2"
    assert chat(client, conversation_id, "Hi", first).json()["turn"] == 1
    assert chat(client, conversation_id, "Hi", second).json()["turn"] == 2
    assert is_replay(chat(client, conversation_id, "Hi", first))


def test_a_request_that_is_refused_at_the_door_does_not_use_up_its_key(
    client_for: MakeClient, store: Store, model: ScriptedModel, conversation_id: str, key: str
) -> None:
    client = client_for(max_message_chars=10)
    assert refused(chat(client, conversation_id, "far too long", key)) == INVALID
    assert refused(chat(client, conversation_id, "Hi", key, unknown=1)) == INVALID
    assert refused(chat(client, conversation_id, "\ud800", key)) == INVALID
    assert refused(chat(client, conversation_id, "Hi", key, model="\ud800")) == INVALID
    assert key_row(store, key) is None
    model.says("Hello.")
    assert chat(client, conversation_id, "Hi", key).json()["turn"] == 1


@pytest.mark.parametrize(
    ("settings", "other_conversation", "code"),
    [({"max_in_flight": 1}, True, "overloaded"), ({"conversation_busy": "reject"}, False, "turn_conflict")],
    ids=["overloaded", "busy"],
)
def test_a_request_that_finds_no_room_does_not_use_up_its_key(
    client_for: MakeClient,
    store: Store,
    model: ScriptedModel,
    conversation_id: str,
    key: str,
    beside: Beside,
    gates: list[Gate],
    settings: Json,
    other_conversation: bool,
    code: str,
) -> None:
    client = client_for(**settings)
    model.answers_by(gates[0].answer("A1"), forever=False)
    running = beside(
        client.post,
        "/chat",
        json={"conversation_id": f"{conversation_id}-2" if other_conversation else conversation_id, "message": "Q1"},
    )
    gates[0].wait()
    answer = chat(client, conversation_id, "Q2", key)
    assert refused(answer)[1] == code
    assert "retry-after" in answer.headers
    assert key_row(store, key) is None
    gates[0].open()
    assert running.result(LONG).status_code == 200
    model.says("A2")
    assert chat(client, conversation_id, "Q2", key).json()["answer"] == "A2"


def test_owners_do_not_share_keys(
    settings_for: MakeSettings, store: Store, model: ScriptedModel, conversation_id: str, key: str
) -> None:
    async def user(x_user: str = Header()) -> str:
        return x_user

    model.echoes()
    host = FastAPI()
    host.include_router(chat_router(Runtime(settings_for()), caller=user), prefix="/assistant")
    with TestClient(host) as client:

        def ask(owner: str, message: str) -> Reply:
            headers = {"x-user": owner, "Idempotency-Key": key}
            body = {"conversation_id": conversation_id, "message": message}
            return client.post("/assistant/chat", json=body, headers=headers)

        first = {owner: ask(owner, f"I am {owner}") for owner in ("alice", "bob", "Alice")}
        for owner, answer in first.items():
            assert (answer.json()["turn"], is_replay(answer)) == (1, False)
            assert ask(owner, f"I am {owner}").content == answer.content
            assert pairs(store, conversation_id, owner) == [(f"I am {owner}", f"echo: I am {owner}")]
        gone = client.delete(f"/assistant{path_of(conversation_id)}", headers={"x-user": "alice"})
        assert gone.status_code == 204
        assert refused(ask("alice", "I am alice")) == CONFLICT
        assert is_replay(ask("bob", "I am bob"))
        states = {owner: row.state for owner in first if (row := key_row(store, key, owner))}
        assert states == {"alice": "deleted", "bob": "done", "Alice": "done"}
