"""The streams of vendors become the stream of ours."""

import json
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.conftest import Service, Store
from tests.support.recording_tools import RUNS
from tests.support.scripted_model import ScriptedModel
from tests.support.stream import SSE, A, B, Json, _, chunk, part
from tests.support.ways import ask

Part = tuple[Any, ...]  # index, id, name and arguments of a call in a delta


def asked(*parts: Any, **more: Any) -> Json:
    """The event with these calls, or parts of them."""
    return chunk({"tool_calls": [part(*one) if isinstance(one, tuple) else one for one in parts], **more})


A1, A2, B1, B2 = A[:5], A[5:], B[:5], B[5:]

TWICE = json.dumps(A)

WHOLE_AGAIN = {"tool_calls": [part(0, "x", "note", A)]}

CALLS: list[tuple[str, str, list[Part | Json]]] = [  # what is written down, and the events: a part, or a whole one
    ("in fragments", "a", [(0, "x", "note", ""), (0, _, _, A1), (0, _, _, A2)]),
    ("by one character", "a", [(0, "x", "note", ""), *((0, _, _, one) for one in A)]),
    ("whole", "ab", [asked((0, "x", "note", A), (1, "y", "note", B))]),
    ("interleaved", "ab", [(0, "x", "note", A1), (1, "y", "note", B1), asked((0, _, _, A2), (1, _, _, B2))]),
    ("index 0 for all, whole", "ab", [(0, "x", "note", A), (0, "y", "note", B)]),
    ("index 0 for all", "ab", [(0, "x", "note", A1), (0, _, _, A2), (0, "y", "note", B1), (0, _, _, B2)]),
    ("index 0 for all, no ids", "ab", [(0, _, "note", A), (0, _, "note", B)]),
    ("no index", "a", [(_, "x", "note", A1), (_, _, _, A2)]),
    ("no index, two", "ab", [(_, "x", "note", A1), (_, _, _, A2), (_, "y", "note", B)]),
    ("no index, no ids, two", "ab", [asked((_, _, "note", A), (_, _, "note", B))]),
    ("index null", "a", [(None, "x", "note", A1), (None, None, None, A2)]),
    ("index a list", "a", [([0], "x", "note", A1), ([0], _, _, A2)]),
    ("index from 1", "a", [(1, "x", "note", A1), (1, _, _, A2)]),
    ("index with holes", "ab", [(3, "x", "note", A), (7, "y", "note", B)]),
    ("index as text", "ab", [("0", "x", "note", A1), ("0", _, _, A2), ("1", "y", "note", B)]),
    ("index backwards", "ab", [(1, "x", "note", A), (0, "y", "note", B)]),
    ("name in every delta", "a", [(0, "x", "note", A1), (0, _, "note", A2)]),
    ("name and id in every delta", "a", [*((0, "x", "note", one) for one in A), (0, "x", "note", "")]),
    ("name in two pieces", "a", [(0, "x", "no", ""), (0, _, "te", A)]),
    ("another id in every delta", "a", [(0, "x", "note", A1), (0, "y", None, A2)]),
    ("id after the name", "a", [(0, _, "note", ""), (0, "x", _, A)]),
    ("no ids", "ab", [(0, _, "note", A), (1, _, "note", B)]),
    ("empty ids", "a", [(0, "", "note", A1), (0, "", "", A2)]),
    ("nulls later", "a", [(0, "x", "note", A1), asked((0, None, None, A2), role=None, content=None)]),
    ("null calls later", "a", [(0, "x", "note", A), chunk({"tool_calls": None, "content": None})]),
    ("no function later", "a", [(0, "x", "note", A), (0,), asked({"index": 0, "function": None})]),
    ("an empty function later", "a", [(0, "x", "note", A), asked({"index": 0, "function": {}})]),
    ("empty arguments between", "a", [(0, "x", "note", ""), (0, _, _, ""), (0, _, _, A), (0, _, _, "")]),
    ("white space at the end", "a", [(0, "x", "note", A), (0, _, "note", "\n ")]),
    ("arguments null, then text", "a", [(0, "x", "note", None), (0, _, _, A)]),
    ("arguments an object", "a", [(0, "x", "note", {"text": "a"})]),
    ("arguments twice encoded", "a", [(0, "x", "note", TWICE[:9]), (0, _, _, TWICE[9:])]),
    ("a character cut in two", "🙂", [(0, "x", "note", '{"text": "\ud83d'), (0, _, _, '\ude42"}')]),
    ("text in front", "a", [chunk({"content": "Let me write."}), (0, "x", "note", A)]),
    ("empty text beside", "a", [asked((0, "x", "note", A), content="")]),
    ("the old field", "a", [chunk({"function_call": {"name": "note"}}), chunk({"function_call": {"arguments": A}})]),
    ("the old field too", "a", [chunk({"function_call": {"name": "note", "arguments": A}}), (0, "x", "note", A)]),
    ("a whole message alone", "a", [{"choices": [{"index": 0, "message": WHOLE_AGAIN}]}]),
    ("a whole message at the end", "a", [(0, "x", "note", A), {"choices": [{"delta": {}, "message": WHOLE_AGAIN}]}]),
    ("odd parts beside", "a", [asked((0, "x", "note", A), None, "x", [])]),
]


