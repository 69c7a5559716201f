"""The `/v1` routes, asked by unmodified OpenAI clients over a real process, and what MySQL holds afterwards."""

import asyncio
import json
import os
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote

import openai
import pytest
from fastapi.testclient import TestClient
from openai import AsyncOpenAI, OpenAI
from openai.types.responses import Response

from tests.conftest import ROOT, SOON, MakeClient, Service, Store, path_of
from tests.support.scripted_model import ScriptedModel

try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import agents
except ImportError as error:
    agents = None
    WHY_NO_AGENTS = f"the OpenAI Agents SDK cannot be imported: {error}"
else:
    WHY_NO_AGENTS = ""

ALICE, BOB = "key-of-alice-123456", "key-of-bob-1234567"
HI = [{"role": "user", "content": "Hi"}]
WEATHER = {
    "name": "weather",
    "description": "The weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
CHAT_TOOL = {"type": "function", "function": WEATHER}
RESPONSES_TOOL = {"type": "function", "strict": False, **WEATHER}


# ---------------------------------------------------------------------------------------- what the tests stand on


@pytest.fixture(scope="module")
def shared_model() -> Iterator[ScriptedModel]:
    with ScriptedModel() as scripted:
        yield scripted


@pytest.fixture
def model(shared_model: ScriptedModel) -> Iterator[ScriptedModel]:
    """The model of all services here, with an empty script for each test."""
    shared_model.reset()
    yield shared_model
    shared_model.finish()


@pytest.fixture(scope="module")
def start(
    store: Store, shared_model: ScriptedModel, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Service]]:
    """Starts a service for the tests of this module."""
    services = []

    def make(**other: str) -> Service:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("DB_")}
        environment |= {name.upper(): str(value) for name, value in (SOON | store.settings).items()}
        environment |= {"API_KEY": "sk-test", "BASE_URL": shared_model.base_url, "DEFAULT_MODEL": "scripted"}
        log = tmp_path_factory.mktemp("service") / "log"
        services.append(Service(environment | {"ENV_FILE": ""} | other, log))
        return services[-1].start()

    yield make
    for service in services:
        service.close()


@pytest.fixture(scope="module")
def service(start: Callable[..., Service]) -> Service:
    return start()


@pytest.fixture(scope="module")
def keyed_service(start: Callable[..., Service]) -> Service:
    return start(API_KEYS=f"alice:{ALICE},bob:{BOB}")


def client_of(service: Service, key: str = "sk-any", **more: Any) -> OpenAI:
    return OpenAI(base_url=f"http://127.0.0.1:{service.port}/v1", api_key=key, **{"max_retries": 0, **more})


@pytest.fixture
def api(service: Service, model: ScriptedModel) -> Iterator[OpenAI]:
    """The client as it is installed, for the service without keys."""
    with client_of(service) as client:
        yield client


def with_async(service: Service, work: Callable[[AsyncOpenAI], Any]) -> Any:
    """Run `work` with the async client."""

    async def run() -> Any:
        async with AsyncOpenAI(base_url=f"http://127.0.0.1:{service.port}/v1", api_key="any", max_retries=0) as client:
            return await work(client)

    return asyncio.run(run())


def named(conversation_id: str, **more: str) -> dict[str, str]:
    return {"X-Conversation-Id": quote(conversation_id, safe="")} | more


def complete(api: OpenAI, messages: Any = HI, **more: Any) -> Any:
    return api.chat.completions.create(model="scripted", messages=messages, **more)


def joined(chunks: Any) -> tuple[str, Any]:
    """The content of a stream of chunks, and the last one with a reason to finish."""
    text, last = "", None
    for chunk in chunks:
        if chunk.choices:
            text += chunk.choices[0].delta.content or ""
            last = chunk if chunk.choices[0].finish_reason else last
    return text, last


def transcript(model: ScriptedModel, at: int = -1) -> list[tuple[str, Any]]:
    """(role, content) of what the model was sent, without the system prompt."""
    return [(m["role"], m["content"]) for m in model.requests[at]["messages"] if m["role"] != "system"]


def stored(store: Store) -> int:
    return int(store.rows("SELECT COUNT(*) FROM messages")[0][0])


# ---------------------------------------------------------------------------------------- models


def test_the_model_is_listed_and_found_by_its_name(api: OpenAI) -> None:
    assert [one.id for one in api.models.list()] == ["scripted"]
    assert api.models.retrieve("scripted").object == "model"
    with pytest.raises(openai.NotFoundError):
        api.models.retrieve("org/other")


