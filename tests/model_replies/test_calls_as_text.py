"""Tool calls that the model wrote as text: they are carried out, asked for again or, where they are none, shown."""

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.conftest import Store
from tests.support.odd_replies import GOOD, call, fenced
from tests.support.outcomes import ONCE_MORE, answered, both_ways, failed, left_nothing, stopped
from tests.support.recording_tools import RUNS
from tests.support.scripted_model import ScriptedModel
from tests.support.ways import ask


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
    ("tools", f"<tools>\n{as_json('a')}\n</tools>", ["a"]),
    ("tools, without the closing tag", f"<tools>{as_json('a')}", ["a"]),
    ("tools, several", f"I write.\n<tools>{as_json('a')}</tools>\n<tools>{as_json('b')}</tools>", ["a", "b"]),
    ("tools, two in one tag", f"<tools>\n{as_json('a')}\n{as_json('b')}\n</tools>", ["a", "b"]),
    ("tools, prose around", f"I write: <tools>{as_json('a')}</tools>\nThat should do.", ["a"]),
    ("tool_calls", f"<tool_calls>[{as_json('a')}, {as_json('b')}]</tool_calls>", ["a", "b"]),
    ("tool_calls, fenced", f"<tool_calls>{fenced(as_json('a'))}</tool_calls>", ["a"]),
    ("tool_call in tool_calls", f"<tool_calls>{tagged(as_json('a'))}</tool_calls>", ["a"]),
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
    "<tools><hammer/></tools>",
    "<tools>hammer, saw",
    "<tools></tools>",
    f"In `<tools>{as_json('a')}</tools>` it is only spoken of.",
    f"<tools>{as_json('a', description='what note does')}</tools>",
    '<tools>{"type": "function", "function": {"name": "note", "description": "x"}}</tools> describes a tool.',
    f"<tools>{as_json('a')}, and so on</tools>",
    "<tool_calls>5</tool_calls>",
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


NOT_PERMITTED = [
    tagged(as_json("a")),
    f"Sure. <tools>{as_json('a')}</tools>",
    f"[TOOL_CALLS][{as_json('a')}]",
    as_json("a"),
]


@both_ways
@pytest.mark.parametrize("text", NOT_PERMITTED, ids=range(len(NOT_PERMITTED)))
def test_a_call_written_as_text_where_none_is_permitted_is_a_call_too_many_and_never_an_answer(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, way: str, text: str
) -> None:
    model.says(text)
    outcome = ask(client, way, conversation_id, max_tool_calls=0)
    stopped(outcome, "tool_call_limit")
    assert "note" not in outcome.deltas()
    assert "tools" not in model.requests[-1]
    assert not RUNS
    left_nothing(client, store, model, conversation_id)


@both_ways
def test_a_broken_call_written_as_text_where_none_is_permitted_is_never_an_answer_either(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, way: str
) -> None:
    for _ in range(ONCE_MORE):
        model.says("<tool_call>note(text='a')</tool_call>")
    failed(ask(client, way, conversation_id, max_tool_calls=0), 502, "model_error")
    left_nothing(client, store, model, conversation_id)


@both_ways
@pytest.mark.parametrize("text", ['{"result": 5}', "Hello.", "[1, 2]"])
def test_an_answer_where_no_call_is_permitted_stays_an_answer(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, way: str, text: str
) -> None:
    model.says(text)
    answered(ask(client, way, conversation_id, max_tool_calls=0), store, conversation_id, text)
