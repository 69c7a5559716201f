"""What the caller of a stream is told."""

import asyncio
import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

import stream as stream_module
from stream import Telling, encoded
from tests.conftest import Service, Store
from tests.support.scripted_model import ScriptedModel
from tests.support.stream import chunk, listen, listening, written
from tests.support.ways import ask


def test_a_turn_is_told_from_its_start_to_its_result_and_then_the_answer_ends(
    service: Service, model: ScriptedModel, conversation_id: str
) -> None:
    model.asks_for_all(("note", {"text": "a"}), content="I write that down.").then_says("Done, 好。")
    with listening(service, conversation_id, include_trace=True) as (answer, arriving):
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-cache"
        assert answer.headers["x-accel-buffering"] == "no"
        events = list(arriving)  # ends by itself
    assert [event.id for event in events] == [str(n) for n in range(1, len(events) + 1)]
    started, *between, result = events
    assert (started.name, started.data["conversation_id"]) == ("started", conversation_id)
    told = [(event.name, event.data.get("type"), event.data["step"]) for event in between if event.name == "trace"]
    assert told == [
        ("trace", "run_started", 0),
        ("trace", "model_request", 1),
        ("trace", "model_response", 1),
        ("trace", "tool_call", 1),
        ("trace", "tool_result", 1),
        ("trace", "model_request", 2),
        ("trace", "model_response", 2),
        ("trace", "run_stopped", 2),
    ]
    assert [event.data for event in between if event.name == "trace"] == result.data["trace"]
    assert result.name == "result"
    assert result.data["run_id"] == started.data["run_id"]
    places = [event.name + str(event.data["step"]) for event in between if event.data["step"]]
    assert places.index("delta1") < places.index("trace2") < places.index("delta2")


def test_the_result_is_what_chat_would_have_answered(
    service: Service, model: ScriptedModel, conversation_id: str
) -> None:
    for _ in range(2):
        model.asks_for("note", text="a").then_says("Done.", usage={"prompt_tokens": 7})
    streamed_one = listen(service, conversation_id).body
    plain_one = service.chat(conversation_id, "Hi").json()
    of_their_own = {"run_id", "turn", "duration_ms", "model_ms", "tool_ms"}
    assert list(streamed_one) == list(plain_one)
    assert {k: v for k, v in streamed_one.items() if k not in of_their_own} == {
        k: v for k, v in plain_one.items() if k not in of_their_own
    }
    assert [type(streamed_one[name]) for name in of_their_own] == [type(plain_one[name]) for name in of_their_own]