# ---------------------------------------------------------------------------------------- chat completions


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


# ---------------------------------------------------------------------------------------- responses


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


# ---------------------------------------------------------------------------------------- conversations


def test_a_conversation_is_made_empty_described_filled_and_removed(
    service: Service, api: OpenAI, store: Store, model: ScriptedModel
) -> None:
    made = api.conversations.create(metadata={"topic": "水"})
    assert made.metadata == {"topic": "水"}
    assert api.conversations.items.list(made.id).data == []
    shown = service.http.get(path_of(made.id)).json()
    assert (shown["turns"], shown["title"]) == (0, None)
    model.says("One.").then_says("Two.")
    assert service.chat(made.id, "What is plum?").json()["turn"] == 1
    assert service.http.get(path_of(made.id)).json()["title"] == "What is plum?"
    api.responses.create(input="second", conversation=made.id)
    assert api.conversations.update(made.id, metadata={"topic": "plum"}).metadata == {"topic": "plum"}
    assert api.conversations.retrieve(made.id).metadata == {"topic": "plum"}
    assert store.rows("SELECT metadata FROM conversations WHERE conversation_id = %s", made.id) == [
        ('{"topic": "plum"}',)
    ]
    said = ["What is plum?", "One.", "second", "Two."]
    items = list(api.conversations.items.list(made.id, limit=3, order="asc"))
    assert [(item.role, item.content[0].text) for item in items] == list(
        zip(["user", "assistant"] * 2, said, strict=True)
    )
    assert [item.content[0].text for item in api.conversations.items.list(made.id, limit=1)] == said[::-1]
    assert api.conversations.items.retrieve(items[2].id, conversation_id=made.id).content[0].text == "second"
    assert api.conversations.delete(made.id).deleted is True
    assert store.messages(made.id) == []
    with pytest.raises(openai.NotFoundError):
        api.conversations.retrieve(made.id)


def test_two_first_turns_of_an_empty_conversation_do_not_mix(
    client_for: MakeClient, service: Service, api: OpenAI, store: Store, model: ScriptedModel
) -> None:
    made = api.conversations.create()
    model.says("Answer.", delay_s=0.5).then_says("Answer.", delay_s=0.5)
    body = {"conversation_id": made.id, "message": "Hi"}
    with ThreadPoolExecutor(2) as pool:  # in two processes: neither waits for the other
        answers = list(pool.map(lambda one: one.post("/chat", json=body).status_code, (service.http, client_for())))
    assert sorted(answers) == [200, 409]
    assert store.messages(made.id) == [("user", "Hi"), ("assistant", "Answer.")]


# ---------------------------------------------------------------------------------------- all ways together


