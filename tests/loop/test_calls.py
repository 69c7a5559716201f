"""What the model asks for is carried out in order, and it is told what came of it."""

import copy
import json
import re
from typing import Any

import pytest

from run import Run
from tests.support.loop import Said, events, observations, settle
from tests.support.scripted_model import Json, ScriptedModel
from tools import ToolRegistry


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
