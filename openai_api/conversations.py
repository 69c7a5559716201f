"""`/v1/conversations`: the stored conversations as OpenAI's objects. Only turns add messages to them."""

import json
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, ConfigDict, Field

from db import Database
from errors import NotFound
from memory import (
    change_conversation,
    create_conversation,
    delete_conversation,
    get_conversation,
    list_messages,
    messages_of_run,
)
from run import new_run_id
from runtime import Caller, Runtime
from shapes import ConversationId

from .names import item_of, new_id
from .refusals import ERRORS, Refused, check_sendable
from .response_bodies import stored_item
from .responses import Metadata

BEYOND = 1 << 31  # above the number of any message
ONLY_TURNS = "messages come and go with turns only: ask by /v1/responses, or delete the conversation as a whole"


class ConversationRequest(BaseModel):
    """What may be said of a conversation."""

    model_config = ConfigDict(extra="ignore", strict=True)

    metadata: Annotated[Metadata | None, Field(max_length=16)] = None
    items: list[Any] | None = None


def add_conversations(router: APIRouter, runtime: Runtime, caller: Caller) -> None:
    """Add the routes."""
    database = runtime.database
    Owner = Annotated[str, Depends(caller)]

    @router.post("/v1/conversations", tags=["openai"], responses=ERRORS)
    async def create_openai_conversation(owner: Owner, body: ConversationRequest | None = None) -> dict[str, Any]:
        """A conversation in which nothing has been said yet, under a name of our choosing."""
        body = body or ConversationRequest()
        if body.items:
            raise Refused("items", ONLY_TURNS)
        name = new_id("conv", new_run_id())
        await database.run(create_conversation, owner, name, metadata_text(body))
        return conversation_object(await database.run(get_conversation, owner, name))

    @router.get("/v1/conversations/{conversation_id}", tags=["openai"], responses=ERRORS)
    async def get_openai_conversation(conversation_id: ConversationId, owner: Owner) -> dict[str, Any]:
        """A conversation, made here or by any other way of asking."""
        return conversation_object(await database.run(get_conversation, owner, conversation_id))

    @router.post("/v1/conversations/{conversation_id}", tags=["openai"], responses=ERRORS)
    async def update_openai_conversation(
        conversation_id: ConversationId, body: ConversationRequest, owner: Owner
    ) -> dict[str, Any]:
        """Replace the metadata of a conversation."""
        if "metadata" not in body.model_fields_set:
            raise Refused("metadata", "it is missing")
        text = metadata_text(body)
        return conversation_object(await database.run(change_conversation, owner, conversation_id, "metadata", text))

    @router.delete("/v1/conversations/{conversation_id}", tags=["openai"], responses=ERRORS)
    async def delete_openai_conversation(conversation_id: ConversationId, owner: Owner) -> dict[str, Any]:
        """Remove a conversation and everything in it."""
        await database.run(delete_conversation, owner, conversation_id, runtime.forget)
        return {"id": conversation_id, "object": "conversation.deleted", "deleted": True}

    add_items(router, runtime, caller)


def add_items(router: APIRouter, runtime: Runtime, caller: Caller) -> None:
    """The routes of what is in a conversation."""
    database = runtime.database
    Owner = Annotated[str, Depends(caller)]

    @router.get("/v1/conversations/{conversation_id}/items", tags=["openai"], responses=ERRORS)
    async def list_conversation_items(
        conversation_id: ConversationId,
        owner: Owner,
        limit: Annotated[int, Query(ge=1, le=100)] = 20,
        after: Annotated[str | None, Query(max_length=100)] = None,
        order: Literal["asc", "desc"] = "desc",
    ) -> dict[str, Any]:
        """What was said, newest first unless `order` is `asc`."""
        number = BEYOND if order == "desc" else 0
        if after is not None:
            number = (await database.run(find_item, owner, conversation_id, after, "after"))["id"]
        rows, mark = await database.run(list_messages, owner, conversation_id, limit, number, order == "desc")
        items = [stored_item(row) for row in rows]
        first, last = (items[0]["id"], items[-1]["id"]) if items else ("", "")
        return {"object": "list", "data": items, "first_id": first, "last_id": last, "has_more": mark is not None}

    @router.get("/v1/conversations/{conversation_id}/items/{item_id}", tags=["openai"], responses=ERRORS)
    async def get_conversation_item(conversation_id: ConversationId, item_id: str, owner: Owner) -> dict[str, Any]:
        """One message."""
        return stored_item(await database.run(find_item, owner, conversation_id, item_id, ""))

    @router.post("/v1/conversations/{conversation_id}/items", tags=["openai"], responses=ERRORS)
    async def create_conversation_items(conversation_id: ConversationId, owner: Owner) -> dict[str, Any]:
        """Not supported: messages come with turns."""
        raise Refused("items", ONLY_TURNS)

    @router.delete("/v1/conversations/{conversation_id}/items/{item_id}", tags=["openai"], responses=ERRORS)
    async def delete_conversation_item(conversation_id: ConversationId, item_id: str, owner: Owner) -> dict[str, Any]:
        """Not supported: a turn is its two messages."""
        raise Refused("item_id", ONLY_TURNS)


def find_item(database: Database, owner: str, conversation_id: str, name: str, param: str) -> dict[str, Any]:
    """The stored message that an item's id names. Raises NotFound, or Refused for the parameter `param`, if given."""
    item, rows = item_of(name), list[dict[str, Any]]()
    if item and item.number:
        rows, _ = list_messages(database, owner, conversation_id, 1, item.number - 1)
        rows = [row for row in rows if row["id"] == item.number]
    elif item and item.run_id:
        rows = messages_of_run(database, owner, conversation_id, item.run_id)
        rows = [row for row in rows if (row["role"] == "user") == item.is_question]
    if rows:
        return rows[0]
    get_conversation(database, owner, conversation_id)
    if param:
        raise Refused(param, "there is no such item in this conversation")
    raise NotFound(what="item")


def metadata_text(body: ConversationRequest) -> str | None:
    """Metadata as they are stored."""
    check_sendable("metadata", body.metadata)
    return json.dumps(body.metadata, ensure_ascii=False) if body.metadata else None


def conversation_object(row: dict[str, Any]) -> dict[str, Any]:
    """A conversation as OpenAI shows it. row: as memory.py gives it."""
    try:
        metadata = json.loads(row["metadata"] or "{}")
    except ValueError:  # written by somebody else
        metadata = {}
    created = int(row["created_at"].timestamp())
    return {"id": row["conversation_id"], "object": "conversation", "created_at": created, "metadata": metadata}
