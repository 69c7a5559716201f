"""`POST /v1/chat/completions`, whole and as it is written.

Without a conversation the caller's own messages are the history and nothing is stored. With `X-Conversation-Id` the
stored history is, only the last message of the user is taken, and the turn is stored as `/chat` stores it.
"""

import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from idempotency import fingerprint_of
from problems import as_chat_error, check_length, language_of
from runtime import Caller, Runtime
from shapes import IdempotencyKey
from turn import Question, Turn

from .given import Given, read_messages, read_tools
from .names import conversation_in_header
from .refusals import ERRORS, Refused, check_sendable, error_of, refuse_others
from .told import COMMENT, Underway, event, facts_of, handed_back, tell

NOTHING_ELSE: dict[str, tuple[Any, ...]] = {  # what would change the answer's meaning, with what asks for nothing
    "n": (1,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "response_format": ({"type": "text"},),
    "tool_choice": ("auto", "none"),
    "functions": ([],),
    "function_call": ("auto", "none"),
    "audio": (),
    "modalities": (["text"],),
    "stop": ([], ""),
    "logit_bias": ({},),
    "moderation": (),
    "web_search_options": (),
}


class StreamOptions(BaseModel):
    """How a stream is told."""

    include_usage: bool | None = None


class CompletionRequest(BaseModel):
    """A request for a chat completion. Parameters that are not named here are ignored or refused: docs/openai.md."""

    model_config = ConfigDict(extra="allow", strict=True)

    messages: list[dict[str, Any]] = Field(min_length=1)
    model: str | None = Field(None, max_length=200)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None


@dataclass(frozen=True)
class Asked:
    """A request as it was understood. one_call: of several calls of the caller's functions only the first is wanted."""

    question: Question
    model: str
    language: str
    one_call: bool = False
    with_usage: bool = False
    created: int = field(default_factory=lambda: int(time.time()))


def add_completions(router: APIRouter, runtime: Runtime, caller: Caller) -> None:
    """Add the route."""
    turns = runtime.turns
    Owner = Annotated[str, Depends(caller)]
    ConversationHeader = Annotated[str | None, Header(alias="X-Conversation-Id")]

    @router.post("/v1/chat/completions", tags=["openai"], responses=ERRORS)
    async def create_chat_completion(
        body: CompletionRequest,
        request: Request,
        owner: Owner,
        conversation: ConversationHeader = None,
        key: IdempotencyKey = None,
    ) -> Response:
        """Answer the messages, or the last one in a stored conversation. With `stream`, chunks and then `[DONE]`."""
        name = conversation_in_header(conversation)
        asked = understood(runtime, body, owner, name, key if name is not None else None, language_of(request))
        whole, live, again = partial(completion_of, asked), partial(chunks, asked), partial(repeated, asked)
        return await tell(turns, asked.question, bool(body.stream), whole, live, again)


def understood(
    runtime: Runtime, body: CompletionRequest, owner: str, conversation_id: str | None, key: str | None, language: str
) -> Asked:
    """What is asked. Raises Refused for what this service does not do."""
    refuse_others({**(body.model_extra or {}), "tool_choice": body.tool_choice}, NOTHING_ELSE)
    check_sendable("model", body.model)
    check_sendable("messages", body.messages)
    check_sendable("tools", body.tools)
    given = read_messages(body.messages)
    tools = read_tools(body.tools or (), runtime.tools, "function")
    question = Question(
        owner=owner,
        conversation_id=conversation_id,
        message=given.last_user,
        model=body.model or None,
        instructions="\n\n".join(given.instructions),
        max_tool_calls=0 if body.tool_choice == "none" else None,
    )
    if conversation_id is None:
        own: dict[str, Any] = {
            "given": tuple(given.messages),
            "callers_tools": () if body.tool_choice == "none" else tools,
        }
    else:
        check_storable(given, bool(tools), body, runtime.settings.max_message_chars)
        own = {"key": key, "fingerprint": fingerprint(question) if key else ""}
    return Asked(
        replace(question, **own),
        model=body.model or runtime.settings.default_model,
        language=language,
        one_call=body.parallel_tool_calls is False,
        with_usage=bool(body.stream_options and body.stream_options.include_usage),
    )


def check_storable(given: Given, with_tools: bool, body: CompletionRequest, longest: int) -> None:
    """Raise Refused for what a turn of a stored conversation cannot be."""
    if with_tools:
        raise Refused("tools", "functions of your own are not for a stored conversation; leave out X-Conversation-Id")
    if given.messages[-1]["role"] != "user":
        raise Refused("messages", "in a stored conversation the last message has to be the user's")
    at = max(at for at, message in enumerate(body.messages) if message.get("role") == "user")
    check_length(f"messages.{at}.content", given.last_user, longest)


def fingerprint(question: Question) -> str:
    """What makes a request the same, whether it is streamed or not and however much history comes with it."""
    names = ("conversation_id", "message", "model", "instructions", "max_tool_calls")
    return fingerprint_of({"api": "chat.completions", **{name: getattr(question, name) for name in names}})


# ---------------------------------------------------------------------------------------- the answer


def completion_of(asked: Asked, turn: Turn) -> dict[str, Any]:
    """The body of an answer. Where the run stopped early content is null and `turnkeeper` says why."""
    result = turn.result
    message: dict[str, Any] = {"role": "assistant", "content": result.answer or None, "refusal": None}
    calls = result.handed_back[:1] if asked.one_call else result.handed_back
    if calls:
        message["tool_calls"] = [handed_back(call) for call in calls]
    reasons = {"completed": "stop", "tool_calls": "tool_calls", "content_filter": "content_filter"}
    choice = {
        "index": 0,
        "message": message,
        "logprobs": None,
        "finish_reason": reasons.get(result.stop_reason, "length"),
    }
    return {
        "id": f"chatcmpl-{result.run.id}",
        "object": "chat.completion",
        "created": asked.created,
        "model": asked.model,
        "choices": [choice],
        "usage": usage_of(turn),
        "turnkeeper": facts_of(turn, asked.language),
    }


def usage_of(turn: Turn) -> dict[str, int] | None:
    """Tokens as the model's service counted them; None where it did not."""
    usage = turn.result.usage
    if usage.input_tokens is None or usage.output_tokens is None:
        return None
    total = usage.total_tokens
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens if total is None else total,
    }


