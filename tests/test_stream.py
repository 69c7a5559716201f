"""`POST /chat/stream`: the turn as it happens, byte by byte, whatever the model streams and whoever leaves."""

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import httpx2
import pytest
from fastapi.testclient import TestClient

import model as model_module
import stream as stream_module
from config import Settings
from errors import ModelError
from main import create_app
from stream import Telling, begin_telling, encoded
from tests.conftest import SOON, MakeClient, Service, Store
from tests.support.recording_tools import RUNS
from tests.support.scripted_model import ScriptedModel
from tests.support.ways import Outcome, StreamEvent, ask, read_events, streamed
from turn import Begun, Question, Turns

Json = dict[str, Any]
TOOLS = "tests.support.recording_tools"


@pytest.fixture(scope="module")
def shared_model() -> Iterator[ScriptedModel]:
    with ScriptedModel() as scripted:
        yield scripted


@pytest.fixture
def model(shared_model: ScriptedModel) -> Iterator[ScriptedModel]:
    """One model for all tests here, as the service of them all knows only one address."""
    shared_model.reset()
    RUNS.clear()
    yield shared_model
    shared_model.finish()


@pytest.fixture(scope="module")
def shared_service(
    store: Store, shared_model: ScriptedModel, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    environment = {name.upper(): str(value) for name, value in (SOON | store.settings).items()}
    environment |= {"API_KEY": "sk-test", "BASE_URL": shared_model.base_url, "DEFAULT_MODEL": "scripted"}
    log = tmp_path_factory.mktemp("stream") / "service.log"
    service = Service(environment | {"ENV_FILE": "", "TOOLSETS": TOOLS}, log)
    yield service.start()
    service.close()


@pytest.fixture
def service(shared_service: Service, model: ScriptedModel) -> Service:
    """The service as a process of its own."""
    return shared_service


@pytest.fixture(scope="module")
def shared_client(store: Store, shared_model: ScriptedModel) -> Iterator[TestClient]:
    more: Json = {"api_key": "sk-test", "base_url": shared_model.base_url, "default_model": "scripted"}
    given: Json = {**SOON, **store.settings, **more, "toolsets": (TOOLS,)}
    app = create_app(Settings(**given))
    with TestClient(app, base_url="http://127.0.0.1", client=("127.0.0.1", 50000)) as client:
        yield client


@pytest.fixture
def client(shared_client: TestClient, monkeypatch: pytest.MonkeyPatch) -> TestClient:
    """The service in this process, where the way that the bytes take to the caller does not matter."""
    monkeypatch.setattr(model_module, "FIRST_PAUSE_S", 0.001)
    return shared_client


@contextlib.contextmanager
def listening(
    service: Service, conversation_id: str, message: str = "Hi", **more: Any
) -> Iterator[tuple[httpx2.Response, Iterator[StreamEvent]]]:
    """A stream that is read as it arrives: the answer, and its events one by one."""
    body = {"conversation_id": conversation_id, "message": message, **more}
    with service.http.stream("POST", "/chat/stream", json=body) as answer:

        def events() -> Iterator[StreamEvent]:
            rest = b""
            for piece in answer.iter_raw():
                *blocks, rest = (rest + piece).split(b"\n\n")
                for block in blocks:
                    yield from read_events(block + b"\n\n")
            assert rest == b""

        yield answer, events()


def listen(service: Service, conversation_id: str, message: str = "Hi", **more: Any) -> Outcome:
    """A stream that was read to its end."""
    answer = service.http.post("/chat/stream", json={"conversation_id": conversation_id, "message": message, **more})
    assert answer.status_code == 200, answer.text
    return streamed(answer.content, answer.headers)


def wait_for_rows(store: Store, conversation_id: str, count: int) -> list[tuple[str, str]]:
    """The messages of a conversation, once there are as many."""
    for _ in range(600):
        if len(rows := store.messages(conversation_id)) >= count:
            return rows
        time.sleep(0.05)
    raise AssertionError(f"waited in vain for {count} rows; there are {store.messages(conversation_id)}")


def chunk(delta: Any, finish_reason: Any = None, **more: Any) -> Json:
    """One event of a model's stream."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice], **more}


def written(text: str, size: int = 1) -> list[Json | str]:
    """The events of an answer written in pieces of so many characters."""
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    return [*(chunk({"content": piece}) for piece in pieces), chunk({}, "stop")]


# ---------------------------------------------------------------------------------------- what the caller is told


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


# ---------------------------------------------------------------------------------------- silence


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


# ---------------------------------------------------------------------------------------- callers that leave


def send_and_leave(service: Service, conversation_id: str, message: str = "Hi") -> None:
    """Send the request, and be gone before anything can have been answered."""
    body = json.dumps({"conversation_id": conversation_id, "message": message}).encode()
    head = f"POST /chat/stream HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", service.port)) as connection:
        connection.sendall(head.encode() + body)


def test_a_caller_that_leaves_at_once_does_not_lose_the_turn(
    service: Service, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    model.says("Done.", delay_s=0.3)
    send_and_leave(service, conversation_id)
    assert wait_for_rows(store, conversation_id, 2) == [("user", "Hi"), ("assistant", "Done.")]


def test_a_caller_that_leaves_in_mid_stream_does_not_lose_the_turn_and_the_next_message_waits_for_it(
    service: Service, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    words = "one two three four five six "
    model.events(written(words, 4), gap_s=0.1).says("I know.")
    with listening(service, conversation_id) as (_, arriving):
        next(event for event in arriving if event.name == "delta")
    assert store.messages(conversation_id) == []
    assert listen(service, conversation_id, "What was it?").body["answer"] == "I know."
    assert [content for _, content in store.messages(conversation_id)] == ["Hi", words, "What was it?", "I know."]
    assert [m["content"] for m in model.requests[-1]["messages"][1:]] == ["Hi", words, "What was it?"]


def test_a_caller_that_leaves_during_a_tool_does_not_lose_the_turn(
    service: Service, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    model.asks_for("pause", seconds=0.5).then_says("Done.")
    with listening(service, conversation_id) as (_, arriving):
        next(event for event in arriving if event.data.get("type") == "tool_call")
    assert wait_for_rows(store, conversation_id, 2) == [("user", "Hi"), ("assistant", "Done.")]
    assert len(model.requests) == 2


def test_a_caller_that_left_an_endless_reply_leaves_nothing_behind_and_the_service_goes_on(
    client_for: MakeClient, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    model.hangs()
    client = client_for(turn_timeout_s=0.5)
    outcome = ask(client, "/chat/stream", conversation_id)
    assert outcome.body["stop_reason"] == "timeout"
    model.wait_until(lambda: model.closed_early == 1)
    assert store.messages(conversation_id) == []


# ---------------------------------------------------------------------------------------- callers that are slow


def test_text_that_waits_to_be_told_is_joined_so_that_a_slow_reader_costs_no_memory() -> None:
    async def read() -> tuple[list[Any], list[Any]]:
        telling = Telling()
        for _ in range(100_000):
            telling.text(piece="a", step=1)
        telling.trace({"type": "model_response", "step": 1})
        for _ in range(1000):
            telling.text(piece="b", step=2)
        first = await telling.wait()
        telling.text(piece="c", step=2)
        return first, await telling.wait()

    first, second = asyncio.run(read())
    assert [name for name, _ in first] == ["delta", "trace", "delta"]
    assert first[0][1] == {"text": "a" * 100_000, "step": 1}
    assert first[2][1] == {"text": "b" * 1000, "step": 2}
    assert second == [("delta", {"text": "c", "step": 2})]  # what was told already does not grow


def test_of_a_listener_that_left_nothing_is_kept() -> None:
    telling = Telling()
    telling.text(piece="a", step=1)
    telling.leave()
    for _ in range(100):
        telling.text(piece="a", step=1)
        telling.trace({"type": "model_request"})
    telling.add("result", {})
    assert not telling._news


def test_a_reader_that_does_not_read_slows_no_turn_and_still_gets_every_byte(
    service: Service, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    text = "字" * 190_000
    model.events(written(text, 1000))
    body = json.dumps({"conversation_id": conversation_id, "message": "Hi"}).encode()
    head = "POST /chat/stream HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(20)
        connection.connect(("127.0.0.1", service.port))
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        assert wait_for_rows(store, conversation_id, 2)[1] == ("assistant", text)  # nobody has read a byte yet
        content = b""
        while piece := connection.recv(65_536):
            content += piece
    told = content.partition(b"\r\n\r\n")[2]
    assert told.endswith(b"0\r\n\r\n")
    events = read_events(without_chunks(told))
    assert events[-1].data["answer"] == text
    assert "".join(event.data["text"] for event in events if event.name == "delta") == text


def without_chunks(content: bytes) -> bytes:
    """The body within HTTP's chunks."""
    whole = b""
    while content:
        size, _, content = content.partition(b"\r\n")
        whole += content[: int(size, 16)]
        content = content[int(size, 16) + 2 :]
    return whole


def test_after_the_last_event_the_connection_closes_for_one_who_asked_for_it(
    service: Service, model: ScriptedModel, conversation_id: str
) -> None:
    for status in (None, 400):
        model.fails(status) if status else model.says("Done.")
        body = json.dumps({"conversation_id": conversation_id, "message": "Hi"}).encode()
        head = "POST /chat/stream HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
        with socket.create_connection(("127.0.0.1", service.port), timeout=10) as connection:
            connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            content = b""
            while piece := connection.recv(65_536):  # ends because the other side closes
                content += piece
        assert content.count(b"event: result") + content.count(b"event: error") == 1


# ---------------------------------------------------------------------------------------- turns that fail

HALF = [chunk({"role": "assistant", "content": "Half "}), chunk({"content": "an ans"})]
HALF_CALL = [chunk({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "note", "arguments": '{"te'}}]})]
WHOLE_CALL = [
    chunk({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "note", "arguments": '{"text":"a"}'}}]})
]
BROKEN: list[tuple[str, Callable[[ScriptedModel], Any]]] = [
    ("no end", lambda m: m.events(HALF, done=False)),
    ("an error object", lambda m: m.events([*HALF, {"error": {"message": "LEAK", "code": 500}}])),
    ("an error text", lambda m: m.events([*HALF, {"error": "LEAK"}])),
    ("a rate limit", lambda m: m.events([*HALF, {"error": {"message": "LEAK", "code": 429}}])),
    ("given up", lambda m: m.events([*HALF, chunk({}, "error")])),
    ("no JSON", lambda m: m.events([*HALF, "LEAK"])),
    ("half an event", lambda m: m.events([*HALF, '{"choices": [{"del'], done=False)),
    ("a list", lambda m: m.events([*HALF, "[]"])),
    ("cut", lambda m: m.cuts_after(300, "".join(f"data: {json.dumps(c)}\n\n" for c in HALF * 9), content_type=SSE)),
]
SSE = "text/event-stream"


