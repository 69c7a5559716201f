"""`Idempotency-Key`: whatever happens to a request, sent again it is answered again and not done again.

Where a lease or a key has to grow old, its row is edited: the server's clock is the judge, and it is read from there.
"""

import contextlib
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI, Header
from fastapi.testclient import TestClient

import db
import idempotency
import runtime
from db import Database
from dev.proxy import COMMIT, CuttableProxy
from idempotency import sweep_keys
from main import chat_router
from runtime import Runtime
from tests.conftest import MakeClient, MakeService, MakeSettings, Service, Store, path_of
from tests.support.scripted_model import Answer, Json, ScriptedModel, completion, last_user_text
from tests.support.waiting import LONG, until
from tests.support.ways import WAYS, read_events

Reply = httpx2.Response
Http = TestClient | httpx2.Client


CONFLICT = 409, "turn_conflict"
IN_PROGRESS = 409, "request_in_progress"
MISMATCH = 422, "idempotency_mismatch"
INVALID = 422, "invalid_request"
UNAVAILABLE = 503, "store_unavailable"


@pytest.fixture
def key() -> str:
    """A key that nobody has used."""
    return str(uuid.uuid4())


@pytest.fixture
def beside() -> Iterator[Callable[..., "Future[Any]"]]:
    """Does something beside the test: `beside(function, *arguments).result(LONG)`."""
    with ThreadPoolExecutor(60) as threads:
        yield threads.submit


Beside = Callable[..., "Future[Any]"]


@pytest.fixture
def proxy(store: Store) -> Iterator[CuttableProxy]:
    """The way from the service to the database, to be cut."""
    with CuttableProxy(store.settings["db_host"], store.settings["db_port"]) as proxy:
        yield proxy


def post(http: Http, way: str, body: Json, key: str) -> Reply:
    headers = {"Idempotency-Key": key, "Content-Type": "application/json"}
    return http.post(way, content=json.dumps(body), headers=headers)  # escaped, so that anything can be sent


def chat(http: Http, conversation_id: str, message: str, key: str, **more: Any) -> Reply:
    return post(http, "/chat", {"conversation_id": conversation_id, "message": message, **more}, key)


def body_of(answer: Reply) -> str:
    """The text of an answer's body; of a stream, that of its `result`, or of its `error`."""
    if not answer.headers["content-type"].startswith("text/event-stream"):
        return answer.text
    last = answer.content.rstrip(b"\n").rpartition(b"\n")[2]
    assert read_events(answer.content)[-1].name in ("result", "error")
    return last.removeprefix(b"data: ").decode()


def is_replay(answer: Reply) -> bool:
    """Whether an answer says that it is an earlier one."""
    assert answer.headers.get("idempotency-replayed") in (None, "true")
    return answer.status_code == 200 and "idempotency-replayed" in answer.headers


def refused(answer: Reply) -> tuple[int, str]:
    """Status and code of an answer that is an error, of a stream too."""
    problem = json.loads(body_of(answer))
    assert "idempotency-replayed" not in answer.headers
    return problem["status"], problem["code"]


@dataclass(frozen=True)
class Row:
    """What the table holds of a key."""

    state: str
    answer: str | None
    run_id: str
    conversation_id: str


def key_row(store: Store, key: str, owner: str = "") -> Row | None:
    """The row of a key, None where there is none."""
    columns = "state, answer, run_id, conversation_id"
    rows = store.rows(f"SELECT {columns} FROM idempotency_keys WHERE owner = %s AND name = %s", owner, key)
    return Row(*rows[0]) if rows else None


def end_lease(store: Store, key: str) -> None:
    store.rows("UPDATE idempotency_keys SET leased_until = NOW(6) - INTERVAL 1 SECOND WHERE name = %s", key)


def expire(store: Store, key: str) -> None:
    store.rows("UPDATE idempotency_keys SET expires_at = NOW(6) - INTERVAL 1 SECOND WHERE name = %s", key)


