"""The loop: what a run may spend, how its tools are carried out, and what is left when it ends early."""

import asyncio
import contextlib
import contextvars
import copy
import functools
import json
import os
import re
import signal
import sys
import threading
import time
import types
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

import tools as tools_module
from agent import RunResult, run_agent
from config import Settings
from errors import ModelError, StopRun, ToolError
from model import Model
from run import Budget, Run, RunContext
from tests.conftest import MakeClient, MakeService, Service, Store
from tests.support.scripted_model import Json, ScriptedModel, completion
from tests.support.waiting import LONG
from tests.support.ways import WAYS, Outcome, ask
from tools import ToolRegistry

TOOLS = "tests.support.recording_tools"  # note, now, pause

both_ways = pytest.mark.parametrize("way", WAYS)


@dataclass(frozen=True)
class Said:
    """A message of the history."""

    role: str
    content: str

    def as_dict(self) -> Json:
        return {"role": self.role, "content": self.content}


def model_at(base_url: str) -> Model:
    given: Json = {"api_key": "sk-test", "base_url": base_url, "default_model": "scripted"}
    return Model(Settings(**given))


def settle(
    model: ScriptedModel, tools: ToolRegistry, budget: Budget | None = None, history: Sequence[Said] = (), **more: Any
) -> RunResult:
    """One run, as a library."""

    async def run() -> RunResult:
        asked = model_at(model.base_url)
        try:
            return await run_agent(history, "Hi", asked, tools, budget or Budget(), **more)
        finally:
            await asked.close()
            tools.close()

    return asyncio.run(run())


def in_time(seconds: float) -> float:
    """A deadline so many seconds from now."""
    return time.monotonic() + seconds


def observations(model: ScriptedModel) -> list[tuple[str, str]]:
    """(id, text) of what the model was given back, as its last request holds it."""
    messages = model.requests[-1]["messages"]
    return [(message["tool_call_id"], message["content"]) for message in messages if message["role"] == "tool"]


def events(result: RunResult, kind: str) -> list[Json]:
    """The details of the events of a kind."""
    return [event["details"] for event in result.run.events if event["type"] == kind]


@pytest.fixture
def ran() -> list[str]:
    """What the tools of a test really did."""
    return []


@pytest.fixture
def tools(ran: list[str]) -> ToolRegistry:
    """A tool that works, one that cannot do what is asked, one that is broken."""
    registry = ToolRegistry()

    @registry.tool
    def echo(text: str) -> str:
        """Say it again."""
        ran.append(text)
        return f"echo {text}"

    @registry.tool
    def refuse(text: str) -> str:
        """Refuse."""
        ran.append(text)
        raise ToolError(f"No {text}. Ask for something else.", "no_such_thing")

    @registry.tool
    def fail(text: str) -> str:
        """Fail."""
        ran.append(text)
        raise KeyError("SECRET-particulars")

    return registry


# ---------------------------------------------------------------------------------------- calls and observations


def test_every_call_is_answered_exactly_once_in_order_whatever_becomes_of_it(
    model: ScriptedModel, tools: ToolRegistry, ran: list[str]
) -> None:
    asked: list[tuple[str, Any]] = [
        ("echo", {"text": "1"}),
        ("fail", {"text": "2"}),
        ("refuse", {"text": "3"}),
        ("nothing", {}),
        ("echo", "{"),
    ]
    model.asks_for_all(*asked, ("echo", {"text": "6"}), ids=["f", "e", "d", "c", "b", "a"])
    model.asks_for_all(("echo", {"text": "7"}), ids=["f"]).then_says("Done.")
    result = settle(model, tools)
    assert result.answer == "Done."
    assert ran == ["1", "2", "3", "6", "7"]
    assert [call_id for call_id, _ in observations(model)] == ["f", "e", "d", "c", "b", "a", "f"]
    texts = [text for _, text in observations(model)]
    assert texts[0] == "echo 1"
    assert texts[1] == "The tool fail failed (KeyError). Check the arguments or do without it."
    assert texts[2] == "No 3. Ask for something else."
    assert texts[3] == "There is no tool named 'nothing'. The tools are: echo, refuse, fail."
    assert texts[4] == "The arguments of echo cannot be used: they are not valid JSON. Send one JSON object."
    assert texts[5:] == ["echo 6", "echo 7"]
    codes = [details["code"] for details in events(result, "tool_result")]
    assert codes == [None, "tool_failed", "no_such_thing", "unknown_tool", "bad_arguments", None, None]
    assert [details["ok"] for details in events(result, "tool_result")] == [code is None for code in codes]