@pytest.mark.parametrize("script", [script for _, script in BROKEN], ids=[name for name, _ in BROKEN])
def test_a_stream_of_the_model_that_breaks_after_some_text_is_one_error_and_nothing_is_stored(
    client: TestClient,
    store: Store,
    model: ScriptedModel,
    conversation_id: str,
    script: Callable[[ScriptedModel], Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    script(model)
    outcome = ask(client, "/chat/stream", conversation_id)
    assert (outcome.events[-1].name, outcome.status) in (("error", 502), ("error", 429), ("error", 503))
    assert outcome.deltas().startswith("Half")
    assert {"type", "title", "status", "detail", "code", "run_id"} == set(outcome.body)
    assert "LEAK" not in outcome.text + caplog.text
    assert len(model.requests) == 1  # text was passed on, so it is not tried again
    assert store.messages(conversation_id) == []
    model.says("Still here.")
    assert ask(client, "/chat/stream", conversation_id).body["turn"] == 1


def test_a_stream_that_says_too_late_that_it_is_too_long_is_not_begun_again(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    model.says("First.")
    assert ask(client, "/chat/stream", conversation_id).body["turn"] == 1
    model.events([*HALF, {"error": {"message": "LEAK", "code": "context_length_exceeded"}}])
    outcome = ask(client, "/chat/stream", conversation_id)
    assert (outcome.status, outcome.body["code"], outcome.deltas()) == (502, "model_error", "Half an ans")
    model.events([{"error": {"message": "LEAK", "code": "context_length_exceeded"}}]).says("Second.")
    outcome = ask(client, "/chat/stream", conversation_id)  # before any text it is
    assert (outcome.body["answer"], outcome.deltas()) == ("Second.", "Second.")
    assert "1 of 1 turns" in outcome.body["notice"]
    assert len(store.messages(conversation_id)) == 4


@pytest.mark.parametrize(
    "events",
    [HALF_CALL, WHOLE_CALL, [*HALF_CALL, {"error": {"message": "LEAK"}}], [*WHOLE_CALL, {"error": "LEAK"}]],
    ids=["half a call", "a whole call", "half a call and an error", "a whole call and an error"],
)
def test_no_call_of_a_stream_that_broke_is_carried_out(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, events: list[Json]
) -> None:
    for _ in range(model_module.RETRIES + 1):
        model.events(events, done=False)
    outcome = ask(client, "/chat/stream", conversation_id)
    assert (outcome.status, outcome.body["code"]) == (502, "model_error")
    assert not RUNS
    assert store.messages(conversation_id) == []
    model.events(events, done=False).says("Hello.")
    assert ask(client, "/chat/stream", conversation_id).body["answer"] == "Hello."
    assert not RUNS


def test_a_stream_that_broke_before_any_text_was_passed_on_is_asked_for_again(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    model.events([chunk({"role": "assistant", "content": ""})], done=False)
    model.events([chunk({"reasoning_content": "Aha."})], done=False)
    model.says("Hello.")
    outcome = ask(client, "/chat/stream", conversation_id)
    assert (outcome.body["answer"], outcome.deltas()) == ("Hello.", "Hello.")


def test_a_stream_of_the_model_without_end_is_one_early_stop_and_nothing_is_stored(
    client_for: MakeClient, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    client = client_for(max_answer_chars=2_000)
    model.events([chunk({"content": "word " * 10})] * 1_000)
    outcome = ask(client, "/chat/stream", conversation_id)
    assert outcome.body["stop_reason"] == "length"
    assert len(outcome.deltas()) < 3_000
    assert store.messages(conversation_id) == []


def test_a_stream_of_the_model_that_is_too_slow_is_one_error_and_nothing_is_stored(
    client_for: MakeClient, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    client = client_for(model_timeout_s=0.5)
    model.events([chunk({"content": "word "})] * 1_000, gap_s=0.05)
    outcome = ask(client, "/chat/stream", conversation_id)
    assert (outcome.status, outcome.body["code"]) == (504, "model_timeout")
    assert outcome.deltas().startswith("word ")
    model.wait_until(lambda: model.closed_early == 1)
    assert store.messages(conversation_id) == []


def test_a_turn_whose_result_cannot_be_made_ends_with_an_error_event_too() -> None:
    class Ending:
        """Turns whose only one ends as it is told to."""

        def __init__(self, end: Callable[[], Any]) -> None:
            self.end = end

        async def begin(self, *_: Any) -> Begun:
            async def turn() -> Any:
                await asyncio.sleep(0)
                return self.end()

            return Begun("run", asyncio.create_task(turn()))

    def fail() -> Any:
        raise ModelError

    def cancel() -> Any:
        raise asyncio.CancelledError

    class Result:
        body = None

    async def told(end: Callable[[], Any]) -> bytes:
        def body_of(_: Any) -> str:
            raise RecursionError("too deep")

        turns = cast("Turns", Ending(end))
        events, _ = await begin_telling(turns, Question("", "c", "m"), body_of, lambda error: {"code": repr(error)})
        async with asyncio.timeout(5):
            return b"".join([event async for event in events])

    for end, said in ((fail, "ModelError"), (cancel, "ChatError"), (Result, "RecursionError")):
        events = read_events(asyncio.run(told(end)))
        assert [event.name for event in events] == ["started", "error"]
        assert said in events[-1].data["code"]


# ---------------------------------------------------------------------------------------- before a stream begins

REFUSED: list[tuple[Any, int, str]] = [
    ({"conversation_id": "a"}, 422, "invalid_request"),
    ({"conversation_id": "a", "message": " "}, 422, "invalid_request"),
    ({"conversation_id": "a", "message": "Hi", "stream": True}, 422, "invalid_request"),
    ({"conversation_id": "a\n", "message": "Hi"}, 422, "invalid_request"),
    ({"conversation_id": "a", "message": "x" * 32_001}, 422, "invalid_request"),
    ({"conversation_id": "a", "message": "x" * 10_000_000}, 413, "body_too_large"),
    ([], 422, "invalid_request"),
]


@pytest.mark.parametrize(("body", "status", "code"), REFUSED, ids=range(len(REFUSED)))
def test_a_request_that_is_refused_gets_an_ordinary_answer(
    service: Service, model: ScriptedModel, body: Any, status: int, code: str
) -> None:
    answer = service.http.post("/chat/stream", json=body)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert answer.headers["content-type"] == "application/problem+json"
    assert not model.requests


@contextlib.contextmanager
def turn_under_way(client: TestClient, model: ScriptedModel, conversation_id: str) -> Iterator[None]:
    """Another turn that is being answered meanwhile."""
    outcomes: list[Outcome] = []
    model.says("Slow.", delay_s=0.7)
    thread = threading.Thread(target=lambda: outcomes.append(ask(client, "/chat/stream", conversation_id)))
    thread.start()
    model.wait_for_requests(1)
    yield
    thread.join(10)
    assert outcomes[0].body["answer"] == "Slow."


def test_too_many_turns_at_once_get_an_ordinary_answer(
    client_for: MakeClient, model: ScriptedModel, conversation_id: str
) -> None:
    client = client_for(max_in_flight=1)
    with turn_under_way(client, model, conversation_id):
        answer = client.post("/chat/stream", json={"conversation_id": conversation_id + "2", "message": "Hi"})
    assert (answer.status_code, answer.json()["code"]) == (503, "overloaded")
    assert int(answer.headers["retry-after"]) >= 1
    model.says("Hello.")
    assert ask(client, "/chat/stream", conversation_id).body["turn"] == 2


def test_a_busy_conversation_gets_an_ordinary_answer_where_the_service_rejects(
    client_for: MakeClient, model: ScriptedModel, conversation_id: str
) -> None:
    client = client_for(conversation_busy="reject")
    with turn_under_way(client, model, conversation_id):
        answer = client.post("/chat/stream", json={"conversation_id": conversation_id, "message": "Hi"})
    assert (answer.status_code, answer.json()["code"]) == (409, "turn_conflict")
    model.says("Hello.")
    assert ask(client, "/chat/stream", conversation_id).body["turn"] == 2


# ---------------------------------------------------------------------------------------- the streams of vendors


_ = object()  # left out
Part = tuple[Any, ...]  # index, id, name and arguments of a call in a delta


def part(index: Any = _, call_id: Any = _, name: Any = _, arguments: Any = _) -> Json:
    """One tool call in a delta, with what is given only."""
    function = {k: v for k, v in {"name": name, "arguments": arguments}.items() if v is not _}
    whole = {"index": index, "id": call_id, "function": function or _}
    return {k: v for k, v in whole.items() if v is not _}


def asked(*parts: Any, **more: Any) -> Json:
    """The event with these calls, or parts of them."""
    return chunk({"tool_calls": [part(*one) if isinstance(one, tuple) else one for one in parts], **more})


A, B = '{"text": "a"}', '{"text": "b"}'
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
