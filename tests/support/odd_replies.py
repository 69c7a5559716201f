"""Replies for a scripted model to send: calls with anything in their fields, answers in odd forms."""

from typing import Any

from tests.support.outcomes import LEAK
from tests.support.scripted_model import Json, ScriptedModel, completion

ABSENT = object()
GOOD = '{"text": "a"}'
THOUGHT_PART = {"type": "thinking", "thinking": [{"type": "text", "text": "Aha."}], "text": "Aha."}
HTML = f"<!DOCTYPE html><html><body><h1>{LEAK}</h1></body></html>"
WHOLE: Json = {"choices": [{"message": {"role": "assistant", "content": "Hello."}, "finish_reason": "stop"}]}


def call(name: Any, arguments: Any, call_id: Any = "call_1", kind: Any = "function") -> Json:
    """A tool call with anything in its fields; ABSENT leaves one out."""
    function = {"name": name, "arguments": arguments}
    whole = {"id": call_id, "type": kind, "function": {k: v for k, v in function.items() if v is not ABSENT}}
    return {k: v for k, v in whole.items() if v is not ABSENT}


def asks(
    model: ScriptedModel, *calls: Any, content: Any = None, finish_reason: Any = "tool_calls", **more: Any
) -> None:
    """The next reply asks for these calls."""
    message = {"role": "assistant", "content": content, "tool_calls": list(calls), **more}
    model.answers_by(completion(message, finish_reason), forever=False)


def fenced(text: str, word: str = "json") -> str:
    return f"```{word}\n{text}\n```"
