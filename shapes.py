"""The shapes of requests and answers, and what is asked of a name and a message."""

import unicodedata
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, Generic, Literal, TypeVar

from fastapi import Header
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from errors import Bilingual
from run import NOTICES
from turn import Turn

Row = TypeVar("Row")
SPACE_AT_AN_END = Bilingual("no space at either end", "首尾不能有空格")
NOT_IN_A_NAME = Bilingual("no control characters and no lone surrogates", "不能含有控制字符或不成对的代理项")
NOT_STORED = Bilingual("no NUL and no lone surrogates", "不能含有 NUL 字符或不成对的代理项")
NOTHING_TO_READ = Bilingual(
    "something to read is needed, not only white space and invisible characters",
    "需要可读的内容，不能只有空白和不可见字符",
)


def conversation_name(name: str) -> str:
    """A conversation's id: any script; no control characters, no lone surrogates, no space at either end."""
    if name != name.strip():
        raise ValueError(SPACE_AT_AN_END)
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in name):
        raise ValueError(NOT_IN_A_NAME)
    return name


def something_said(message: str) -> str:
    """A message: text that can be stored, with something in it to read."""
    if "\0" in message or any("\ud800" <= character <= "\udfff" for character in message):
        raise ValueError(NOT_STORED)
    if all(unicodedata.category(character) in ("Cc", "Cf", "Zs", "Zl", "Zp") for character in message):
        raise ValueError(NOTHING_TO_READ)
    return message


ConversationId = Annotated[str, Field(min_length=1, max_length=100), AfterValidator(conversation_name)]
IdempotencyKey = Annotated[
    str | None, Header(alias="Idempotency-Key", min_length=1, max_length=255, pattern=r"^[!-~]+$")
]
REPLAYED = {"Idempotency-Replayed": "true"}  # the header of an answer that was given before
Said = Annotated[str, AfterValidator(something_said)]


class Shape(BaseModel):
    """What callers send: unknown fields are refused, numbers are not taken for text."""

    model_config = ConfigDict(extra="forbid", strict=True)


class ChatRequest(Shape):
    """One message to a conversation. A conversation begins with its first message."""

    conversation_id: ConversationId = Field(examples=["agent001"])
    message: Said = Field(min_length=1, examples=["请使用计算器,先计算12乘以8,再把结果除以4。"])
    max_steps: int | None = Field(None, ge=1, description="model rounds, where the service's limit is too many")
    max_tool_calls: int | None = Field(None, ge=0, description="tool calls, likewise; 0 forbids them")
    model: str | None = Field(None, min_length=1, max_length=200, description="another model of the same service")
    include_trace: bool = Field(False, description="whether the answer shows each step of the run")


class TokenUsage(BaseModel):
    """Tokens as the model service counted them; null where it did not."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    total_tokens: int | None = None


class ChatReply(BaseModel):
    """How a turn ended. `incomplete`: answer and turn are null, nothing was stored, `notice` says why."""

    answer: str | None = Field(examples=["12 × 8 ÷ 4 = 24.0"])
    status: Literal["completed", "incomplete"]
    stop_reason: str = Field(examples=["completed"])
    conversation_id: str | None
    turn: int | None = Field(examples=[1])
    run_id: str
    steps: int
    tool_calls: int
    usage: TokenUsage
    duration_ms: float
    model_ms: float
    tool_ms: float
    notice: str | None = None
    trace: list[dict[str, Any]] | None = None

    @classmethod
    def of(cls, turn: Turn, language: str, with_trace: bool) -> "ChatReply":
        """The answer to the caller. Fields that are left unset are left out."""
        result = turn.result
        extras: dict[str, Any] = {}
        if result.notice:
            extras["notice"] = (
                NOTICES[result.stop_reason][1] if language == "zh" and result.stop_reason in NOTICES else result.notice
            )
        if with_trace:
            extras["trace"] = result.run.events
        return cls(
            answer=result.answer,
            status="completed" if result.stop_reason == "completed" else "incomplete",
            stop_reason=result.stop_reason,
            conversation_id=turn.question.conversation_id,
            turn=turn.number,
            run_id=result.run.id,
            steps=result.budget.steps,
            tool_calls=result.budget.tool_calls,
            usage=TokenUsage(**result.usage.as_dict()),
            duration_ms=round(turn.duration_ms, 1),
            model_ms=round(result.run.model_ms, 1),
            tool_ms=round(result.run.tool_ms, 1),
            **extras,
        )


def text_in(language: str, with_trace: bool) -> Callable[[Turn], str]:
    """What makes the body of an answer as text."""
    return lambda turn: ChatReply.of(turn, language, with_trace).model_dump_json(exclude_unset=True)


class Conversation(BaseModel):
    """A conversation as lists show it. Times are in UTC."""

    conversation_id: str
    title: str | None
    turns: int
    created_at: datetime
    updated_at: datetime


class StoredMessage(BaseModel):
    """One stored message. id: counts 1, 2, 3 … within the conversation."""

    id: int
    role: Literal["user", "assistant"]
    content: str
    run_id: str | None
    created_at: datetime


class Page(BaseModel, Generic[Row]):
    """A part of a list. next: what to send as `after` for the page that follows."""

    data: list[Row]
    has_more: bool
    next: str | None


class NewTitle(Shape):
    """What may be changed of a conversation."""

    title: Annotated[str, Field(min_length=1, max_length=200), AfterValidator(something_said)] | None