@pytest.mark.parametrize(("ran", "events"), [row[1:] for row in CALLS], ids=[row[0] for row in CALLS])
def test_calls_are_put_together_from_whatever_pieces_they_come_in(
    client: TestClient,
    store: Store,
    model: ScriptedModel,
    conversation_id: str,
    ran: str,
    events: list[Part | Json],
) -> None:
    sent = [asked(event) if isinstance(event, tuple) else event for event in events]
    model.events([*sent, chunk({}, "tool_calls")]).says("Done.")
    outcome = ask(client, "/chat/stream", conversation_id)
    assert outcome.body.get("answer") == "Done.", outcome.text[-600:]
    assert RUNS == [("note", {"text": text, "times": 1}) for text in ran]
    assert store.messages(conversation_id) == [("user", "Hi"), ("assistant", "Done.")]


def test_nothing_is_carried_out_of_calls_that_ran_into_one_another(
    client: TestClient, model: ScriptedModel, conversation_id: str
) -> None:
    model.events([asked((0, "x", "note", A)), asked((0, _, _, B)), chunk({}, "tool_calls")]).says("Done.")
    outcome = ask(client, "/chat/stream", conversation_id)
    assert outcome.body["answer"] == "Done."
    assert not RUNS
    assert "not valid JSON" in model.requests[-1]["messages"][-1]["content"]


TEXT = "Hello, 你好 🙂 \u2028."

SAID = ["Hello, ", "你好 ", "🙂 ", "\u2028."]

PIECES = [chunk({"content": piece}) for piece in SAID]

MESSAGE = {"index": 0, "message": {"content": TEXT}, "finish_reason": "stop"}

STOP = chunk({}, "stop")

COUNTED = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}

FILTER_REPORT = {"id": "", "model": "", "prompt_filter_results": [{"prompt_index": 0}], "choices": []}


def lines(events: list[Any], end: str = "\n", before: str = "", done: bool = True) -> bytes:
    """An event stream by hand."""
    data = [one if isinstance(one, str) else json.dumps(one, ensure_ascii=False) for one in events]
    return "".join(f"{before}data: {one}{end}{end}" for one in [*data, *(["[DONE]"] if done else [])]).encode()


def over_lines(event: Json) -> str:
    """An event whose JSON goes over several lines of data."""
    return json.dumps(event, ensure_ascii=False, indent=1).replace("\n", "\ndata: ")