def test_one_conversation_by_every_way_of_asking_has_one_history(
    service: Service, api: OpenAI, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    headers = named(conversation_id)
    ways: list[Callable[[str], Any]] = [
        lambda text: service.chat(conversation_id, text),
        lambda text: service.http.post("/chat/stream", json={"conversation_id": conversation_id, "message": text}),
        lambda text: complete(api, [{"role": "user", "content": text}], extra_headers=headers),
        lambda text: joined(complete(api, [{"role": "user", "content": text}], extra_headers=headers, stream=True)),
        lambda text: api.responses.create(input=text, conversation=conversation_id),
        lambda text: list(api.responses.create(input=text, conversation=conversation_id, stream=True)),
        lambda text: api.responses.create(input=text, extra_headers=headers),
        lambda text: service.chat(conversation_id, text),
    ]
    said: list[tuple[str, str]] = []
    for at, ask in enumerate(ways):
        model.says(f"Answer {at}.")
        ask(f"Question {at}.")
        said.append(("user", f"Question {at}."))
        assert transcript(model) == said
        said.append(("assistant", f"Answer {at}."))
        assert store.messages(conversation_id) == said
    assert store.rows("SELECT turns FROM conversations WHERE conversation_id = %s", conversation_id) == [(len(ways),)]


def test_requests_with_the_same_key_are_answered_again_and_not_done_again(
    service: Service, api: OpenAI, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    model.says("Once.").then_says("Response.").then_says("New.").then_says("Next.")
    key = {"Idempotency-Key": f"k-{conversation_id[3:]}"}
    headers = named(conversation_id, **key)
    first = complete(api, extra_headers=headers)
    assert complete(api, [*HI, {"role": "assistant", "content": "x"}, *HI], extra_headers=headers) == first
    text, last = joined(complete(api, extra_headers=headers, stream=True))
    assert (text, last.id, last.created) == ("Once.", first.id, first.created)
    for other in (
        lambda: complete(api, [{"role": "user", "content": "other"}], extra_headers=headers),
        lambda: api.responses.create(input="Hi", conversation=conversation_id, extra_headers=key),
    ):
        with pytest.raises(openai.UnprocessableEntityError) as mismatch:
            other()
        assert mismatch.value.code == "idempotency_mismatch"
    body = {"conversation_id": conversation_id, "message": "Hi"}
    assert service.http.post("/chat", json=body, headers=key).status_code == 422
    assert store.messages(conversation_id) == [("user", "Hi"), ("assistant", "Once.")]

    key = {"Idempotency-Key": f"r-{conversation_id[3:]}"}
    response = api.responses.create(input="Hi", conversation=conversation_id, extra_headers=key)
    events = list(api.responses.create(input="Hi", conversation=conversation_id, extra_headers=key, stream=True))
    assert events[-1].response == response and events[-2].item.content[0].text == "Response."
    key = {"Idempotency-Key": f"n-{conversation_id[3:]}"}
    fresh = [api.responses.create(input="Hi", extra_headers=key) for _ in range(2)]
    assert fresh[0] == fresh[1]
    key = {"Idempotency-Key": f"p-{conversation_id[3:]}"}
    following = [
        api.responses.create(input="on", previous_response_id=fresh[0].id, extra_headers=key) for _ in range(2)
    ]
    assert following[0] == following[1]
    assert len(store.messages(fresh[0].conversation.id)) == 4


def test_a_second_answer_to_the_same_response_is_a_conflict_even_at_the_same_moment(
    api: OpenAI, store: Store, model: ScriptedModel
) -> None:
    model.says("One.")
    first = api.responses.create(input="first")
    model.says("Two.", delay_s=0.3)

    def follow(_: int) -> str:
        try:
            return str(api.responses.create(input="second", previous_response_id=first.id).output_text)
        except openai.ConflictError as error:
            return str(error.code)

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(follow, range(2))) == ["Two.", "turn_conflict"]
    assert len(store.messages(first.conversation.id)) == 4


def test_another_owner_finds_nothing_and_a_wrong_key_nothing_at_all(
    keyed_service: Service, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    model.says("Alice's.").then_says("Bob's.").then_says("Response.")
    alice, bob = client_of(keyed_service, ALICE), client_of(keyed_service, BOB)
    complete(alice, extra_headers=named(conversation_id))
    complete(bob, extra_headers=named(conversation_id))
    assert transcript(model) == [("user", "Hi")]
    assert store.messages(conversation_id, "alice")[1] == ("assistant", "Alice's.")
    assert store.messages(conversation_id, "bob")[1] == ("assistant", "Bob's.")
    response = alice.responses.create(input="Hi")
    for ask in (
        lambda: bob.responses.retrieve(response.id),
        lambda: bob.responses.delete(response.id),
        lambda: bob.conversations.retrieve(response.conversation.id),
        lambda: bob.conversations.delete(response.conversation.id),
        lambda: bob.conversations.update(response.conversation.id, metadata={}),
        lambda: bob.conversations.items.list(response.conversation.id),
    ):
        with pytest.raises(openai.NotFoundError):
            ask()
    with pytest.raises(openai.BadRequestError):
        bob.responses.create(input="on", previous_response_id=response.id)
    nobody = client_of(keyed_service, "key-of-nobody-12345")
    for ask in (nobody.models.list, lambda: complete(nobody), lambda: nobody.responses.create(input="Hi")):
        with pytest.raises(openai.AuthenticationError) as unknown:
            ask()
        assert (unknown.value.code, unknown.value.type) == ("unauthorized", "authentication_error")


def test_too_many_requests_are_told_when_to_come_again(client_for: MakeClient) -> None:
    client = client_for(environ={"API_KEYS": f"alice:{ALICE}", "API_RATE": "1/minute"})
    first, second = (client.get("/v1/models", headers={"authorization": f"Bearer {ALICE}"}) for _ in range(2))
    assert (first.status_code, second.status_code) == (200, 429)
    assert second.json()["error"]["code"] == "rate_limited" and int(second.headers["retry-after"]) >= 1


def test_without_keys_only_callers_on_this_machine_are_served(client_for: MakeClient) -> None:
    answer = client_for().get("/v1/models", headers={"host": "agent.example.com"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")


def test_a_model_that_is_out_is_an_ordinary_error_for_a_stream_too(api: OpenAI, model: ScriptedModel) -> None:
    for stream in (False, True):
        model.fails(401)
        with pytest.raises(openai.InternalServerError) as error:
            complete(api, stream=stream)
        assert (error.value.status_code, error.value.code) == (500, "model_unauthorized")
        model.fails(404)
        with pytest.raises(openai.BadRequestError) as missing:
            api.responses.create(model="none", input="Hi", stream=stream)
        assert missing.value.code == "model_not_found"


# ---------------------------------------------------------------------------------------- what is refused

IMAGE = {"type": "image_url", "image_url": {"url": "http://x/y.png"}}
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
CLASH = {"type": "function", "function": {"name": "calculator"}}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"n": 2}, "n"),
        ({"logprobs": True}, "logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice"),
        ({"functions": [WEATHER]}, "functions"),
        ({"function_call": {"name": "weather"}}, "function_call"),
        ({"audio": {"voice": "x", "format": "wav"}}, "audio"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"stop": ["\n"]}, "stop"),
        ({"logit_bias": {"50256": -100}}, "logit_bias"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0].content[0].type"),
        ({"messages": [*HI, {"role": "tool", "tool_call_id": "c1", "content": "x"}]}, "messages[1].tool_call_id"),
        ({"messages": [*HI, {"role": "assistant", "tool_calls": [CALL]}]}, "messages[1].tool_calls[0]"),
        ({"messages": [*HI, {"role": "function", "name": "x", "content": "x"}]}, "messages[1].role"),
        ({"messages": [{"role": "system", "content": "x"}]}, "messages"),
        ({"messages": [{"role": "user", "content": " \n"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [7]}, "messages[0]"),
        ({"messages": None}, "messages"),
        ({"model": 7}, "model"),
        ({"stream": "yes"}, "stream"),
        ({"tools": [CLASH]}, "tools[0].function.name"),
        ({"tools": [CHAT_TOOL, CHAT_TOOL]}, "tools[1].function.name"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type"),
        (
            {"tools": [{"type": "function", "function": {"name": "x", "parameters": []}}]},
            "tools[0].function.parameters",
        ),
    ],
)
def test_a_completion_that_is_not_supported_names_the_parameter(
    refusing: TestClient, body: dict[str, Any], param: str
) -> None:
    refused(refusing, "/v1/chat/completions", {"model": "scripted", "messages": HI, **body}, param)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"background": True}, "background"),
        ({"prompt": {"id": "x"}}, "prompt"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"top_logprobs": 1}, "top_logprobs"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {}}}}, "text.format"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "name": "calculator"}]}, "tools[0].name"),
        ({"tools": [RESPONSES_TOOL], "conversation": "a"}, "tools"),
        ({"tools": [RESPONSES_TOOL], "store": True}, "store"),
        ({"store": False, "conversation": "a"}, "store"),
        ({"conversation": "a", "input": [*HI, *HI]}, "input"),
        ({"conversation": " a"}, "conversation"),
        ({"conversation": {"name": "a"}}, "conversation"),
        ({"conversation": ["a"]}, "conversation"),
        ({"input": ["Hi"]}, "input"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, "input[0].call_id"),
        ({"input": []}, "input"),
        ({"input": ""}, "input"),
        ({"input": "x" * 32_001}, "input"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"metadata": {str(n): "x" for n in range(17)}}, "metadata"),
    ],
)
def test_a_response_that_is_not_supported_names_the_parameter(
    refusing: TestClient, body: dict[str, Any], param: str
) -> None:
    refused(refusing, "/v1/responses", {"input": "Hi", **body}, param)


