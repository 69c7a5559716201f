"""Habits of vendors: what one wants or refuses is learned from it, and is not done to another."""

import json
import uuid

import pytest
from fastapi.testclient import TestClient

from tests.conftest import MakeClient, Store
from tests.support.odd_replies import GOOD, asks, call
from tests.support.outcomes import LEAK, ONCE_MORE, answered, both_ways, failed, left_nothing
from tests.support.scripted_model import ScriptedModel
from tests.support.ways import ask


@both_ways
@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_goes_back_within_the_run_and_is_never_the_answer(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, way: str, name: str
) -> None:
    other = f"model-{uuid.uuid4()}"
    asks(model, call("note", GOOD), **{name: "I should note \ud83d it."})
    model.says("Done.", message={name: "Now I am done."})
    outcome = ask(client, way, conversation_id, model=other)
    answered(outcome, store, conversation_id, "Done.")
    assert "should note" not in outcome.deltas()
    asked = model.requests[-1]["messages"][-2]
    assert asked["reasoning_content"] == "I should note \ufffd it."
    assert asked["content"] == ""


@both_ways
def test_a_vendor_that_requires_reasoning_on_every_assistant_message_gets_it(
    client_for: MakeClient, store: Store, conversation_id: str, way: str
) -> None:
    with ScriptedModel(reasoning="required") as strict:
        client = client_for(base_url=strict.base_url, toolsets=("tests.support.recording_tools",))
        strict.says("Hello.", reasoning_content="Aha.")
        assert ask(client, way, conversation_id).status == 200
        strict.asks_for_all(("note", GOOD), reasoning_content="Aha.").then_says("Done.", reasoning_content="Aha.")
        assert ask(client, way, conversation_id).body["answer"] == "Done."
        strict.finish()  # not one request was refused
        assert "Aha" not in json.dumps(store.messages(conversation_id))


@both_ways
def test_that_a_vendor_requires_reasoning_is_learned_from_its_refusal(
    client_for: MakeClient, store: Store, model: ScriptedModel, conversation_id: str, way: str
) -> None:
    model.says("Hello.")
    assert ask(client_for(), way, conversation_id).status == 200  # history of another model, which had no reasoning
    with ScriptedModel(reasoning="required") as strict:
        client = client_for(base_url=strict.base_url)
        for _ in range(2):
            strict.says("Hello again.", reasoning_content="Aha.")
            assert ask(client, way, conversation_id).body["answer"] == "Hello again."
        assert len(strict.violations) == 1  # the first request; from then on it is known
        assert len(strict.requests) == 3


@both_ways
@pytest.mark.parametrize("status", [400, 422])
def test_a_vendor_that_forbids_what_it_sent_itself_does_not_get_it_again(
    client_for: MakeClient, store: Store, model: ScriptedModel, conversation_id: str, way: str, status: int
) -> None:
    client = client_for(toolsets=("tests.support.recording_tools",))
    asks(model, call("note", GOOD), reasoning_content="Aha.")
    model.fails(status, message="Extra inputs are not permitted: messages.2.assistant.reasoning_content")
    model.says("Done.", reasoning_content="Aha.")
    answered(ask(client, way, conversation_id), store, conversation_id, "Done.")
    assert "reasoning_content" in model.requests[1]["messages"][-2]
    assert "reasoning_content" not in json.dumps(model.requests[2])
    asks(model, call("note", GOOD), reasoning_content="Aha.")
    model.says("Done.")
    assert ask(client, way, conversation_id).body["answer"] == "Done."
    assert "reasoning_content" not in json.dumps(model.requests[-1])
    assert len(model.requests) == 5


@both_ways
def test_a_vendor_that_can_be_pleased_neither_with_nor_without_reasoning_is_asked_three_times_at_most(
    client_for: MakeClient, store: Store, model: ScriptedModel, conversation_id: str, way: str
) -> None:
    client = client_for()
    for _ in range(ONCE_MORE):
        model.fails(400, message=f"reasoning_content: {LEAK}")
    failed(ask(client, way, conversation_id), 502, "model_error")
    left_nothing(client, store, model, conversation_id)