WIRE: list[tuple[str, bytes]] = [
    ("plain", lines([*PIECES, STOP])),
    ("CR LF", lines([*PIECES, STOP], "\r\n")),
    ("CR", lines([*PIECES, STOP], "\r")),
    ("no space after the colon", lines([*PIECES, STOP]).replace(b"data: ", b"data:")),
    ("comments", lines([*PIECES, STOP], before=": keep-alive\n\n:\n")),
    ("names and ids of events", lines([*PIECES, STOP], before="event: message\nid: 7\nretry: 1000\n")),
    ("data over several lines", lines([over_lines(one) for one in [*PIECES, STOP]])),
    ("a byte order mark", b"\xef\xbb\xbf" + lines([*PIECES, STOP])),
    ("empty data between", lines([*PIECES, STOP], before="data:\n\n")),
    ("pings between", lines([*PIECES, STOP], before='event: ping\ndata: {"type": "ping"}\n\n')),
    ("no [DONE]", lines([*PIECES, STOP], done=False)),
    ("no blank line at the end", lines([*PIECES, STOP], done=False).rstrip(b"\n")),
    ("no finish reason", lines(PIECES)),
    ("an empty finish reason", lines([*PIECES, chunk({}, "")])),
    ("the finish reason with the last piece", lines([*PIECES[:-1], chunk({"content": SAID[-1]}, "stop")])),
    ("something after [DONE]", lines([*PIECES, STOP]) + lines([{"error": "too late"}, chunk({"content": "x"})])),
    ("usage at the end, no choices", lines([*PIECES, STOP, {"choices": [], "usage": COUNTED}])),
    ("usage in every event", lines([{**one, "usage": COUNTED} for one in [*PIECES, STOP]])),
    ("usage, then null", lines([{**PIECES[0], "usage": COUNTED}, *PIECES[1:], {**STOP, "usage": None}])),
    ("a filter report first", lines([FILTER_REPORT, *PIECES, STOP])),
    ("choices null between", lines([PIECES[0], {"choices": None}, {"id": "x"}, {}, *PIECES[1:], STOP])),
    (
        "nulls and nothing between",
        lines([PIECES[0], chunk(None), chunk({}), chunk({"content": None}), *PIECES[1:], STOP]),
    ),
    ("no delta", lines([PIECES[0], {"choices": [{"index": 0, "finish_reason": None}]}, *PIECES[1:], STOP])),
    ("the role in every event", lines([*(chunk({"role": "assistant", "content": one}) for one in SAID), STOP])),
    ("parts", lines([*(chunk({"content": [{"type": "text", "text": one}]}) for one in SAID), STOP])),
    ("a refusal", lines([*(chunk({"refusal": one}) for one in SAID), STOP])),
    ("reasoning first", lines([chunk({"reasoning_content": "Aha"}), *PIECES, STOP])),
    ("a whole message alone", lines([{"choices": [MESSAGE]}])),
    ("a whole message at the end", lines([*PIECES, {"choices": [{**MESSAGE, "delta": {}}]}])),
    ("escaped", "".join(f"data: {json.dumps(one)}\n\n" for one in [*PIECES, STOP]).encode()),
]


@pytest.mark.parametrize("content", [content for _, content in WIRE], ids=[name for name, _ in WIRE])
def test_an_answer_is_the_same_in_every_dialect_of_event_streams(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, content: bytes
) -> None:
    model.raw(content, content_type=SSE)
    outcome = ask(client, "/chat/stream", conversation_id)
    assert outcome.body.get("answer") == TEXT, outcome.text[-600:]
    assert outcome.deltas() == TEXT
    if b'"usage": {' in content:
        assert outcome.body["usage"] == {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}
    assert store.messages(conversation_id) == [("user", "Hi"), ("assistant", TEXT)]


@pytest.mark.parametrize("kind", ["text/event-stream", "text/event-stream;charset=UTF-8", "Text/Event-Stream"])
def test_an_event_stream_is_known_by_its_type_however_that_is_written(
    client: TestClient, model: ScriptedModel, conversation_id: str, kind: str
) -> None:
    model.raw(lines([*PIECES, STOP]), content_type=kind).raw(lines([*PIECES, STOP]), content_type=kind)
    assert ask(client, "/chat/stream", conversation_id).body["answer"] == TEXT
    assert ask(client, "/chat", conversation_id).body["answer"] == TEXT  # a stream that nobody asked for


def test_a_whole_body_in_answer_to_a_request_for_a_stream_is_told_in_one_piece(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    body = {"choices": [{"message": {"role": "assistant", "content": TEXT}, "finish_reason": "stop"}], "usage": COUNTED}
    model.raw(json.dumps(body))
    outcome = ask(client, "/chat/stream", conversation_id)
    assert [event.data for event in outcome.events if event.name == "delta"] == [{"text": TEXT, "step": 1}]
    assert outcome.body["usage"]["total_tokens"] == 3
    choice = {"message": {**WHOLE_AGAIN, "content": None}, "finish_reason": "tool_calls"}
    model.raw(json.dumps({"choices": [choice]})).says("Done.")
    assert ask(client, "/chat/stream", conversation_id).body["answer"] == "Done."
    assert RUNS == [("note", {"text": "a", "times": 1})]


def test_the_service_log_of_all_these_turns_shows_no_stack(service: Service) -> None:
    assert "Traceback" not in Path(service.log).read_text(encoding="utf-8")
