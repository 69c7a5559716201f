"""Whatever a model sends: nothing half-understood is carried out, nothing cut is stored, every error has a name.

Each kind is sent to both ways into a turn. After every turn that failed there is nothing of it in MySQL, and the next
one of the same conversation works.
"""

import contextlib
import gzip
import json
import logging
import socket
import threading
import uuid
import zlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import model as model_module
from config import Settings
from main import create_app
from reply import BadReply, Draft, Reply, TextGate, finish
from tests.conftest import SOON, MakeClient, Store, free_port
from tests.support.recording_tools import RUNS
from tests.support.scripted_model import Inspection, ScriptedModel, completion
from tests.support.ways import WAYS, Outcome, ask

Json = dict[str, Any]
Body = Json | list[Any] | str | int | None

KEY = "sk-leak-5d1f0a9b7c"
LEAK = "LEAK-vendor-text-93ab1c"  # stands in every error text of the service that is asked
ABSENT = object()
ONCE_MORE = model_module.RETRIES + 1  # requests of a turn whose every try may be made again

both_ways = pytest.mark.parametrize("way", WAYS)


@pytest.fixture(scope="module")
def shared_model() -> Iterator[ScriptedModel]:
    with ScriptedModel() as scripted:
        yield scripted


@pytest.fixture(scope="module")
def shared_client(store: Store, shared_model: ScriptedModel) -> Iterator[TestClient]:
    more: Json = {"api_key": KEY, "base_url": shared_model.base_url, "default_model": "scripted"}
    given: Json = {**SOON, **store.settings, **more, "toolsets": ("tests.support.recording_tools",)}
    app = create_app(Settings(**given))
    with TestClient(app, base_url="http://127.0.0.1", client=("127.0.0.1", 50000)) as client:
        yield client


@pytest.fixture
def model(shared_model: ScriptedModel) -> Iterator[ScriptedModel]:
    """One model for all tests here: what the script left over from one is a failure of that one."""
    shared_model.reset()
    RUNS.clear()
    yield shared_model
    shared_model.finish()


@pytest.fixture
def client(shared_client: TestClient) -> TestClient:
    return shared_client


@pytest.fixture(autouse=True)
def quick_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_module, "FIRST_PAUSE_S", 0.001)


@pytest.fixture(autouse=True)
def our_log(caplog: pytest.LogCaptureFixture) -> None:
    """Our own loggers tell all they ever tell."""
    for name in ("agent", "model", "turn", "tools", "main", "problems"):
        caplog.set_level(logging.INFO, logger=name)


def keeps_secrets(text: str, model: ScriptedModel) -> None:
    """Neither the key, nor an address, nor words of the vendor, nor a stack."""
    for secret in (KEY, LEAK, model.base_url, model.base_url.split("/")[2], "Traceback", 'File "', "aiohttp", "openai"):
        assert secret not in text, text[:2000]


