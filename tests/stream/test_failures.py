"""Turns that fail, and streams that do not begin."""

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from fastapi.testclient import TestClient

import model as model_module
from errors import ModelError
from stream import begin_telling
from tests.conftest import MakeClient, Service, Store
from tests.support.recording_tools import RUNS
from tests.support.scripted_model import ScriptedModel
from tests.support.stream import SSE, Json, chunk
from tests.support.ways import Outcome, ask, read_events
from turn import Begun, Question, Turns

HALF = [chunk({"role": "assistant", "content": "Half "}), chunk({"content": "an ans"})]

HALF_CALL = [chunk({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "note", "arguments": '{"te'}}]})]

WHOLE_CALL = [
    chunk({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "note", "arguments": '{"text":"a"}'}}]})
]

BROKEN: list[tuple[str, Callable[[ScriptedModel], Any]]] = [
    ("no end", lambda m: m.events(HALF, done=False)),
    ("an error object", lambda m: m.events([*HALF, {"error": {"message": "LEAK", "code": 500}}])),
    ("an error text", lambda m: m.events([*HALF, {"error": "LEAK"}])),
    ("a rate limit", lambda m: m.events([*HALF, {"error": {"message": "LEAK", "code": 429}}])),
    ("given up", lambda m: m.events([*HALF, chunk({}, "error")])),
    ("no JSON", lambda m: m.events([*HALF, "LEAK"])),
    ("half an event", lambda m: m.events([*HALF, '{"choices": [{"del'], done=False)),
    ("a list", lambda m: m.events([*HALF, "[]"])),
    ("cut", lambda m: m.cuts_after(300, "".join(f"data: {json.dumps(c)}\n\n" for c in HALF * 9), content_type=SSE)),
]


