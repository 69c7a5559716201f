"""This service as an MCP server: its tools and `chat`, under `/mcp`, for the callers that the other routes serve.

Streamable HTTP without sessions: each request stands for itself, so any worker process answers it.
"""

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Annotated, Any, cast

from fastapi import APIRouter, Depends, Request, Response
from mcp import ListToolsResult
from mcp.server import Server, ServerRequestContext
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.types import CallToolRequestParams, CallToolResult, PaginatedRequestParams, TextContent, ToolAnnotations
from mcp.types import Tool as OfferedTool
from pydantic import Field, TypeAdapter, ValidationError
from starlette.types import Receive, Scope, Send

from errors import Overloaded
from problems import as_chat_error, check_length, language_of
from run import Budget, RunContext, new_run_id
from runtime import Caller, Runtime
from shapes import ChatReply, ConversationId, Said, Shape
from tools import ToolCall, plain_schema
from turn import Question, Replayed

from .servers import Borrowed

log = logging.getLogger(__name__)

OWNER = "turnkeeper.owner"  # where a request carries whose it is
CHAT = "chat"


class ChatArguments(Shape):
    """What `chat` takes."""

    conversation_id: ConversationId = Field(description="which conversation; it begins with its first message")
    message: Said = Field(min_length=1, description="what to say")


class Endpoint:
    """`/mcp` of one application."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.server = Server("turnkeeper", on_list_tools=self.list_tools, on_call_tool=self.call_tool)
        self.limit = 12 * runtime.settings.max_message_chars + 65_536
        self.manager: StreamableHTTPSessionManager | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Take requests from now on."""
        if self._task is None:
            self._task = asyncio.create_task(self._serve(), name="MCP endpoint")

    async def stop(self) -> None:
        """Take no more; turns that were begun are not touched."""
        task, self._task = self._task, None
        if task:
            task.cancel()
            await asyncio.wait([task], timeout=15)

    async def _serve(self) -> None:
        manager = StreamableHTTPSessionManager(self.server, stateless=True, max_request_body_size=self.limit)
        async with manager.run():
            self.manager = manager
            try:
                await asyncio.Event().wait()
            finally:
                self.manager = None

    def add_route(self, router: APIRouter, caller: Caller) -> None:
        """Add the route to the service's router."""

        @router.post("/mcp", include_in_schema=False)
        async def mcp(owner: Annotated[str, Depends(caller)]) -> Response:
            """The Model Context Protocol, which describes itself."""
            if self.manager is None:
                raise Overloaded
            return HandedOn(self.manager, owner)

    async def list_tools(self, _: ServerRequestContext[Any, Any], __: PaginatedRequestParams | None) -> ListToolsResult:
        """`chat` and our own tools; those of other servers are for those servers to offer."""
        chat = OfferedTool(
            name=CHAT,
            description="Say something to this service's assistant in a conversation; question and answer are stored.",
            input_schema=plain_schema(TypeAdapter(ChatArguments)),
        )
        own = [
            OfferedTool(
                name=tool.name,
                description=tool.description,
                input_schema=tool.parameters,
                annotations=ToolAnnotations(read_only_hint=True) if tool.parallel else None,
            )
            for tool in self.runtime.tools
            if self.is_own(tool.name)
        ]
        return ListToolsResult(tools=[chat, *own])

    def is_own(self, name: str) -> bool:
        """Whether a tool is there and may be offered."""
        tool = self.runtime.tools.get(name)
        return tool is not None and name != CHAT and not isinstance(tool, Borrowed)

    async def call_tool(self, context: ServerRequestContext[Any, Any], asked: CallToolRequestParams) -> CallToolResult:
        """Carry out a call. What goes wrong is told in the result, for the model that asked."""
        request, arguments = cast(Request, context.request), asked.arguments or {}
        owner = str(request.scope[OWNER])
        if asked.name != CHAT:
            return await self._use(asked.name, arguments, owner)
        try:
            return await self._chat(arguments, owner, language_of(request))
        except ValidationError as error:
            return failed("; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()))
        except Exception as error:
            problem = as_chat_error(error, request.method).problem(language_of(request))
            return failed(problem["detail"], problem)

    async def _chat(self, arguments: dict[str, Any], owner: str, language: str) -> CallToolResult:
        """One turn, as `/chat` would do it. Raises ChatError, ValidationError."""
        said = ChatArguments.model_validate(arguments)
        check_length("message", said.message, self.runtime.settings.max_message_chars)
        turn = await self.runtime.turns.answer(Question(owner, said.conversation_id, said.message))
        assert not isinstance(turn, Replayed)
        reply = ChatReply.of(turn, language, with_trace=False).model_dump(mode="json", exclude_unset=True)
        if reply["answer"] is None:
            return failed(str(reply["notice"]), reply)
        return CallToolResult(content=[TextContent(text=reply["answer"])], structured_content=reply)

    async def _use(self, name: str, arguments: dict[str, Any], owner: str) -> CallToolResult:
        """One call of a tool, outside any conversation."""
        if not self.is_own(name):
            return failed(f"There is no tool named {name[:80]!r}.")
        settings, run_id = self.runtime.settings, new_run_id()
        deadline = time.monotonic() + settings.turn_timeout_s
        context = RunContext(owner, "", run_id, Budget(deadline=deadline, tool_timeout_s=settings.tool_timeout_s))
        done = await self.runtime.tools.call(ToolCall(run_id, name, arguments), context)
        return CallToolResult(content=[TextContent(text=done.text)], is_error=done.code is not None)


class HandedOn(Response):
    """An answer that the SDK gives, to the request of this owner."""

    def __init__(self, manager: StreamableHTTPSessionManager, owner: str) -> None:
        super().__init__()
        self.manager, self.owner = manager, owner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[OWNER] = self.owner
        await self.manager.handle_request(scope, receive, send)


def failed(text: str, problem: Mapping[str, Any] | None = None) -> CallToolResult:
    """A result that says what went wrong."""
    return CallToolResult(content=[TextContent(text=text)], structured_content=problem, is_error=True)
