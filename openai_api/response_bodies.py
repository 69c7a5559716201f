"""The bodies of the Responses API: a response under way, ended, or read back from the two messages that are kept."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tools import ToolCall
from turn import Question, Turn

from .names import item_id, new_id, response_id
from .told import facts_of, handed_back


@dataclass(frozen=True)
class Asked:
    """A request as it was understood. named: the conversation is the caller's choice; sent: the body that came."""

    question: Question
    model: str
    language: str
    named: bool
    sent: dict[str, Any]
    created: int = field(default_factory=lambda: int(time.time()))


def blank(asked: Asked, run_id: str) -> dict[str, Any]:
    """A response with nothing in it yet."""
    sent, conversation_id = asked.sent, asked.question.conversation_id
    return {
        "id": response_id(run_id, conversation_id),
        "object": "response",
        "created_at": asked.created,
        "status": "in_progress",
        "completed_at": None,
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": sent["instructions"],
        "max_output_tokens": None,
        "max_tool_calls": sent["max_tool_calls"],
        "model": asked.model,
        "output": [],
        "parallel_tool_calls": sent["parallel_tool_calls"] is not False,
        "previous_response_id": sent["previous_response_id"],
        "conversation": {"id": conversation_id} if conversation_id is not None else None,
        "reasoning": {"effort": None, "summary": None},
        "service_tier": "default",
        "store": conversation_id is not None,
        "temperature": None,
        "text": {"format": {"type": "text"}},
        "tool_choice": sent["tool_choice"] or "auto",
        "tools": sent["tools"] or [],
        "top_p": None,
        "truncation": "disabled",
        "usage": None,
        "user": None,
        "metadata": sent["metadata"] or {},
    }


def response_of(asked: Asked, turn: Turn) -> dict[str, Any]:
    """The response of a turn that has ended. Where it stopped early there is no output and `turnkeeper` says why."""
    result, body = turn.result, blank(asked, turn.result.run.id)
    body["usage"] = usage_of(turn)
    body["turnkeeper"] = facts_of(turn, asked.language)
    if result.stop_reason in ("completed", "tool_calls"):
        body["status"], body["completed_at"] = "completed", int(time.time())
        body["output"] = output_of(asked, turn)
    else:
        body["status"] = "incomplete"
        filtered = result.stop_reason == "content_filter"
        body["incomplete_details"] = {"reason": "content_filter" if filtered else "max_output_tokens"}
        body["store"] = False
        if not asked.named:
            body["conversation"] = None
    return body


def output_of(asked: Asked, turn: Turn) -> list[dict[str, Any]]:
    """The answer as an item, and the calls of the caller's functions."""
    run_id, calls = turn.result.run.id, turn.result.handed_back
    items = []
    if turn.result.answer:
        items.append(message_item(answer_id(run_id, turn.result.budget.steps), turn.result.answer))
    wanted = calls[:1] if asked.sent["parallel_tool_calls"] is False else calls
    return items + [call_item(f"{new_id('fc', run_id)}_{at}", call) for at, call in enumerate(wanted)]


def answer_id(run_id: str, step: int) -> str:
    """The id of a text of a run: it has to be known while the text is written, before it is known to be the answer."""
    return f"{new_id('msg', run_id)}_{step}"


def text_part(text: str) -> dict[str, Any]:
    """The content of an answer."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def message_item(number: str, text: str, status: str = "completed") -> dict[str, Any]:
    """A text of the model as an item."""
    return {"id": number, "type": "message", "role": "assistant", "status": status, "content": [text_part(text)]}


def call_item(number: str, call: ToolCall) -> dict[str, Any]:
    """A call of one of the caller's functions as an item."""
    function = handed_back(call)["function"]
    return {"id": number, "type": "function_call", "status": "completed", "call_id": call.id, **function}


def input_item(row: dict[str, Any]) -> dict[str, Any]:
    """A stored message of the user as an item. row: as memory.py gives it."""
    content = [{"type": "input_text", "text": row["content"]}]
    number = item_id(row["id"], row["run_id"])
    return {"id": number, "type": "message", "role": "user", "status": "completed", "content": content}


def stored_item(row: dict[str, Any]) -> dict[str, Any]:
    """A stored message as an item."""
    return input_item(row) if row["role"] == "user" else message_item(item_id(row["id"], row["run_id"]), row["content"])


def usage_of(turn: Turn) -> dict[str, Any] | None:
    """Tokens as the model's service counted them; None where it did not."""
    usage = turn.result.usage
    if usage.input_tokens is None or usage.output_tokens is None:
        return None
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.input_tokens + usage.output_tokens if usage.total_tokens is None else usage.total_tokens,
    }


UNKNOWN: dict[str, Any] = dict.fromkeys(
    ("instructions", "max_tool_calls", "parallel_tool_calls", "previous_response_id", "tool_choice", "tools")
) | {"metadata": None}


def stored_response(number: str, conversation_id: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A response read back. rows: its question and its answer, as memory.py gives them."""
    question, answer = rows
    asked = Asked(
        Question("", conversation_id, question["content"]),
        model="unknown",
        language="en",
        named=True,
        sent=UNKNOWN,
        created=int(question["created_at"].timestamp()),
    )
    done = int(answer["created_at"].timestamp())
    return {
        **blank(asked, answer["run_id"]),
        "id": number,
        "status": "completed",
        "completed_at": done,
        "output": [stored_item(answer)],
    }
