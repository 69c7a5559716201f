"""What a tool sees of its run, what it may raise, and what is said of it."""

import asyncio
import contextlib
import contextvars
import functools
import json
import threading
from typing import Any

import pytest

from agent import run_agent
from run import Budget, RunContext
from tests.conftest import MakeClient
from tests.support.loop import both_ways, events, model_at, observations, settle, slow_tools
from tests.support.scripted_model import ScriptedModel
from tests.support.waiting import LONG
from tests.support.ways import ask
from tools import ToolRegistry

WHO = contextvars.ContextVar("WHO", default="nobody")


def test_context_variables_of_the_turn_reach_its_tools_and_what_they_set_stays_theirs(model: ScriptedModel) -> None:
    tools = ToolRegistry()
    seen: list[str] = []

    @tools.tool
    def look() -> str:
        """Look."""
        seen.append(WHO.get())
        WHO.set("changed by the tool")
        return "seen"

    @tools.tool
    async def look_async() -> str:
        """Look."""
        return look()

    model.asks_for_all(("look", {}), ("look", {})).then_asks_for("look_async").then_says("Done.")
    token = WHO.set("ada")
    try:
        settle(model, tools)
    finally:
        WHO.reset(token)
    assert seen[:3] == ["ada", "ada", "ada"]


@both_ways
def test_a_tool_is_told_for_which_turn_it_works(
    client_for: MakeClient, model: ScriptedModel, conversation_id: str, toolset: Any, way: str
) -> None:
    seen: list[RunContext] = []

    def look(context: RunContext, text: str = "") -> str:
        """Look."""
        seen.append(context)
        return "seen"

    toolset.given.append(look)
    client = client_for(toolsets="a_toolset", turn_timeout_s=20.0)
    (told,) = client.get("/api/tools").json()["data"]
    assert list(told["parameters"]["properties"]) == ["text"]
    model.asks_for("look").then_asks_for("look", context={"owner": "eve"}).then_says("Done.")
    outcome = ask(client, way, conversation_id)
    (context,) = seen  # the forged one was refused
    assert (context.owner, context.conversation_id, context.run_id) == ("", conversation_id, outcome.body["run_id"])
    assert 0 < context.time_left_s() <= 20
    assert context.budget.tool_calls == 2
    assert "context: is not an argument of this tool" in observations(model)[1][1]


class OwnExit(BaseException):
    """An exception that is no Exception."""


RAISED: list[type[BaseException]] = [
    *(ValueError, KeyError, RecursionError, MemoryError, StopIteration, StopAsyncIteration, TimeoutError, OSError),
    *(SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError, OwnExit, UnicodeError, AssertionError),
]


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("kind", RAISED)
def test_whatever_a_tool_raises_is_an_observation_and_the_run_goes_on(
    model: ScriptedModel, kind: type[BaseException], waits: bool
) -> None:
    tools = ToolRegistry()

    def breaks() -> str:
        """Break."""
        raise kind("SECRET-particulars")

    async def breaks_async() -> str:
        """Break."""
        await asyncio.sleep(0)
        return breaks()

    @tools.tool
    def works() -> str:
        """Work."""
        return "works"

    tools.tool(breaks_async if waits else breaks)
    name = "breaks_async" if waits else "breaks"
    model.asks_for_all((name, {}), ("works", {})).then_says("Done.")
    result = settle(model, tools)
    assert result.answer == "Done."
    broken, working = (text for _, text in observations(model))
    assert working == "works"
    assert broken.startswith(f"The tool {name} ")
    assert "SECRET" not in broken
    assert events(result, "tool_result")[0]["code"] in ("tool_failed", "timeout" if kind is TimeoutError else "")


def test_a_tool_that_ends_a_task_of_its_own_does_not_end_the_turn(model: ScriptedModel) -> None:
    tools = ToolRegistry()

    @tools.tool
    async def gives_up() -> str:
        """Wait for something that is given up."""
        waiting = asyncio.create_task(asyncio.sleep(10))
        asyncio.get_running_loop().call_later(0.05, waiting.cancel)
        await waiting
        return "never"

    model.asks_for("gives_up").then_says("Done.")
    assert settle(model, tools).answer == "Done."
    assert "failed (CancelledError)" in observations(model)[0][1]


def test_a_waiting_tool_is_waited_for_though_its_decorator_hides_that_it_waits(model: ScriptedModel) -> None:
    tools = ToolRegistry()

    def plain(function: Any) -> Any:
        @functools.wraps(function)
        def inner(**arguments: Any) -> Any:
            return function(**arguments)

        return inner

    @tools.tool
    @plain
    async def waits(seconds: float) -> str:
        """Wait."""
        await asyncio.sleep(seconds)
        return "waited"

    model.asks_for_all(("waits", {"seconds": 0.01}), ("waits", {"seconds": 30})).then_says("Done.")
    settle(model, tools, Budget(tool_timeout_s=0.2))
    assert observations(model)[0][1] == "waited"
    assert "took too long" in observations(model)[1][1]


def test_a_run_that_is_cancelled_ends_though_its_tool_would_go_on(model: ScriptedModel) -> None:
    tools = slow_tools(600)
    model.asks_for("sleeps_async")

    async def run() -> None:
        asked = model_at(model.base_url)
        task = asyncio.create_task(run_agent([], "Hi", asked, tools, Budget()))
        await asyncio.to_thread(model.wait_for_requests, 1)
        await asyncio.sleep(0.2)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait_for(task, LONG)
        await asked.close()
        assert task.cancelled()

    asyncio.run(run())


def test_a_defect_of_a_tool_is_logged_whole_for_the_operator_and_told_to_nobody_else(
    client_for: MakeClient,
    model: ScriptedModel,
    conversation_id: str,
    toolset: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def breaks() -> str:
        """Break."""
        raise RuntimeError("SECRET-particulars")

    toolset.given.append(breaks)
    model.asks_for("breaks").then_says("Done.")
    outcome = ask(client_for(toolsets="a_toolset"), "/chat", conversation_id, include_trace=True)
    assert "SECRET" not in outcome.text + json.dumps(model.requests)
    assert "SECRET-particulars" in caplog.text
    assert outcome.body["run_id"] in caplog.text


def test_calls_of_blocking_tools_share_a_thread_and_it_ends_with_the_registry(model: ScriptedModel) -> None:
    tools, used = ToolRegistry(), set[threading.Thread]()

    @tools.tool
    def look() -> str:
        """Look where it runs."""
        used.add(threading.current_thread())
        return "seen"

    model.asks_for_all(*[("look", {})] * 20).then_says("Done.")
    settle(model, tools)
    assert 1 <= len(used) <= 2
    for thread in used:
        thread.join(5)
        assert not thread.is_alive()


def test_a_registry_works_again_after_it_was_closed(model: ScriptedModel, tools: ToolRegistry) -> None:
    for _ in range(2):
        model.asks_for("echo", text="x").then_says("Done.")
        settle(model, tools, Budget(tool_timeout_s=2))  # closes it
        assert observations(model)[0][1] == "echo x"