@pytest.mark.parametrize("script", [script for _, script in BROKEN], ids=[name for name, _ in BROKEN])
def test_a_stream_of_the_model_that_breaks_after_some_text_is_one_error_and_nothing_is_stored(
    client: TestClient,
    store: Store,
    model: ScriptedModel,
    conversation_id: str,
    script: Callable[[ScriptedModel], Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    script(model)
    outcome = ask(client, "/chat/stream", conversation_id)
    assert (outcome.events[-1].name, outcome.status) in (("error", 502), ("error", 429), ("error", 503))
    assert outcome.deltas().startswith("Half")
    assert {"type", "title", "status", "detail", "code", "run_id"} == set(outcome.body)
    assert "LEAK" not in outcome.text + caplog.text
    assert len(model.requests) == 1  # text was passed on, so it is not tried again
    assert store.messages(conversation_id) == []
    model.says("Still here.")
    assert ask(client, "/chat/stream", conversation_id).body["turn"] == 1


def test_a_stream_that_says_too_late_that_it_is_too_long_is_not_begun_again(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    model.says("First.")
    assert ask(client, "/chat/stream", conversation_id).body["turn"] == 1
    model.events([*HALF, {"error": {"message": "LEAK", "code": "context_length_exceeded"}}])
    outcome = ask(client, "/chat/stream", conversation_id)
    assert (outcome.status, outcome.body["code"], outcome.deltas()) == (502, "model_error", "Half an ans")
    model.events([{"error": {"message": "LEAK", "code": "context_length_exceeded"}}]).says("Second.")
    outcome = ask(client, "/chat/stream", conversation_id)  # before any text it is
    assert (outcome.body["answer"], outcome.deltas()) == ("Second.", "Second.")
    assert "1 of 1 turns" in outcome.body["notice"]
    assert len(store.messages(conversation_id)) == 4


@pytest.mark.parametrize(
    "events",
    [HALF_CALL, WHOLE_CALL, [*HALF_CALL, {"error": {"message": "LEAK"}}], [*WHOLE_CALL, {"error": "LEAK"}]],
    ids=["half a call", "a whole call", "half a call and an error", "a whole call and an error"],
)
def test_no_call_of_a_stream_that_broke_is_carried_out(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, events: list[Json]
) -> None:
    for _ in range(model_module.RETRIES + 1):
        model.events(events, done=False)
    outcome = ask(client, "/chat/stream", conversation_id)
    assert (outcome.status, outcome.body["code"]) == (502, "model_error")
    assert not RUNS
    assert store.messages(conversation_id) == []
    model.events(events, done=False).says("Hello.")
    assert ask(client, "/chat/stream", conversation_id).body["answer"] == "Hello."
    assert not RUNS


def test_a_stream_that_broke_before_any_text_was_passed_on_is_asked_for_again(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    model.events([chunk({"role": "assistant", "content": ""})], done=False)
    model.events([chunk({"reasoning_content": "Aha."})], done=False)
    model.says("Hello.")
    outcome = ask(client, "/chat/stream", conversation_id)
    assert (outcome.body["answer"], outcome.deltas()) == ("Hello.", "Hello.")


def test_a_stream_of_the_model_without_end_is_one_early_stop_and_nothing_is_stored(
    client_for: MakeClient, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    client = client_for(max_answer_chars=2_000)
    model.events([chunk({"content": "word " * 10})] * 1_000)
    outcome = ask(client, "/chat/stream", conversation_id)
    assert outcome.body["stop_reason"] == "length"
    assert len(outcome.deltas()) < 3_000
    assert store.messages(conversation_id) == []


def test_a_stream_of_the_model_that_is_too_slow_is_one_error_and_nothing_is_stored(
    client_for: MakeClient, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    client = client_for(model_timeout_s=0.5)
    model.events([chunk({"content": "word "})] * 1_000, gap_s=0.05)
    outcome = ask(client, "/chat/stream", conversation_id)
    assert (outcome.status, outcome.body["code"]) == (504, "model_timeout")
    assert outcome.deltas().startswith("word ")
    model.wait_until(lambda: model.closed_early == 1)
    assert store.messages(conversation_id) == []


def test_a_turn_whose_result_cannot_be_made_ends_with_an_error_event_too() -> None:
    class Ending:
        """Turns whose only one ends as it is told to."""

        def __init__(self, end: Callable[[], Any]) -> None:
            self.end = end

        async def begin(self, *_: Any) -> Begun:
            async def turn() -> Any:
                await asyncio.sleep(0)
                return self.end()

            return Begun("run", asyncio.create_task(turn()))

    def fail() -> Any:
        raise ModelError

    def cancel() -> Any:
        raise asyncio.CancelledError

    class Result:
        body = None

    async def told(end: Callable[[], Any]) -> bytes:
        def body_of(_: Any) -> str:
            raise RecursionError("too deep")

        turns = cast("Turns", Ending(end))
        events, _ = await begin_telling(turns, Question("", "c", "m"), body_of, lambda error: {"code": repr(error)})
        async with asyncio.timeout(5):
            return b"".join([event async for event in events])

    for end, said in ((fail, "ModelError"), (cancel, "ChatError"), (Result, "RecursionError")):
        events = read_events(asyncio.run(told(end)))
        assert [event.name for event in events] == ["started", "error"]
        assert said in events[-1].data["code"]


REFUSED: list[tuple[Any, int, str]] = [
    ({"conversation_id": "a"}, 422, "invalid_request"),
    ({"conversation_id": "a", "message": " "}, 422, "invalid_request"),
    ({"conversation_id": "a", "message": "Hi", "stream": True}, 422, "invalid_request"),
    ({"conversation_id": "a\n", "message": "Hi"}, 422, "invalid_request"),
    ({"conversation_id": "a", "message": "x" * 32_001}, 422, "invalid_request"),
    ({"conversation_id": "a", "message": "x" * 10_000_000}, 413, "body_too_large"),
    ([], 422, "invalid_request"),
]


@pytest.mark.parametrize(("body", "status", "code"), REFUSED, ids=range(len(REFUSED)))
def test_a_request_that_is_refused_gets_an_ordinary_answer(
    service: Service, model: ScriptedModel, body: Any, status: int, code: str
) -> None:
    answer = service.http.post("/chat/stream", json=body)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert answer.headers["content-type"] == "application/problem+json"
    assert not model.requests


@contextlib.contextmanager
def turn_under_way(client: TestClient, model: ScriptedModel, conversation_id: str) -> Iterator[None]:
    """Another turn that is being answered meanwhile."""
    outcomes: list[Outcome] = []
    model.says("Slow.", delay_s=0.7)
    thread = threading.Thread(target=lambda: outcomes.append(ask(client, "/chat/stream", conversation_id)))
    thread.start()
    model.wait_for_requests(1)
    yield
    thread.join(10)
    assert outcomes[0].body["answer"] == "Slow."


def test_too_many_turns_at_once_get_an_ordinary_answer(
    client_for: MakeClient, model: ScriptedModel, conversation_id: str
) -> None:
    client = client_for(max_in_flight=1)
    with turn_under_way(client, model, conversation_id):
        answer = client.post("/chat/stream", json={"conversation_id": conversation_id + "2", "message": "Hi"})
    assert (answer.status_code, answer.json()["code"]) == (503, "overloaded")
    assert int(answer.headers["retry-after"]) >= 1
    model.says("Hello.")
    assert ask(client, "/chat/stream", conversation_id).body["turn"] == 2


def test_a_busy_conversation_gets_an_ordinary_answer_where_the_service_rejects(
    client_for: MakeClient, model: ScriptedModel, conversation_id: str
) -> None:
    client = client_for(conversation_busy="reject")
    with turn_under_way(client, model, conversation_id):
        answer = client.post("/chat/stream", json={"conversation_id": conversation_id, "message": "Hi"})
    assert (answer.status_code, answer.json()["code"]) == (409, "turn_conflict")
    model.says("Hello.")
    assert ask(client, "/chat/stream", conversation_id).body["turn"] == 2
