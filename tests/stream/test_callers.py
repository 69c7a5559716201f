"""Callers that leave, and callers that are slow."""

import asyncio
import json
import socket
import time
from typing import Any

from stream import Telling
from tests.conftest import MakeClient, Service, Store
from tests.support.scripted_model import ScriptedModel
from tests.support.stream import listen, listening, written
from tests.support.ways import ask, read_events


def wait_for_rows(store: Store, conversation_id: str, count: int) -> list[tuple[str, str]]:
    """The messages of a conversation, once there are as many."""
    for _ in range(600):
        if len(rows := store.messages(conversation_id)) >= count:
            return rows
        time.sleep(0.05)
    raise AssertionError(f"waited in vain for {count} rows; there are {store.messages(conversation_id)}")


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
