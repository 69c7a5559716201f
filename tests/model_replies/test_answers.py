"""The text of an answer, in whatever form it comes: what belongs to it, what is a thought, what is counted."""

import json
import uuid
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.conftest import Store
from tests.support.odd_replies import GOOD, THOUGHT_PART, asks, call
from tests.support.outcomes import answered, both_ways
from tests.support.scripted_model import Json, ScriptedModel, completion
from tests.support.ways import ask

PARTS = [{"type": "text", "text": "Hel"}, {"type": "output_text", "text": "lo."}]
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
