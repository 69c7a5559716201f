"""Conversations too long for the model: they are shortened once, by whole turns."""

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.conftest import Store
from tests.support.odd_replies import GOOD, asks, call
from tests.support.outcomes import both_ways, failed, left_nothing
from tests.support.recording_tools import RUNS
from tests.support.scripted_model import ScriptedModel
from tests.support.ways import ask

TOO_LONG: list[tuple[int, Any]] = [
    (400, {"error": {"message": "This is too much", "code": "context_length_exceeded"}}),
    (400, {"error": {"message": "This model's maximum context length is 4096 tokens.", "code": None}}),
    (400, {"object": "error", "message": "This model's maximum context length is 4096 tokens", "code": 400}),
    (
        400,
        {"error": {"message": "prompt is too long: 200251 tokens > 199999 maximum", "type": "invalid_request_error"}},
    ),
    (
        400,
        {"error": {"message": "the request exceeds the available context size", "type": "exceed_context_size_error"}},
    ),
    (400, {"error": {"message": "Invalid request: Your request exceeded model token limit: 8192"}}),
    (400, {"error": {"message": "Range of input length should be [1, 30720]"}}),
    (400, {"error": {"message": "Please reduce the length of the messages or completion."}}),
    (400, {"error": {"code": "1261", "message": "Prompt 超长"}}),
    (400, [{"error": {"code": 400, "message": "The input token count exceeds the maximum number of tokens allowed"}}]),
    (400, {"error": "maximum context length is 4096 tokens"}),
    (400, {"detail": "maximum context length is 4096 tokens"}),
    (413, {"error": {"message": "Request too large"}}),
    (413, "<html>Request Entity Too Large</html>"),
    (422, {"error": {"message": "Input has too many tokens"}}),
]


def three_turns(client: TestClient, model: ScriptedModel, conversation_id: str) -> None:
    for number in (1, 2, 3):
        model.says(f"answer {number}")
        assert ask(client, "/chat", conversation_id, f"question {number}").status == 200


@both_ways
@pytest.mark.parametrize(("status", "body"), TOO_LONG, ids=range(len(TOO_LONG)))
def test_a_conversation_too_long_for_the_model_is_shortened_once_by_whole_turns_and_says_so(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, way: str, status: int, body: Any
) -> None:
    three_turns(client, model, conversation_id)
    model.raw(body if isinstance(body, str) else json.dumps(body), status).says("Hello.")
    outcome = ask(client, way, conversation_id)
    assert (outcome.status, outcome.body["answer"], outcome.body["turn"]) == (200, "Hello.", 4)
    assert "the oldest 2 of 3 turns were left out" in outcome.body["notice"]
    before, after = ([m["content"] for m in request["messages"][1:]] for request in model.requests[-2:])
    assert before == [*(f"{who} {n}" for n in (1, 2, 3) for who in ("question", "answer")), "Hi"]
    assert after == ["question 3", "answer 3", "Hi"]
    assert store.messages(conversation_id)[6:] == [("user", "Hi"), ("assistant", "Hello.")]


@both_ways
def test_a_conversation_that_is_still_too_long_is_an_error_and_the_next_message_works(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, way: str
) -> None:
    three_turns(client, model, conversation_id)
    model.fails(400, code="context_length_exceeded").fails(400, code="context_length_exceeded")
    outcome = ask(client, way, conversation_id)
    failed(outcome, 502, "model_error")
    assert "Shorten the message" in outcome.body["detail"]
    left_nothing(client, store, model, conversation_id, before=6)


@both_ways
def test_shortening_takes_no_step_of_the_turn(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, way: str
) -> None:
    three_turns(client, model, conversation_id)
    model.fails(400, code="context_length_exceeded").says("Hello.")
    outcome = ask(client, way, conversation_id, max_steps=1)
    assert (outcome.body["answer"], outcome.body["steps"]) == ("Hello.", 1)


@both_ways
def test_a_transcript_that_grew_too_long_among_the_tools_is_shortened_in_its_history_only(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, way: str
) -> None:
    three_turns(client, model, conversation_id)
    asks(model, call("note", GOOD))
    model.fails(413).says("Done.")
    assert ask(client, way, conversation_id).body["answer"] == "Done."
    roles = [message["role"] for message in model.requests[-1]["messages"]]
    assert roles == ["system", "user", "assistant", "user", "assistant", "tool"]
    assert len(RUNS) == 1
