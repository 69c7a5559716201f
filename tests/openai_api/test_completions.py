"""/v1/chat/completions, driven by the openai package."""

import json
import os
from typing import Any

import pytest
from openai import AsyncOpenAI, OpenAI

from tests.conftest import Service, Store
from tests.support.openai_api import (
    CHAT_TOOL,
    HI,
    RESPONSES_TOOL,
    complete,
    joined,
    named,
    stored,
    transcript,
    with_async,
)
from tests.support.scripted_model import ScriptedModel


def test_without_a_conversation_the_callers_messages_are_the_history_and_nothing_is_stored(
    api: OpenAI, store: Store, model: ScriptedModel
) -> None:
    model.says("Plum.")
    before = stored(store)
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "My word "}, {"type": "text", "text": "is plum."}]},
        {"role": "assistant", "content": "Noted."},
        {"role": "assistant", "content": None},
        {"role": "developer", "content": "Answer in English."},
        {"role": "user", "content": "My word?"},
    ]
    found = complete(api, messages, temperature=0.2, max_tokens=50, seed=1, user="u", extra_body={"brand_new": [1]})
    assert (found.choices[0].message.content, found.choices[0].finish_reason) == ("Plum.", "stop")
    assert found.usage.model_dump(exclude_unset=True) == {
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "total_tokens": 15,
    }
    assert transcript(model) == [("user", "My word is plum."), ("assistant", "Noted."), ("user", "My word?")]
    system = model.requests[0]["messages"][0]["content"]
    assert system.endswith("Be brief.\n\nAnswer in English.") and len(system) > 40
    assert stored(store) == before


def test_the_services_tools_run_on_the_service(api: OpenAI, model: ScriptedModel) -> None:
    model.asks_for("calculator", a=2, b=3, operation="add").then_says("It is 5.")
    found = complete(api)
    assert found.choices[0].message.content == "It is 5."
    assert found.choices[0].message.tool_calls is None
    assert (found.turnkeeper["steps"], found.turnkeeper["tool_calls"]) == (2, 1)


def test_a_stream_has_role_content_reason_usage_and_an_end(service: Service, api: OpenAI, model: ScriptedModel) -> None:
    model.says("Four small words here.", gap_s=0.01)
    chunks = list(complete(api, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    text, last = joined(chunks)
    assert (text, last.choices[0].finish_reason) == ("Four small words here.", "stop")
    assert len(chunks) > 4
    assert (chunks[-1].choices, chunks[-1].usage.total_tokens) == ([], 15)
    assert len({chunk.id for chunk in chunks}) == 1
    model.says("Again.")
    body = {"messages": HI, "model": "scripted", "stream": True}
    lines = service.http.post("/v1/chat/completions", json=body).text.splitlines()
    assert lines[-2:] == ["data: [DONE]", ""]
    assert not [line for line in lines if line.startswith("id:")] and '"usage"' not in "".join(lines)


def test_what_was_said_before_a_tool_call_comes_first_in_a_stream_and_is_not_the_answer(
    api: OpenAI, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    call = ("calculator", {"a": 2, "b": 3, "operation": "add"})
    model.asks_for_all(call, content="Let me see.").then_says("It is 5.")
    text, _ = joined(complete(api, stream=True, extra_headers=named(conversation_id)))
    assert text == "Let me see.\n\nIt is 5."
    assert store.messages(conversation_id) == [("user", "Hi"), ("assistant", "It is 5.")]


@pytest.mark.parametrize("stream", [False, True])
def test_calls_of_the_callers_tools_are_handed_back_and_their_results_taken(
    api: OpenAI, model: ScriptedModel, stream: bool
) -> None:
    model.asks_for_all(("weather", {"city": "Köln"}), ("weather", {"city": "Bonn"})).then_says("Rain in both.")
    before = [{"role": "user", "content": "Weather?"}]
    found = complete(api, before, tools=[CHAT_TOOL], stream=stream)
    if stream:
        chunks = [chunk.choices[0] for chunk in found if chunk.choices]
        assert chunks[-1].finish_reason == "tool_calls"
        calls: dict[int, dict[str, str]] = {}
        for delta in (call for chunk in chunks for call in chunk.delta.tool_calls or []):
            call = calls.setdefault(delta.index, {"id": delta.id or "", "name": delta.function.name, "arguments": ""})
            call["arguments"] += delta.function.arguments
        made = list(calls.values())
    else:
        assert (found.choices[0].finish_reason, found.choices[0].message.content) == ("tool_calls", None)
        made = [{"id": call.id, **call.function.model_dump()} for call in found.choices[0].message.tool_calls]
    assert [json.loads(call["arguments"])["city"] for call in made] == ["Köln", "Bonn"]
    asked = [
        {"id": c["id"], "type": "function", "function": {"name": c["name"], "arguments": c["arguments"]}} for c in made
    ]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "Rain."} for call in made]
    after = complete(api, [*before, {"role": "assistant", "content": None, "tool_calls": asked}, *results])
    assert after.choices[0].message.content == "Rain in both."
    assert [role for role, _ in transcript(model)] == ["user", "assistant", "tool", "tool"]


GARBLED = ['{"city":', "not json", "[1,2]", '{"city": NaN}', '{"a":1}{"b":2}', '{"city": 1e999}', '{"city": "\\ud800"}']


@pytest.mark.parametrize("arguments", GARBLED)
@pytest.mark.parametrize("stream", [False, True])
def test_arguments_that_cannot_be_read_are_handed_back_as_they_came_and_may_be_sent_again(
    api: OpenAI, model: ScriptedModel, stream: bool, arguments: str
) -> None:
    for _ in range(2):
        model.asks_for_all(("weather", arguments), ids=["c1"])
    found = complete(api, tools=[CHAT_TOOL], stream=stream)
    if stream:
        deltas = [call for chunk in found if chunk.choices for call in chunk.choices[0].delta.tool_calls or []]
        assert "".join(delta.function.arguments for delta in deltas) == arguments
    else:
        assert found.choices[0].message.tool_calls[0].function.arguments == arguments
    response: Any = api.responses.create(input="Hi", tools=[RESPONSES_TOOL], stream=stream)
    item = (list(response)[-1].response if stream else response).output[0]
    assert (item.type, item.name, item.arguments) == ("function_call", "weather", arguments)

    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    told = {"role": "tool", "tool_call_id": "c1", "content": "These are no arguments."}
    model.says("I see.").then_says("I see.")
    after = complete(api, [*HI, {"role": "assistant", "tool_calls": [call]}, told], tools=[CHAT_TOOL])
    assert after.choices[0].message.content == "I see."
    output = {"type": "function_call_output", "call_id": item.call_id, "output": "These are no arguments."}
    again = {"type": "function_call", "call_id": item.call_id, "name": "weather", "arguments": arguments}
    assert api.responses.create(input=[*HI, again, output], tools=[RESPONSES_TOOL]).output_text == "I see."
    sent = model.requests[-1]["messages"][-2]["tool_calls"][0]["function"]["arguments"]
    assert sent == "{}"  # what no strict service would take


def test_one_call_at_a_time_and_no_tools_at_all_are_kept_to(api: OpenAI, model: ScriptedModel) -> None:
    model.asks_for_all(("weather", {"city": "Köln"}), ("weather", {"city": "Bonn"})).then_says("No idea.")
    found = complete(api, tools=[CHAT_TOOL], parallel_tool_calls=False)
    assert len(found.choices[0].message.tool_calls) == 1
    complete(api, tools=[CHAT_TOOL], tool_choice="none")
    assert "tools" not in model.requests[-1]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("reason", "told"), [("length", "length"), ("content_filter", "content_filter")])