@pytest.fixture
def refusing(client_for: MakeClient) -> TestClient:
    """The service in this process: what is refused needs no other."""
    return client_for()


def refused(client: TestClient, path: str, body: Any, param: str, headers: Any = None, status: int = 400) -> None:
    text = json.dumps(body).encode()
    for stream in (False, True):
        sent = text if not stream or "stream" in body else json.dumps({**body, "stream": True}).encode()
        answer = client.post(path, content=sent, headers=headers)
        assert answer.status_code == status, answer.text
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert (error["param"], error["type"]) == (param, "invalid_request_error"), error


def test_in_a_stored_conversation_only_a_message_of_the_user_is_answered(refusing: TestClient) -> None:
    path, headers = "/v1/chat/completions", {"X-Conversation-Id": "a"}
    refused(refusing, path, {"messages": HI, "tools": [CHAT_TOOL]}, "tools", headers)
    refused(refusing, path, {"messages": [*HI, {"role": "assistant", "content": "x"}]}, "messages", headers)
    long = [*HI, {"role": "user", "content": "x" * 32_001}, {"role": "system", "content": "x"}]
    refused(refusing, path, {"messages": long}, "messages[1].content", headers)
    for name in ("", "%20a", "%FF", "a%00", "x" * 101, "ä".encode()):
        refused(refusing, path, {"messages": HI}, "X-Conversation-Id", {"X-Conversation-Id": name})
    both = {"input": "Hi", "conversation": "b"}
    refused(refusing, "/v1/responses", both, "X-Conversation-Id", headers)
    refused(refusing, path, {"messages": HI}, "Idempotency-Key", {**headers, "Idempotency-Key": "a b"})