def test_when_the_result_arrives_the_turn_is_stored_and_not_before_the_answer_is_whole(
    service: Service, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    model.says("One two three four.", gap_s=0.1)
    at_first_delta: list[Any] = []
    with listening(service, conversation_id) as (_, arriving):
        for event in arriving:
            if event.name == "delta" and not at_first_delta:
                at_first_delta.append(store.messages(conversation_id))
            if event.name == "result":
                assert store.messages(conversation_id) == [("user", "Hi"), ("assistant", "One two three four.")]
                break
    assert at_first_delta == [[]]


def test_the_first_piece_arrives_before_the_model_has_finished(
    service: Service, model: ScriptedModel, conversation_id: str
) -> None:
    model.events([chunk({"content": "word "}), *written("and the rest")], gap_s=0.05)
    with listening(service, conversation_id) as (_, arriving):
        first = next(event for event in arriving if event.name == "delta")
        assert first.data == {"text": "word ", "step": 1}
        later = list(arriving)
    assert len([event for event in later if event.name == "delta"]) > 5


TEXTS = [
    "| a | b |\n|---|---|\n| 1 | 2 |\n",
    "```python\nif True:\n    print('x')\n\n\n```\n\nand so\ton",
    "line\r\nline\rline\n\n\n  leading and trailing  \n",
    "a\u2028b\u2029c\u0085d\x0ce\x1bf",
    "👨‍👩‍👧‍👦 🇨🇳 𠮷 e\u0301",
    "请问：１２×８＝？答案是 96。",
    "data: x\n\nevent: result\ndata: {}\n\n: comment",
    '{"answer": "in JSON", "n": [1, 2]}',
    "\\u8bf7 stays \\n as it is",
    "<b>bold</b> & <script>alert(1)</script>",
    "字" * 20_000,
]


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
@pytest.mark.parametrize("size", [1, 7])
def test_the_pieces_of_the_last_step_are_the_stored_answer_byte_for_byte(
    service: Service, store: Store, model: ScriptedModel, conversation_id: str, text: str, size: int
) -> None:
    model.events(written(text, size if len(text) < 1000 else 100 * size))
    outcome = listen(service, conversation_id)
    assert outcome.deltas(1) == outcome.body["answer"] == text
    assert store.messages(conversation_id) == [("user", "Hi"), ("assistant", text)]


def test_text_is_readable_as_utf_8_on_the_wire(service: Service, model: ScriptedModel, conversation_id: str) -> None:
    model.asks_for("note", text="笔记").then_says("请看：🙂")
    answer = service.http.post("/chat/stream", json={"conversation_id": conversation_id, "message": "你好"})
    for text in ("请看", "🙂", "笔记", "你好"):
        assert text.encode() in answer.content
    assert b"\\u" not in answer.content
    assert b"\r" not in answer.content


def test_a_character_that_was_cut_between_two_pieces_is_whole_for_the_caller(
    service: Service, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    halves = [chunk({"content": piece}) for piece in ("a \ud83d", "\ude42 b ", "\ud83d", "", "\ude42", " \ud83d", "c")]
    model.events([*halves, chunk({}, "stop")])
    outcome = listen(service, conversation_id)
    assert outcome.deltas() == outcome.body["answer"] == "a 🙂 b 🙂 \ufffdc"
    content = "".join(f"data: {json.dumps(one, ensure_ascii=False)}\n\n" for one in written("你好 👨‍👩‍👧 好", 2))
    model.drips(content.encode(), bytes_per_s=20_000, content_type="text/event-stream")
    outcome = listen(service, conversation_id)
    assert outcome.deltas() == outcome.body["answer"] == "你好 👨‍👩‍👧 好"


def test_text_before_a_tool_call_has_the_number_of_its_step(
    service: Service, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    for number in range(2):
        model.asks_for_all(("note", {"text": str(number)}), content=f"Step {number}: I write.")
    model.says("Done.")
    outcome = listen(service, conversation_id)
    assert [outcome.deltas(step) for step in (1, 2, 3)] == ["Step 0: I write.", "Step 1: I write.", "Done."]
    assert store.messages(conversation_id)[1] == ("assistant", "Done.")


CALL = '{"name": "note", "arguments": {"text": "a"}}'

NEVER_SHOWN: list[tuple[str, str]] = [
    ("a thought", "<think>Aha, secret.</think>\n\nDone."),
    ("two thoughts", "<think>secret</think><think>secret too</think> Done."),
    ("a tagged call", f"<tool_call>\n{CALL}\n</tool_call>"),
    ("a thought and a tagged call", f"<think>secret</think>\n<tool_call>{CALL}</tool_call>"),
    ("a bare call", CALL),
    ("a call in a list", f"[\n {CALL}\n]"),
    ("a fenced call", f"```json\n{CALL}\n```"),
    ("a call in brackets", f"[TOOL_CALLS][{CALL}]"),
    ("prose and a tagged call", f"Let me write. <tool_call>{CALL}</tool_call>"),
]


@pytest.mark.parametrize("text", [text for _, text in NEVER_SHOWN], ids=[name for name, _ in NEVER_SHOWN])
def test_thoughts_and_calls_written_as_text_are_never_told_however_they_are_cut(
    service: Service, store: Store, model: ScriptedModel, conversation_id: str, text: str
) -> None:
    for size in (1, 4, 1000):
        model.events(written(text, size))
        if "{" in text:
            model.says("Done.")
        outcome = listen(service, conversation_id)
        assert outcome.body["answer"] == "Done."
        shown = outcome.deltas()
        assert not any(part in shown for part in ("secret", "think", "{", "tool", "TOOL", "```", "arguments"))
    assert {content for role, content in store.messages(conversation_id) if role == "assistant"} == {"Done."}


@pytest.mark.parametrize("before", ["", "\n\nI write.\n", "<think>secret</think>\n\n I write. "])
def test_after_a_call_written_as_text_the_next_answer_is_told_piece_by_piece_as_ever(
    service: Service, model: ScriptedModel, conversation_id: str, before: str
) -> None:
    model.events(written(f"{before}<tool_call>{CALL}</tool_call>", 3))
    model.events(written("One two three four five.", 4), gap_s=0.02)
    outcome = listen(service, conversation_id)
    assert outcome.body["answer"] == "One two three four five."
    assert len([event for event in outcome.events if event.name == "delta" and event.data["step"] == 2]) > 1


def test_reasoning_in_a_field_of_its_own_is_not_told_as_text(
    service: Service, model: ScriptedModel, conversation_id: str
) -> None:
    model.says("Done.", reasoning_content="secret thoughts")
    outcome = listen(service, conversation_id)
    assert outcome.deltas() == "Done."
    assert "secret" not in outcome.text


def test_after_a_silence_a_comment_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "SILENCE_S", 0.02)

    async def read() -> list[bytes]:
        telling = Telling()
        writing = encoded(telling)
        said = [await anext(writing), await anext(writing)]
        telling.text(piece="Hel", step=1)
        telling.text(piece="lo", step=1)
        said.append(await anext(writing))
        telling.add("result", {"answer": "Hello"})
        said.append(await anext(writing))
        with pytest.raises(StopAsyncIteration):
            await anext(writing)
        return said

    comment, again, delta, result = asyncio.run(read())
    assert comment == again == b": still at it\n\n"
    assert delta == b'id: 1\nevent: delta\ndata: {"text": "Hello", "step": 1}\n\n'
    assert result == b'id: 2\nevent: result\ndata: {"answer": "Hello"}\n\n'


def test_a_model_that_takes_its_time_makes_comments_not_events(
    client: TestClient, model: ScriptedModel, conversation_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_module, "SILENCE_S", 0.05)
    model.says("Done.", delay_s=0.4)
    outcome = ask(client, "/chat/stream", conversation_id)
    assert outcome.body["answer"] == "Done."
    assert outcome.text.count(": still at it\n\n") >= 2
