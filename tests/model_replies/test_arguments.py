"""The arguments of a tool call: what can be read reaches the tool unchanged, and nothing half-understood runs."""

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.conftest import Store
from tests.support.odd_replies import ABSENT, GOOD, asks, call, fenced
from tests.support.outcomes import answered, both_ways
from tests.support.recording_tools import RUNS
from tests.support.scripted_model import Json, ScriptedModel
from tests.support.ways import ask

NOTHING = [
    ("empty", ""),
    ("blank", " \n "),
    ("null", None),
    ("absent", ABSENT),
    ("a list", []),
    ("a list as text", "[]"),
]
NOTHING += [("null as text", "null"), ("an object", "{}"), ("a real object", {}), ("empty, twice encoded", '""')]
NOTHING += [("an object, twice encoded", '"{}"'), ("null, twice encoded", '"null"'), ("fenced", "```json\n{}\n```")]


@both_ways
@pytest.mark.parametrize("arguments", [value for _, value in NOTHING], ids=[name for name, _ in NOTHING])
def test_no_arguments_at_all_run_a_tool_that_needs_none_and_are_told_to_a_tool_that_needs_one(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, way: str, arguments: Any
) -> None:
    asks(model, call("now", arguments, "call_1"), call("note", arguments, "call_2"))
    model.says("Done.")
    answered(ask(client, way, conversation_id), store, conversation_id, "Done.")
    assert RUNS == [("now", {})]
    *_, asked, time, note = model.requests[-1]["messages"]
    assert [one["function"]["arguments"] for one in asked["tool_calls"]] == ["{}", "{}"]
    assert time["content"] == "2031-05-06 07:08:09"
    assert "text: is required and missing" in note["content"]


RUN: list[tuple[str, Any, Json]] = [
    ("plain", GOOD, {"text": "a"}),
    ("white space around", f" \n{GOOD}\t", {"text": "a"}),
    ("a real object", {"text": "a", "times": 2}, {"text": "a", "times": 2}),
    ("twice encoded", json.dumps(GOOD), {"text": "a"}),
    ("fenced", fenced(GOOD), {"text": "a"}),
    ("fenced without a word", fenced(GOOD, ""), {"text": "a"}),
    ("fenced on one line", f"```json {GOOD}```", {"text": "a"}),
    ("a value that is JSON itself", json.dumps({"text": '{"a": 1}'}), {"text": '{"a": 1}'}),
    ("the same key twice", '{"text": "a", "text": "b"}', {"text": "b"}),
    (
        "Chinese, full width, right to left",
        '{"text": "请算１＋１ \u202eאב 👨‍👩‍👧‍👦"}',
        {"text": "请算１＋１ \u202eאב 👨‍👩‍👧‍👦"},
    ),
    ("Chinese escaped", '{"text": "\\u8bf7"}', {"text": "请"}),
    ("two halves escaped", '{"text": "\\ud83d\\ude42"}', {"text": "🙂"}),
    ("NUL", '{"text": "a\\u0000b"}', {"text": "a\0b"}),
    ("line separators", '{"text": "a\u2028b\u0085c"}', {"text": "a\u2028b\u0085c"}),
    ("99,000 characters", json.dumps({"text": "x" * 99_000}), {"text": "x" * 99_000}),
    ("a number as text for a number", '{"text": "a", "times": "2"}', {"text": "a", "times": 2}),
]


@both_ways
@pytest.mark.parametrize(("arguments", "ran"), [row[1:] for row in RUN], ids=[row[0] for row in RUN])
def test_arguments_that_can_be_read_reach_the_tool_unchanged(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, way: str, arguments: Any, ran: Json
) -> None:
    asks(model, call("note", arguments))
    model.says("Done.")
    answered(ask(client, way, conversation_id), store, conversation_id, "Done.")
    assert RUNS == [("note", {"times": 1, **ran})]
    asked, observation = model.requests[-1]["messages"][-2:]
    assert json.loads(asked["tool_calls"][0]["function"]["arguments"])["text"] == ran["text"]
    assert observation["content"].startswith("noted: " + ran["text"].replace("\0", "\ufffd")[:1000])


