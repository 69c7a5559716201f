"""A response as it happens: the events `response.…`, in order, with sequence numbers.

Each step that says something is an item of its own. The last one is the answer; what was said on the way to a tool call
is closed as `commentary` and is not part of the response.
"""

import json
from collections.abc import AsyncIterator
from typing import Any

from errors import ChatError
from problems import as_chat_error

from .refusals import error_of
from .response_bodies import Asked, answer_id, blank, message_item, response_of, text_part
from .told import COMMENT, Underway, event


class Script:
    """Writes the events of one response. Each method gives them as text, ready to be sent."""

    def __init__(self) -> None:
        self._number = -1
        self._index = -1  # of the item that is being written
        self._item = ""  # its id; empty between items
        self._said: list[str] = []

    @property
    def said(self) -> str:
        """What the item that is being written says so far."""
        return "".join(self._said)

    def event(self, kind: str, **data: Any) -> str:
        """One event."""
        self._number += 1
        return event({"type": kind, "sequence_number": self._number, **data}, kind)

    def opening(self, response: dict[str, Any]) -> str:
        """The first two events."""
        return self.event("response.created", response=response) + self.event("response.in_progress", response=response)

    def text(self, item: str, piece: str) -> str:
        """A piece of text of an item, which is opened where it is not the one that is being written."""
        opened = ""
        if item != self._item:
            opened = self.close("commentary") if self._item else ""
            self._index, self._item, self._said = self._index + 1, item, []
            empty = {**message_item(item, "", "in_progress"), "content": []}
            opened += self.event("response.output_item.added", output_index=self._index, item=empty)
            opened += self.event("response.content_part.added", **self._here(), part=text_part(""))
        self._said.append(piece)
        return opened + self.event("response.output_text.delta", **self._here(), delta=piece, logprobs=[])

    def close(self, phase: str = "", status: str = "completed") -> str:
        """The end of the item that is being written."""
        item, here, said = message_item(self._item, self.said, status), self._here(), self.said
        if phase:
            item["phase"] = phase
        self._item = ""
        return (
            self.event("response.output_text.done", **here, text=said, logprobs=[])
            + self.event("response.content_part.done", **here, part=text_part(said))
            + self.event("response.output_item.done", output_index=self._index, item=item)
        )

    def call(self, item: dict[str, Any]) -> str:
        """A call of one of the caller's functions, whole."""
        self._index += 1
        here = {"item_id": item["id"], "output_index": self._index}
        opened = {**item, "arguments": "", "status": "in_progress"}
        arguments = item["arguments"]
        return (
            self.event("response.output_item.added", output_index=self._index, item=opened)
            + self.event("response.function_call_arguments.delta", **here, delta=arguments)
            + self.event("response.function_call_arguments.done", **here, arguments=arguments)
            + self.event("response.output_item.done", output_index=self._index, item=item)
        )

    def ending(self, response: dict[str, Any]) -> str:
        """All that is left to say: the rest of the answer, the calls, how it ended."""
        told = ""
        for item in response["output"]:
            if item["type"] == "function_call":
                told += (self.close() if self._item else "") + self.call(item)
                continue
            text = item["content"][0]["text"]
            said = self.said if self._item == item["id"] else ""
            if text.startswith(said) and len(text) > len(said):
                told += self.text(item["id"], text[len(said) :])
        if self._item:
            told += self.close("", "completed" if response["output"] else "incomplete")
        return told + self.event(f"response.{response['status']}", response=response)

    def _here(self) -> dict[str, Any]:
        return {"item_id": self._item, "output_index": self._index, "content_index": 0}


async def events(asked: Asked, underway: Underway) -> AsyncIterator[str]:
    """The events of a response under way."""
    script, begun = Script(), blank(asked, underway.run_id)
    yield script.opening(begun)
    async for piece in underway.pieces():
        yield COMMENT if piece is None else script.text(answer_id(underway.run_id, piece[0]), piece[1])
    try:
        turn = underway.turn()
    except Exception as error:
        failed = failure(begun, as_chat_error(error, "POST"), asked.language)
        yield script.ending(failed)
        return
    yield script.ending(json.loads(turn.body) if turn.body else response_of(asked, turn))


async def repeated(body: str) -> AsyncIterator[str]:
    """The events of a response that was given before."""
    script, response = Script(), json.loads(body)
    begun: dict[str, Any] = {"status": "in_progress", "completed_at": None, "output": [], "usage": None}
    yield script.opening({**response, **begun})
    yield script.ending(response)


def failure(begun: dict[str, Any], error: ChatError, language: str) -> dict[str, Any]:
    """The response of a turn that ended in an error: nothing of it is stored. `code` is one that OpenAI has."""
    told = error_of(error, language)
    code = "rate_limit_exceeded" if told["type"] == "rate_limit_error" else "server_error"
    facts = {"code": error.code, "status": error.status}
    return {
        **begun,
        "status": "failed",
        "error": {"code": code, "message": told["message"]},
        "store": False,
        "turnkeeper": facts,
    }
