"""The HTTP face: the routes, and the application that uvicorn serves.

`uvicorn main:app` serves it alone; `host.include_router(chat_router(runtime))` puts it into another application. The
routes turn their errors into answers themselves, so both behave the same.
"""

import asyncio
import contextlib
import gc
import logging
import re
import sys
from collections.abc import AsyncIterator, Callable
from enum import Enum
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response
from fastapi.middleware.cors import CORSMiddleware
from fastapi.routing import APIRoute
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException

import mcp_bridge
import openai_api
import runs
import text2sql
from access import CallerByKey, caller_of
from config import Settings
from errors import (
    BodyTooLarge,
    ConfigError,
    IdempotencyMismatch,
    ModelError,
    ModelNotFound,
    ModelRateLimited,
    ModelTimeout,
    ModelUnavailable,
    NotFound,
    NotReady,
    Overloaded,
    RateLimited,
    RequestInProgress,
    StoreUnavailable,
    TurnConflict,
)
from idempotency import fingerprint_of
from logs import configure_logging, print_step
from memory import delete_conversation, get_conversation, list_conversations, list_messages, rename_conversation
from problems import (
    as_chat_error,
    check_length,
    language_of,
    local_caller,
    mark_of,
    name_request,
    page_of,
    problem_answer,
    problem_route,
    problems,
    with_usual_headers,
)
from runs.command import command
from runtime import Caller, Register, Runtime
from shapes import (
    REPLAYED,
    ChatReply,
    ChatRequest,
    Conversation,
    ConversationId,
    IdempotencyKey,
    NewTitle,
    Page,
    StoredMessage,
    text_in,
)
from stream import EVENT_HEADERS, EVENTS, EventStream, begin_telling
from turn import Question, Replayed

log = logging.getLogger(__name__)

CAPABILITIES: dict[str, Register] = {  # toolsets in folders of their own, by name
    "recall": runs.register_recall,
    "mcp": mcp_bridge.register_servers,
    "text2sql": text2sql.register,
}


# ---------------------------------------------------------------------------------------- routes


Limit = Annotated[int, Query(ge=1, le=200, description="how many at most")]
After = Annotated[str | None, Query(max_length=100, description="the `next` of the page before")]
TURN_ERRORS = problems(
    BodyTooLarge,
    TurnConflict,
    RequestInProgress,
    IdempotencyMismatch,
    RateLimited,
    ModelNotFound,
    ModelRateLimited,
    ModelError,
    ModelUnavailable,
    ModelTimeout,
    StoreUnavailable,
    Overloaded,
)


def chat_router(runtime: Runtime, caller: Caller = local_caller, close_with_app: bool = True) -> APIRouter:
    """The routes of the chat service, for any FastAPI application: `app.include_router(chat_router(runtime))`.

    caller: a dependency of the host that says who is calling; its text (at most 100 characters) owns what is stored.
    Without one, only callers on this machine are served. close_with_app: close the runtime when the application ends.
    """

    @contextlib.asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(work()) for work in (runtime.keep_house, *runtime.in_background)]
        yield
        for task in tasks:
            task.cancel()
        if close_with_app:
            await runtime.close()

    caller = caller if caller is local_caller or isinstance(caller, CallerByKey) else checked(caller)
    # An escaped character takes up to 12 bytes; the rest is for everything around the message.
    body_limit = 12 * runtime.settings.max_message_chars + 65_536
    router = APIRouter(
        route_class=problem_route(body_limit),
        lifespan=lifespan,
        strict_content_type=False,
        generate_unique_id_function=operation_ids(),
    )
    add_chat(router, runtime, caller)
    add_conversations(router, runtime, caller)
    add_operation(router, runtime, caller)
    for add_more in runtime.routers:
        add_more(router, caller)
    return router


def checked(caller: Caller) -> Caller:
    """A host's dependency whose answer is an owner: MySQL would take the number 0 for every name that is no number."""

    async def owner(found: Annotated[Any, Depends(caller)]) -> str:
        if not isinstance(found, str) or len(found) > 100 or found.encode("utf-8", "ignore").decode() != found:
            raise TypeError("the dependency that says who is calling has to give text of at most 100 characters")
        return found

    return owner