def pairs(store: Store, conversation_id: str, owner: str = "") -> list[tuple[str, str]]:
    """The turns that MySQL holds: (question, answer). Fails if one of them is not whole."""
    at = (conversation_id, owner)
    turns = store.rows("SELECT turns FROM conversations WHERE conversation_id = %s AND owner = %s", *at)
    rows = store.rows(
        "SELECT id, role, content, run_id FROM messages WHERE conversation_id = %s AND owner = %s ORDER BY id", *at
    )
    assert turns == ([(len(rows) // 2,)] if rows else [])
    assert [(number, role) for number, role, *_ in rows] == [
        (number, "user" if number % 2 else "assistant") for number in range(1, 2 * (len(rows) // 2) + 1)
    ]
    assert [run_id for *_, run_id in rows][::2] == [run_id for *_, run_id in rows][1::2]
    texts = [content for _, _, content, _ in rows]
    return list(zip(texts[::2], texts[1::2], strict=True))


class Gate:
    """An answer of the model that waits until the test lets it go: `model.answers_by(gate.answer("A1"))`."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()

    def answer(self, text: str) -> Answer:
        def answer(request: Json) -> Json:
            self.reached.set()
            assert self.opened.wait(LONG)
            return completion({"role": "assistant", "content": text}, "stop")(request)

        return answer

    def wait(self) -> None:
        """Until the model has been asked."""
        assert self.reached.wait(LONG)

    def open(self) -> None:
        self.opened.set()


@pytest.fixture
def gates() -> Iterator[list[Gate]]:
    """Two gates, open at the end whatever happened."""
    gates = [Gate(), Gate()]
    yield gates
    for gate in gates:
        gate.open()


# ---------------------------------------------------------------------------------------- the same, and what is not


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


# ---------------------------------------------------------------------------------------- while it runs


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("elsewhere", [False, True], ids=["same process", "another process"])
def test_a_request_that_is_still_being_answered_is_told_so_and_answered_once_it_is_done(
    client_for: MakeClient,
    store: Store,
    model: ScriptedModel,
    conversation_id: str,
    key: str,
    beside: Beside,
    gates: list[Gate],
    way: str,
    elsewhere: bool,
) -> None:
    client = client_for()
    other = client_for() if elsewhere else client
    body = {"conversation_id": conversation_id, "message": "Hi"}
    model.answers_by(gates[0].answer("Hello."), forever=False)
    first = beside(post, client, way, body, key)
    gates[0].wait()
    again = post(other, way, body, key)
    assert (again.status_code, refused(again)) == (409, IN_PROGRESS)
    assert int(again.headers["retry-after"]) >= 1
    assert again.headers["content-type"] == "application/problem+json"
    assert refused(post(other, way, body | {"message": "other"}, key)) == MISMATCH
    row = key_row(store, key)
    assert row and (row.state, row.answer) == ("running", None)
    gates[0].open()
    last = post(other, way, body, key) if first.result(LONG) else None
    assert last and is_replay(last)
    assert body_of(last) == body_of(first.result())
    assert pairs(store, conversation_id) == [("Hi", "Hello.")]


def test_a_lease_is_longer_than_a_turn_may_last_and_a_key_is_kept_for_a_day(
    client_for: MakeClient, store: Store, model: ScriptedModel, conversation_id: str, key: str
) -> None:
    model.says("Hello.")
    assert chat(client_for(turn_timeout_s=100), conversation_id, "Hi", key).status_code == 200
    seconds = "TIMESTAMPDIFF(SECOND, NOW(6), leased_until), TIMESTAMPDIFF(SECOND, NOW(6), expires_at)"
    with contextlib.closing(store.connect(init_command="SET time_zone = '+00:00'")) as connection:
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT {seconds} FROM idempotency_keys WHERE name = %s", (key,))
            row = cursor.fetchone()
    assert row
    assert 100 + 30 < row[0] < 100 + 90
    assert 24 * 3600 - 60 < row[1] <= 24 * 3600


def test_of_many_requests_with_one_key_at_the_same_instant_one_runs(
    service_for: MakeService, store: Store, model: ScriptedModel, conversation_id: str, beside: Beside
) -> None:
    services = [service_for(), service_for()]
    model.echoes(delay_s=0.3)
    for number in range(1, 6):
        key, start = str(uuid.uuid4()), threading.Barrier(12)

        def ask(service: Service, number: int = number, key: str = key, start: threading.Barrier = start) -> Reply:
            start.wait(LONG)
            return chat(service.http, conversation_id, f"Q{number}", key)

        asked = [beside(ask, services[one % 2]) for one in range(12)]
        answers = [future.result(LONG) for future in asked]
        done = [answer for answer in answers if answer.status_code == 200]
        assert len([answer for answer in done if not is_replay(answer)]) == 1
        assert all(refused(answer) == IN_PROGRESS for answer in answers if answer.status_code != 200)
        done += [chat(service.http, conversation_id, f"Q{number}", key) for service in services]
        assert len({answer.content for answer in done}) == 1
        assert len(model.requests) == number
    assert pairs(store, conversation_id) == [(f"Q{number}", f"echo: Q{number}") for number in range(1, 6)]


def test_a_caller_that_leaves_a_stream_finds_the_answer_when_it_comes_back(
    service_for: MakeService,
    store: Store,
    model: ScriptedModel,
    conversation_id: str,
    key: str,
    gates: list[Gate],
) -> None:
    service = service_for()
    body = {"conversation_id": conversation_id, "message": "Hi"}
    model.answers_by(gates[0].answer("Hello."), forever=False)
    with service.http.stream("POST", "/chat/stream", json=body, headers={"Idempotency-Key": key}) as stream:
        assert next(stream.iter_bytes()).startswith(b"id: 1\nevent: started\n")
        gates[0].wait()
    gates[0].open()
    until(lambda: pairs(store, conversation_id))
    again = post(service.http, "/chat", body, key)
    assert is_replay(again)
    assert again.json()["answer"] == "Hello."


# ---------------------------------------------------------------------------------------- what frees a key

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


# ---------------------------------------------------------------------------------------- the reply to COMMIT is lost


@pytest.mark.parametrize("done", [True, False], ids=["done", "not done"])
def test_a_claim_whose_commit_was_lost_is_made_once(
    client_for: MakeClient,
    store: Store,
    model: ScriptedModel,
    conversation_id: str,
    key: str,
    proxy: CuttableProxy,
    done: bool,
) -> None:
    model.says("Hello.")
    client = client_for(db_port=proxy.port)
    for _ in range(2):
        (proxy.cut_reply_to if done else proxy.cut_before)(COMMIT)
    first = chat(client, conversation_id, "Hi", key)
    assert (first.status_code, first.json()["answer"]) == (200, "Hello.")
    assert (proxy.cuts, proxy.armed) == (2, 0)
    assert len(model.requests) == 1
    assert pairs(store, conversation_id) == [("Hi", "Hello.")]
    assert chat(client, conversation_id, "Hi", key).content == first.content


@pytest.mark.parametrize("turn", [1, 2])
@pytest.mark.parametrize("done", [True, False], ids=["done", "not done"])
@pytest.mark.parametrize("statement", [COMMIT, b"UPDATE idempotency_keys SET state = 'done'"])
def test_a_turn_whose_commit_was_lost_is_stored_once_with_its_key(
    client_for: MakeClient,
    store: Store,
    model: ScriptedModel,
    conversation_id: str,
    key: str,
    proxy: CuttableProxy,
    turn: int,
    done: bool,
    statement: bytes,
) -> None:
    def answer(request: Json) -> Json:
        for _ in range(1 if done and statement == COMMIT else 3):
            (proxy.cut_reply_to if done else proxy.cut_before)(statement)
        return completion({"role": "assistant", "content": "Hello."}, "stop")(request)

    client = client_for(db_port=proxy.port)
    if turn == 2:
        model.says("A1")
        client.post("/chat", json={"conversation_id": conversation_id, "message": "Q1"})
    model.answers_by(answer, forever=False)
    first = chat(client, conversation_id, "Hi", key)
    assert (first.status_code, first.json()["turn"]) == (200, turn)
    assert proxy.armed == 0
    assert len(pairs(store, conversation_id)) == turn
    again = chat(client, conversation_id, "Hi", key)
    assert is_replay(again)
    assert again.content == first.content


def test_a_turn_deleted_while_its_commit_was_lost_is_not_stored_again(
    client_for: MakeClient, store: Store, model: ScriptedModel, conversation_id: str, key: str
) -> None:
    """With a key even a first turn that was deleted can be told from one that never arrived."""
    elsewhere = client_for()

    class Deleting(CuttableProxy):
        def count_cut(self) -> None:
            assert elsewhere.delete(path_of(conversation_id)).status_code == 204
            super().count_cut()

    with Deleting(store.settings["db_host"], store.settings["db_port"]) as proxy:

        def answer(request: Json) -> Json:
            proxy.cut_reply_to(COMMIT)
            return completion({"role": "assistant", "content": "Hello."}, "stop")(request)

        model.answers_by(answer, forever=False)
        assert refused(chat(client_for(db_port=proxy.port), conversation_id, "Hi", key)) == CONFLICT
        assert proxy.cuts == 1
    assert pairs(store, conversation_id) == []
    row = key_row(store, key)
    assert row and (row.state, row.answer) == ("deleted", None)


# ---------------------------------------------------------------------------------------- the service is killed


def asked_the_model(model: ScriptedModel, proxy: CuttableProxy) -> Callable[[], object]:
    model.hangs()
    return lambda: model.wait_for_requests(1, LONG)


def claimed(model: ScriptedModel, proxy: CuttableProxy) -> Callable[[], object]:
    proxy.delay_reply_to(COMMIT, LONG)
    return lambda: until(lambda: not proxy.armed)


def claiming(model: ScriptedModel, proxy: CuttableProxy) -> Callable[[], object]:
    proxy.delay_reply_to(b"INSERT INTO idempotency_keys", LONG)
    return lambda: until(lambda: not proxy.armed)


def saving(model: ScriptedModel, proxy: CuttableProxy) -> Callable[[], object]:
    model.says("lost")
    proxy.delay_reply_to(b"UPDATE idempotency_keys SET state = 'done'", LONG)
    return lambda: until(lambda: not proxy.armed)


def saved(model: ScriptedModel, proxy: CuttableProxy) -> Callable[[], object]:
    def answer(request: Json) -> Json:
        proxy.delay_reply_to(COMMIT, LONG)
        return completion({"role": "assistant", "content": "Hello."}, "stop")(request)

    model.answers_by(answer, forever=False)
    return lambda: until(lambda: model.requests and not proxy.armed)


Point = Callable[[ScriptedModel, CuttableProxy], Callable[[], object]]
POINTS: list[tuple[Point, str | None]] = [
    (claiming, None),
    (claimed, "running"),
    (asked_the_model, "running"),
    (saving, "running"),
    (saved, "done"),
]


@pytest.mark.parametrize(("point", "left"), POINTS)
def test_a_request_whose_service_was_killed_is_taken_over_by_a_retry_after_its_lease(
    service_for: MakeService,
    client: TestClient,
    store: Store,
    model: ScriptedModel,
    conversation_id: str,
    key: str,
    proxy: CuttableProxy,
    beside: Beside,
    point: Point,
    left: str | None,
) -> None:
    service = service_for(DB_PORT=str(proxy.port))
    reached = point(model, proxy)
    asked = beside(chat, service.http, conversation_id, "Hi", key)
    reached()
    time.sleep(0.2)  # what was sent to the server is done by then
    service.end(kill=True)
    proxy.cut_all()  # what the system does to the connections of a process that is gone
    with pytest.raises(httpx2.TransportError):
        asked.result(LONG)
    asked_before = len(model.requests)
    if left is None:
        until(lambda: key_row(store, key) is None)
    else:
        row = key_row(store, key)
        assert row and row.state == left
    if left == "running":
        until(lambda: pairs(store, conversation_id) == [])
        assert refused(chat(client, conversation_id, "Hi", key)) == IN_PROGRESS
        end_lease(store, key)
    if left != "done":
        model.says("Hello.")
    answer = chat(client, conversation_id, "Hi", key)
    assert answer.json()["answer"] == "Hello."
    assert is_replay(answer) == (left == "done")
    assert len(model.requests) == asked_before + (left != "done")
    assert pairs(store, conversation_id) == [("Hi", "Hello.")]
    assert chat(client, conversation_id, "Hi", key).content == answer.content


# ---------------------------------------------------------------------------------------- given up for dead


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("turn", [1, 2])
@pytest.mark.parametrize("first_to_wake", [0, 1], ids=["wakes up first", "wakes up last"])
def test_a_run_that_was_given_up_for_dead_and_wakes_up_stores_nothing(
    client_for: MakeClient,
    store: Store,
    model: ScriptedModel,
    conversation_id: str,
    key: str,
    beside: Beside,
    gates: list[Gate],
    way: str,
    turn: int,
    first_to_wake: int,
) -> None:
    dead, alive = client_for(), client_for()
    before = []
    if turn == 2:
        model.says("A1")
        alive.post("/chat", json={"conversation_id": conversation_id, "message": "Q1"})
        before = [("Q1", "A1")]
    for gate, text in zip(gates, ("late", "Hello."), strict=True):
        model.answers_by(gate.answer(text), forever=False)
    body = {"conversation_id": conversation_id, "message": "Hi"}
    late = beside(post, dead, way, body, key)
    gates[0].wait()
    end_lease(store, key)
    answer = beside(post, alive, way, body, key)
    gates[1].wait()
    assert refused(post(dead, way, body, key)) == IN_PROGRESS
    futures = [late, answer]
    gates[first_to_wake].open()
    futures[first_to_wake].result(LONG)
    gates[1 - first_to_wake].open()
    assert refused(late.result(LONG)) == CONFLICT
    assert json.loads(body_of(answer.result(LONG)))["answer"] == "Hello."
    assert pairs(store, conversation_id) == [*before, ("Hi", "Hello.")]
    row = key_row(store, key)
    assert row and (row.state, row.answer) == ("done", body_of(answer.result()))
    for client in (dead, alive):
        again = post(client, way, body, key)
        assert is_replay(again)
        assert body_of(again) == body_of(answer.result())


def test_a_run_that_was_given_up_for_dead_and_fails_leaves_the_key_to_its_successor(
    client_for: MakeClient,
    store: Store,
    model: ScriptedModel,
    conversation_id: str,
    key: str,
    beside: Beside,
    gates: list[Gate],
) -> None:
    dead, alive = client_for(), client_for()
    for gate, text in zip(gates, ("", "Hello."), strict=True):
        model.answers_by(gate.answer(text), forever=False)
    late = beside(chat, dead, conversation_id, "Hi", key, max_steps=1)
    gates[0].wait()
    end_lease(store, key)
    answer = beside(chat, alive, conversation_id, "Hi", key, max_steps=1)
    gates[1].wait()
    gates[0].open()
    assert late.result(LONG).json()["stop_reason"] == "empty_answer"
    row = key_row(store, key)
    assert row and row.state == "running"
    gates[1].open()
    assert answer.result(LONG).json()["answer"] == "Hello."
    assert is_replay(chat(dead, conversation_id, "Hi", key, max_steps=1))


def test_a_run_whose_key_has_expired_meanwhile_stores_nothing(
    client: TestClient,
    store: Store,
    model: ScriptedModel,
    conversation_id: str,
    key: str,
    beside: Beside,
    gates: list[Gate],
    settings_for: MakeSettings,
) -> None:
    model.answers_by(gates[0].answer("late"), forever=False)
    late = beside(chat, client, conversation_id, "Hi", key)
    gates[0].wait()
    expire(store, key)
    with contextlib.closing(Database(settings_for())) as database:
        sweep_keys(database)
    assert key_row(store, key) is None
    gates[0].open()
    assert refused(late.result(LONG)) == CONFLICT
    assert pairs(store, conversation_id) == []


# ---------------------------------------------------------------------------------------- after a DELETE


def test_a_deleted_conversation_leaves_marks_without_content_and_is_not_revived(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    model.echoes()
    keys = [str(uuid.uuid4()) for _ in range(3)]
    other_key, other = str(uuid.uuid4()), f"{conversation_id}-2"
    first = [chat(client, conversation_id, f"secret {number}", key) for number, key in enumerate(keys)]
    kept = chat(client, other, "kept", other_key)
    assert client.delete(path_of(conversation_id)).status_code == 204
    asked = len(model.requests)
    for number, key in enumerate(keys):
        assert key_row(store, key) == Row("deleted", None, first[number].json()["run_id"], conversation_id)
        for way in WAYS:
            answer = post(client, way, {"conversation_id": conversation_id, "message": f"secret {number}"}, key)
            assert (answer.status_code, refused(answer)) == (409, CONFLICT)
            assert "deleted" in answer.json()["detail"]
        assert refused(chat(client, conversation_id, "another", key)) == MISMATCH
    assert len(model.requests) == asked
    assert store.rows("SELECT id FROM conversations WHERE conversation_id = %s", conversation_id) == []
    assert pairs(store, conversation_id) == []
    everything = store.rows("SELECT * FROM idempotency_keys WHERE conversation_id = %s", conversation_id)
    assert "secret" not in str(everything)
    assert chat(client, other, "kept", other_key).content == kept.content


def test_a_mark_of_a_deleted_conversation_leaves_its_successor_alone(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    model.echoes()
    old, new = str(uuid.uuid4()), str(uuid.uuid4())
    chat(client, conversation_id, "old", old)
    client.delete(path_of(conversation_id))
    answer = chat(client, conversation_id, "new", new)
    assert answer.json()["turn"] == 1
    assert refused(chat(client, conversation_id, "old", old)) == CONFLICT
    assert chat(client, conversation_id, "new", new).content == answer.content
    assert pairs(store, conversation_id) == [("new", "echo: new")]
    expire(store, old)
    assert chat(client, conversation_id, "old", old).json()["turn"] == 2


def test_a_conversation_deleted_while_a_turn_with_a_key_is_answered_stays_deleted(
    client: TestClient,
    store: Store,
    model: ScriptedModel,
    conversation_id: str,
    key: str,
    beside: Beside,
    gates: list[Gate],
) -> None:
    model.says("A1").answers_by(gates[0].answer("A2"), forever=False)
    client.post("/chat", json={"conversation_id": conversation_id, "message": "Q1"})
    answer = beside(chat, client, conversation_id, "Q2", key)
    gates[0].wait()
    assert client.delete(path_of(conversation_id)).status_code == 204
    gates[0].open()
    assert refused(answer.result(LONG)) == CONFLICT
    assert pairs(store, conversation_id) == []
    assert key_row(store, key) is None


# ---------------------------------------------------------------------------------------- keys grow old


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
            began = time.monotonic()
            assert other.call(sweep_keys) is False
            assert time.monotonic() - began < 1
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


# ---------------------------------------------------------------------------------------- owners


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


# ---------------------------------------------------------------------------------------- many at once


@pytest.fixture
def three_services(service_for: MakeService) -> list[Service]:
    return [service_for(DB_POOL_SIZE="4") for _ in range(3)]


def test_of_fifty_turns_at_once_over_three_processes_what_is_answered_is_stored_and_the_rest_is_not(
    three_services: list[Service], store: Store, model: ScriptedModel, conversation_id: str, beside: Beside
) -> None:
    model.echoes(delay_s=0.02)
    asked = {
        f"Q{number}": beside(three_services[number % 3].chat, conversation_id, f"Q{number}") for number in range(50)
    }
    answers = {question: future.result(LONG) for question, future in asked.items()}
    stored = {answer.json()["turn"]: question for question, answer in answers.items() if answer.status_code == 200}
    assert all(refused(answer) == CONFLICT for answer in answers.values() if answer.status_code != 200)
    in_order = [(stored[turn], f"echo: {stored[turn]}") for turn in sorted(stored)]
    assert pairs(store, conversation_id) == in_order
    assert len(in_order) >= 50 // 3  # of each round one wins


def test_fifty_turns_at_once_over_three_processes_with_keys_and_retries_are_all_stored_once(
    three_services: list[Service], store: Store, model: ScriptedModel, conversation_id: str, beside: Beside
) -> None:
    model.answers_by(
        lambda request: completion({"role": "assistant", "content": f"echo: {last_user_text(request)}"}, "stop")(
            request
        )
    )

    def insist(number: int) -> Reply:
        """Another process each time, until it is answered."""
        key = f"{conversation_id}-{number}".encode().hex()[:255]
        for attempt in range(500):
            answer = chat(three_services[(number + attempt) % 3].http, conversation_id, f"Q{number}", key)
            if answer.status_code == 200:
                return answer
            assert refused(answer) in (CONFLICT, IN_PROGRESS)
            time.sleep(0.01 * (number % 7))
        raise AssertionError("never answered")

    answers = [future.result(2 * LONG) for future in [beside(insist, number) for number in range(50)]]
    questions = {answer.json()["turn"]: f"Q{number}" for number, answer in enumerate(answers)}
    in_order = [(questions[turn], f"echo: {questions[turn]}") for turn in range(1, 51)]
    assert pairs(store, conversation_id) == in_order
    states = store.rows("SELECT state, COUNT(*) FROM idempotency_keys WHERE conversation_id = %s", conversation_id)
    assert states == [("done", 50)]
