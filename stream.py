"""A turn told as it happens: events of text/event-stream, from a turn that does not wait for its listener.

The turn runs in a task of its own and leaves its news here; the answer to the caller takes them from here. A slow
reader gets the same text in fewer, larger pieces; one that leaves is no longer kept news for, and the turn goes on.
"""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any

from fastapi.responses import StreamingResponse

from errors import ChatError
from run import Event
from turn import Question, Replayed, Turn, Turns

SILENCE_S = 15.0  # after so long without news a comment keeps proxies from closing the connection

News = tuple[str, dict[str, Any] | str]  # the name of the event and its data, or its data as JSON already


# Nothing between us and the caller may keep the events back.
EVENT_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
# For the OpenAPI document: what one event is.
EVENT_SCHEMA = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "description": "counts 1, 2, 3 … within the stream"},
        "event": {"enum": ["started", "delta", "trace", "result", "error"]},
        "data": {"type": "string", "contentMediaType": "application/json"},
    },
    "required": ["id", "event", "data"],
}
EVENTS: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {"itemSchema": EVENT_SCHEMA}}}}


class EventStream(StreamingResponse):
    """An answer that is told as it happens."""

    media_type = "text/event-stream"


class Telling:
    """The news of one turn, in order, for one listener."""

    def __init__(self) -> None:
        self._news: deque[News] = deque()
        self._any = asyncio.Event()
        self._gone = False

    def add(self, name: str, data: dict[str, Any] | str) -> None:
        """Something happened."""
        if not self._gone:
            self._news.append((name, data))
            self._any.set()

    def trace(self, event: Event) -> None:
        """An event of the run."""
        self.add("trace", event)

    def text(self, step: int, piece: str) -> None:
        """A piece of text; joined to what still waits to be told, so that a slow reader costs no memory."""
        name, waiting = self._news[-1] if self._news else ("", "")
        if name == "delta" and isinstance(waiting, dict) and waiting["step"] == step:
            waiting["text"] += piece
        else:
            self.add("delta", {"text": piece, "step": step})

    async def wait(self) -> list[News]:
        """What has happened since the last call; empty after a long silence."""
        if not self._news:
            self._any.clear()
            try:
                async with asyncio.timeout(SILENCE_S):
                    await self._any.wait()
            except TimeoutError:
                return []
        news = list(self._news)
        self._news.clear()
        return news

    def leave(self) -> None:
        """Nobody listens any more."""
        self._gone = True
        self._news.clear()


async def begin_telling(
    turns: Turns,
    question: Question,
    body_of: Callable[[Turn], str],
    problem_of: Callable[[Exception], dict[str, Any]],
) -> tuple[AsyncIterator[bytes], bool]:
    """Begin a turn; its events as bytes, and whether they only repeat an earlier answer.

    The events: `started`, `delta` and `trace`, then one `result` or `error`; of a repeated answer the `result` alone.
    body_of, problem_of: the data of the last event. Raises ChatError where the turn cannot begin.
    """
    telling = Telling()
    begun = await turns.begin(question, telling.trace, telling.text, body_of)
    if isinstance(begun, Replayed):
        telling.add("result", begun.body)
        return encoded(telling), True
    telling.add("started", {"conversation_id": question.conversation_id, "run_id": begun.run_id})

    def ended(done: asyncio.Task[Turn]) -> None:
        try:
            turn = done.result()
            telling.add("result", turn.body or body_of(turn))
        except Exception as error:
            telling.add("error", problem_of(error))
        except asyncio.CancelledError:
            telling.add("error", problem_of(ChatError()))

    begun.task.add_done_callback(ended)
    return encoded(telling), False


async def encoded(telling: Telling) -> AsyncIterator[bytes]:
    """The news as they are written to the caller: an id, a name and one line of JSON each."""
    number = 0
    try:
        while True:
            news = await telling.wait()
            if not news:
                yield b": still at it\n\n"
            lines = []
            for name, data in news:
                number += 1
                text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
                lines.append(f"id: {number}\nevent: {name}\ndata: {text}\n\n")
            if lines:
                yield "".join(lines).encode()
            if news and news[-1][0] in ("result", "error"):
                return
    finally:
        telling.leave()