def operation_ids() -> Callable[[APIRoute], str]:
    """Names the operations of one router: `chat`, below a prefix `assistant_chat`, so that a host may have two."""
    own_paths: dict[str, str] = {}  # as they are without a prefix: a route is named first when it is made

    def name(route: APIRoute) -> str:
        prefix = route.path_format.removesuffix(own_paths.setdefault(route.name, route.path_format))
        return "_".join([*re.findall(r"\w+", prefix), route.name])

    return name


def add_chat(router: APIRouter, runtime: Runtime, caller: Caller) -> None:
    """The routes that answer messages."""
    turns, longest = runtime.turns, runtime.settings.max_message_chars
    Owner = Annotated[str, Depends(caller)]

    def question_of(body: ChatRequest, owner: str, key: str | None) -> Question:
        """What the caller asks. Raises InvalidRequest for a message longer than this service takes."""
        check_length("message", body.message, longest)
        same = fingerprint_of(body.model_dump()) if key else ""
        return Question(owner=owner, key=key, fingerprint=same, **body.model_dump(exclude={"include_trace"}))

    @router.post("/chat", tags=["chat"], response_model=ChatReply, responses=TURN_ERRORS)
    async def chat(body: ChatRequest, request: Request, owner: Owner, key: IdempotencyKey = None) -> Response:
        """Answer one message. Stores the message and the final answer, or neither.

        Sent again with the same Idempotency-Key, it is answered again and not done again.
        """
        body_of = text_in(language_of(request), body.include_trace)
        turn = await turns.answer(question_of(body, owner, key), body_of=body_of)
        if isinstance(turn, Replayed):
            return Response(turn.body, headers=REPLAYED, media_type="application/json")
        return Response(turn.body or body_of(turn), media_type="application/json")

    @router.post("/chat/stream", tags=["chat"], response_class=Response, responses=TURN_ERRORS | EVENTS)
    async def chat_stream(body: ChatRequest, request: Request, owner: Owner, key: IdempotencyKey = None) -> EventStream:
        """Answer one message, told as it happens.

        Events: `started`; `delta`, a piece of text with its step; `trace`, each event of the run; then one `result`,
        the body that `/chat` gives, sent after the turn is stored, or one `error`, the problem. The deltas of the last
        step are the answer; text of a step that goes on with tool calls was only said on the way. A caller that
        leaves does not end the turn.
        """
        language = language_of(request)

        def problem(error: Exception) -> dict[str, Any]:
            return as_chat_error(error, request.method).problem(language)

        question, body_of = question_of(body, owner, key), text_in(language, body.include_trace)
        events, replayed = await begin_telling(turns, question, body_of, problem)
        return EventStream(events, headers=EVENT_HEADERS | (REPLAYED if replayed else {}))


def add_conversations(router: APIRouter, runtime: Runtime, caller: Caller) -> None:
    """The routes that look at conversations and change them."""
    database = runtime.database
    Owner = Annotated[str, Depends(caller)]
    errors = problems(NotFound, StoreUnavailable)
    tags: list[str | Enum] = ["conversations"]

    @router.get("/api/conversations", tags=tags, responses=problems(StoreUnavailable))
    async def conversations(owner: Owner, limit: Limit = 50, after: After = None) -> Page[Conversation]:
        """Your conversations, newest first."""
        rows, mark = await database.run(list_conversations, owner, limit, mark_of("c", after))
        return Page[Conversation].model_validate(page_of("c", rows, mark))

    @router.get("/api/conversations/{conversation_id}", tags=tags, responses=errors)
    async def conversation(conversation_id: ConversationId, owner: Owner) -> Conversation:
        """One conversation, without its messages."""
        return Conversation(**await database.run(get_conversation, owner, conversation_id))

    @router.patch("/api/conversations/{conversation_id}", tags=tags, responses=errors)
    async def rename(conversation_id: ConversationId, change: NewTitle, owner: Owner) -> Conversation:
        """Give a conversation another title; null takes it away."""
        return Conversation(**await database.run(rename_conversation, owner, conversation_id, change.title))

    @router.delete("/api/conversations/{conversation_id}", tags=tags, responses=errors, status_code=204)
    async def delete(conversation_id: ConversationId, owner: Owner) -> None:
        """Remove a conversation and everything in it. A turn under way in it ends with turn_conflict."""
        await database.run(delete_conversation, owner, conversation_id, runtime.forget)

    @router.get("/api/conversations/{conversation_id}/messages", tags=tags, responses=errors)
    async def messages(
        conversation_id: ConversationId, owner: Owner, limit: Limit = 50, after: After = None
    ) -> Page[StoredMessage]:
        """What was said, in order."""
        rows, mark = await database.run(list_messages, owner, conversation_id, limit, mark_of("m", after) or 0)
        return Page[StoredMessage].model_validate(page_of("m", rows, mark))


