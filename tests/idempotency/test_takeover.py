"""A request whose service was killed or given up for dead is taken over; who wakes up late stores nothing."""

import contextlib
import json
from collections.abc import Callable

import httpx2
import pytest
from fastapi.testclient import TestClient

from db import Database
from dev.proxy import COMMIT, CuttableProxy
from idempotency import sweep_keys
from tests.conftest import MakeClient, MakeService, MakeSettings, Store
from tests.support.gate import Beside, Gate
from tests.support.keyed import (
    CONFLICT,
    IN_PROGRESS,
    body_of,
    chat,
    end_lease,
    expire,
    is_replay,
    key_row,
    post,
    refused,
)
from tests.support.pairs import pairs
from tests.support.scripted_model import Json, ScriptedModel, completion
from tests.support.waiting import LONG, until
from tests.support.ways import WAYS


def asked_the_model(model: ScriptedModel, proxy: CuttableProxy) -> Callable[[], object]:
    model.hangs()
    return lambda: model.wait_for_requests(1, LONG)


def claimed(model: ScriptedModel, proxy: CuttableProxy) -> Callable[[], object]:
    proxy.delay_reply_to(COMMIT, LONG)
    return lambda: until(lambda: proxy.held)


def claiming(model: ScriptedModel, proxy: CuttableProxy) -> Callable[[], object]:
    proxy.delay_reply_to(b"INSERT INTO idempotency_keys", LONG)
    return lambda: until(lambda: proxy.held)


def saving(model: ScriptedModel, proxy: CuttableProxy) -> Callable[[], object]:
    model.says("lost")
    proxy.delay_reply_to(b"UPDATE idempotency_keys SET state = 'done'", LONG)
    return lambda: until(lambda: proxy.held)


def saved(model: ScriptedModel, proxy: CuttableProxy) -> Callable[[], object]:
    def answer(request: Json) -> Json:
        proxy.delay_reply_to(COMMIT, LONG)
        return completion({"role": "assistant", "content": "Hello."}, "stop")(request)

    model.answers_by(answer, forever=False)
    return lambda: until(lambda: proxy.held)


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
