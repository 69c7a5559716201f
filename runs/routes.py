"""`/api/runs…` and `/api/statistics`."""

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from enum import Enum
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from pydantic import BaseModel, Field, create_model

from access import may
from errors import (
    Bilingual,
    BodyTooLarge,
    IdempotencyMismatch,
    InvalidRequest,
    ModelError,
    ModelUnavailable,
    NotFound,
    Overloaded,
    RequestInProgress,
    StoreUnavailable,
    TurnConflict,
)
from idempotency import fingerprint_of
from problems import as_chat_error, check_length, language_of, mark_of, page_of, problems
from run import LIMITS, ToolLimit
from runtime import Runtime
from shapes import REPLAYED, ChatReply, ConversationId, IdempotencyKey, Page, Said, Shape, text_in
from stream import EVENT_HEADERS, EVENTS, EventStream, begin_telling
from turn import Question, Replayed

from .statistics import StatisticsReply, statistics
from .store import ask_to_cancel, delete_run, get_run, list_runs

STEPS, TOOL_CALLS = 4, 8  # of a question asked here, unless it says otherwise
RunId = Annotated[str, Path(pattern=r"^[0-9a-f-]{36}$")]
Limit = Annotated[int, Query(ge=1, le=200)]
Route = TypeVar("Route", bound=Callable[..., Any])
After = Annotated[str | None, Query(max_length=100)]
KEY = "Idempotency-Key"


class RunRequest(Shape):
    """A question, by itself or within a conversation. These are the rules for both ways of asking."""

    question: Said = Field(min_length=1, examples=["What is 12 * 8 / 4?"])
    conversation_id: ConversationId | None = Field(None, description="left out: outside any conversation")
    max_steps: int = Field(STEPS, ge=1, le=1000)
    max_tool_calls: int = Field(TOOL_CALLS, ge=0, le=10_000)
    model: str | None = Field(None, min_length=1, max_length=200)
    include_trace: bool = True

    def asked_by(self, owner: str, longest: int, key: str | None = None) -> Question:
        """What a turn is begun with.

        key: the caller's Idempotency-Key. Raises InvalidRequest for one outside any conversation, where nothing is
        stored that could be given again, and for a question longer than this service takes.
        """
        check_length("question", self.question, longest)
        if key and self.conversation_id is None:
            detail = Bilingual(
                "a key is kept with the turn it stores, so it needs a conversation_id; leave the header out",
                "键与其保存的轮次一同保留，因此需要 conversation_id；请去掉该请求头",
            )
            raise InvalidRequest(errors=[{"field": KEY, "detail": detail}])
        given = self.model_dump(exclude={"question", "include_trace", *LIMITS})
        asked = {limit.tool: getattr(self, name, None) for name, limit in LIMITS.items()}
        calls_of = {tool: calls for tool, calls in asked.items() if calls is not None}
        same = fingerprint_of({"api": "runs", **self.model_dump(exclude_none=True)}) if key else ""
        return Question(owner=owner, message=self.question, max_calls_of=calls_of, key=key, fingerprint=same, **given)


def taking(limits: Mapping[str, ToolLimit]) -> Callable[[Route], Route]:
    """Let the body of a route have a field for each limit that toolsets bring."""
    fields: dict[str, Any] = {
        name: (int | None, Field(None, ge=0, le=10_000, description=f"calls of {limit.tool}; 0 forbids them"))
        for name, limit in limits.items()
    }
    request = create_model("RunRequest", __base__=RunRequest, __doc__=RunRequest.__doc__, **fields)

    def put(route: Route) -> Route:
        route.__annotations__["body"] = request
        return route

    return put


class StoredRun(BaseModel):
    """A stored run as lists show it."""

    run_id: str
    conversation_id: str | None
    turn: int | None
    question: str
    model: str
    mode: str
    status: str
    stop_reason: str
    error_code: str | None
    steps: int | None
    tool_calls: int | None
    input_tokens: int | None
    output_tokens: int | None
    total_tokens: int | None
    duration_ms: float | None
    model_ms: float | None
    tool_ms: float | None
    started_at: datetime


class Cancelled(BaseModel):
    """What became of the wish to stop a run."""

    run_id: str
    status: str = Field(description="`stopping` here, or `asked` of whichever process has it")


def add_runs(router: APIRouter, runtime: Runtime, caller: Callable[..., str | Awaitable[str]]) -> None:
    """Add the routes of runs to the service's router."""
    add_asking(router, runtime, caller)
    add_looking(router, runtime, caller)


