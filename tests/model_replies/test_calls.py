"""Tool calls of odd ids, names, types and shapes: each is carried out once or told to the model."""

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.conftest import Store
from tests.support.odd_replies import ABSENT, GOOD, asks, call
from tests.support.outcomes import answered, both_ways, left_nothing, stopped
from tests.support.recording_tools import RUNS
from tests.support.scripted_model import ScriptedModel, completion
from tests.support.ways import ask

IDS = [[None, None], ["", ""], [ABSENT, ABSENT], [7, 8], [7, 7], ["a", "a"], ["", "call_1"], ["call_2", ""]]
IDS += [["x" * 5_000, "y"], ["a\nb", "c"], ["a\0", "\ud83d"], [[1], {"id": 1}], [True, 0], ["编号", "号 2"]]


@both_ways
@pytest.mark.parametrize("ids", IDS, ids=range(len(IDS)))
def test_calls_with_odd_ids_are_each_answered_once_under_ids_that_are_distinct(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, way: str, ids: list[Any]
) -> None:
    asks(model, *(call("note", json.dumps({"text": str(n)}), one) for n, one in enumerate(ids)))
    model.says("Done.")
    answered(ask(client, way, conversation_id), store, conversation_id, "Done.")
    assert [arguments["text"] for _, arguments in RUNS] == ["0", "1"]
    asked, *observations = model.requests[-1]["messages"][-3:]
    given = [one["id"] for one in asked["tool_calls"]]
    assert given == [one["tool_call_id"] for one in observations]
    assert len(set(given)) == 2
    assert [one["content"] for one in observations] == ["noted: 0", "noted: 1"]


@both_ways
def test_an_id_that_comes_again_in_the_next_step_is_another_call(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, way: str
) -> None:
    asks(model, call("note", '{"text": "first"}', "call_1"))
    asks(model, call("note", '{"text": "second"}', "call_1"))
    model.says("Done.")
    answered(ask(client, way, conversation_id), store, conversation_id, "Done.")
    contents = [message["content"] for message in model.requests[-1]["messages"] if message["role"] == "tool"]
    assert contents == ["noted: first", "noted: second"]


@both_ways
def test_a_thousand_calls_in_one_reply_end_at_the_limit_and_hang_nothing(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, way: str
) -> None:
    asks(model, *(call("now", "{}", "") for _ in range(1000)))
    stopped(ask(client, way, conversation_id), "tool_call_limit")
    assert len(RUNS) == 30
    left_nothing(client, store, model, conversation_id)


@both_ways
@pytest.mark.parametrize("name", ["functions.note", "default_api:note", " note\n", "tools/note", "a.b:c/note"])
def test_a_namespace_or_blanks_around_the_name_of_a_tool_are_taken_off(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, way: str, name: str
) -> None:
    asks(model, call(name, GOOD))
    model.says("Done.")
    answered(ask(client, way, conversation_id), store, conversation_id, "Done.")
    assert RUNS == [("note", {"text": "a", "times": 1})]
    assert model.requests[-1]["messages"][-2]["tool_calls"][0]["function"]["name"] == "note"


UNKNOWN = [
    "Note",
    "NOTE",
    "web_search",
    "",
    None,
    5,
    ABSENT,
    [],
    "note()",
    "no te",
    "notes",
    "note.",
    "note note",
    "no",
]
UNKNOWN += [
    "../../" + "x" * 10_000,
    "a\0b",
    "a\nINFO forged",
    "\ud83d",
    "笔记",
    "<b>note</b>",
    "note\u200b",
    "now,note",
]


@both_ways
@pytest.mark.parametrize("name", UNKNOWN, ids=range(len(UNKNOWN)))
def test_a_tool_that_there_is_not_is_never_a_guess_at_another_and_the_model_is_told_which_there_are(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, way: str, name: Any
) -> None:
    asks(model, call(name, GOOD))
    model.says("Done.")
    answered(ask(client, way, conversation_id), store, conversation_id, "Done.")
    assert not RUNS
    observation = model.requests[-1]["messages"][-1]["content"]
    assert observation.startswith("There is no tool named")
    assert observation.endswith("The tools are: note, now, pause.")
    assert len(observation) < 200


ODD_CALLS: list[Any] = [
    None,
    "note",
    5,
    [],
    {},
    {"id": "call_9"},
    {"function": None},
    {"function": "note"},
    {"type": "custom"},
]


@both_ways
@pytest.mark.parametrize("odd", ODD_CALLS, ids=range(len(ODD_CALLS)))
def test_a_call_of_an_odd_shape_beside_a_good_one_does_not_keep_that_from_being_carried_out(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, way: str, odd: Any
) -> None:
    asks(model, call("note", GOOD, "call_1"), odd)
    model.says("Done.")
    answered(ask(client, way, conversation_id), store, conversation_id, "Done.")
    assert RUNS == [("note", {"text": "a", "times": 1})]


@both_ways
def test_the_type_of_a_call_may_be_missing_or_odd_and_is_put_right(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, way: str
) -> None:
    kinds = [ABSENT, None, "", "tool"]
    asks(model, *(call("note", GOOD, f"call_{n}", kind) for n, kind in enumerate(kinds)))
    model.says("Done.")
    answered(ask(client, way, conversation_id), store, conversation_id, "Done.")
    assert len(RUNS) == len(kinds)
    assert {one["type"] for one in model.requests[-1]["messages"][2]["tool_calls"]} == {"function"}


@both_ways
@pytest.mark.parametrize("finish_reason", ["function_call", "stop", None])
def test_the_old_field_function_call_is_a_call_too(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, way: str, finish_reason: str | None
) -> None:
    old = {"role": "assistant", "content": None, "function_call": {"name": "note", "arguments": GOOD}}
    model.answers_by(completion(old, finish_reason), forever=False).says("Done.")
    answered(ask(client, way, conversation_id), store, conversation_id, "Done.")
    assert RUNS == [("note", {"text": "a", "times": 1})]


@both_ways
def test_a_call_in_both_the_old_and_the_new_field_is_carried_out_once(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, way: str
) -> None:
    both = {"role": "assistant", "content": None, "function_call": {"name": "note", "arguments": GOOD}}
    model.answers_by(completion({**both, "tool_calls": [call("note", GOOD)]}, "tool_calls"), forever=False)
    model.says("Done.")
    answered(ask(client, way, conversation_id), store, conversation_id, "Done.")
    assert RUNS == [("note", {"text": "a", "times": 1})]


@both_ways
def test_text_beside_a_call_is_not_the_answer(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, way: str
) -> None:
    asks(model, call("note", GOOD), content="Let me write that down.")
    model.says("Done.")
    answered(ask(client, way, conversation_id), store, conversation_id, "Done.")
    assert model.requests[-1]["messages"][-2]["content"] == "Let me write that down."


@both_ways
@pytest.mark.parametrize("finish_reason", ["stop", "tool_calls", "TOOL_CALLS", "", None, "whatever"])
def test_calls_count_whatever_the_finish_reason_says(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, way: str, finish_reason: str | None
) -> None:
    asks(model, call("note", GOOD), finish_reason=finish_reason)
    model.says("Done.")
    answered(ask(client, way, conversation_id), store, conversation_id, "Done.")
    assert len(RUNS) == 1