def test_where_there_are_no_tools_none_are_offered_and_a_call_is_told_so(model: ScriptedModel) -> None:
    model.asks_for("calculator", a=1).then_says("Done.")
    assert settle(model, ToolRegistry()).answer == "Done."
    assert "tools" not in model.requests[0]
    assert observations(model)[0][1] == "There is no tool named 'calculator'. The tools are: none."


def test_what_the_caller_handed_over_is_as_it_was(model: ScriptedModel, tools: ToolRegistry) -> None:
    history = [Said("user", "question"), Said("assistant", "answer")]
    before = copy.deepcopy(history)
    model.asks_for("echo", text="1").then_says("Done.")
    settle(model, tools, history=history, system="Be brief.")
    assert history == before
    assert [m["role"] for m in model.requests[0]["messages"]] == ["system", "user", "assistant", "user"]


def test_a_run_tells_what_happens_as_it_happens_and_ends_with_one_stop(
    model: ScriptedModel, tools: ToolRegistry
) -> None:
    heard: list[Json] = []
    run = Run(listeners=[heard.append])
    model.asks_for_all(("echo", {"text": "1"}), ("fail", {"text": "2"})).then_says("Done.", usage=None)
    result = settle(model, tools, run=run)
    assert heard == result.run.events
    assert [(event["type"], event["step"]) for event in heard] == [
        ("run_started", 0),
        ("model_request", 1),
        ("model_response", 1),
        ("tool_call", 1),
        ("tool_call", 1),
        ("tool_result", 1),
        ("tool_result", 1),
        ("model_request", 2),
        ("model_response", 2),
        ("run_stopped", 2),
    ]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", event["at"]) for event in heard)
    (stopped,) = events(result, "run_stopped")
    assert stopped["token_usage"] == {
        **{"input_tokens": 10, "output_tokens": 5, "total_tokens": 15},
        **{"rounds": 2, "rounds_recorded": 1},
    }
    json.dumps(heard)


