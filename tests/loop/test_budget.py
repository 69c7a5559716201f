"""A run ends where what it may spend ends, or where a tool ends it."""

import pytest

from errors import ModelError, StopRun, ToolError
from run import Budget, Run
from tests.conftest import MakeClient, Store
from tests.support.loop import both_ways, events, in_time, settle
from tests.support.scripted_model import Json, ScriptedModel
from tests.support.ways import ask
from tools import ToolRegistry


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