def add_operation(router: APIRouter, runtime: Runtime, caller: Caller) -> None:
    """The routes that tell about the service itself."""
    # Probes carry no key. Without keys nobody elsewhere is served, a probe neither.
    probes = [Depends(caller)] if caller is local_caller else []

    @router.get("/api/tools", tags=["tools"], responses=problems(), dependencies=[Depends(caller)])
    async def tools() -> dict[str, list[dict[str, Any]]]:
        """The tools that the model may ask for: names, descriptions, JSON schemas of the arguments."""
        return {"data": [tool.schema()["function"] for tool in runtime.tools]}

    @router.get("/healthz", tags=["operation"], responses=problems(), dependencies=probes)
    async def healthz() -> dict[str, str]:
        """Whether the process is alive. Asks nobody else."""
        return {"status": "ok"}

    @router.get("/readyz", tags=["operation"], responses=problems(StoreUnavailable), dependencies=probes)
    async def readyz() -> dict[str, str]:
        """Whether messages can be answered: database, schema, model settings."""
        if found := await runtime.problems():
            errors = [{"field": layer, "detail": text} for layer, text in found.items()]
            raise NotReady(errors=errors, retry_after_s=5)
        return {"status": "ready"}


# ---------------------------------------------------------------------------------------- the application


def build_runtime(settings: Settings) -> Runtime:
    """What an application stands on, with everything that comes along. Opens nothing. Raises ConfigError."""
    runtime = Runtime(settings, CAPABILITIES)
    runs.register(runtime)
    openai_api.register(runtime)
    mcp_bridge.register(runtime)
    return runtime


def create_app(settings: Settings | None = None) -> FastAPI:
    """The service by itself. settings: by default those of the environment. Raises ConfigError."""
    settings = settings or Settings.from_env()
    configure_logging(settings.log_format)
    runtime = build_runtime(settings)
    if settings.log_format == "classroom":
        runtime.turns.listeners.append(print_step)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        for name in settings.missing_for_model():
            log.warning("%s is not set: no question can be answered until it is", name)
        gc.collect()
        gc.freeze()  # what is there now stays: the collector need not look at it again
        gc.set_threshold(10_000)  # a turn makes many objects and few cycles
        yield

    app = FastAPIOffline(
        title="Turnkeeper",
        summary="Conversations kept in MySQL, answered by an agent that uses tools.",
        version="0.1.0",
        redoc_url=None,
        lifespan=lifespan,
        telemetry=runs.http_telemetry(),
    )
    runs.hide_paths(app, settings)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=settings.cors_origins, allow_methods=["*"], allow_headers=["*"]
        )
    app.include_router(chat_router(runtime, caller_of(runtime) or local_caller))

    @app.exception_handler(HTTPException)
    async def unknown(request: Request, error: HTTPException) -> Response:
        name_request(request)
        answer = problem_answer(request, as_chat_error(error, request.method))
        if error.headers:
            answer.headers.update(error.headers)
        return with_usual_headers(answer)

    return app


def __getattr__(name: str) -> Any:
    """`app`, made when it is first asked for (`uvicorn main:app`): importing this module opens and reads nothing."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        globals()["app"] = app = create_app()
    except ConfigError as error:
        sys.exit(f"Turnkeeper cannot start: {error}")
    return app


if __name__ == "__main__":
    sys.exit(command(sys.argv[1:], build_runtime))