def test_one_who_listens_and_fails_does_not_end_the_run(
    model: ScriptedModel, tools: ToolRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[Json] = []

    def breaks(event: Json) -> None:
        raise BrokenPipeError("nobody reads this")

    model.asks_for("echo", text="1").then_says("Done.")
    assert settle(model, tools, run=Run(listeners=[breaks, heard.append])).answer == "Done."
    assert heard[-1]["type"] == "run_stopped"
    assert "a listener failed at the event run_started" in caplog.text


# ---------------------------------------------------------------------------------------- what a run may spend


@both_ways
def test_no_tool_calls_permitted_forbids_them_altogether(
    client_for: MakeClient, store: Store, model: ScriptedModel, conversation_id: str, way: str
) -> None:
    client = client_for(max_tool_calls=0)
    model.asks_for("calculator", a=1, b=2, operation="add")
    outcome = ask(client, way, conversation_id, include_trace=True)
    assert (outcome.body["stop_reason"], outcome.body["tool_calls"]) == ("tool_call_limit", 0)
    assert "tools" not in model.requests[0]
    stopped = outcome.body["trace"][-1]["details"]
    assert stopped["blocked_call"]["tool"] == "calculator"
    assert stopped["execution_budget"] == {
        **{"max_steps": 10, "steps": 1, "max_tool_calls": 0, "tool_calls": 0, "max_calls_of": {}, "calls_of": {}}
    }
    assert store.messages(conversation_id) == []
    model.says("3")
    assert ask(client, way, conversation_id).body["answer"] == "3"


def test_a_failed_call_counts_and_a_blocked_one_does_not(
    model: ScriptedModel, tools: ToolRegistry, ran: list[str]
) -> None:
    failing: list[tuple[str, Json]] = [
        ("fail", {"text": "1"}),
        ("refuse", {"text": "2"}),
        ("nothing", {}),
        ("echo", {"wrong": 1}),
    ]
    model.asks_for_all(*failing).then_asks_for("echo", text="5")
    budget = Budget(max_tool_calls=4)
    result = settle(model, tools, budget)
    assert (result.stop_reason, result.answer) == ("tool_call_limit", None)
    assert ran == ["1", "2"]
    assert budget.tool_calls == 4
    assert budget.calls_of == {"fail": 1, "refuse": 1, "nothing": 1, "echo": 1}
    assert events(result, "run_stopped")[0]["blocked_call"]["arguments"] == {"text": "5"}


def test_a_budget_that_is_used_up_still_lets_the_model_answer(
    model: ScriptedModel, tools: ToolRegistry, ran: list[str]
) -> None:
    model.asks_for_all(("echo", {"text": "1"}), ("echo", {"text": "2"})).then_says("Done.")
    budget = Budget(max_tool_calls=2)
    assert settle(model, tools, budget).answer == "Done."
    assert ran == ["1", "2"]
    assert budget.tool_calls == 2


def test_over_the_limit_the_results_so_far_are_kept_and_the_rest_of_the_batch_is_not_carried_out(
    model: ScriptedModel, tools: ToolRegistry, ran: list[str]
) -> None:
    model.asks_for_all(*(("echo", {"text": str(n)}) for n in range(5)), ids=[f"id_{n}" for n in range(5)])
    budget = Budget(max_tool_calls=2)
    result = settle(model, tools, budget)
    assert result.stop_reason == "tool_call_limit"
    assert ran == ["0", "1"]
    assert [details["text"] for details in events(result, "tool_result")] == ["echo 0", "echo 1"]
    (stopped,) = events(result, "run_stopped")
    assert stopped["blocked_call"]["call_id"] == "id_2"  # the first that was too many
    assert (stopped["execution_budget"]["tool_calls"], stopped["execution_budget"]["max_tool_calls"]) == (2, 2)
    assert len(model.requests) == 1  # the model is not asked again
    assert result.notice


@pytest.mark.parametrize("limit", [0, 1, 2])
def test_a_tools_own_limit_ends_the_run_with_its_own_reason(
    model: ScriptedModel, tools: ToolRegistry, ran: list[str], limit: int
) -> None:
    @tools.tool(max_calls=limit, limit_reason="sql_attempt_limit")
    def query(sql: str) -> str:
        """Run a query."""
        ran.append(sql)
        raise ToolError("Unknown column.", "sql_error")

    model.asks_for("echo", text="first")
    for number in range(limit):
        model.asks_for("query", sql=str(number))
    model.asks_for_all(("query", {"sql": "too many"}), ("echo", {"text": "left out"}))
    budget = Budget()
    result = settle(model, tools, budget)
    assert result.stop_reason == "sql_attempt_limit"
    assert result.notice
    assert ran == ["first", *(str(n) for n in range(limit))]
    assert budget.calls_of["query"] == limit
    assert budget.tool_calls == limit + 1  # it uses both budgets
    assert events(result, "run_stopped")[0]["blocked_call"]["arguments"] == {"sql": "too many"}


def test_of_two_limits_that_are_reached_the_runs_own_is_named(model: ScriptedModel, tools: ToolRegistry) -> None:
    @tools.tool(max_calls=1, limit_reason="sql_attempt_limit")
    def query() -> str:
        """Run a query."""
        return "1"

    model.asks_for("query").then_asks_for("query")
    assert settle(model, tools, Budget(max_tool_calls=1)).stop_reason == "tool_call_limit"


@both_ways
def test_a_turn_that_ran_over_its_limit_is_not_stored_and_the_next_one_works(
    client_for: MakeClient, store: Store, model: ScriptedModel, conversation_id: str, way: str
) -> None:
    client = client_for(max_tool_calls=2)
    model.asks_for_all(*[("calculator", {"a": 1, "b": 2, "operation": "add"})] * 3)
    outcome = ask(client, way, conversation_id, include_trace=True)
    assert (outcome.body["stop_reason"], outcome.body["tool_calls"]) == ("tool_call_limit", 2)
    assert [event["type"] for event in outcome.body["trace"]].count("tool_result") == 2
    assert store.messages(conversation_id) == []
    model.says("3")
    assert ask(client, way, conversation_id).body["turn"] == 1


@both_ways
def test_the_calls_of_the_last_permitted_step_are_not_carried_out(
    client_for: MakeClient, store: Store, model: ScriptedModel, conversation_id: str, way: str
) -> None:
    client = client_for(max_steps=2)
    for _ in range(2):
        model.asks_for("calculator", a=1, b=2, operation="add")
    outcome = ask(client, way, conversation_id, include_trace=True)
    assert (outcome.body["stop_reason"], outcome.body["steps"], outcome.body["tool_calls"]) == ("max_steps", 2, 1)
    assert [event["type"] for event in outcome.body["trace"]].count("tool_result") == 1
    assert store.messages(conversation_id) == []


def test_an_answer_in_the_last_permitted_step_completes_the_run(model: ScriptedModel, tools: ToolRegistry) -> None:
    model.asks_for("echo", text="1").then_says("Done.")
    result = settle(model, tools, Budget(max_steps=2))
    assert (result.answer, result.stop_reason) == ("Done.", "completed")


def test_a_run_without_any_step_asks_nobody(model: ScriptedModel, tools: ToolRegistry) -> None:
    assert settle(model, tools, Budget(max_steps=0)).stop_reason == "max_steps"
    assert settle(model, tools, Budget(deadline=in_time(-1))).stop_reason == "timeout"
    assert not model.requests


def test_a_model_that_cannot_be_asked_is_an_error_and_the_run_says_where_it_ended(
    model: ScriptedModel, tools: ToolRegistry, ran: list[str]
) -> None:
    model.asks_for("echo", text="1").fails(400)
    run = Run()
    with pytest.raises(ModelError):
        settle(model, tools, run=run)
    assert [event["type"] for event in run.events[-3:]] == ["model_request", "model_error", "run_stopped"]
    assert run.events[-1]["details"]["stop_reason"] == "error"
    assert ran == ["1"]


# ---------------------------------------------------------------------------------------- tools that end the run


@pytest.mark.parametrize("waits", [False, True])
def test_a_tool_may_end_the_run_with_a_reason_of_its_own(
    model: ScriptedModel, tools: ToolRegistry, ran: list[str], waits: bool
) -> None:
    def end(text: str) -> str:
        """End it."""
        raise StopRun("sql_recovery_stopped", "The database refuses the login; no query can mend that.")

    async def end_async(text: str) -> str:
        """End it."""
        return end(text)

    tools.tool(end_async if waits else end)
    name = "end_async" if waits else "end"
    model.asks_for_all(("echo", {"text": "1"}), (name, {"text": "2"}), ("echo", {"text": "3"}), ids=["a", "b", "c"])
    result = settle(model, tools)
    assert (result.stop_reason, result.answer) == ("sql_recovery_stopped", None)
    assert result.notice == "The database refuses the login; no query can mend that."
    assert ran == ["1"]
    (stopped,) = events(result, "run_stopped")
    assert stopped["failure"] == {"call_id": "b", "code": "sql_recovery_stopped", "explanation": result.notice}
    assert stopped["blocked_call"] is None
    assert [details["ok"] for details in events(result, "tool_result")] == [True, False]
    assert len(model.requests) == 1


# ---------------------------------------------------------------------------------------- time


def slow_tools(seconds: float) -> ToolRegistry:
    """The same wait, once in a thread and once in the event loop."""
    registry = ToolRegistry()

    @registry.tool
    def sleeps() -> str:
        """Wait."""
        time.sleep(seconds)
        return "slept"

    @registry.tool
    async def sleeps_async() -> str:
        """Wait."""
        await asyncio.sleep(seconds)
        return "slept"

    return registry


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


@pytest.fixture
def toolset(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    """A module that TOOLSETS can name: `a_toolset`. Its tools are what a test puts into `given`."""
    module = types.ModuleType("a_toolset")
    module.given = []  # type: ignore[attr-defined]

    def register(runtime: Any) -> None:
        for function in module.given:
            runtime.tools.tool(function)

    module.register = register  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "a_toolset", module)
    yield module


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


# ---------------------------------------------------------------------------------------- beside one another


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


# ---------------------------------------------------------------------------------------- what a tool sees and raises

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


# ---------------------------------------------------------------------------------------- many turns at once


def status_of(service: Service) -> dict[str, int]:
    """Threads and memory (kB) of the service, as Linux counts them."""
    assert service.process
    text = Path(f"/proc/{service.process.pid}/status").read_text(encoding="ascii")
    return {name: int(value.split()[0]) for name, value in re.findall(r"(Threads|VmHWM):\s+(\d+.*)", text)}


async def many_turns(
    service: Service, conversation_id: str, count: int, watch: Callable[[], Coroutine[Any, Any, None]]
) -> list[Any]:
    """As many turns at once, each in a conversation of its own, and meanwhile somebody who watches."""
    limits = httpx2.Limits(max_connections=count + 10)
    url = f"http://127.0.0.1:{service.port}"
    async with httpx2.AsyncClient(base_url=url, timeout=60, limits=limits, trust_env=False) as http:

        async def turn(number: int) -> Any:
            body = {"conversation_id": f"{conversation_id}-{number}", "message": f"question {number}"}
            return await http.post("/chat", json=body)

        *answers, _ = await asyncio.gather(*(turn(number) for number in range(count)), watch())
        return answers


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="counts threads as Linux does")
def test_five_hundred_turns_at_once_are_all_answered_and_meanwhile_the_service_says_that_it_lives(
    service_for: MakeService, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    service = service_for()
    released = threading.Event()
    found: list[dict[str, int]] = []

    def answer(request: Json) -> Json:
        released.wait(LONG)
        text = f"echo: {request['messages'][-1]['content']}"
        return completion({"role": "assistant", "content": text}, "stop")(request)

    async def watch() -> None:
        await asyncio.to_thread(model.wait_for_requests, 500, LONG)
        try:
            async with httpx2.AsyncClient(base_url=service.http.base_url, timeout=LONG, trust_env=False) as http:
                for _ in range(10):
                    assert (await http.get("/healthz")).status_code == 200
                    found.append(status_of(service))
        finally:
            released.set()

    model.answers_by(answer)
    answers = asyncio.run(many_turns(service, conversation_id, 500, watch))
    assert [answer.status_code for answer in answers] == [200] * 500
    assert [answer.json()["answer"] for answer in answers] == [f"echo: question {n}" for n in range(500)]
    stored = store.rows("SELECT content FROM messages WHERE conversation_id LIKE %s", f"{conversation_id}-%")
    assert len(stored) == len(set(stored)) == 1000
    assert max(one["Threads"] for one in found) < 60
    assert status_of(service)["VmHWM"] < 400_000


def test_more_turns_than_the_service_takes_are_told_to_come_back_and_the_others_are_answered(
    service_for: MakeService, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    service = service_for(MAX_IN_FLIGHT="5")
    model.echoes(delay_s=1)

    async def nobody() -> None:
        return None

    answers = asyncio.run(many_turns(service, conversation_id, 20, nobody))
    answered = [answer for answer in answers if answer.status_code == 200]
    refused = [answer for answer in answers if answer.status_code != 200]
    assert len(answered) >= 5
    assert len(refused) >= 1
    assert {(answer.status_code, answer.json()["code"]) for answer in refused} == {(503, "overloaded")}
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)
    stored = store.rows("SELECT content FROM messages WHERE conversation_id LIKE %s", f"{conversation_id}-%")
    assert len(stored) == 2 * len(answered)
    assert service.chat(conversation_id, "Hi").status_code == 200  # and then there is room again


# ---------------------------------------------------------------------------------------- the end of the service


def in_background(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Begin something and keep what comes of it."""
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(work())
        except httpx2.TransportError as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, results


@pytest.mark.parametrize("sent", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_service_that_is_asked_to_end_finishes_and_stores_what_is_under_way(
    service_for: MakeService, store: Store, model: ScriptedModel, conversation_id: str, sent: signal.Signals
) -> None:
    service = service_for(TOOLSETS=TOOLS)
    model.asks_for("pause", seconds=0.3).then_says("Done.", delay_s=0.5)
    thread, results = in_background(lambda: service.chat(conversation_id, "Hi"))
    model.wait_for_requests(1)
    assert service.process
    service.process.send_signal(sent)
    thread.join(15)
    service.process.wait(15)
    assert results[0].json()["answer"] == "Done."
    assert store.messages(conversation_id) == [("user", "Hi"), ("assistant", "Done.")]
    assert "Traceback" not in service.log.read_text(encoding="utf-8").replace("KeyboardInterrupt", "")


def test_a_turn_whose_caller_has_left_is_stored_before_the_service_ends(
    service_for: MakeService, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    service = service_for()
    model.says("Done.", delay_s=1)
    body = {"conversation_id": conversation_id, "message": "Hi"}
    with service.http.stream("POST", "/chat/stream", json=body) as answer:
        next(answer.iter_raw())
    model.wait_for_requests(1)
    service.end()
    assert store.messages(conversation_id) == [("user", "Hi"), ("assistant", "Done.")]


@pytest.mark.parametrize("sent", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_second_signal_ends_the_service_at_once_and_nothing_is_left_of_the_turn(
    service_for: MakeService, store: Store, model: ScriptedModel, conversation_id: str, sent: signal.Signals
) -> None:
    service = service_for(TURN_TIMEOUT_S="60", MODEL_TIMEOUT_S="60")
    model.hangs()
    thread, results = in_background(lambda: service.chat(conversation_id, "Hi"))
    model.wait_for_requests(1)
    assert service.process
    service.process.send_signal(sent)
    time.sleep(0.5)
    assert service.process.poll() is None  # it waits for the turn
    service.process.send_signal(signal.SIGINT)
    service.process.wait(10)
    thread.join(10)
    assert not isinstance(results[0], httpx2.Response) or results[0].status_code >= 500
    assert store.messages(conversation_id) == []


def test_a_tool_that_is_stuck_does_not_keep_the_service_from_ending(
    service_for: MakeService, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    service = service_for(TOOLSETS=TOOLS, TOOL_TIMEOUT_S="0.5")
    model.asks_for("pause", seconds=600).then_says("Done without it.")
    assert service.chat(conversation_id, "Hi").json()["answer"] == "Done without it."
    service.end()  # waits 30 s at most
    assert len(store.messages(conversation_id)) == 2
