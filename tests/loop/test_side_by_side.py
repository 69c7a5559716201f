"""Calls of one step run beside one another only where all of them say that they may."""

import asyncio
import time

import pytest

from run import Budget
from tests.support.loop import events, observations, settle
from tests.support.scripted_model import ScriptedModel
from tools import ToolRegistry


def meeting_tools(parallel: bool, alone: bool = False) -> tuple[ToolRegistry, list[int]]:
    """Two tools, and how many ran at once at most."""
    tools, running, most = ToolRegistry(), set[str](), [0]

    def enter(name: str) -> None:
        running.add(name)
        most[0] = max(most[0], len(running))

    @tools.tool(parallel=parallel)
    def first() -> str:
        """Take a while."""
        enter("first")
        time.sleep(0.3)
        running.discard("first")
        return "1"

    @tools.tool(parallel=parallel)
    async def second() -> str:
        """Take a shorter while."""
        enter("second")
        await asyncio.sleep(0.1)
        running.discard("second")
        return "2"

    @tools.tool(parallel=not alone)
    def third() -> str:
        """Take no time."""
        enter("third")
        running.discard("third")
        return "3"

    return tools, most


def test_calls_that_all_may_run_beside_others_do_and_are_answered_in_the_models_order(model: ScriptedModel) -> None:
    tools, most = meeting_tools(parallel=True)
    model.asks_for_all(("first", {}), ("second", {}), ("third", {})).then_says("Done.")
    settle(model, tools)
    assert most[0] >= 2
    assert [text for _, text in observations(model)] == ["1", "2", "3"]


@pytest.mark.parametrize(
    ("names", "parallel"),
    [("first second", False), ("first second third", True), ("third first", True), ("first second nothing", True)],
)
def test_as_soon_as_one_may_not_the_calls_of_a_step_run_after_one_another(
    model: ScriptedModel, names: str, parallel: bool
) -> None:
    tools, most = meeting_tools(parallel, alone=True)
    model.asks_for_all(*((name, {}) for name in names.split())).then_says("Done.")
    settle(model, tools)
    assert most == [1]
    assert len(observations(model)) == len(names.split())


def test_a_budget_is_spent_in_the_models_order_before_anything_runs_beside_anything(model: ScriptedModel) -> None:
    tools, _ = meeting_tools(parallel=True)
    model.asks_for_all(("first", {}), ("second", {}), ("third", {}), ids=["a", "b", "c"])
    budget = Budget(max_tool_calls=2)
    result = settle(model, tools, budget)
    assert result.stop_reason == "tool_call_limit"
    assert [details["text"] for details in events(result, "tool_result")] == ["1", "2"]
    assert events(result, "run_stopped")[0]["blocked_call"]["call_id"] == "c"
    assert budget.tool_calls == 2


def test_of_calls_beside_one_another_one_that_fails_takes_no_other_with_it(model: ScriptedModel) -> None:
    tools = ToolRegistry()

    @tools.tool(parallel=True)
    async def works(n: int) -> int:
        """Work."""
        await asyncio.sleep(0.05)
        return n

    @tools.tool(parallel=True)
    async def breaks(n: int) -> int:
        """Break."""
        raise SystemExit(n)

    model.asks_for_all(("works", {"n": 1}), ("breaks", {"n": 2}), ("works", {"n": 3})).then_says("Done.")
    result = settle(model, tools)
    assert result.answer == "Done."
    assert [details["code"] for details in events(result, "tool_result")] == [None, "tool_failed", None]
