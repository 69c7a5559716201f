"""`POST /v1/responses`: what is asked, in which conversation, and whether it can be stored.

A turn of ours is one message of the user and one answer. So a response is stored where its input is one message and no
functions of the caller's own are in play, in the conversation that is named or in a new one. Otherwise it is not stored
unless the caller insists, by `store: true` or by naming a conversation: then it is refused.
"""

from dataclasses import replace
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Request, Response
from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from db import Database
from errors import NotFound
from idempotency import fingerprint_of
from memory import delete_conversation, get_conversation, messages_of_run
from problems import check_length, language_of
from run import new_run_id
from runtime import Caller, Runtime
from shapes import IdempotencyKey
from turn import Question

from .given import Given, read_items, read_tools
from .names import Trail, checked_conversation, conversation_in_header, new_id, trail_of
from .refusals import ERRORS, PreviousResponseNotFound, Refused, check_sendable, refuse_others
from .response_bodies import Asked, input_item, response_of, stored_response
from .response_events import events, repeated
from .told import tell

NOTHING_ELSE: dict[str, tuple[Any, ...]] = {  # what would change the answer's meaning, with what asks for nothing
    "background": (False,),
    "prompt": (),
    "tool_choice": ("auto", "none"),
    "top_logprobs": (0,),
    "moderation": (),
}
ONE_MESSAGE = "a stored conversation takes one message of the user at a time, as a string or as one item"
BY_ID = {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]}
Metadata = dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]]


class TextOptions(BaseModel):
    """In what form the answer is wanted."""

    format: dict[str, Any] | None = None


class ResponseRequest(BaseModel):
    """A request for a response. Parameters that are not named here are ignored or refused: docs/openai.md."""

    model_config = ConfigDict(extra="allow", strict=True)

    input: Annotated[Any, WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {}}]})]
    model: str | None = Field(None, max_length=200)
    instructions: str | None = None
    conversation: Annotated[Any, WithJsonSchema({"anyOf": [{"type": "string"}, BY_ID, {"type": "null"}]})] = None
    previous_response_id: str | None = Field(None, max_length=700)
    store: bool | None = None
    stream: bool | None = None
    metadata: Metadata | None = Field(None, max_length=16)
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: int | None = Field(None, ge=0)
    include: list[str] | None = None
    text: TextOptions | None = None


def add_responses(router: APIRouter, runtime: Runtime, caller: Caller) -> None:
    """Add the routes."""
    turns = runtime.turns
    Owner = Annotated[str, Depends(caller)]
    ConversationHeader = Annotated[str | None, Header(alias="X-Conversation-Id")]

    @router.post("/v1/responses", tags=["openai"], responses=ERRORS)
    async def create_response(
        body: ResponseRequest,
        request: Request,
        owner: Owner,
        conversation: ConversationHeader = None,
        key: IdempotencyKey = None,
    ) -> Response:
        """Answer the input, in a stored conversation or by itself. With `stream`, events `response.…` as it happens."""
        check_supported(body)
        after = await continued(runtime.database, owner, body, bool(key))
        named = named_conversation(body, conversation, after)
        asked = understood(runtime, body, owner, named, key, language_of(request))
        if after:
            asked = replace(asked, question=replace(asked.question, after=after[1]))
        whole, live = partial(response_of, asked), partial(events, asked)
        return await tell(turns, asked.question, bool(body.stream), whole, live, repeated)

    add_stored_responses(router, runtime, caller)


def add_stored_responses(router: APIRouter, runtime: Runtime, caller: Caller) -> None:
    """The routes that look at a stored response and remove it."""
    database = runtime.database
    Owner = Annotated[str, Depends(caller)]

    async def found(owner: str, response_id: str) -> tuple[Trail, list[dict[str, Any]]]:
        trail = trail_of(response_id)
        rows = await database.run(messages_of_run, owner, trail.conversation_id, trail.run_id) if trail else []
        if not trail or len(rows) != 2:
            raise NotFound(what="stored response")
        return trail, rows

    @router.get("/v1/responses/{response_id}", tags=["openai"], responses=ERRORS)
    async def get_response(response_id: str, owner: Owner, stream: bool = False) -> dict[str, Any]:
        """A stored response, from the two messages that are kept of it: without its usage, metadata and model."""
        if stream:
            raise Refused("stream", "a stored response is not told again as it happened")
        trail, rows = await found(owner, response_id)
        return stored_response(response_id, trail.conversation_id, rows)

    @router.get("/v1/responses/{response_id}/input_items", tags=["openai"], responses=ERRORS)
    async def get_response_input(response_id: str, owner: Owner) -> dict[str, Any]:
        """The message that a stored response answers."""
        _, (question, _) = await found(owner, response_id)
        item = input_item(question)
        return {"object": "list", "data": [item], "first_id": item["id"], "last_id": item["id"], "has_more": False}

    @router.delete("/v1/responses/{response_id}", tags=["openai"], responses=ERRORS)
    async def delete_response(response_id: str, owner: Owner) -> dict[str, Any]:
        """Remove a response that is the only turn of its conversation, which goes with it."""
        trail, _ = await found(owner, response_id)
        there = await database.run(get_conversation, owner, trail.conversation_id)
        if there["turns"] > 1:
            raise Refused("response_id", "its conversation has other turns; delete the conversation as a whole")
        await database.run(delete_conversation, owner, trail.conversation_id, runtime.forget, 1)
        return {"id": response_id, "object": "response", "deleted": True}