async def chunks(asked: Asked, underway: Underway) -> AsyncIterator[str]:
    """The events of a completion under way."""
    head = head_of(asked, f"chatcmpl-{underway.run_id}")
    yield chunk(head, {"role": "assistant", "content": ""})
    step, said = 0, ""
    async for piece in underway.pieces():
        if piece is None:
            yield COMMENT
            continue
        now, text = piece
        if step not in (0, now):  # what came before was only said on the way
            yield chunk(head, {"content": "\n\n"})
            said = ""
        step, said = now, said + text
        yield chunk(head, {"content": text})
    try:
        turn = underway.turn()
    except Exception as error:
        yield event({"error": error_of(as_chat_error(error, "POST"), asked.language)})
        return
    for line in ending(asked, head, json.loads(turn.body) if turn.body else completion_of(asked, turn), said):
        yield line


async def repeated(asked: Asked, body: str) -> AsyncIterator[str]:
    """The events of an answer that was given before."""
    completion = json.loads(body)
    head = head_of(asked, completion["id"]) | {"created": completion["created"], "model": completion["model"]}
    yield chunk(head, {"role": "assistant", "content": ""})
    for line in ending(asked, head, completion, ""):
        yield line


def ending(asked: Asked, head: dict[str, Any], completion: dict[str, Any], said: str) -> list[str]:
    """The last events: what is left to say of the answer, calls, the reason, usage, `[DONE]`."""
    message, lines = completion["choices"][0]["message"], []
    content = message["content"] or ""
    if content.startswith(said) and len(content) > len(said):
        lines.append(chunk(head, {"content": content[len(said) :]}))
    for index, call in enumerate(message.get("tool_calls", ())):
        function = call["function"]
        opened = {**call, "function": {"name": function["name"], "arguments": ""}}
        lines.append(chunk(head, {"tool_calls": [{"index": index, **opened}]}))
        lines.append(chunk(head, {"tool_calls": [{"index": index, "function": {"arguments": function["arguments"]}}]}))
    told = {**head, "turnkeeper": completion["turnkeeper"]}
    lines.append(chunk(told, {}, completion["choices"][0]["finish_reason"]))
    if asked.with_usage:
        lines.append(event({**head, "choices": [], "usage": completion["usage"]}))
    return [*lines, "data: [DONE]\n\n"]


def head_of(asked: Asked, number: str) -> dict[str, Any]:
    """What all chunks of a stream have in common."""
    head = {"id": number, "object": "chat.completion.chunk", "created": asked.created, "model": asked.model}
    return head | ({"usage": None} if asked.with_usage else {})


def chunk(head: dict[str, Any], delta: dict[str, Any], finish_reason: str | None = None) -> str:
    """One chunk."""
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    return event({**head, "choices": [choice]})