def test_items_are_not_written_one_by_one(refusing: TestClient) -> None:
    item = {"items": [{"role": "user", "content": "Hi"}]}
    for method, path, body, param in [
        ("POST", "/v1/conversations", item, "items"),
        ("POST", "/v1/conversations", {"metadata": {"a": 1}}, "metadata.a"),
        ("POST", "/v1/conversations", {"metadata": {"a": "\ud800"}}, "metadata.a"),
        ("POST", "/v1/conversations/a", {}, "metadata"),
        ("POST", "/v1/conversations/a/items", item, "items"),
        ("DELETE", "/v1/conversations/a/items/msg_1", None, "item_id"),
        ("GET", "/v1/conversations/a/items?limit=0", None, "limit"),
        ("GET", "/v1/conversations/a/items?order=up", None, "order"),
        ("GET", "/v1/conversations/%20a", None, "conversation_id"),
        ("GET", "/v1/responses/resp_1?stream=true", None, "stream"),
    ]:
        answer = refusing.request(method, path, content=json.dumps(body) if body is not None else None)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), (path, answer.text)


def test_what_is_not_there_is_said_in_openais_shape(refusing: TestClient) -> None:
    for method, path, status in [
        ("GET", "/v1/none", 404),
        ("GET", "/v1/models/a%0Ab", 404),
        ("POST", "/v1/a%0A/b%0D%0A", 404),
        ("POST", "/v1/embeddings", 404),
        ("PUT", "/v1/models", 405),
        ("GET", "/v1/chat/completions", 405),
        ("POST", "/v1/responses/resp_1", 405),
        ("BREW", "/v1/models", 405),
        ("GET", "/v1/conversations/none", 404),
        ("GET", "/v1/conversations/none/items", 404),
        ("GET", "/v1/conversations/none/items/msg_1", 404),
        ("DELETE", "/v1/conversations/none", 404),
        ("GET", "/v1/models/", 404),
    ]:
        answer = refusing.request(method, path)
        assert answer.status_code == status, path
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
        assert status == 404 or answer.headers["allow"]
    answer = refusing.post("/v1/responses", content=b" " * (9 * 1024 * 1024))
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")


ODD: list[Any] = [None, True, 0, -1, 1e308, "", "x", "\x00", "\ud800", [], [[]], [None], {}, {"type": None}, {"id": 1}]


def odd_messages() -> list[dict[str, Any]]:
    roles = "user", "tool", "system", "x"
    bodies: list[dict[str, Any]] = [{"messages": [{"role": role, "content": odd}]} for role in roles for odd in ODD]
    bodies += [{"messages": [*HI, {"role": "assistant", "tool_calls": odd}, *HI]} for odd in ODD]
    return bodies + [{"messages": HI, "tools": [{"type": "function", "function": odd}]} for odd in ODD]


def odd_items() -> list[dict[str, Any]]:
    kinds = "message", "function_call", "function_call_output", "x"
    fields = "role", "content", "call_id", "arguments", "output"
    call: dict[str, Any] = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    bodies = [{"input": [{"type": kind, field: odd}]} for kind in kinds for field in fields for odd in ODD]
    return bodies + [{"input": [*HI, {**call, field: odd}]} for field in call for odd in ODD]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/conversations"])