def test_a_vendor_that_refuses_stream_options_is_asked_without_them_from_then_on(
    client_for: MakeClient, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    client = client_for()
    model.fails(400, message="Unrecognized request argument supplied: stream_options").says("Hello.").says("Again.")
    answered(ask(client, "/chat/stream", conversation_id), store, conversation_id, "Hello.")
    assert ask(client, "/chat/stream", conversation_id).body["answer"] == "Again."
    assert ["stream_options" in request for request in model.requests] == [True, False, False]
    assert all(request["stream"] is True for request in model.requests)


def test_a_vendor_that_refuses_to_stream_is_asked_for_whole_replies_from_then_on(
    client_for: MakeClient, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    client = client_for()
    model.fails(400, message="stream=true is not supported with tools").says("Hello.").says("Again.")
    answered(ask(client, "/chat/stream", conversation_id), store, conversation_id, "Hello.")
    assert ask(client, "/chat/stream", conversation_id).deltas() == "Again."
    assert ["stream" in request for request in model.requests] == [True, False, False]


@both_ways
@pytest.mark.parametrize("said", ["the upstream failed", "streams are full", "downstream_options are wrong"])
def test_a_refusal_that_is_not_about_streaming_changes_nothing(
    client_for: MakeClient, store: Store, model: ScriptedModel, conversation_id: str, way: str, said: str
) -> None:
    client = client_for()
    model.fails(400, message=said)
    failed(ask(client, way, conversation_id), 502, "model_error")
    model.says("Hello.")
    answered(ask(client, way, conversation_id), store, conversation_id, "Hello.")
    assert ["stream_options" in request for request in model.requests] == [way == "/chat/stream"] * 2


def test_a_refusal_to_stream_means_nothing_to_one_who_did_not_ask_for_it(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    model.fails(400, message="stream and stream_options are not supported")
    failed(ask(client, "/chat", conversation_id), 502, "model_error")
    left_nothing(client, store, model, conversation_id)


def test_a_vendor_that_refuses_two_things_one_after_the_other_gets_its_way(
    client_for: MakeClient, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    model.fails(422, message="stream_options: extra inputs are not permitted")
    model.fails(400, message="The reasoning_content in the thinking mode must be passed back to the API.").says(
        "Hello."
    )
    answered(ask(client_for(), "/chat/stream", conversation_id), store, conversation_id, "Hello.")


def test_what_one_model_wants_is_not_done_to_another(
    client_for: MakeClient, model: ScriptedModel, conversation_id: str
) -> None:
    client = client_for()
    model.says("Hello.", reasoning_content="Aha.").says("Hello.").says("Hello.")
    ask(client, "/chat", conversation_id, model="one")
    ask(client, "/chat", conversation_id, model="one")
    ask(client, "/chat", conversation_id, model="another")
    sent = [["reasoning_content" in m for m in request["messages"]] for request in model.requests]
    assert (any(sent[1]), any(sent[2])) == (True, False)


def test_a_thought_spoken_of_once_does_not_end_streaming_for_good(
    client_for: MakeClient, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    client = client_for()
    spoken = "A thought is closed by </think> and then the answer follows."
    model.says(spoken).says(spoken)
    assert ask(client, "/chat/stream", conversation_id).body["answer"] == "and then the answer follows."
    pieces = []
    for _ in range(2):
        model.says("These are several small words.", gap_s=0.2)
        outcome = ask(client, "/chat/stream", conversation_id)
        assert outcome.body["answer"] == outcome.deltas() == "These are several small words."
        pieces.append(len([event for event in outcome.events if event.name == "delta"]))
    assert pieces[0] == 1 < pieces[1]  # the first was waited for, in vain


def test_a_thought_is_waited_for_as_long_as_the_model_thinks(
    client_for: MakeClient, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    client = client_for(toolsets=("tests.support.recording_tools",))
    aloud = "I should greet.</think>Hello."
    model.says(aloud).says(aloud)
    assert ask(client, "/chat/stream", conversation_id).body["answer"] == "Hello."
    asks(model, call("note", GOOD))  # a call without a text says nothing about it
    model.says(aloud)
    assert ask(client, "/chat/stream", conversation_id).deltas() == "Hello."


@pytest.mark.parametrize("word", ["stream", "stream_options", "reasoning_content"])
def test_a_refusal_that_repeats_the_words_of_the_user_changes_nothing_for_the_next_turn(
    client_for: MakeClient, store: Store, model: ScriptedModel, conversation_id: str, word: str
) -> None:
    client = client_for()
    model.says("Hello.")
    assert ask(client, "/chat/stream", conversation_id).body["turn"] == 1
    before = len(model.requests)
    model.fails(400, message=f"1 validation error, the input was: what is {word}?", forever=True)
    failed(ask(client, "/chat/stream", conversation_id), 502, "model_error")
    assert len(model.requests) <= before + ONCE_MORE
    model.reset()
    model.says("These are several small words.")
    assert ask(client, "/chat/stream", conversation_id).body["turn"] == 2
    (request,) = model.requests
    assert (request["stream"], request["stream_options"]) == (True, {"include_usage": True})
    assert "reasoning_content" not in json.dumps(request["messages"])


def test_a_model_that_sends_reasoning_gets_it_back_after_a_refusal_that_only_speaks_of_it(
    client_for: MakeClient, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    client = client_for()
    model.says("Hello.", reasoning_content="Aha.")
    assert ask(client, "/chat", conversation_id).body["turn"] == 1
    for _ in range(2):
        model.fails(400, message="what is reasoning_content?")
    failed(ask(client, "/chat", conversation_id), 502, "model_error")
    model.says("Hello.")
    assert ask(client, "/chat", conversation_id).body["turn"] == 2
    assert "reasoning_content" in json.dumps(model.requests[-1]["messages"])
