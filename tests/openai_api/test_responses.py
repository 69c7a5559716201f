"""/v1/responses, driven by the openai package."""

import json
from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.types.responses import Response

from tests.conftest import Store
from tests.support.openai_api import RESPONSES_TOOL, complete, named, stored, transcript
from tests.support.scripted_model import ScriptedModel


def test_a_response_is_stored_in_a_new_conversation_and_continued_by_its_id(
    api: OpenAI, store: Store, model: ScriptedModel
) -> None:
    model.says("One.").then_says("Two.").then_says("Three.")
    first = api.responses.create(input="first", instructions="Be brief.", metadata={"a": "b"})
    assert (first.status, first.output_text, first.metadata) == ("completed", "One.", {"a": "b"})
    assert (first.usage.input_tokens, first.usage.output_tokens, first.usage.total_tokens) == (10, 5, 15)
    assert model.requests[0]["messages"][0]["content"].endswith("Be brief.")
    second = api.responses.create(
        input=[{"role": "user", "content": [{"type": "input_text", "text": "second"}]}], previous_response_id=first.id
    )
    assert second.conversation == first.conversation and second.previous_response_id == first.id
    with pytest.raises(openai.BadRequestError, match="branching is not supported") as refused:
        api.responses.create(input="elsewhere", previous_response_id=first.id)
    assert refused.value.param == "previous_response_id"
    third = api.responses.create(input="third", conversation={"id": first.conversation.id})
    assert third.output_text == "Three."
    said = ["first", "One.", "second", "Two.", "third"]
    assert [text for _, text in transcript(model)] == said
    assert [text for _, text in store.messages(first.conversation.id)] == [*said, "Three."]


def test_a_stored_response_is_read_back_and_removed_only_when_it_is_alone(api: OpenAI, model: ScriptedModel) -> None:
    model.says("One.").then_says("Two.")
    first = api.responses.create(input="first")
    again = api.responses.retrieve(first.id)
    assert (again.id, again.status, again.output_text, again.usage) == (first.id, "completed", "One.", None)
    assert [item.content[0].text for item in api.responses.input_items.list(first.id)] == ["first"]
    item = api.conversations.items.retrieve(first.output[0].id, conversation_id=first.conversation.id)
    assert item.content[0].text == "One."
    second = api.responses.create(input="second", previous_response_id=first.id)
    with pytest.raises(openai.BadRequestError, match="other turns"):
        api.responses.delete(second.id)
    model.says("Alone.")
    alone = api.responses.create(input="alone")
    api.responses.delete(alone.id)
    for gone in (alone.id, "resp_1", "resp_" + "0" * 32, alone.id + "AA", "../x"):
        with pytest.raises(openai.NotFoundError):
            api.responses.retrieve(gone)
    with pytest.raises(openai.BadRequestError) as refused:
        api.responses.create(input="on", previous_response_id=alone.id)
    assert refused.value.code == "previous_response_not_found"
    with pytest.raises(openai.NotFoundError):
        api.conversations.retrieve(alone.conversation.id)


def test_with_store_false_nothing_is_stored(api: OpenAI, store: Store, model: ScriptedModel) -> None:
    model.says("Plum.")
    before = stored(store)
    history = [
        {"role": "user", "content": "My word is plum."},
        {"role": "assistant", "content": [{"type": "output_text", "text": "Noted.", "annotations": []}]},
        {"type": "message", "role": "user", "content": "My word?"},
    ]
    found = api.responses.create(input=history, store=False)
    assert (found.output_text, found.conversation) == ("Plum.", None)
    assert transcript(model) == [("user", "My word is plum."), ("assistant", "Noted."), ("user", "My word?")]
    assert stored(store) == before
    with pytest.raises(openai.NotFoundError):
        api.responses.retrieve(found.id)


def test_functions_are_handed_back_as_items_and_their_outputs_taken(api: OpenAI, model: ScriptedModel) -> None:
    model.asks_for_all(("weather", {"city": "Köln"}), ("weather", {"city": "Bonn"}), content="I look.")
    model.then_says("Rain in both.")
    first = api.responses.create(input="Weather?", tools=[RESPONSES_TOOL])
    assert [item.type for item in first.output] == ["message", "function_call", "function_call"]
    assert first.conversation is None
    outputs = [
        {"type": "function_call_output", "call_id": item.call_id, "output": "Rain."} for item in first.output[1:]
    ]
    items = [{"role": "user", "content": "Weather?"}, *(item.to_dict() for item in first.output), *outputs]
    assert api.responses.create(input=items, tools=[RESPONSES_TOOL]).output_text == "Rain in both."
    assert [role for role, _ in transcript(model)] == ["user", "assistant", "tool", "tool"]


def test_the_events_of_a_response_come_in_order(api: OpenAI, model: ScriptedModel) -> None:
    call = ("calculator", {"a": 2, "b": 3, "operation": "add"})
    model.asks_for_all(call, content="Let me see.").then_says("It is 5.", gap_s=0.01)
    events = list(api.responses.create(input="2 + 3?", stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events if event.type != "response.output_text.delta"]
    opened = ["response.output_item.added", "response.content_part.added"]
    closed = ["response.output_text.done", "response.content_part.done", "response.output_item.done"]
    begun = ["response.created", "response.in_progress"]
    assert kinds == [*begun, *opened, *closed, *opened, *closed, "response.completed"]
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert [(item.content[0].text, item.phase) for item in done] == [
        ("Let me see.", "commentary"),
        ("It is 5.", None),
    ]
    final: Response = events[-1].response
    assert (final.output_text, final.id) == ("It is 5.", events[0].response.id)
    assert final.output[0].id == done[-1].id
    assert api.responses.retrieve(final.id).output_text == "It is 5."


def test_calls_are_streamed_as_items_that_the_clients_own_reader_takes(api: OpenAI, model: ScriptedModel) -> None:
    model.asks_for_all(("weather", {"city": "Köln"}), content="I look.")
    with api.responses.stream(model="scripted", input="Weather?", tools=[RESPONSES_TOOL]) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_response()
    assert "response.function_call_arguments.done" in kinds
    assert [item.type for item in final.output] == ["message", "function_call"]
    assert json.loads(final.output[1].arguments) == {"city": "Köln"}


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_that_stops_early_is_incomplete(
    api: OpenAI, store: Store, model: ScriptedModel, conversation_id: str, stream: bool
) -> None:
    model.says("half an ans", finish_reason="length")
    found: Any = api.responses.create(input="Hi", conversation=conversation_id, stream=stream)
    if stream:
        last = list(found)[-1]
        assert last.type == "response.incomplete"
        found = last.response
    assert (found.status, found.incomplete_details.reason, found.output) == ("incomplete", "max_output_tokens", [])
    assert found.turnkeeper["stop_reason"] == "length" and found.turnkeeper["notice"]
    assert store.messages(conversation_id) == []


def test_an_error_after_the_first_words_ends_a_stream_in_the_shape_of_its_api(
    api: OpenAI, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    part = {"choices": [{"index": 0, "delta": {"content": "Half"}, "finish_reason": None}]}
    for _ in range(2):
        model.events([part, "{broken"], done=False, gap_s=0.2)
    with pytest.raises(openai.APIError) as error:
        list(complete(api, stream=True, extra_headers=named(conversation_id)))
    assert error.value.code == "model_error"
    last = list(api.responses.create(input="Hi", conversation=conversation_id, stream=True))[-1]
    assert (last.type, last.response.status, last.response.error.code) == ("response.failed", "failed", "server_error")
    assert last.response.turnkeeper["code"] == "model_error"
    assert store.messages(conversation_id) == []