def add_asking(router: APIRouter, runtime: Runtime, caller: Callable[..., str | Awaitable[str]]) -> None:
    """The routes that run a question, whole and as it happens."""
    Owner = Annotated[str, Depends(caller)]
    tags: list[str | Enum] = ["runs"]
    errors = problems(
        BodyTooLarge,
        TurnConflict,
        RequestInProgress,
        IdempotencyMismatch,
        ModelError,
        ModelUnavailable,
        StoreUnavailable,
        Overloaded,
    )
    longest = runtime.settings.max_message_chars
    limits = {name: limit for name, limit in LIMITS.items() if runtime.tools.get(limit.tool)}

    @router.post("/api/runs", tags=tags, response_model=ChatReply, responses=errors)
    @taking(limits)
    async def run_question(body: RunRequest, request: Request, owner: Owner, key: IdempotencyKey = None) -> Response:
        """Answer a question, by default outside any conversation and with its trace.

        Within a conversation, sent again with the same Idempotency-Key, it is answered again and not done again.
        """
        body_of = text_in(language_of(request), body.include_trace)
        turn = await runtime.turns.answer(body.asked_by(owner, longest, key), body_of=body_of)
        if isinstance(turn, Replayed):
            return Response(turn.body, headers=REPLAYED, media_type="application/json")
        return Response(turn.body or body_of(turn), media_type="application/json")

    @router.post("/api/runs/stream", tags=tags, responses=errors | EVENTS, response_class=Response)
    @taking(limits)
    async def run_question_stream(
        body: RunRequest, request: Request, owner: Owner, key: IdempotencyKey = None
    ) -> EventStream:
        """The same, told as it happens; the events are those of `/chat/stream`."""
        language = language_of(request)

        def problem(error: Exception) -> dict[str, Any]:
            return as_chat_error(error, request.method).problem(language)

        question, body_of = body.asked_by(owner, longest, key), text_in(language, body.include_trace)
        events, replayed = await begin_telling(runtime.turns, question, body_of, problem)
        return EventStream(events, headers=EVENT_HEADERS | (REPLAYED if replayed else {}))

    @router.post("/api/runs/{run_id}/cancel", tags=tags, responses=problems(StoreUnavailable), status_code=202)
    async def cancel_run(run_id: RunId, owner: Owner) -> Cancelled:
        """Stop a run before its next step. A run that has ended, or is not yours, is left as it is."""
        if runtime.turns.cancel(run_id, owner):
            return Cancelled(run_id=run_id, status="stopping")
        await runtime.database.run(ask_to_cancel, owner, run_id)
        return Cancelled(run_id=run_id, status="asked")


def add_looking(router: APIRouter, runtime: Runtime, caller: Callable[..., str | Awaitable[str]]) -> None:
    """The routes that look at stored runs."""
    database = runtime.database
    Owner = Annotated[str, Depends(caller)]
    tags: list[str | Enum] = ["runs"]
    errors = problems(NotFound, StoreUnavailable)

    @router.get("/api/runs", tags=tags, responses=problems(StoreUnavailable))
    async def stored_runs(
        owner: Owner,
        limit: Limit = 50,
        after: After = None,
        conversation_id: ConversationId | None = None,
        stop_reason: Annotated[str | None, Query(max_length=40, pattern=r"^[a-z_]+$")] = None,
    ) -> Page[StoredRun]:
        """Your stored runs, newest first. They are kept TRACE_RETENTION_DAYS."""
        filters = {"conversation_id": conversation_id, "stop_reason": stop_reason}
        rows, mark = await database.run(list_runs, owner, limit, mark_of("r", after), filters)
        return Page[StoredRun].model_validate(page_of("r", rows, mark))

    @router.get("/api/runs/{run_id}", tags=tags, responses=errors)
    async def stored_run(run_id: RunId, owner: Owner) -> dict[str, Any]:
        """One run, whole: every model request and response, tool call and result, time and token."""
        return await database.run(get_run, owner, run_id)

    @router.delete("/api/runs/{run_id}", tags=tags, responses=errors, status_code=204)
    async def delete_stored_run(run_id: RunId, owner: Owner) -> None:
        """Remove a stored run. The messages of its turn stay."""
        await database.run(delete_run, owner, run_id)

    @router.get("/api/statistics", tags=tags, responses=problems(StoreUnavailable))
    async def run_statistics(request: Request, owner: Owner) -> StatisticsReply:
        """What your stored runs come to, with the run files of `artifacts/` for those who may see `statistics`.

        That a run completed says nothing about whether its answer is right.
        """
        return await database.run(statistics, owner, may(request, "statistics"))