# ---------------------------------------------------------------------------------------- the request


def check_supported(body: ResponseRequest) -> None:
    """Raise Refused for what this service does not do."""
    refuse_others({**(body.model_extra or {}), "tool_choice": body.tool_choice}, NOTHING_ELSE)
    kind = (body.text.format or {}).get("type", "text") if body.text else "text"
    if kind != "text":
        raise Refused("text.format", "only answers of the type text are supported")
    if "message.output_text.logprobs" in (body.include or ()):
        raise Refused("include", "message.output_text.logprobs is not supported")
    for name in ("model", "input", "instructions", "tools", "metadata"):
        check_sendable(name, getattr(body, name))


async def continued(database: Database, owner: str, body: ResponseRequest, has_key: bool) -> tuple[Trail, int] | None:
    """Where `previous_response_id` leads, and its turn. Raises Refused for any but the newest of its conversation.

    has_key: a request that is sent again may name what was the newest; whether it was is then seen within the turn.
    """
    if body.previous_response_id is None:
        return None
    param = "previous_response_id"
    trail = trail_of(body.previous_response_id)
    rows = await database.run(messages_of_run, owner, trail.conversation_id, trail.run_id) if trail else []
    if not trail or not rows:
        raise PreviousResponseNotFound(param, "there is no such response, or nothing of it was stored")
    turn = (rows[-1]["id"] + 1) // 2
    newest = (await database.run(get_conversation, owner, trail.conversation_id))["turns"]
    if turn != newest and not has_key:
        raise Refused(param, "branching is not supported: it has to be the newest response of its conversation")
    return trail, turn


def named_conversation(body: ResponseRequest, header: str | None, after: tuple[Trail, int] | None) -> str | None:
    """The conversation that the request names, in whichever way; None where it names none. Raises Refused."""
    named = {}
    if body.conversation is not None:
        name = body.conversation.get("id") if isinstance(body.conversation, dict) else body.conversation
        named["conversation"] = checked_conversation("conversation", name)
    if (in_header := conversation_in_header(header)) is not None:
        named["X-Conversation-Id"] = in_header
    if after is not None:
        if "conversation" in named:
            raise Refused("previous_response_id", "send it or a conversation, not both")
        named["previous_response_id"] = after[0].conversation_id
    if len(set(named.values())) > 1:
        raise Refused("X-Conversation-Id", f"it names another conversation than {' or '.join(named)}")
    return next(iter(named.values()), None)


def understood(
    runtime: Runtime, body: ResponseRequest, owner: str, named: str | None, key: str | None, language: str
) -> Asked:
    """What is asked. Raises Refused for what cannot be stored and is to be."""
    given = read_items(body.input)
    tools = read_tools(body.tools or (), runtime.tools, "")
    no_tools = body.tool_choice == "none"
    problem = why_not_storable(given, bool(tools))
    if named is not None and body.store is False:
        raise Refused("store", "a turn of a stored conversation is stored; leave out the conversation or store")
    if problem and named is not None:
        raise Refused(*problem)
    if problem and body.store:
        raise Refused("store", f"this cannot be stored: {problem[0]}: {problem[1]}")
    stored = body.store is not False and not problem
    question = Question(
        owner=owner,
        conversation_id=(named or new_id("conv", new_run_id())) if stored else None,
        message=given.last_user,
        model=body.model or None,
        instructions="\n\n".join(filter(None, [body.instructions, *given.instructions])),
        max_tool_calls=0 if no_tools else body.max_tool_calls,
    )
    if stored:
        check_length("input", given.last_user, runtime.settings.max_message_chars)
        question = replace(question, key=key, fingerprint=fingerprint(question, body, named) if key else "")
    else:
        question = replace(question, given=tuple(given.messages), callers_tools=() if no_tools else tools)
    return Asked(question, body.model or runtime.settings.default_model, language, named is not None, body.model_dump())


def why_not_storable(given: Given, with_tools: bool) -> tuple[str, str] | None:
    """What keeps this from being a turn of ours, as a parameter and why; None where nothing does."""
    if with_tools:
        return "tools", "functions of your own are not for a stored conversation"
    return None if [one["role"] for one in given.messages] == ["user"] else ("input", ONE_MESSAGE)


def fingerprint(question: Question, body: ResponseRequest, named: str | None) -> str:
    """What makes a request the same, whether it is streamed or not."""
    fields = {name: getattr(question, name) for name in ("message", "model", "instructions", "max_tool_calls")}
    more = {"conversation": named, "previous": body.previous_response_id, "metadata": body.metadata}
    return fingerprint_of({"api": "responses", **fields, **more})
