"""No tool, model or turn takes longer than it may."""

import asyncio
import threading
import time
from typing import Any

import pytest

import tools as tools_module
from run import Budget
from tests.conftest import MakeClient, Store
from tests.support.loop import events, in_time, observations, settle, slow_tools
from tests.support.scripted_model import Json, ScriptedModel
from tests.support.ways import Outcome, ask
from tools import ToolRegistry


@pytest.mark.parametrize("name", ["sleeps", "sleeps_async"])
def test_a_tool_that_takes_too_long_is_given_up_and_the_run_goes_on(model: ScriptedModel, name: str) -> None:
    model.asks_for_all((name, {}), (name, {})).then_says("Done.")
    result = settle(model, slow_tools(1.0), Budget(tool_timeout_s=0.1))
    assert result.answer == "Done."
    said = f"The tool {name} took too long and was given up. Do without it."
    assert [text for _, text in observations(model)] == [said, said]
    assert [details["code"] for details in events(result, "tool_result")] == ["timeout", "timeout"]


def test_a_tool_may_ask_for_more_time_and_for_less(model: ScriptedModel) -> None:
    tools = ToolRegistry()

    @tools.tool(timeout_s=5)
    def patient() -> str:
        """Wait."""
        time.sleep(0.4)
        return "slept"

    @tools.tool(timeout_s=0.05)
    def hasty() -> str:
        """Wait."""
        time.sleep(0.4)
        return "slept"

    model.asks_for_all(("patient", {}), ("hasty", {})).then_says("Done.")
    settle(model, tools, Budget(tool_timeout_s=0.2))
    assert observations(model)[0][1] == "slept"
    assert "took too long" in observations(model)[1][1]


@pytest.mark.parametrize("name", ["sleeps", "sleeps_async"])
def test_the_time_of_the_turn_ends_a_tool_and_nothing_is_begun_after_it(model: ScriptedModel, name: str) -> None:
    tools = slow_tools(2.0)
    begun: list[str] = []

    @tools.tool
    def write() -> str:
        """Change something."""
        begun.append("written")
        return "written"

    model.asks_for_all((name, {}), ("write", {}), ids=["a", "b"])
    result = settle(model, tools, Budget(deadline=in_time(0.5)))
    assert (result.stop_reason, result.answer) == ("timeout", None)
    time.sleep(0.1)
    assert not begun
    assert [details["code"] for details in events(result, "tool_result")] == ["timeout"]
    assert len(model.requests) == 1


def test_the_time_of_the_turn_ends_a_question_to_the_model(model: ScriptedModel, tools: ToolRegistry) -> None:
    model.asks_for("echo", text="1").hangs()
    result = settle(model, tools, Budget(deadline=in_time(0.5)))
    assert (result.stop_reason, result.budget.steps) == ("timeout", 2)
    assert [event["type"] for event in result.run.events].count("run_stopped") == 1


def test_a_tool_that_is_stuck_costs_its_own_turn_and_one_thread(
    client_for: MakeClient, store: Store, model: ScriptedModel, conversation_id: str, toolset: Any
) -> None:
    release = threading.Event()

    def stuck() -> str:
        """Never come back."""
        release.wait(30)
        return "back"

    def quick() -> str:
        """Come back."""
        return "back"

    toolset.given += [stuck, quick]
    client = client_for(toolsets="a_toolset", tool_timeout_s=30.0, turn_timeout_s=1.0)

    def answer(request: Json) -> Json:
        *_, last = request["messages"]
        name = "stuck" if last["content"] == "stuck" else "quick"
        asked = {"id": "call_1", "type": "function", "function": {"name": name, "arguments": "{}"}}
        message = {"role": "assistant", "content": None, "tool_calls": [asked]}
        if last["role"] == "tool":
            message = {"role": "assistant", "content": f"It is {last['content']}."}
        return {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}

    model.answers_by(answer)
    before = set(threading.enumerate())
    outcomes: dict[str, Outcome] = {}

    def one(name: str) -> None:
        outcomes[name] = ask(client, "/chat", f"{conversation_id}-{name}", name)

    waiting = threading.Thread(target=one, args=("stuck",))
    waiting.start()
    model.wait_for_requests(1)
    for number in range(20):
        one(f"quick {number}")
    assert client.get("/healthz").status_code == 200
    waiting.join(10)
    assert outcomes.pop("stuck").body["stop_reason"] == "timeout"
    assert {outcome.body["answer"] for outcome in outcomes.values()} == {"It is back."}
    of_tools = [thread for thread in set(threading.enumerate()) - before if thread.name == "tool"]
    assert len(of_tools) == 2  # the stuck one, and one that all others used after one another
    assert store.messages(f"{conversation_id}-stuck") == []
    release.set()


def test_where_all_threads_are_stuck_a_call_is_told_so_and_when_they_are_back_it_works_again(
    model: ScriptedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tools_module, "MAX_TOOL_THREADS", 2)
    release = threading.Event()
    tools = ToolRegistry()

    @tools.tool
    def stuck() -> str:
        """Come back late."""
        release.wait(30)
        return "back"

    @tools.tool
    async def free() -> str:
        """Let them come back."""
        release.set()
        await asyncio.sleep(0.2)
        return "freed"

    model.asks_for_all(*[("stuck", {})] * 3).then_asks_for("free").then_asks_for("stuck").then_says("Done.")
    result = settle(model, tools, Budget(tool_timeout_s=0.5))
    assert result.answer == "Done."
    codes = [details["code"] for details in events(result, "tool_result")]
    assert codes == ["timeout", "timeout", "tool_pool_full", None, None]
    assert observations(model)[2][1] == "All threads for tools are busy. Do without this tool."
