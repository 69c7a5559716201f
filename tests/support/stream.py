"""Streams that are listened to, and streams that the model writes."""

import contextlib
from collections.abc import Iterator
from typing import Any

import httpx2

from tests.conftest import Service
from tests.support.ways import Outcome, StreamEvent, read_events, streamed

Json = dict[str, Any]


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


def chunk(delta: Any, finish_reason: Any = None, **more: Any) -> Json:
    """One event of a model's stream."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice], **more}


def written(text: str, size: int = 1) -> list[Json | str]:
    """The events of an answer written in pieces of so many characters."""
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    return [*(chunk({"content": piece}) for piece in pieces), chunk({}, "stop")]


SSE = "text/event-stream"


_ = object()  # left out


def part(index: Any = _, call_id: Any = _, name: Any = _, arguments: Any = _) -> Json:
    """One tool call in a delta, with what is given only."""
    function = {k: v for k, v in {"name": name, "arguments": arguments}.items() if v is not _}
    whole = {"index": index, "id": call_id, "function": function or _}
    return {k: v for k, v in whole.items() if v is not _}


A, B = '{"text": "a"}', '{"text": "b"}'