def test_no_odd_body_is_a_defect(client_for: MakeClient, model: ScriptedModel, path: str) -> None:
    """Whatever stands in a field, the answer is one of success or of refusal."""
    model.says("Fine.", forever=True)
    client = client_for()
    names = (
        "messages model stream stream_options tools tool_choice parallel_tool_calls n stop response_format temperature",
        "input model instructions conversation previous_response_id store stream metadata tools tool_choice "
        "parallel_tool_calls max_tool_calls include text background",
        "metadata items",
    )
    whole, fields, bodies = {
        "/v1/chat/completions": ({"messages": HI}, names[0], odd_messages()),
        "/v1/responses": ({"input": "Hi", "store": False}, names[1], odd_items()),
        "/v1/conversations": ({"metadata": {"a": "b"}}, names[2], []),
    }[path]
    bodies += [{**whole, name: odd} for name in fields.split() for odd in ODD]
    texts = [json.dumps(body).encode() for body in bodies]
    texts += [b"", b"{", b"nul", b"\xff", b'"x"', b"[" * 100_000, b'{"messages": [{"role": "user", "content": NaN}]}']
    texts += [b'{"input": ' + b'[{"a":' * 3_000 + b"1" + b"}]" * 3_000 + b"}"]
    for text in texts:
        answer = client.post(path, content=text)
        assert answer.status_code in (200, 400), (text[:200], answer.text)
        if answer.status_code == 400:
            assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


# ---------------------------------------------------------------------------------------- the Agents SDK

needs_agents = pytest.mark.skipif(agents is None, reason=WHY_NO_AGENTS)


def agent_over(way: str, client: AsyncOpenAI, tools: list[Any]) -> Any:
    """An agent whose model is this service."""
    agents.set_tracing_disabled(True)
    kind = agents.OpenAIResponsesModel if way == "responses" else agents.OpenAIChatCompletionsModel
    return agents.Agent(
        name="Guide", instructions="Be brief.", model=kind(model="scripted", openai_client=client), tools=tools
    )


@needs_agents
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("way", ["chat_completions", "responses"])
def test_the_agents_sdk_calls_its_own_tools_and_ours(
    service: Service, model: ScriptedModel, way: str, streamed: bool
) -> None:
    model.asks_for("calculator", a=2, b=3, operation="add").then_asks_for("weather", city="Köln")
    model.then_says("5, and rain in Köln.")

    async def ask(client: AsyncOpenAI) -> tuple[str, list[str]]:
        asked = []

        @agents.function_tool
        def weather(city: str) -> str:
            """The weather of a city."""
            asked.append(city)
            return "rain"

        agent = agent_over(way, client, [weather])
        if not streamed:
            return str((await agents.Runner.run(agent, "2 + 3, and the weather?")).final_output), asked
        result = agents.Runner.run_streamed(agent, "2 + 3, and the weather?")
        async for _ in result.stream_events():
            pass
        return str(result.final_output), asked

    assert with_async(service, ask) == ("5, and rain in Köln.", ["Köln"])
    assert [m["role"] for m in model.requests[-1]["messages"]] == ["system", "user", "assistant", "tool"]
    assert model.requests[0]["messages"][0]["content"].endswith("Be brief.")


@needs_agents
def test_the_agents_sdk_keeps_its_conversation_with_us(service: Service, store: Store, model: ScriptedModel) -> None:
    model.says("Noted.").then_says("Plum.").then_says("Noted.").then_says("Pear.")

    async def ask(client: AsyncOpenAI) -> tuple[str, list[str]]:
        agent = agent_over("responses", client, [])
        made = await client.conversations.create()
        await agents.Runner.run(agent, "My word is plum.", conversation_id=made.id)
        by_name = await agents.Runner.run(agent, "My word?", conversation_id=made.id)
        first = await agents.Runner.run(agent, "My word is pear.")
        by_response = await agents.Runner.run(agent, "My word?", previous_response_id=first.last_response_id)
        return made.id, [str(by_name.final_output), str(by_response.final_output)]

    name, answers = with_async(service, ask)
    assert answers == ["Plum.", "Pear."]
    assert [text for _, text in store.messages(name)] == ["My word is plum.", "Noted.", "My word?", "Plum."]
    assert transcript(model) == [("user", "My word is pear."), ("assistant", "Noted."), ("user", "My word?")]


# ---------------------------------------------------------------------------------------- the folder


def test_without_the_folder_the_core_knows_nothing_of_it() -> None:
    for file in ROOT.glob("*.py"):
        mentions = [line for line in file.read_text(encoding="utf-8").splitlines() if "openai_api" in line]
        allowed = ["import openai_api", "    openai_api.register(runtime)"] if file.name == "main.py" else []
        assert mentions == allowed, file.name
