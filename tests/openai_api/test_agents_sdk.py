"""The OpenAI Agents SDK as a client."""

import warnings
from typing import Any

import pytest
from openai import AsyncOpenAI

from tests.conftest import Service, Store
from tests.support.openai_api import transcript, with_async
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