NOT_JSON, NO_OBJECT = "not valid JSON. Send one JSON object", "not a JSON object. Send one JSON object"
UNREADABLE: list[tuple[str, Any, str]] = [
    ("a Python literal", "{'text': 'a'}", NOT_JSON),
    ("Python's True", '{"text": "a", "times": True}', NOT_JSON),
    ("two objects", GOOD + GOOD, NOT_JSON),
    ("two objects on two lines", GOOD + "\n" + GOOD, NOT_JSON),
    ("two objects, fenced", fenced(GOOD) + "\n" + fenced(GOOD), NOT_JSON),
    ("prose in front", "Here it is: " + GOOD, NOT_JSON),
    ("a comma too many", '{"text": "a",}', NOT_JSON),
    ("a comment", '{"text": "a"} // done', NOT_JSON),
    ("cut", '{"text": "a', NOT_JSON),
    ("an open fence", "```json\n" + GOOD, NOT_JSON),
    ("a line break within a string", '{"text": "a\nb"}', NOT_JSON),
    ("NaN", '{"text": "a", "times": NaN}', NOT_JSON),
    ("Infinity", '{"text": "a", "times": Infinity}', NOT_JSON),
    ("minus Infinity", '{"text": "a", "times": -Infinity}', NOT_JSON),
    ("1e999", '{"text": "a", "times": 1e999}', NOT_JSON),
    ("-1e999", '{"text": "a", "times": -1e999}', NOT_JSON),
    ("NaN within a list, twice encoded", json.dumps('{"text": [NaN]}'), NOT_JSON),
    ("5,000 digits", '{"text": "a", "times": ' + "9" * 5_000 + "}", NOT_JSON),
    ("100,000 brackets", "[" * 50_000 + "]" * 49_000, NOT_JSON),
    ("100,000 objects", '{"a":' * 19_000, NOT_JSON),
    ("60 levels", '{"text": ' + "[" * 60 + "]" * 60 + "}", "nested more than 50 levels deep"),
    ("300 levels", '{"text": ' + "[" * 300 + "]" * 300 + "}", "nested more than 50 levels deep"),
    ("900 levels", '{"text": ' + "[" * 900 + "]" * 900 + "}", ""),
    ("a lone half", '{"text": "\\ud83d"}', NOT_JSON),
    ("a lone second half", '{"text": "\\ude42 a"}', NOT_JSON),
    ("a lone half as a name", '{"\\ud83d": 1}', NOT_JSON),
    ("a list", '[{"text": "a"}]', NO_OBJECT),
    ("a real list", [{"text": "a"}], NO_OBJECT),
    ("text", '"a"', NOT_JSON),
    ("a number", "5", NO_OBJECT),
    ("a real number", 5, NO_OBJECT),
    ("true", "true", NO_OBJECT),
    ("a real false", False, NO_OBJECT),
    ("thrice encoded", json.dumps(json.dumps(GOOD)), NO_OBJECT),
    ("1 MB", json.dumps({"text": "x" * 1_000_000}), "longer than 100000 characters"),
    ("1 MB as a real object", {"text": "x" * 1_000_000}, "longer than 100000 characters"),
    ("100,000 spaces behind a fence", "```" + " " * 99_000, NOT_JSON),
    ("100,000 line breaks in a fence", "```" + "\n" * 99_000 + "```", NOT_JSON),
    ("an unknown one", '{"text": "a", "explain": "x"}', "explain: is not an argument of this tool"),
    ("only an unknown one", '{"explain": "x"}', "text: is required and missing"),
    ("wrapped in arguments", '{"arguments": {"text": "a"}}', "arguments: is not an argument"),
    ("wrapped in parameters", '{"parameters": {"text": "a"}}', "parameters: is not an argument"),
    ("wrapped in the tool's name", '{"note": {"text": "a"}}', "note: is not an argument"),
    ("a number for text", '{"text": 5}', "text: Input should be a valid string"),
    ("null for text", '{"text": null}', "text: Input should be a valid string"),
    ("a list for text", '{"text": ["a"]}', "text: Input should be a valid string"),
    ("a word for a number", '{"text": "a", "times": "two"}', "times: Input should be a valid integer"),
    ("half a number", '{"text": "a", "times": 1.5}', "times: Input should be a valid integer"),
]


@both_ways
@pytest.mark.parametrize(("arguments", "said"), [row[1:] for row in UNREADABLE], ids=[row[0] for row in UNREADABLE])
def test_arguments_that_cannot_be_used_run_nothing_and_the_model_is_told_what_to_do(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, way: str, arguments: Any, said: str
) -> None:
    asks(model, call("note", arguments))
    model.says("Done.")
    outcome = ask(client, way, conversation_id, include_trace=True)
    answered(outcome, store, conversation_id, "Done.")
    assert not RUNS
    observation = model.requests[-1]["messages"][-1]
    assert said in observation["content"]
    assert len(observation["content"]) < 500
    (result,) = [event for event in outcome.body["trace"] if event["type"] == "tool_result"]
    assert (result["details"]["ok"], result["details"]["code"]) == (False, "bad_arguments")
    assert len(json.dumps(model.requests[-1])) < 200_000
