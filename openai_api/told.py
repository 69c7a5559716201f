"""A turn told to a client of OpenAI's, whole or as it happens: pieces of text, then how it ended."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from fastapi import Response

from errors import ChatError
from shapes import REPLAYED, ChatReply
from stream import EVENT_HEADERS, EventStream, News, Telling
from tools import ToolCall
from turn import BodyOf, Question, Replayed, Turn, Turns

from .refusals import as_json

COMMENT = ": still at it\n\n"  # no event may have an id: the clients would take the blank line for an empty event


@dataclass(frozen=True)
class Underway:
    """A turn under way. first: its first news, or nothing where they keep us waiting."""

    run_id: str
    task: asyncio.Task[Turn]
    telling: Telling
    first: list[News]

    async def pieces(self) -> AsyncIterator[tuple[int, str] | None]:
        """Each piece of text with its step, None after a long silence, until the turn has ended."""
        news = self.first
        try:
            while True:
                if not news:
                    yield None
                for name, data in news:
                    if name == "ended":
                        return
                    assert isinstance(data, dict)
                    yield data["step"], data["text"]
                news = await self.telling.wait()
        finally:
            self.telling.leave()

    def turn(self) -> Turn:
        """How it ended. Raises what the turn raised; one that was cut off by our own end is a ChatError."""
        try:
            return self.task.result()
        except asyncio.CancelledError:
            raise ChatError from None


def handed_back(call: ToolCall) -> dict[str, Any]:
    """A call of the caller's own function: arguments that could not be read are the caller's to read, as they came."""
    told = call.as_dict()
    if call.arguments is None:
        told["function"]["arguments"] = call.written
    return told


async def tell(
    turns: Turns,
    question: Question,
    streamed: bool,
    whole: Callable[[Turn], dict[str, Any]],
    live: Callable[[Underway], AsyncIterator[str]],
    again: Callable[[str], AsyncIterator[str]],
) -> Response:
    """Answer a question: by its body, which `whole` makes of the turn, or `streamed` by the events of `live`.

    What was answered before is the same body, or the events that `again` makes of it. Raises what the turn raises.
    """

    def body_of(turn: Turn) -> str:
        return as_json(whole(turn))

    if not streamed:
        turn = await turns.answer(question, body_of)
        headers = REPLAYED if isinstance(turn, Replayed) else None
        text = turn.body or body_of(turn) if isinstance(turn, Turn) else turn.body
        return Response(text, headers=headers, media_type="application/json")
    begun = await begin(turns, question, body_of)
    if isinstance(begun, Replayed):
        return EventStream(again(begun.body), headers=EVENT_HEADERS | REPLAYED)
    return EventStream(live(begun), headers=EVENT_HEADERS)


async def begin(turns: Turns, question: Question, body_of: BodyOf) -> Underway | Replayed:
    """Begin a turn and wait for its first news, so that one that fails at once is an ordinary error. Raises it."""
    telling = Telling()
    begun = await turns.begin(question, on_text=telling.text, body_of=body_of)
    if isinstance(begun, Replayed):
        return begun
    begun.task.add_done_callback(lambda _: telling.add("ended", {}))
    underway = Underway(begun.run_id, begun.task, telling, await telling.wait())
    if begun.task.done():
        underway.turn()
    return underway


def event(data: dict[str, Any], name: str = "") -> str:
    """One event of a stream."""
    return f"event: {name}\ndata: {as_json(data)}\n\n" if name else f"data: {as_json(data)}\n\n"


def facts_of(turn: Turn, language: str) -> dict[str, Any]:
    """What `/chat` would say of the turn beside its answer: the field `turnkeeper`, which OpenAI does not have."""
    return ChatReply.of(turn, language, False).model_dump(exclude_unset=True, exclude={"answer", "usage"})