def left_nothing(
    client: TestClient, store: Store, scripted: ScriptedModel, conversation_id: str, before: int = 0, **more: Any
) -> None:
    """Nothing new is stored, and the conversation goes on as if nothing had been."""
    assert len(store.messages(conversation_id)) == before
    scripted.says("Still here.")
    after = ask(client, "/chat", conversation_id, "And now?", **more)
    assert (after.status, after.body["answer"]) == (200, "Still here.")
    assert store.messages(conversation_id)[before:] == [("user", "And now?"), ("assistant", "Still here.")]
    roles = [message["role"] for message in scripted.requests[-1]["messages"]]
    assert roles == ["system", *["user", "assistant"] * (before // 2), "user"]


def answered(outcome: Outcome, store: Store, conversation_id: str, answer: str) -> None:
    """The turn is completed, and MySQL holds it."""
    assert (outcome.status, outcome.body.get("answer")) == (200, answer), outcome.text[-500:]
    assert outcome.body["status"] == "completed"
    assert store.messages(conversation_id) == [("user", "Hi"), ("assistant", answer)]


def stopped(outcome: Outcome, reason: str) -> None:
    """The turn ended early, and says why."""
    assert (outcome.status, outcome.body.get("stop_reason")) == (200, reason), outcome.text[-500:]
    assert (outcome.body["status"], outcome.body["answer"], outcome.body["turn"]) == ("incomplete", None, None)
    assert outcome.body["notice"]


def failed(outcome: Outcome, status: int, code: str) -> None:
    """The turn ended with a problem of the contract."""
    assert (outcome.status, outcome.body.get("code")) == (status, code), outcome.text[-500:]
    assert {"type", "title", "status", "detail", "code", "run_id"} == set(outcome.body)


# ---------------------------------------------------------------------------------------- arguments


def call(name: Any, arguments: Any, call_id: Any = "call_1", kind: Any = "function") -> Json:
    """A tool call with anything in its fields; ABSENT leaves one out."""
    function = {"name": name, "arguments": arguments}
    whole = {"id": call_id, "type": kind, "function": {k: v for k, v in function.items() if v is not ABSENT}}
    return {k: v for k, v in whole.items() if v is not ABSENT}


def asks(
    model: ScriptedModel, *calls: Any, content: Any = None, finish_reason: Any = "tool_calls", **more: Any
) -> None:
    """The next reply asks for these calls."""
    message = {"role": "assistant", "content": content, "tool_calls": list(calls), **more}
    model.answers_by(completion(message, finish_reason), forever=False)


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


def fenced(text: str, word: str = "json") -> str:
    return f"```{word}\n{text}\n```"


GOOD = '{"text": "a"}'
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


# ---------------------------------------------------------------------------------------- ids and names

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


# ---------------------------------------------------------------------------------------- answers

PARTS = [{"type": "text", "text": "Hel"}, {"type": "output_text", "text": "lo."}]
THOUGHT_PART = {"type": "thinking", "thinking": [{"type": "text", "text": "Aha."}], "text": "Aha."}
ANSWERS: list[tuple[str, Json]] = [
    ("text", {"content": "Hello."}),
    ("parts", {"content": PARTS}),
    ("parts that are text", {"content": ["Hel", "lo."]}),
    ("one part", {"content": {"type": "text", "text": "Hello."}}),
    ("a thought among the parts", {"content": [THOUGHT_PART, *PARTS]}),
    ("a reasoning among the parts", {"content": [{"type": "reasoning", "text": "Aha."}, *PARTS]}),
    ("other parts", {"content": [*PARTS, {"type": "image_url", "image_url": {"url": "x"}}, None, 5]}),
    ("a refusal", {"content": None, "refusal": "Hello."}),
    ("a refusal as part", {"content": [{"type": "refusal", "refusal": "Hello."}]}),
    ("a refusal that is null", {"content": "Hello.", "refusal": None}),
    ("no calls, as a list", {"content": "Hello.", "tool_calls": []}),
    ("no calls, as null", {"content": "Hello.", "tool_calls": None, "function_call": None}),
    ("no calls, as anything", {"content": "Hello.", "tool_calls": {}, "function_call": "none"}),
    ("fields of vendors", {"content": "Hello.", "annotations": [], "audio": None, "x": {"y": [1]}, "role": None}),
    ("reasoning beside it", {"content": "Hello.", "reasoning_content": "Aha.", "reasoning": "Aha."}),
    ("a thought in front", {"content": "<think>Aha.</think>\n\nHello."}),
    ("two thoughts in front", {"content": "<think>Aha.</think>\n<think>Oho.</think>\n\nHello."}),
    ("an empty thought", {"content": "<think>\n\n</think>\n\nHello."}),
    ("only the end of an empty thought", {"content": "</think>\n\nHello."}),
    ("a thought of another name", {"content": "<thinking>Aha.</thinking>Hello."}),
    ("a thought in brackets", {"content": "[THINK]Aha.[/THINK]Hello."}),
    ("a thought that speaks of tags", {"content": "<think>Is <think> a tag?</think>Hello."}),
    ("a thought within a thought", {"content": "<think>Aha. <think>Oho.</think> Aha.</think>\n\nHello."}),
]


@both_ways
@pytest.mark.parametrize("message", [message for _, message in ANSWERS], ids=[name for name, _ in ANSWERS])
def test_an_answer_is_its_text_in_whatever_form_it_comes(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, way: str, message: Json
) -> None:
    model.answers_by(completion({"role": "assistant", **message}, "stop"), forever=False)
    outcome = ask(client, way, conversation_id, model=f"model-{uuid.uuid4()}")  # habits are learned by name
    answered(outcome, store, conversation_id, "Hello.")
    assert "Aha" not in outcome.deltas()
    assert len(model.requests) == 1


@both_ways
@pytest.mark.parametrize("finish_reason", ["stop", "STOP", "", None, "eos", "end_turn", "tool_calls", "unknown: x"])
def test_an_answer_counts_whatever_the_finish_reason_says(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, way: str, finish_reason: str | None
) -> None:
    model.says("Hello.", finish_reason=finish_reason)
    answered(ask(client, way, conversation_id), store, conversation_id, "Hello.")


TAGS_IN_ANSWERS = [
    "Write `<think>` in backticks to show the tag `</think>` literally.",
    "It ends with `</think>`, and then comes the answer.",
    "First this. <think>Then that.</think> Then the rest.",
    "Use `<tool_call>` and `</tool_call>` around the JSON.",
    "a < b, [1] and <b>bold</b>",
    "[1] says so",
    "<table><tr><td>1</td></tr></table>",
    "<thin>",
]


@both_ways
@pytest.mark.parametrize("text", TAGS_IN_ANSWERS)
def test_tags_that_an_answer_speaks_of_belong_to_the_answer(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, way: str, text: str
) -> None:
    model.says(text)
    answered(ask(client, way, conversation_id), store, conversation_id, text)


@both_ways
def test_a_thought_beside_a_call_is_neither_shown_nor_sent_back_as_text(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, way: str
) -> None:
    asks(model, call("note", GOOD), content="<think>Aha, the tool.</think>")
    model.says("<think>Aha, the end.</think>Done.")
    model.says("And so on.")
    outcome = ask(client, way, conversation_id, include_trace=True)
    answered(outcome, store, conversation_id, "Done.")
    assert "Aha" not in outcome.text
    ask(client, way, conversation_id, "Go on.")
    assert "Aha" not in json.dumps(model.requests)


@both_ways
def test_a_thought_that_only_its_end_gives_away_is_not_stored_and_not_in_the_deltas_of_the_answer(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, way: str
) -> None:
    name = f"model-{uuid.uuid4()}"
    text = "The user greets, and so I should greet the user too, I think.\n</think>\nHello."
    model.says(text)
    if way == "/chat/stream":
        model.says(text)  # the first one was told as it came: it is asked for again, and this time waited for
    answered(ask(client, way, conversation_id, model=name), store, conversation_id, "Hello.")
    model.says(text)
    again = ask(client, way, conversation_id, "Hi again", model=name)
    assert again.body["answer"] == "Hello."
    assert again.body["steps"] == 1
    assert again.deltas() == ("Hello." if again.events else "")
    model.says("Hello without any thought.")
    assert ask(client, way, conversation_id, "Hi", model=name).body["answer"] == "Hello without any thought."


EMPTY: list[tuple[str, Json]] = [
    ("null", {"content": None}),
    ("empty", {"content": ""}),
    ("white space", {"content": " \n\t\u3000"}),
    ("nothing visible", {"content": "\u200b\ufeff\u2060"}),
    ("absent", {}),
    ("no parts", {"content": []}),
    ("no text among the parts", {"content": [{"type": "image_url"}, {"type": "text", "text": None}]}),
    ("a number", {"content": 42}),
    ("no calls", {"content": None, "tool_calls": []}),
    ("reasoning only", {"content": "", "reasoning_content": "Aha."}),
    ("a thought only", {"content": "<think>Aha.</think>"}),
    ("a thought without end", {"content": "<think>Aha, and so on"}),
    ("thinking parts only", {"content": [THOUGHT_PART]}),
]


@both_ways
@pytest.mark.parametrize("message", [message for _, message in EMPTY], ids=[name for name, _ in EMPTY])
def test_an_empty_reply_is_asked_for_once_more(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, way: str, message: Json
) -> None:
    model.answers_by(completion({"role": "assistant", **message}, "stop"), forever=False).says("Hello.")
    outcome = ask(client, way, conversation_id, model=f"model-{uuid.uuid4()}")
    answered(outcome, store, conversation_id, "Hello.")
    assert outcome.body["steps"] == 2
    assert "Aha" not in outcome.deltas()


@both_ways
@pytest.mark.parametrize("message", [message for _, message in EMPTY], ids=[name for name, _ in EMPTY])
def test_two_empty_replies_are_no_answer_and_nothing_is_stored(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, way: str, message: Json
) -> None:
    name = f"model-{uuid.uuid4()}"
    for _ in range(2):
        model.answers_by(completion({"role": "assistant", **message}, "stop"), forever=False)
    stopped(ask(client, way, conversation_id, model=name), "empty_answer")
    left_nothing(client, store, model, conversation_id, model=name)


@both_ways
def test_an_empty_reply_after_a_tool_does_not_run_the_tool_again(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, way: str
) -> None:
    asks(model, call("note", GOOD))
    model.says("").says("Done.")
    answered(ask(client, way, conversation_id), store, conversation_id, "Done.")
    assert len(RUNS) == 1


@both_ways
def test_an_empty_reply_in_the_last_permitted_step_is_an_empty_answer(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, way: str
) -> None:
    model.says("")
    stopped(ask(client, way, conversation_id, max_steps=1), "empty_answer")
    left_nothing(client, store, model, conversation_id)


CUT = [(reason, "length") for reason in ("length", "LENGTH", "max_tokens", "MAX_TOKENS", "model_length")]
CUT += [(r, "content_filter") for r in ("content_filter", "SAFETY", "sensitive", "content_filter: PROHIBITED_CONTENT")]
CUT_MESSAGES: list[tuple[str, Json]] = [
    ("an answer", {"content": "Half an ans"}),
    ("nothing", {"content": None}),
    ("a call", {"content": None, "tool_calls": [call("note", GOOD)]}),
    ("half a call", {"content": None, "tool_calls": [call("note", '{"text": "a')]}),
    ("a call and half a call", {"content": "So", "tool_calls": [call("note", GOOD), call("note", '{"te', "call_2")]}),
    ("a call as text", {"content": '<tool_call>{"name": "note", "arguments": {"text": "a"}}</tool_call>'}),
    ("half a call as text", {"content": '<tool_call>{"name": "note", "argum'}),
    ("half a thought", {"content": "<think>Aha, and"}),
]


CUT_REPLIES = [(CUT_MESSAGES[0][1], said, reason) for said, reason in CUT]
CUT_REPLIES += [(message, reason, reason) for _, message in CUT_MESSAGES[1:] for reason in ("length", "content_filter")]


@both_ways
@pytest.mark.parametrize(("message", "said", "reason"), CUT_REPLIES, ids=range(len(CUT_REPLIES)))
def test_a_reply_that_was_cut_is_neither_carried_out_nor_stored(
    client: TestClient,
    store: Store,
    model: ScriptedModel,
    conversation_id: str,
    way: str,
    message: Json,
    said: str,
    reason: str,
) -> None:
    model.answers_by(completion({"role": "assistant", **message}, said), forever=False)
    stopped(ask(client, way, conversation_id), reason)
    assert not RUNS
    assert len(model.requests) == 1
    left_nothing(client, store, model, conversation_id)


@both_ways
@pytest.mark.parametrize("said", ["error", "insufficient_system_resource", "network_error", "abort"])
@pytest.mark.parametrize("text", ["Half an ans", None])
def test_a_reply_that_the_service_gave_up_is_no_answer(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, way: str, said: str, text: str | None
) -> None:
    spoken = way == "/chat/stream" and text  # what was passed on cannot be taken back, so it is not tried again
    for _ in range(1 if spoken else ONCE_MORE):
        model.says(text, finish_reason=said)
    failed(ask(client, way, conversation_id), 502, "model_error")
    left_nothing(client, store, model, conversation_id)


@both_ways
def test_an_answer_longer_than_may_be_kept_is_none(
    client_for: MakeClient, store: Store, model: ScriptedModel, conversation_id: str, way: str
) -> None:
    client = client_for(max_answer_chars=100)
    model.says("字" * 101).says("字" * 100)
    outcome = ask(client, way, conversation_id, include_trace=True)
    stopped(outcome, "length")
    assert [event["type"] for event in outcome.body["trace"]].count("run_stopped") == 1
    answered(ask(client, way, conversation_id), store, conversation_id, "字" * 100)


HARMFUL = [("A\ud83dB\0C\udc00", "A\ufffdB\ufffdC\ufffd"), ("\ud83d", "\ufffd"), ("ok \ud83d\ude42", "ok 🙂")]


@both_ways
@pytest.mark.parametrize(("text", "stored"), HARMFUL, ids=range(len(HARMFUL)))
def test_what_no_reader_takes_in_an_answer_is_replaced_before_it_is_stored(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, way: str, text: str, stored: str
) -> None:
    model.says(text)
    answered(ask(client, way, conversation_id), store, conversation_id, stored)
    model.says("Still here.")
    assert ask(client, way, conversation_id, "And now?").status == 200


USAGES: list[tuple[Any, list[int | None]]] = [
    ({"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}, [1, 2, 3]),
    ({"input_tokens": 1, "output_tokens": 2}, [1, 2, None]),
    ({"prompt_tokens": 0}, [0, None, None]),
    ({"prompt_tokens": "10", "completion_tokens": None, "total_tokens": -1}, [None] * 3),
    ({"prompt_tokens": True, "completion_tokens": 2.5, "total_tokens": [3]}, [None] * 3),
    ({"total_tokens": 10**4200}, [None] * 3),
    ({"prompt_tokens": {"text": 5}}, [None] * 3),
    ({}, [None] * 3),
    ([], [None] * 3),
    ("many", [None] * 3),
    (None, [None] * 3),
]


@both_ways
@pytest.mark.parametrize(("usage", "counted"), USAGES, ids=range(len(USAGES)))
def test_usage_is_what_was_counted_and_null_where_it_was_not(
    client: TestClient, model: ScriptedModel, conversation_id: str, way: str, usage: Any, counted: list[int | None]
) -> None:
    model.answers_by(
        lambda request: (
            completion({"role": "assistant", "content": "Hello."}, "stop", None)(request) | {"usage": usage}
        ),
        forever=False,
    )
    outcome = ask(client, way, conversation_id)
    assert list(outcome.body["usage"].values()) == counted


# ---------------------------------------------------------------------------------------- calls as text


def as_json(text: str, name: str = "note", **more: Any) -> str:
    return json.dumps({"name": name, "arguments": {"text": text}, **more}, ensure_ascii=False)


def tagged(text: str) -> str:
    return f"<tool_call>\n{text}\n</tool_call>"


CALLS_AS_TEXT: list[tuple[str, str, list[str]]] = [
    ("one", tagged(as_json("a")), ["a"]),
    ("on one line", f"<tool_call>{as_json('a')}</tool_call>", ["a"]),
    ("without the closing tag", f"<tool_call>{as_json('a')}", ["a"]),
    ("several", f"{tagged(as_json('a'))}\n{tagged(as_json('b'))}", ["a", "b"]),
    ("two in one tag", tagged(as_json("a") + "\n" + as_json("b")), ["a", "b"]),
    ("a list in one tag", tagged(f"[{as_json('a')}, {as_json('b')}]"), ["a", "b"]),
    ("prose in front", f"Let me write that down.\n{tagged(as_json('a'))}", ["a"]),
    ("prose in front on the line", f"I write: {tagged(as_json('a'))}", ["a"]),
    ("prose behind", f"{tagged(as_json('a'))}\nThat should do.", ["a"]),
    ("a thought in front", f"<think>Use note.</think>\n{tagged(as_json('a'))}", ["a"]),
    ("fenced within the tag", tagged(fenced(as_json("a"))), ["a"]),
    ("arguments as text", tagged(json.dumps({"name": "note", "arguments": GOOD})), ["a"]),
    ("parameters", tagged('{"name": "note", "parameters": {"text": "a"}}'), ["a"]),
    ("a tag of another name", f"<function_call>{as_json('a')}</function_call>", ["a"]),
    ("brackets", f"[TOOL_CALLS][{as_json('a')}]", ["a"]),
    ("a token", f'<|python_tag|>{{"type": "function", "name": "note", "parameters": {GOOD}}}<|eom_id|>', ["a"]),
    ("a tag within the arguments", tagged(as_json("</b> < > </tool> </s>")), ["</b> < > </tool> </s>"]),
    ("empty lines in front", f"\n\nI write.\n{tagged(as_json('a'))}", ["a"]),
    ("bare JSON", as_json("a"), ["a"]),
    ("bare JSON with a type", as_json("a", type="function"), ["a"]),
    ("bare JSON in the shape of the field", json.dumps({"tool_calls": [call("note", GOOD)]}), ["a"]),
    ("a bare list", f"[{as_json('a')}, {as_json('b')}]", ["a", "b"]),
    ("bare JSON, several", f"{as_json('a')}\n{as_json('b')}; {as_json('c')}", ["a", "b", "c"]),
    ("bare JSON over several lines", json.dumps(json.loads(as_json("a")), indent=2), ["a"]),
    ("a fence", fenced(as_json("a")), ["a"]),
    ("a fence without a word", fenced(as_json("a"), ""), ["a"]),
    ("a fence with a word of its own", fenced(as_json("a"), "tool_call"), ["a"]),
    ("Chinese", tagged(as_json("请记下")), ["请记下"]),
    # Said by qwen2.5-coder:1.5b with its own template, which shows the shape of a call in doubled braces.
    ("doubled braces", "{" + as_json("a") + "}", ["a"]),
    ("doubled braces, one too many", "{" + as_json("a") + "}}", ["a"]),
    ("doubled braces, one too few", "{" + as_json("a"), ["a"]),
    ("doubled braces in a tag", tagged("{" + as_json("a") + "}"), ["a"]),
    ("doubled braces, several", f"{{{as_json('a')}}}\n{{{as_json('b')}}}", ["a", "b"]),
    ("doubled braces in a fence", fenced("{" + as_json("a") + "}"), ["a"]),
]


@both_ways
@pytest.mark.parametrize(("text", "ran"), [row[1:] for row in CALLS_AS_TEXT], ids=[row[0] for row in CALLS_AS_TEXT])
def test_a_call_that_was_written_as_text_is_carried_out_and_never_shown(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, way: str, text: str, ran: list[str]
) -> None:
    model.says(text).says("Done.")
    outcome = ask(client, way, conversation_id)
    answered(outcome, store, conversation_id, "Done.")
    assert RUNS == [("note", {"text": one, "times": 1}) for one in ran]
    shown = outcome.deltas()
    assert not any(
        mark in shown for mark in ("tool_call", "function_call", "TOOL_CALLS", "python_tag", "{", "Use note")
    )


BROKEN_CALLS = [
    tagged('{"name": "note", "arguments": {"text": "a"'),
    tagged('{"name": "note", "arguments": {"text": NaN}}'),
    tagged("note(text='a')"),
    tagged('{"name": "note"} and then some'),
    tagged('{"arguments": {"text": "a"}}'),
    tagged('{"name": 5, "arguments": {}}'),
    tagged("[]"),
    tagged(""),
    tagged("[" * 50_000),
    f"{tagged(as_json('a'))}{tagged('broken')}",
    "<tool_call>\n<function=note>\n<parameter=text>\na\n</parameter>\n</function>\n</tool_call>",
    '<function=note>{"text": "a"}</function>',
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>note",
    "[TOOL_CALLS]note",
]


@both_ways
@pytest.mark.parametrize("text", BROKEN_CALLS, ids=range(len(BROKEN_CALLS)))
def test_a_call_written_as_text_that_cannot_be_read_is_asked_for_again_and_is_never_an_answer(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, way: str, text: str
) -> None:
    model.says(text).says("Hello.")
    answered(ask(client, way, conversation_id), store, conversation_id, "Hello.")
    for _ in range(ONCE_MORE):
        model.says(text)
    outcome = ask(client, way, conversation_id)
    failed(outcome, 502, "model_error")
    assert outcome.deltas() == ""
    assert not RUNS
    left_nothing(client, store, model, conversation_id, before=2)


@both_ways
@pytest.mark.parametrize("text", ["{%s}", "%s", "[%s]", fenced("%s")])
def test_a_call_written_as_text_of_a_tool_that_does_not_exist_is_told_to_the_model(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, way: str, text: str
) -> None:
    model.says(text % '{"name": "generate_poem", "arguments": {"theme": "数据库"}}').says("Done.")
    outcome = ask(client, way, conversation_id)
    answered(outcome, store, conversation_id, "Done.")
    assert "{" not in outcome.deltas()
    assert "generate_poem" in json.dumps(model.requests[-1]["messages"][-1])


ANSWERS_IN_JSON = [
    '{"result": 5}',
    '{{"result": 444}}',
    "{{ name }} is how Jinja writes it",
    "[1, 2, 3]",
    "{}",
    "[]",
    as_json("a", name="Ada", age=36),
    '{"name": "Ada", "parameters": {}}',
    as_json("a", description="what note does"),
    '{"name": "note"}',
    '{"name": "note", "arguments": null}',
    f"[{as_json('a')}, 5]",
    fenced('{"result": 5}'),
    fenced("print('{}')", "python"),
    f"Like this:\n{fenced(as_json('a'))}",
    "{not json",
    "[" * 1000,
    "`" * 1000,
    "```" + "\n" * 3000 + "x",
]


@both_ways
@pytest.mark.parametrize("text", ANSWERS_IN_JSON, ids=range(len(ANSWERS_IN_JSON)))
def test_an_answer_that_is_json_but_no_call_of_a_tool_stays_an_answer(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, way: str, text: str
) -> None:
    model.says(text)
    answered(ask(client, way, conversation_id), store, conversation_id, text)
    assert not RUNS


# ---------------------------------------------------------------------------------------- bodies that are no reply

NO_REPLY: list[tuple[str, Any]] = [
    ("choices empty", {"choices": []}),
    ("choices null", {"choices": None}),
    ("choices absent", {"id": "x"}),
    ("choices an object", {"choices": {"index": 0, "message": {"content": "x"}}}),
    ("choices of nothing", {"choices": [None]}),
    ("choices of lists", {"choices": [[]]}),
    ("an error without a code", {"error": {"message": LEAK}}),
    ("an error with a word for a code", {"error": {"message": LEAK, "code": "server_error"}}),
    ("an error with a strange code", {"error": {"message": LEAK, "code": 12345}}),
    ("an error as text", {"error": LEAK}),
    ("an error of code 500", {"error": {"message": LEAK, "code": 500}, "choices": None}),
    ("an error beside an answer", {"error": {"message": LEAK}, "choices": [{"message": {"content": "x"}}]}),
    ("an empty object", {}),
    ("a list", []),
    ("text", "OK"),
    ("a number", 5),
    ("null", None),
]


@both_ways
@pytest.mark.parametrize("body", [body for _, body in NO_REPLY], ids=[name for name, _ in NO_REPLY])
def test_a_body_under_200_that_is_no_reply_is_asked_for_again_and_then_an_error(
    client: TestClient,
    store: Store,
    model: ScriptedModel,
    conversation_id: str,
    way: str,
    body: Body,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def bad() -> None:
        if way == "/chat/stream":
            model.events([json.dumps(body)])
        else:
            model.raw(json.dumps(body))

    bad()
    model.says("Hello.")
    answered(ask(client, way, conversation_id), store, conversation_id, "Hello.")
    for _ in range(ONCE_MORE):
        bad()
    outcome = ask(client, way, conversation_id)
    failed(outcome, 502, "model_error")
    keeps_secrets(outcome.text + caplog.text, model)
    left_nothing(client, store, model, conversation_id, before=2)


@both_ways
@pytest.mark.parametrize("message", [None, "Hello.", [], 5])
def test_a_choice_without_a_message_is_asked_for_again(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, way: str, message: Any
) -> None:
    model.replies({"choices": [{"index": 0, "finish_reason": "stop", "message": message}]}).says("Hello.")
    answered(ask(client, way, conversation_id), store, conversation_id, "Hello.")


INSIDE: list[tuple[Any, int, str, int]] = [
    ({"code": 429}, 429, "model_rate_limited", ONCE_MORE),
    ({"code": "429", "message": LEAK}, 429, "model_rate_limited", ONCE_MORE),
    ({"status": 503}, 503, "model_unavailable", ONCE_MORE),
    ({"code": 502}, 502, "model_error", ONCE_MORE),
    ({"code": 401, "message": f"{LEAK} {KEY}"}, 500, "model_unauthorized", 1),
    ({"code": 404}, 400, "model_not_found", 1),
    ({"code": 400}, 502, "model_error", 1),
    ({"code": "model_not_found"}, 400, "model_not_found", 1),
    ({"code": "insufficient_quota"}, 429, "model_rate_limited", 1),
    ({"code": "context_length_exceeded", "message": LEAK}, 502, "model_error", 1),
    ({"code": 400, "message": "maximum context length is 4096 tokens"}, 502, "model_error", 1),
]


@both_ways
@pytest.mark.parametrize(("error", "status", "code", "requests"), INSIDE, ids=range(len(INSIDE)))
def test_an_error_under_200_counts_as_the_status_that_it_names(
    client: TestClient,
    store: Store,
    model: ScriptedModel,
    conversation_id: str,
    way: str,
    error: Any,
    status: int,
    code: str,
    requests: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for _ in range(requests):
        model.replies({"error": error})
    outcome = ask(client, way, conversation_id)
    failed(outcome, status, code)
    keeps_secrets(outcome.text + caplog.text, model)
    left_nothing(client, store, model, conversation_id)


HTML = f"<!DOCTYPE html><html><body><h1>{LEAK}</h1></body></html>"
NO_JSON: list[tuple[str, bytes | str, str]] = [
    ("HTML", HTML, "text/html; charset=utf-8"),
    ("HTML called JSON", HTML, "application/json"),
    ("HTML called a stream", HTML, "text/event-stream"),
    ("nothing", "", "application/json"),
    ("nothing called text", "", "text/plain"),
    ("nothing called a stream", "", "text/event-stream"),
    ("white space", " \n", "application/json"),
    ("text", f"OK {LEAK}", "text/plain"),
    ("half an object", '{"id": "x"', "application/json"),
    ("a Python literal", "{'id': 'x'}", "application/json"),
    ("other bytes than UTF-8", b'{"choices": [{"message": {"content": "\xff\xfe"}}]}', "application/json"),
    ("Chinese in GBK", '{"choices": [{"message": {"content": "你好"}}]}'.encode("gbk"), "application/json"),
    ("100,000 brackets", "[" * 100_000, "application/json"),
    ("a number of 5,000 digits", '{"choices": ' + "9" * 5_000 + "}", "application/json"),
    ("a stream of no JSON", f"data: {LEAK}\n\ndata: [DONE]\n\n", "text/event-stream"),
    ("a stream of brackets", f"data: {'[' * 100_000}\n\n", "text/event-stream"),
    ("a stream of comments", ": a\n\n: b\n\n", "text/event-stream"),
    ("only the end of a stream", "data: [DONE]\n\n", "text/event-stream"),
    ("no content type", "hello", ""),
]


@both_ways
@pytest.mark.parametrize(("body", "kind"), [row[1:] for row in NO_JSON], ids=[row[0] for row in NO_JSON])
def test_a_body_under_200_that_is_no_json_is_an_error_with_a_name(
    client: TestClient,
    store: Store,
    model: ScriptedModel,
    conversation_id: str,
    way: str,
    body: bytes | str,
    kind: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for _ in range(ONCE_MORE):
        model.raw(body, content_type=kind)
    outcome = ask(client, way, conversation_id)
    failed(outcome, 502, "model_error")
    keeps_secrets(outcome.text + caplog.text, model)
    left_nothing(client, store, model, conversation_id)


@both_ways
@pytest.mark.parametrize("how", ["gzip", "deflate"])
def test_a_reply_may_be_compressed(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, way: str, how: str
) -> None:
    packed = gzip.compress(json.dumps(WHOLE).encode()) if how == "gzip" else zlib.compress(json.dumps(WHOLE).encode())
    model.raw(packed, headers={"content-encoding": how})
    answered(ask(client, way, conversation_id), store, conversation_id, "Hello.")


@both_ways
@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "text/plain", ""])
def test_a_whole_reply_is_read_whatever_its_content_type_and_whatever_was_asked_for(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, way: str, kind: str
) -> None:
    body = {"choices": [{"message": {"role": "assistant", "content": "你好。"}, "finish_reason": "stop"}]}
    model.raw("\ufeff" + json.dumps(body, ensure_ascii=False) + "\n", content_type=kind)
    answered(ask(client, way, conversation_id), store, conversation_id, "你好。")


@both_ways
def test_a_service_that_has_moved_is_followed(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, way: str
) -> None:
    model.raw("", 308, headers={"location": f"{model.base_url}/chat/completions"}).says("Hello.")
    answered(ask(client, way, conversation_id), store, conversation_id, "Hello.")
    assert model.requests[0] == model.requests[1]


def test_a_request_carries_no_cookie_and_nothing_about_the_machine(
    client: TestClient, model: ScriptedModel, conversation_id: str
) -> None:
    for message in ("Q1", "Q2"):
        model.says("Hello.", headers={"set-cookie": "who=you"})
        ask(client, "/chat", conversation_id, message=message)
    first, second = model.headers
    assert set(first) == {"host", "accept", "accept-encoding", "authorization", "content-length", "content-type",
                          "user-agent", "x-stainless-retry-count"}  # fmt: skip
    assert {**second, "content-length": first["content-length"]} == first


# ---------------------------------------------------------------------------------------- connections that break

WHOLE: Json = {"choices": [{"message": {"role": "assistant", "content": "Hello."}, "finish_reason": "stop"}]}


@both_ways
@pytest.mark.parametrize("cut", [0, 1, 40])
def test_a_body_that_was_cut_is_asked_for_again_and_then_an_error(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, way: str, cut: int
) -> None:
    model.cuts_after(cut, json.dumps(WHOLE)).says("Hello.")
    answered(ask(client, way, conversation_id), store, conversation_id, "Hello.")
    for _ in range(ONCE_MORE):
        model.cuts_after(cut, json.dumps(WHOLE))
    assert ask(client, way, conversation_id).status in (502, 503)
    left_nothing(client, store, model, conversation_id, before=2)


@both_ways
def test_a_connection_that_is_reset_is_tried_again_and_then_an_error(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, way: str
) -> None:
    model.resets().says("Hello.")
    answered(ask(client, way, conversation_id), store, conversation_id, "Hello.")
    for _ in range(ONCE_MORE):
        model.resets()
    outcome = ask(client, way, conversation_id)
    failed(outcome, 503, "model_unavailable")
    left_nothing(client, store, model, conversation_id, before=2)


@both_ways
def test_a_service_that_nobody_answers_for_is_unavailable(
    client_for: MakeClient,
    store: Store,
    model: ScriptedModel,
    conversation_id: str,
    way: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    port = free_port()
    outcome = ask(client_for(api_key=KEY, base_url=f"http://127.0.0.1:{port}/v1"), way, conversation_id)
    failed(outcome, 503, "model_unavailable")
    if way == "/chat":
        assert outcome.headers["retry-after"] == "5"
    keeps_secrets(outcome.text + caplog.text, model)
    assert str(port) not in outcome.text + caplog.text
    assert store.messages(conversation_id) == []


@both_ways
@pytest.mark.parametrize("drips", [False, True])
def test_a_request_that_takes_longer_than_it_may_is_a_timeout_and_is_not_made_again(
    client_for: MakeClient, store: Store, model: ScriptedModel, conversation_id: str, way: str, drips: bool
) -> None:
    client = client_for(model_timeout_s=0.4)
    model.drips(json.dumps(WHOLE), bytes_per_s=20) if drips else model.hangs()
    failed(ask(client, way, conversation_id), 504, "model_timeout")
    model.wait_until(lambda: model.closed_early == 1)  # the service is not kept busy for nobody
    assert len(model.requests) == 1
    left_nothing(client, store, model, conversation_id)


@both_ways
@pytest.mark.parametrize("drips", [False, True])
def test_a_turn_that_takes_longer_than_it_may_ends_and_says_so(
    client_for: MakeClient, store: Store, model: ScriptedModel, conversation_id: str, way: str, drips: bool
) -> None:
    client = client_for(turn_timeout_s=0.4)
    model.drips(json.dumps(WHOLE), bytes_per_s=20) if drips else model.hangs()
    stopped(ask(client, way, conversation_id), "timeout")
    left_nothing(client_for(), store, model, conversation_id)


def endless(head: str, piece: bytes) -> Callable[[socket.socket], None]:
    """Answers with a body that never ends."""

    def answer(connection: socket.socket) -> None:
        connection.sendall(f"HTTP/1.1 {head}\r\ntransfer-encoding: chunked\r\n\r\n".encode())
        while True:
            connection.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))

    return answer


@contextlib.contextmanager
def raw_service(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """A service that does with each connection what `answer` says. Gives its address."""

    def serve(connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            connection.recv(1_000_000)
            answer(connection)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=serve, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(5)


DELTA = json.dumps({"choices": [{"index": 0, "delta": {"content": "word "}}]}).encode()
ENDLESS: list[tuple[str, str, bytes, set[str]]] = [
    ("JSON", "200 OK\r\ncontent-type: application/json", b" " * 10_000, {"model_error"}),
    ("a line", "200 OK\r\ncontent-type: text/event-stream", b"data: " + b"x" * 10_000, {"model_error"}),
    ("deltas", "200 OK\r\ncontent-type: text/event-stream", b"data: " + DELTA + b"\n\n", {"length"}),
    ("comments", "200 OK\r\ncontent-type: text/event-stream", b": still here\n\n" * 100, {"model_error"}),
    ("an error page", "500 Oh\r\ncontent-type: text/html", b" " * 1_000, {"model_error"}),
    ("a refusal", "401 No\r\ncontent-type: application/json", b" " * 1_000, {"model_unauthorized"}),
]


@both_ways
@pytest.mark.parametrize(("head", "piece", "ends"), [row[1:] for row in ENDLESS], ids=[row[0] for row in ENDLESS])
def test_a_body_without_end_is_given_up(
    client_for: MakeClient,
    store: Store,
    conversation_id: str,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
    head: str,
    piece: bytes,
    ends: set[str],
) -> None:
    monkeypatch.setattr(model_module, "MAX_REPLY_BYTES", 1_000_000)
    with raw_service(endless(head, piece)) as address:
        client = client_for(base_url=address, max_answer_chars=2_000, model_timeout_s=1.0)
        outcome = ask(client, way, conversation_id)
        assert {outcome.body.get("code"), outcome.body.get("stop_reason")} & ends, outcome.text[-500:]
    assert store.messages(conversation_id) == []


BABBLE = [b"", b"\r\n\r\n", b"hello\r\n", b"HTTP/1.1 abc\r\n\r\n", b"HTTP/1.1 200 OK\r\n", b"\x16\x03\x01" * 50]
BABBLE += [b"HTTP/1.1 200 OK\r\ncontent-length: -5\r\n\r\n{}", b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000 + b"\r\n\r\n"]
BABBLE += [b"HTTP/1.1 302 Found\r\nlocation: /v1/chat/completions\r\ncontent-length: 0\r\n\r\n"]
BABBLE += [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n"]
BABBLE += [b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 5\r\n\r\nhello"]
BABBLE += [b"HTTP/1.1 204 No Content\r\n\r\n", b"HTTP/1.1 304 Not Modified\r\n\r\n", b"HTTP/1.1 600 What\r\n\r\n"]


@both_ways
@pytest.mark.parametrize("answer", BABBLE, ids=range(len(BABBLE)))
def test_what_is_no_http_at_all_is_an_error_with_a_name(
    client_for: MakeClient,
    store: Store,
    model: ScriptedModel,
    conversation_id: str,
    way: str,
    answer: bytes,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with raw_service(lambda connection: connection.sendall(answer)) as address:
        outcome = ask(client_for(base_url=address, api_key=KEY, model_timeout_s=1.0), way, conversation_id)
    assert outcome.status in (502, 503, 504)
    assert outcome.body["code"] in ("model_error", "model_unavailable", "model_timeout")
    keeps_secrets(outcome.text + caplog.text, model)
    assert address not in outcome.text + caplog.text
    assert store.messages(conversation_id) == []


# ---------------------------------------------------------------------------------------- refusals

IN_AN_HOUR = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
LONG_AGO = "Wed, 21 Oct 2015 07:28:00 GMT"


def refusal(code: str | int | None = None, kind: str | None = "error") -> str:
    message = f"{LEAK}: the key {KEY} was used at http://vendor.example/v1"
    return json.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}})


REFUSALS: list[tuple[int, Json, str, int, str, str | None, int]] = [
    # status, headers, body -> status, code, Retry-After, number of requests
    (400, {}, refusal(), 502, "model_error", None, 1),
    (400, {}, refusal("model_not_found"), 400, "model_not_found", None, 1),
    (401, {}, refusal("invalid_api_key"), 500, "model_unauthorized", None, 1),
    (401, {"retry-after": "1"}, refusal(), 500, "model_unauthorized", None, 1),
    (402, {}, refusal(), 429, "model_rate_limited", "3600", 1),
    (403, {}, refusal(), 500, "model_unauthorized", None, 1),
    (404, {}, refusal("model_not_found"), 400, "model_not_found", None, 1),
    (404, {"content-type": "text/html"}, HTML, 400, "model_not_found", None, 1),
    (405, {}, "", 502, "model_error", None, 1),
    (408, {}, refusal(), 502, "model_error", None, ONCE_MORE),
    (409, {}, refusal(), 502, "model_error", None, ONCE_MORE),
    (413, {}, refusal(), 502, "model_error", None, 1),
    (415, {}, refusal(), 502, "model_error", None, 1),
    (422, {}, refusal(), 502, "model_error", None, 1),
    (429, {}, refusal(), 429, "model_rate_limited", "10", ONCE_MORE),
    (429, {"retry-after": "0"}, refusal(), 429, "model_rate_limited", "10", ONCE_MORE),
    (429, {"retry-after": "0.01"}, refusal(), 429, "model_rate_limited", "1", ONCE_MORE),
    (429, {"retry-after": "3600"}, refusal(), 429, "model_rate_limited", "3600", 1),
    (429, {"retry-after": IN_AN_HOUR}, refusal(), 429, "model_rate_limited", "about an hour", 1),
    (429, {"retry-after": LONG_AGO}, refusal(), 429, "model_rate_limited", "10", ONCE_MORE),
    (429, {"retry-after": "soon"}, refusal(), 429, "model_rate_limited", "10", ONCE_MORE),
    (429, {"retry-after": "-5"}, refusal(), 429, "model_rate_limited", "10", ONCE_MORE),
    (429, {"retry-after": "9" * 400}, refusal(), 429, "model_rate_limited", "10", ONCE_MORE),
    (429, {"retry-after": "nan"}, refusal(), 429, "model_rate_limited", "10", ONCE_MORE),
    (429, {}, refusal("insufficient_quota"), 429, "model_rate_limited", "3600", 1),
    (429, {}, refusal(None, "insufficient_quota"), 429, "model_rate_limited", "3600", 1),
    (429, {}, refusal(429, "billing_not_active"), 429, "model_rate_limited", "3600", 1),
    (429, {"retry-after": "60"}, refusal("insufficient_quota"), 429, "model_rate_limited", "60", 1),
    (429, {"content-type": "text/html"}, HTML, 429, "model_rate_limited", "10", ONCE_MORE),
    (500, {}, refusal(), 502, "model_error", None, ONCE_MORE),
    (500, {"content-type": "text/html"}, HTML, 502, "model_error", None, ONCE_MORE),
    (500, {}, "", 502, "model_error", None, ONCE_MORE),
    (502, {}, "null", 502, "model_error", None, ONCE_MORE),
    (503, {}, refusal(), 503, "model_unavailable", "5", ONCE_MORE),
    (503, {"content-type": "text/html"}, HTML, 503, "model_unavailable", "5", ONCE_MORE),
    (503, {"retry-after": "3600"}, refusal(), 503, "model_unavailable", "3600", 1),
    (504, {}, refusal(), 502, "model_error", None, ONCE_MORE),
    (529, {}, refusal("overloaded_error"), 502, "model_error", None, ONCE_MORE),
]


@both_ways
@pytest.mark.parametrize("row", REFUSALS, ids=[f"{row[0]}-{n}" for n, row in enumerate(REFUSALS)])
def test_a_refusal_has_its_status_its_code_and_its_number_of_requests(
    client: TestClient,
    store: Store,
    model: ScriptedModel,
    conversation_id: str,
    way: str,
    row: tuple[int, Json, str, int, str, str | None, int],
    caplog: pytest.LogCaptureFixture,
) -> None:
    given, headers, body, status, code, retry_after, requests = row
    for _ in range(requests):
        model.raw(body, given, headers=headers)
    outcome = ask(client, way, conversation_id)
    failed(outcome, status, code)
    assert len(model.requests) == requests
    if way == "/chat" and retry_after == "about an hour":
        assert 3500 < int(outcome.headers["retry-after"]) <= 3600
    elif way == "/chat":
        assert outcome.headers.get("retry-after") == retry_after
    keeps_secrets(outcome.text + caplog.text, model)
    left_nothing(client, store, model, conversation_id)


@both_ways
@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 529])
def test_what_may_pass_is_tried_again(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, way: str, status: int
) -> None:
    model.fails(status).fails(status).says("Hello.")
    answered(ask(client, way, conversation_id), store, conversation_id, "Hello.")


@both_ways
def test_retry_after_is_waited_for(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, way: str
) -> None:
    model.fails(429, headers={"retry-after": "1"}).says("Hello.")
    outcome = ask(client, way, conversation_id)
    answered(outcome, store, conversation_id, "Hello.")
    assert outcome.body["model_ms"] >= 1000


@both_ways
def test_a_try_again_after_a_tool_does_not_run_the_tool_again(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, way: str
) -> None:
    asks(model, call("note", GOOD))
    model.fails(500).says("Done.")
    answered(ask(client, way, conversation_id), store, conversation_id, "Done.")
    assert len(RUNS) == 1


@both_ways
def test_an_error_after_a_tool_leaves_nothing_of_the_turn(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, way: str
) -> None:
    asks(model, call("note", GOOD))
    model.fails(400)
    failed(ask(client, way, conversation_id), 502, "model_error")
    assert len(RUNS) == 1
    left_nothing(client, store, model, conversation_id)


def test_what_an_attempt_that_broke_had_held_back_is_not_in_the_next_ones_text(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    for beginning in (" ", "<", "<think>Aha", "{", "``", "[", "</"):
        store.rows("DELETE FROM conversations WHERE conversation_id = %s", conversation_id)
        model.events([{"choices": [{"index": 0, "delta": {"content": beginning}}]}], done=False)
        model.says("Hello, you there.")
        outcome = ask(client, "/chat/stream", conversation_id)
        answered(outcome, store, conversation_id, "Hello, you there.")
        assert outcome.deltas() == "Hello, you there."


# ---------------------------------------------------------------------------------------- too long for the model

TOO_LONG: list[tuple[int, Any]] = [
    (400, {"error": {"message": "This is too much", "code": "context_length_exceeded"}}),
    (400, {"error": {"message": "This model's maximum context length is 4096 tokens.", "code": None}}),
    (400, {"object": "error", "message": "This model's maximum context length is 4096 tokens", "code": 400}),
    (
        400,
        {"error": {"message": "prompt is too long: 200251 tokens > 199999 maximum", "type": "invalid_request_error"}},
    ),
    (
        400,
        {"error": {"message": "the request exceeds the available context size", "type": "exceed_context_size_error"}},
    ),
    (400, {"error": {"message": "Invalid request: Your request exceeded model token limit: 8192"}}),
    (400, {"error": {"message": "Range of input length should be [1, 30720]"}}),
    (400, {"error": {"message": "Please reduce the length of the messages or completion."}}),
    (400, {"error": {"code": "1261", "message": "Prompt 超长"}}),
    (400, [{"error": {"code": 400, "message": "The input token count exceeds the maximum number of tokens allowed"}}]),
    (400, {"error": "maximum context length is 4096 tokens"}),
    (400, {"detail": "maximum context length is 4096 tokens"}),
    (413, {"error": {"message": "Request too large"}}),
    (413, "<html>Request Entity Too Large</html>"),
    (422, {"error": {"message": "Input has too many tokens"}}),
]


def three_turns(client: TestClient, model: ScriptedModel, conversation_id: str) -> None:
    for number in (1, 2, 3):
        model.says(f"answer {number}")
        assert ask(client, "/chat", conversation_id, f"question {number}").status == 200


@both_ways
@pytest.mark.parametrize(("status", "body"), TOO_LONG, ids=range(len(TOO_LONG)))
def test_a_conversation_too_long_for_the_model_is_shortened_once_by_whole_turns_and_says_so(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, way: str, status: int, body: Any
) -> None:
    three_turns(client, model, conversation_id)
    model.raw(body if isinstance(body, str) else json.dumps(body), status).says("Hello.")
    outcome = ask(client, way, conversation_id)
    assert (outcome.status, outcome.body["answer"], outcome.body["turn"]) == (200, "Hello.", 4)
    assert "the oldest 2 of 3 turns were left out" in outcome.body["notice"]
    before, after = ([m["content"] for m in request["messages"][1:]] for request in model.requests[-2:])
    assert before == [*(f"{who} {n}" for n in (1, 2, 3) for who in ("question", "answer")), "Hi"]
    assert after == ["question 3", "answer 3", "Hi"]
    assert store.messages(conversation_id)[6:] == [("user", "Hi"), ("assistant", "Hello.")]


@both_ways
def test_a_conversation_that_is_still_too_long_is_an_error_and_the_next_message_works(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, way: str
) -> None:
    three_turns(client, model, conversation_id)
    model.fails(400, code="context_length_exceeded").fails(400, code="context_length_exceeded")
    outcome = ask(client, way, conversation_id)
    failed(outcome, 502, "model_error")
    assert "Shorten the message" in outcome.body["detail"]
    left_nothing(client, store, model, conversation_id, before=6)


@both_ways
def test_shortening_takes_no_step_of_the_turn(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, way: str
) -> None:
    three_turns(client, model, conversation_id)
    model.fails(400, code="context_length_exceeded").says("Hello.")
    outcome = ask(client, way, conversation_id, max_steps=1)
    assert (outcome.body["answer"], outcome.body["steps"]) == ("Hello.", 1)


@both_ways
def test_a_transcript_that_grew_too_long_among_the_tools_is_shortened_in_its_history_only(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, way: str
) -> None:
    three_turns(client, model, conversation_id)
    asks(model, call("note", GOOD))
    model.fails(413).says("Done.")
    assert ask(client, way, conversation_id).body["answer"] == "Done."
    roles = [message["role"] for message in model.requests[-1]["messages"]]
    assert roles == ["system", "user", "assistant", "user", "assistant", "tool"]
    assert len(RUNS) == 1


# ---------------------------------------------------------------------------------------- habits of vendors


@both_ways
@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_goes_back_within_the_run_and_is_never_the_answer(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, way: str, name: str
) -> None:
    other = f"model-{uuid.uuid4()}"
    asks(model, call("note", GOOD), **{name: "I should note \ud83d it."})
    model.says("Done.", message={name: "Now I am done."})
    outcome = ask(client, way, conversation_id, model=other)
    answered(outcome, store, conversation_id, "Done.")
    assert "should note" not in outcome.deltas()
    asked = model.requests[-1]["messages"][-2]
    assert asked["reasoning_content"] == "I should note \ufffd it."
    assert asked["content"] == ""


@both_ways
def test_a_vendor_that_requires_reasoning_on_every_assistant_message_gets_it(
    client_for: MakeClient, store: Store, conversation_id: str, way: str
) -> None:
    with ScriptedModel(reasoning="required") as strict:
        client = client_for(base_url=strict.base_url, toolsets=("tests.support.recording_tools",))
        strict.says("Hello.", reasoning_content="Aha.")
        assert ask(client, way, conversation_id).status == 200
        strict.asks_for_all(("note", GOOD), reasoning_content="Aha.").then_says("Done.", reasoning_content="Aha.")
        assert ask(client, way, conversation_id).body["answer"] == "Done."
        strict.finish()  # not one request was refused
        assert "Aha" not in json.dumps(store.messages(conversation_id))


@both_ways
def test_that_a_vendor_requires_reasoning_is_learned_from_its_refusal(
    client_for: MakeClient, store: Store, model: ScriptedModel, conversation_id: str, way: str
) -> None:
    model.says("Hello.")
    assert ask(client_for(), way, conversation_id).status == 200  # history of another model, which had no reasoning
    with ScriptedModel(reasoning="required") as strict:
        client = client_for(base_url=strict.base_url)
        for _ in range(2):
            strict.says("Hello again.", reasoning_content="Aha.")
            assert ask(client, way, conversation_id).body["answer"] == "Hello again."
        assert len(strict.violations) == 1  # the first request; from then on it is known
        assert len(strict.requests) == 3


@both_ways
@pytest.mark.parametrize("status", [400, 422])
def test_a_vendor_that_forbids_what_it_sent_itself_does_not_get_it_again(
    client_for: MakeClient, store: Store, model: ScriptedModel, conversation_id: str, way: str, status: int
) -> None:
    client = client_for(toolsets=("tests.support.recording_tools",))
    asks(model, call("note", GOOD), reasoning_content="Aha.")
    model.fails(status, message="Extra inputs are not permitted: messages.2.assistant.reasoning_content")
    model.says("Done.", reasoning_content="Aha.")
    answered(ask(client, way, conversation_id), store, conversation_id, "Done.")
    assert "reasoning_content" in model.requests[1]["messages"][-2]
    assert "reasoning_content" not in json.dumps(model.requests[2])
    asks(model, call("note", GOOD), reasoning_content="Aha.")
    model.says("Done.")
    assert ask(client, way, conversation_id).body["answer"] == "Done."
    assert "reasoning_content" not in json.dumps(model.requests[-1])
    assert len(model.requests) == 5


@both_ways
def test_a_vendor_that_can_be_pleased_neither_with_nor_without_reasoning_is_asked_three_times_at_most(
    client_for: MakeClient, store: Store, model: ScriptedModel, conversation_id: str, way: str
) -> None:
    client = client_for()
    for _ in range(ONCE_MORE):
        model.fails(400, message=f"reasoning_content: {LEAK}")
    failed(ask(client, way, conversation_id), 502, "model_error")
    left_nothing(client, store, model, conversation_id)


def test_a_vendor_that_refuses_stream_options_is_asked_without_them_from_then_on(
    client_for: MakeClient, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    client = client_for()
    model.fails(400, message="Unrecognized request argument supplied: stream_options").says("Hello.").says("Again.")
    answered(ask(client, "/chat/stream", conversation_id), store, conversation_id, "Hello.")
    assert ask(client, "/chat/stream", conversation_id).body["answer"] == "Again."
    assert ["stream_options" in request for request in model.requests] == [True, False, False]
    assert all(request["stream"] is True for request in model.requests)


def test_a_vendor_that_refuses_to_stream_is_asked_for_whole_replies_from_then_on(
    client_for: MakeClient, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    client = client_for()
    model.fails(400, message="stream=true is not supported with tools").says("Hello.").says("Again.")
    answered(ask(client, "/chat/stream", conversation_id), store, conversation_id, "Hello.")
    assert ask(client, "/chat/stream", conversation_id).deltas() == "Again."
    assert ["stream" in request for request in model.requests] == [True, False, False]


@both_ways
@pytest.mark.parametrize("said", ["the upstream failed", "streams are full", "downstream_options are wrong"])
def test_a_refusal_that_is_not_about_streaming_changes_nothing(
    client_for: MakeClient, store: Store, model: ScriptedModel, conversation_id: str, way: str, said: str
) -> None:
    client = client_for()
    model.fails(400, message=said)
    failed(ask(client, way, conversation_id), 502, "model_error")
    model.says("Hello.")
    answered(ask(client, way, conversation_id), store, conversation_id, "Hello.")
    assert ["stream_options" in request for request in model.requests] == [way == "/chat/stream"] * 2


def test_a_refusal_to_stream_means_nothing_to_one_who_did_not_ask_for_it(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    model.fails(400, message="stream and stream_options are not supported")
    failed(ask(client, "/chat", conversation_id), 502, "model_error")
    left_nothing(client, store, model, conversation_id)


def test_a_vendor_that_refuses_two_things_one_after_the_other_gets_its_way(
    client_for: MakeClient, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    model.fails(422, message="stream_options: extra inputs are not permitted")
    model.fails(400, message="The reasoning_content in the thinking mode must be passed back to the API.").says(
        "Hello."
    )
    answered(ask(client_for(), "/chat/stream", conversation_id), store, conversation_id, "Hello.")


def test_what_one_model_wants_is_not_done_to_another(
    client_for: MakeClient, model: ScriptedModel, conversation_id: str
) -> None:
    client = client_for()
    model.says("Hello.", reasoning_content="Aha.").says("Hello.").says("Hello.")
    ask(client, "/chat", conversation_id, model="one")
    ask(client, "/chat", conversation_id, model="one")
    ask(client, "/chat", conversation_id, model="another")
    sent = [["reasoning_content" in m for m in request["messages"]] for request in model.requests]
    assert (any(sent[1]), any(sent[2])) == (True, False)


# ---------------------------------------------------------------------------------------- without a key or a model


@both_ways
@pytest.mark.parametrize(("missing", "status", "code"), [("api_key", 500, "model_unauthorized")])
def test_without_a_key_no_request_is_made(
    client_for: MakeClient, model: ScriptedModel, conversation_id: str, way: str, missing: str, status: int, code: str
) -> None:
    failed(ask(client_for(**{missing: ""}), way, conversation_id), status, code)
    assert not model.requests


@both_ways
def test_without_a_model_no_request_is_made_unless_the_caller_names_one(
    client_for: MakeClient, model: ScriptedModel, conversation_id: str, way: str
) -> None:
    client = client_for(default_model="")
    failed(ask(client, way, conversation_id), 400, "model_not_found")
    assert not model.requests
    model.says("Hello.")
    assert ask(client, way, conversation_id, model="theirs").status == 200
    assert model.requests[0]["model"] == "theirs"


@both_ways
def test_where_tools_are_forbidden_none_are_offered_and_none_are_carried_out(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, way: str
) -> None:
    asks(model, call("note", GOOD))
    stopped(ask(client, way, conversation_id, max_tool_calls=0), "tool_call_limit")
    assert not {"tools", "tool_choice"} & set(model.requests[0])
    assert not RUNS
    left_nothing(client, store, model, conversation_id, max_tool_calls=0)


# ---------------------------------------------------------------------------------------- for any reply at all

WORDS = [
    "note",
    "now",
    "a",
    "",
    "stop",
    "length",
    "error",
    '{"text": "a"}',
    '{"text"',
    "[]",
    "null",
    "\ud83d",
    "\ude42",
]
WORDS += ["<think>", "</think>", "<tool_call>", '{"name": "note", "arguments": {}}', "```", "thinking", "text", "\0"]
NAMES = ["choices", "message", "delta", "content", "tool_calls", "function", "function_call", "name", "arguments"]
NAMES += ["id", "index", "finish_reason", "usage", "prompt_tokens", "refusal", "reasoning_content", "type", "text"]
scalars = st.none() | st.booleans() | st.integers(-1, 2) | st.just(1.5) | st.sampled_from(WORDS)
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=5),
    max_leaves=8,
)
odd_calls = st.fixed_dictionaries(
    {},
    optional={
        "index": scalars,
        "id": scalars,
        "function": st.fixed_dictionaries({}, optional={"name": anything, "arguments": anything}),
    },
)
odd_messages = anything | st.fixed_dictionaries(
    {},
    optional={
        "content": anything,
        "tool_calls": st.lists(odd_calls | anything, max_size=3),
        "function_call": anything,
        "reasoning_content": anything,
    },
)
odd_choices = st.fixed_dictionaries(
    {}, optional={"index": scalars, "message": odd_messages, "delta": odd_messages, "finish_reason": scalars}
)
odd_bodies = anything | st.fixed_dictionaries(
    {"choices": st.lists(odd_choices, max_size=2)}, optional={"usage": anything}
)


def is_fit_to_go_on_with(reply: Reply) -> None:
    """What is stored, shown and sent back of a reply is what a strict vendor takes."""
    reply.text.encode()
    if reply.tool_calls:
        observed = [{"role": "tool", "tool_call_id": one.id, "content": "x"} for one in reply.tool_calls]
        sent = {"model": "m", "messages": [{"role": "user", "content": "Hi"}, reply.as_dict(), *observed]}
        assert Inspection(sent, False, None).breaches == []
        json.dumps(sent, ensure_ascii=False, allow_nan=False).encode()


@given(odd_bodies)
@hypothesis_settings(max_examples=400, deadline=None, derandomize=True, database=None)
def test_any_body_at_all_is_a_clean_reply_or_one_that_cannot_be_used(body: Any) -> None:
    draft = Draft({"note", "now"})
    with contextlib.suppress(BadReply):
        draft.take_body(body)
        is_fit_to_go_on_with(finish(draft))


@given(st.lists(odd_bodies, max_size=5))
@hypothesis_settings(max_examples=400, deadline=None, derandomize=True, database=None)
def test_any_stream_at_all_is_a_clean_reply_or_one_that_cannot_be_used(bodies: list[Any]) -> None:
    draft, passed = Draft({"note", "now"}), list[str]()
    gate = TextGate(passed.append, calls_possible=True)
    with contextlib.suppress(BadReply):
        for body in bodies:
            before = len(draft.text)
            draft.take_chunk(body)
            gate.feed(draft.text[before:])
        draft.complete = True
        reply = finish(draft)
        is_fit_to_go_on_with(reply)
        if not reply.tool_calls and reply.text.startswith("".join(passed)):
            gate.close(reply.text)
            assert "".join(passed) == reply.text