def test_a_run_that_stops_early_says_so_and_stores_nothing(
    api: OpenAI, store: Store, model: ScriptedModel, conversation_id: str, stream: bool, reason: str, told: str
) -> None:
    model.says("half an ans", finish_reason=reason)
    found = complete(api, stream=stream, extra_headers=named(conversation_id))
    if stream:
        _, found = joined(found)
    else:
        assert found.choices[0].message.content is None
    assert found.choices[0].finish_reason == told
    assert found.turnkeeper["stop_reason"] == reason and found.turnkeeper["notice"]
    assert store.messages(conversation_id) == []


def test_with_a_conversation_only_the_last_message_is_taken_and_the_turn_is_stored(
    api: OpenAI, store: Store, model: ScriptedModel
) -> None:
    name = f"a/b 会话 {os.urandom(4).hex()}"
    model.says("One.").then_says("Two.")
    complete(api, [{"role": "user", "content": "first"}], extra_headers=named(name))
    messages = [{"role": "user", "content": "made up"}, {"role": "assistant", "content": "never said"}]
    found = complete(api, [*messages, {"role": "user", "content": "second"}], extra_headers=named(name))
    assert transcript(model) == [("user", "first"), ("assistant", "One."), ("user", "second")]
    assert store.messages(name) == [("user", "first"), ("assistant", "One."), ("user", "second"), ("assistant", "Two.")]
    assert (found.turnkeeper["conversation_id"], found.turnkeeper["turn"]) == (name, 2)


def test_the_async_client_gets_the_same(service: Service, model: ScriptedModel) -> None:
    model.says("Whole.").then_says("In pieces.", gap_s=0.01).then_says("Streamed response.")
    model.then_says("By the helper.")

    async def ask(client: AsyncOpenAI) -> tuple[Any, ...]:
        whole = await client.chat.completions.create(model="scripted", messages=HI)
        stream = await client.chat.completions.create(model="scripted", messages=HI, stream=True)
        pieces = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
        async with client.responses.stream(model="scripted", input="Hi") as events:
            async for _ in events:
                pass
            final = await events.get_final_response()
        async with client.chat.completions.stream(model="scripted", messages=HI) as told:
            async for _ in told:
                pass
            last = await told.get_final_completion()
        return whole.choices[0].message.content, pieces, final.output_text, last.choices[0].message.content

    assert with_async(service, ask) == ("Whole.", "In pieces.", "Streamed response.", "By the helper.")


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_written_as_text_although_no_tool_may_be_called_is_not_told_as_the_answer(
    api: OpenAI, store: Store, model: ScriptedModel, conversation_id: str, stream: bool
) -> None:
    written = '<tool_call>{"name": "calculator", "arguments": {"a": 2, "b": 3, "operation": "add"}}</tool_call>'
    model.says(written)
    found = complete(api, tool_choice="none", stream=stream, extra_headers=named(conversation_id))
    text, last = joined(found) if stream else (found.choices[0].message.content, found)
    assert not text
    assert (last.choices[0].finish_reason, last.turnkeeper["stop_reason"]) == ("length", "tool_call_limit")
    assert store.messages(conversation_id) == []
