"""Names on the wire: a conversation in a header, ids of responses and of items.

A response's id holds its run and its conversation, `resp_<run><conversation>`, so that it leads to the turn it stored
without a table or an index of its own. Whose it is, it does not say: it is looked for among the caller's own.
"""

import base64
import re
from dataclasses import dataclass
from urllib.parse import unquote
from uuid import UUID

from shapes import conversation_name

from .refusals import Refused

RUN = "[0-9a-f]{32}"


def checked_conversation(param: str, name: object) -> str:
    """A conversation's id. Raises Refused for what cannot be one."""
    if not isinstance(name, str) or not 1 <= len(name) <= 100:
        raise Refused(param, "the id of a conversation has 1 to 100 characters")
    try:
        return conversation_name(name)
    except ValueError as error:
        raise Refused(param, str(error)) from error


def conversation_in_header(value: str | None) -> str | None:
    """The conversation that X-Conversation-Id names: percent-encoded UTF-8. Raises Refused."""
    if value is None:
        return None
    param = "X-Conversation-Id"
    try:
        value.encode("ascii")
        name = unquote(value, errors="strict")
    except UnicodeError as error:
        raise Refused(param, "the id of a conversation as percent-encoded UTF-8 is expected") from error
    return checked_conversation(param, name)


def new_id(kind: str, run_id: str) -> str:
    """`conv_<run>`, `msg_<run>` …"""
    return f"{kind}_{run_id.replace('-', '')}"


def response_id(run_id: str, conversation_id: str | None) -> str:
    """The id of a response. conversation_id: None where nothing is stored."""
    name = base64.urlsafe_b64encode((conversation_id or "").encode()).decode().rstrip("=")
    return new_id("resp", run_id) + name


@dataclass(frozen=True)
class Trail:
    """Where a response leads: its run, in which conversation."""

    run_id: str
    conversation_id: str


def trail_of(response: str) -> Trail | None:
    """Where a response's id leads; None for one that leads nowhere."""
    found = re.fullmatch(rf"resp_({RUN})([A-Za-z0-9_-]{{2,600}})", response)
    if not found:
        return None
    try:
        name = base64.urlsafe_b64decode(found[2] + "=" * (-len(found[2]) % 4)).decode()
        return Trail(str(UUID(found[1])), checked_conversation("response_id", name))
    except ValueError:
        return None
    except Refused:
        return None


def item_id(number: int, run_id: str | None) -> str:
    """The id of a stored message within its conversation. number: of the message, from 1."""
    if run_id is None:  # somebody else wrote this row
        return f"msg_{number}"
    return new_id("msg", run_id) + ("_q" if number % 2 else "")


@dataclass(frozen=True)
class Item:
    """What an item's id names: a message by its number, or the question or the answer of a run."""

    number: int | None = None
    run_id: str | None = None
    is_question: bool = False


def item_of(name: str) -> Item | None:
    """What an item's id names; None for what is none of ours."""
    if found := re.fullmatch(r"msg_(\d{1,9})", name):
        return Item(number=int(found[1]))
    if found := re.fullmatch(rf"msg_({RUN})(_q|_\d{{1,6}})?", name):
        return Item(run_id=str(UUID(found[1])), is_question=found[2] == "_q")
    return None
