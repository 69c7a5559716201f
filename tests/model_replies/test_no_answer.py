"""Replies that are no answer, since they are empty, cut, given up or too long: nothing of them is stored."""

import uuid

import pytest
from fastapi.testclient import TestClient

from tests.conftest import MakeClient, Store
from tests.support.odd_replies import GOOD, THOUGHT_PART, asks, call
from tests.support.outcomes import ONCE_MORE, answered, both_ways, failed, left_nothing, stopped
from tests.support.recording_tools import RUNS
from tests.support.scripted_model import Json, ScriptedModel, completion
from tests.support.ways import ask

EMPTY: list[tuple[str, Json]] = [
    ("null", {"content": None}),
    ("empty", {"content": ""}),
    ("white space", {"content": " \n\t\u3000"}),
    ("nothing visible", {"content": "\u200b\ufeff\u2060"}),
    ("absent", {}),
    ("no parts", {"content": []}),
    ("no text among the parts", {"content": [{"type": "image_url"}, {"type": "text", "text": None}]}),
    ("a number", {"content": 42}),
    ("no calls", {"content": None, "tool_calls": []}),
    ("reasoning only", {"content": "", "reasoning_content": "Aha."}),
    ("a thought only", {"content": "<think>Aha.</think>"}),
    ("a thought without end", {"content": "<think>Aha, and so on"}),
    ("thinking parts only", {"content": [THOUGHT_PART]}),
]


@both_ways
@pytest.mark.parametrize("message", [message for _, message in EMPTY], ids=[name for name, _ in EMPTY])
def test_an_empty_reply_is_asked_for_once_more(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, way: str, message: Json
) -> None:
    model.answers_by(completion({"role": "assistant", **message}, "stop"), forever=False).says("Hello.")
    outcome = ask(client, way, conversation_id, model=f"model-{uuid.uuid4()}")
    answered(outcome, store, conversation_id, "Hello.")
    assert outcome.body["steps"] == 2
    assert "Aha" not in outcome.deltas()


@both_ways
@pytest.mark.parametrize("message", [message for _, message in EMPTY], ids=[name for name, _ in EMPTY])
def test_two_empty_replies_are_no_answer_and_nothing_is_stored(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, way: str, message: Json
) -> None:
    name = f"model-{uuid.uuid4()}"
    for _ in range(2):
        model.answers_by(completion({"role": "assistant", **message}, "stop"), forever=False)
    stopped(ask(client, way, conversation_id, model=name), "empty_answer")
    left_nothing(client, store, model, conversation_id, model=name)


@both_ways
def test_an_empty_reply_after_a_tool_does_not_run_the_tool_again(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, way: str
) -> None:
    asks(model, call("note", GOOD))
    model.says("").says("Done.")
    answered(ask(client, way, conversation_id), store, conversation_id, "Done.")
    assert len(RUNS) == 1


@both_ways
def test_an_empty_reply_in_the_last_permitted_step_is_an_empty_answer(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, way: str
) -> None:
    model.says("")
    stopped(ask(client, way, conversation_id, max_steps=1), "empty_answer")
    left_nothing(client, store, model, conversation_id)


CUT = [(reason, "length") for reason in ("length", "LENGTH", "max_tokens", "MAX_TOKENS", "model_length")]
CUT += [(r, "content_filter") for r in ("content_filter", "SAFETY", "sensitive", "content_filter: PROHIBITED_CONTENT")]
CUT_MESSAGES: list[tuple[str, Json]] = [
    ("an answer", {"content": "Half an ans"}),
    ("nothing", {"content": None}),
    ("a call", {"content": None, "tool_calls": [call("note", GOOD)]}),
    ("half a call", {"content": None, "tool_calls": [call("note", '{"text": "a')]}),
    ("a call and half a call", {"content": "So", "tool_calls": [call("note", GOOD), call("note", '{"te', "call_2")]}),
    ("a call as text", {"content": '<tool_call>{"name": "note", "arguments": {"text": "a"}}</tool_call>'}),
    ("half a call as text", {"content": '<tool_call>{"name": "note", "argum'}),
    ("half a thought", {"content": "<think>Aha, and"}),
]


CUT_REPLIES = [(CUT_MESSAGES[0][1], said, reason) for said, reason in CUT]
CUT_REPLIES += [(message, reason, reason) for _, message in CUT_MESSAGES[1:] for reason in ("length", "content_filter")]


@both_ways
@pytest.mark.parametrize(("message", "said", "reason"), CUT_REPLIES, ids=range(len(CUT_REPLIES)))
def test_a_reply_that_was_cut_is_neither_carried_out_nor_stored(
    client: TestClient,
    store: Store,
    model: ScriptedModel,
    conversation_id: str,
    way: str,
    message: Json,
    said: str,
    reason: str,
) -> None:
    model.answers_by(completion({"role": "assistant", **message}, said), forever=False)
    stopped(ask(client, way, conversation_id), reason)
    assert not RUNS
    assert len(model.requests) == 1
    left_nothing(client, store, model, conversation_id)


@both_ways
@pytest.mark.parametrize("said", ["error", "insufficient_system_resource", "network_error", "abort"])
@pytest.mark.parametrize("text", ["Half an ans", None])
def test_a_reply_that_the_service_gave_up_is_no_answer(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, way: str, said: str, text: str | None
) -> None:
    spoken = way == "/chat/stream" and text  # what was passed on cannot be taken back, so it is not tried again
    for _ in range(1 if spoken else ONCE_MORE):
        model.says(text, finish_reason=said)
    failed(ask(client, way, conversation_id), 502, "model_error")
    left_nothing(client, store, model, conversation_id)


@both_ways
def test_an_answer_longer_than_may_be_kept_is_none(
    client_for: MakeClient, store: Store, model: ScriptedModel, conversation_id: str, way: str
) -> None:
    client = client_for(max_answer_chars=100)
    model.says("字" * 101).says("字" * 100)
    outcome = ask(client, way, conversation_id, include_trace=True)
    stopped(outcome, "length")
    assert [event["type"] for event in outcome.body["trace"]].count("run_stopped") == 1
    answered(ask(client, way, conversation_id), store, conversation_id, "字" * 100)
