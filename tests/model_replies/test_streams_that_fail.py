"""Errors within a stream that no key calls one, what only looks like them, and several choices in one reply."""

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.conftest import Store
from tests.support.outcomes import LEAK, ONCE_MORE, answered, both_ways, failed, left_nothing
from tests.support.scripted_model import Json, ScriptedModel
from tests.support.stream import SSE, chunk
from tests.support.ways import ask


def event(data: Any, name: str = "") -> str:
    """An event as it is on the wire."""
    written = data if isinstance(data, str) else json.dumps(data)
    return (f"event: {name}\n" if name else "") + f"data: {written}\n\n"


HALF = event(chunk({"role": "assistant", "content": "Half an "})) + event(chunk({"content": "ans"}))
DONE = event("[DONE]")

ERRORS: list[tuple[str, str, int, str]] = [
    ("an event", event({"message": LEAK, "code": 500}, "error"), 502, "model_error"),
    ("an event with a key", event({"error": {"message": LEAK, "code": 429}}, "error"), 429, "model_rate_limited"),
    ("an event of another case", "Event: x\nevent:ERROR\ndata: {}\n\n", 502, "model_error"),
    ("an event of text", event(LEAK, "error"), 502, "model_error"),
    ("an event without data", "event: error\n\n", 502, "model_error"),
    ("an event at the end", "event: error\ndata: {}", 502, "model_error"),
    ("an event called done", event("[DONE]", "error"), 502, "model_error"),
    ("an event with choices", event(chunk({"content": "x"}, "stop"), "error"), 502, "model_error"),
    ("an object", event({"object": "error", "message": LEAK, "code": 500}), 502, "model_error"),
    ("an object without a code", event({"object": "error", "message": LEAK}), 502, "model_error"),
    ("a type", event({"type": "InternalServerError", "message": LEAK}), 502, "model_error"),
    ("a code", event({"message": LEAK, "code": 503}), 503, "model_unavailable"),
    ("a code and no choices", event({"message": LEAK, "code": "x", "choices": []}), 502, "model_error"),
    ("another name for it", event({"msg": LEAK, "code": 1302}), 502, "model_error"),
    ("a code of its own", event({"text": LEAK, "error_code": 50001}), 502, "model_error"),
    ("words alone", event({"message": LEAK}), 502, "model_error"),
    ("a detail", event({"detail": LEAK}), 502, "model_error"),
    ("an empty error", event({"error": {}}), 502, "model_error"),
]


@pytest.mark.parametrize(("error", "status", "code"), [row[1:] for row in ERRORS], ids=[row[0] for row in ERRORS])
def test_an_answer_behind_which_the_stream_tells_an_error_is_cut_whatever_form_that_has(
    client: TestClient,
    store: Store,
    model: ScriptedModel,
    conversation_id: str,
    error: str,
    status: int,
    code: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    ends = "" if "[DONE]" in error or not error.endswith("\n\n") else DONE
    model.raw(HALF + error + ends, content_type=SSE)
    outcome = ask(client, "/chat/stream", conversation_id)
    failed(outcome, status, code)
    assert len(model.requests) == 1
    for _ in range(ONCE_MORE):
        model.raw(HALF + error + ends, content_type=SSE)
    failed(ask(client, "/chat", conversation_id), status, code)  # a stream that nobody asked for
    assert LEAK not in outcome.text + caplog.text
    left_nothing(client, store, model, conversation_id)


@both_ways
@pytest.mark.parametrize(
    "body",
    [{"object": "error", "message": LEAK, "code": 503}, {"message": LEAK, "code": 503}, {"error": {"code": 503}}],
)
def test_an_error_in_place_of_a_body_counts_as_the_code_that_it_names(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, way: str, body: Json
) -> None:
    model.replies(body).says("Hello.")
    answered(ask(client, way, conversation_id), store, conversation_id, "Hello.")
    for _ in range(ONCE_MORE):
        model.replies(body)
    failed(ask(client, way, conversation_id), 503, "model_unavailable")


NO_ERRORS = [
    event({"type": "ping"}, "ping"),
    event("", "ping") + event("null", "ping") + event("ping", "ping") + event({"message": "still here"}, "ping"),
    event("...", "heartbeat"),
    "event: message\n\n",
    ": an error\n\n",
    event("null"),
    event({"choices": [], "usage": {"prompt_tokens": 1}}),
    event({"object": "chat.completion.chunk", "choices": None, "error": None, "code": 0}),
    event({"id": "x", "type": "status", "status": "in_progress"}),
    event(chunk({}, code=0, message="")),
]


@pytest.mark.parametrize("between", NO_ERRORS, ids=range(len(NO_ERRORS)))
@pytest.mark.parametrize("end", [DONE, event(chunk({}, "stop")), event(chunk({}, "stop")) + DONE])
def test_what_a_stream_says_between_the_pieces_ends_no_good_answer(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, between: str, end: str
) -> None:
    hello = [event(chunk({"content": piece})) for piece in ("Hel", "lo.")]
    model.raw(between.join(["", *hello, end]), content_type=SSE)
    outcome = ask(client, "/chat/stream", conversation_id)
    answered(outcome, store, conversation_id, "Hello.")
    assert outcome.deltas() == "Hello."


def test_words_that_are_no_error_for_sure_end_no_answer_that_has_a_finish_reason(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    model.events([chunk({"content": "Hel"}), {"message": "queued"}, chunk({"content": "lo."}), chunk({}, "stop")])
    answered(ask(client, "/chat/stream", conversation_id), store, conversation_id, "Hello.")


def pieces(*said: tuple[Any, str], reasons: Any = ()) -> list[Json]:
    """A stream of several choices: index and text of each piece, then the index and the reason of each end."""
    texts = [{"choices": [{"index": index, "delta": {"content": text}}]} for index, text in said]
    ends = [{"choices": [{"index": index, "delta": {}, "finish_reason": reason}]} for index, reason in reasons]
    return [*texts, *ends]


BOTH = [
    {"index": 1, "delta": {"content": "No."}},
    {"index": 0, "delta": {"content": "Hello."}, "finish_reason": "stop"},
]

CHOICES: list[tuple[str, list[Json]]] = [
    (
        "in turns",
        pieces((0, "Hel"), (1, "No"), (0, "lo."), (1, "."), reasons=[(1, "length"), (0, "stop")]),
    ),
    ("only the first ends", pieces((0, "Hello."), (1, "No."), reasons=[(0, "stop")])),
    ("in one event", [{"choices": BOTH}]),
    ("not from 0", pieces((3, "Hel"), (4, "No."), (3, "lo."), reasons=[(4, "length"), (3, "stop")])),
    ("one without an index", pieces((None, "Hel"), (0, "lo."), (1, "No."), reasons=[(None, "stop")])),
]


@pytest.mark.parametrize("events", [row[1] for row in CHOICES], ids=[row[0] for row in CHOICES])
def test_of_several_choices_in_a_stream_one_is_the_answer(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, events: list[Json]
) -> None:
    model.events(events)
    outcome = ask(client, "/chat/stream", conversation_id)
    answered(outcome, store, conversation_id, "Hello.")
    assert outcome.deltas() == "Hello."


def test_the_end_of_another_choice_does_not_make_this_one_whole(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    model.events(pieces((0, "Hel"), (1, "No."), reasons=[(1, "stop")]), done=False)
    failed(ask(client, "/chat/stream", conversation_id), 502, "model_error")
    assert store.messages(conversation_id) == []


@both_ways
@pytest.mark.parametrize("indexes", [(1, 0), (5, 0), ("1", 0)])
def test_of_several_choices_in_a_body_the_one_of_index_0_is_the_answer(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, way: str, indexes: tuple[Any, Any]
) -> None:
    texts = zip(indexes, ("No.", "Hello."), strict=True)
    choices = [{"index": at, "message": {"content": text}, "finish_reason": "stop"} for at, text in texts]
    model.raw(json.dumps({"choices": choices}))
    answered(ask(client, way, conversation_id), store, conversation_id, "Hello.")
