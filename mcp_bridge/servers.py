"""The tools of other MCP servers, as tools of ours.

Each server has a task that connects, looks after the connection and connects again; nobody waits for it. A server that
is away costs its own tool calls and nothing else: its tools stay known, and a call of one says that nobody is there.
"""

import asyncio
import contextlib
import logging
import os
import re
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any

import httpx2
from mcp import Client, MCPError, StdioServerParameters, stdio_client
from mcp import Tool as RemoteTool
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CONNECTION_CLOSED, REQUEST_TIMEOUT, CallToolResult
from pydantic import TypeAdapter

from errors import ToolError
from text import cut_text
from tools import LEGAL_NAME, Tool, ToolRegistry, as_text

from .configuration import Server

log = logging.getLogger(__name__)

CONNECT_S = 30.0  # to start, connect and tell the tools
WAIT_S = 5.0  # how long a call waits for a server that is being connected again
LOOK_AFTER_S = 30.0  # how often a connection is looked at when nobody doubts it
ANSWER_S = 10.0  # how long that look may take
PAUSE_S, LONGEST_PAUSE_S = 0.5, 60.0  # between two tries, doubled while they fail
STABLE_S = 60.0  # a connection that lasted so long begins with the short pause again
MAX_PAGES = 20
MAX_DESCRIPTION_CHARS = 4_000
ANY_ARGUMENTS: TypeAdapter[Any] = TypeAdapter(dict[str, Any])  # the server checks them: the schema is its own


@dataclass(frozen=True)
class Borrowed(Tool):
    """A tool of another server."""


class Servers:
    """All servers of one application."""

    def __init__(self, servers: list[Server], tools: ToolRegistry) -> None:
        self.connections = [Connection(server, tools) for server in servers]
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Begin to connect. Waits for nobody."""
        if not self._tasks:
            self._tasks = [asyncio.create_task(each.keep(), name=f"MCP {each.name}") for each in self.connections]

    async def stop(self) -> None:
        """Close every connection, and let the processes that were started end."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=15)


class Connection:
    """One server, connected or not."""

    def __init__(self, server: Server, tools: ToolRegistry) -> None:
        self.server, self.name, self.tools = server, server.name, tools
        self._offered: dict[str, Tool] = {}
        self._client: Client | None = None
        self._ready, self._doubt = asyncio.Event(), asyncio.Event()

    async def keep(self) -> None:
        """Connect, look after the connection, connect again; until it is cancelled."""
        self._ready, self._doubt = asyncio.Event(), asyncio.Event()
        clock, pause_s = asyncio.get_running_loop().time, PAUSE_S
        while True:
            since = clock()
            try:
                async with AsyncExitStack() as stack:
                    async with asyncio.timeout(CONNECT_S):
                        client = await self._connect(stack)
                        await self._offer(client)
                    log.info("MCP server %s: connected, %d tools", self.name, len(self._offered))
                    self._client = client
                    self._ready.set()
                    await self._look_after(client)
            except Exception as error:
                if clock() - since > STABLE_S:
                    pause_s = PAUSE_S
                log.warning("MCP server %s: %s; trying again in %.1f s", self.name, reason_of(error), pause_s)
            finally:
                self._client = None
                self._ready.clear()
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    async def _connect(self, stack: AsyncExitStack) -> Client:
        server = self.server
        if server.url:
            limits = httpx2.Timeout(CONNECT_S, read=server.timeout_s + CONNECT_S)
            http = await stack.enter_async_context(httpx2.AsyncClient(headers=server.headers, timeout=limits))
            transport = streamable_http_client(server.url, http_client=http)
        else:
            # What it writes to standard error is not ours to log.
            nowhere = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
            program, *arguments = server.command
            how = StdioServerParameters(command=program, args=arguments, env=server.env)
            transport = stdio_client(how, errlog=nowhere)
        return await stack.enter_async_context(Client(transport, cache=None))

    async def _look_after(self, client: Client) -> None:
        """Ask now and then, and whenever a call has failed, whether the server is there. Raises when it is not."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_AFTER_S):
                    await self._doubt.wait()
            self._doubt.clear()
            async with asyncio.timeout(ANSWER_S):
                await self._offer(client)

    async def _offer(self, client: Client) -> None:
        """Register what the server has of the tools that are allowed; what it has no longer goes."""
        listed = await list_all(client)
        if self._client is None:
            for missing in sorted(set(self.server.tools) - {tool.name for tool in listed}):
                log.warning("MCP server %s has no tool %s", self.name, missing)
        now = {tool.name: tool for each in listed if each.name in self.server.tools for tool in [self._tool(each)]}
        for name, tool in self._offered.items():
            if name not in now or said_of(now[name]) != said_of(tool):
                self.tools.remove(name)
        kept = {name: tool for name, tool in self._offered.items() if self.tools.get(name) is tool}
        for name, tool in now.items():
            if name in kept:
                continue
            if not LEGAL_NAME.fullmatch(name) or self.tools.get(name):
                log.warning(
                    "MCP server %s: the name %.100s is too long or in use; the tool is left out", self.name, name
                )
                continue
            self.tools.add(tool)
            kept[name] = tool
        self._offered = kept

    def _tool(self, remote: RemoteTool) -> Tool:
        """A tool of the server's as one of ours; its schema stays as it is."""

        async def call(**arguments: Any) -> str:
            return await self._call(remote.name, arguments)

        return Borrowed(
            function=call,
            name=re.sub(r"[^A-Za-z0-9_-]", "_", f"{self.name}_{remote.name}"),
            description=cut_text(remote.description or remote.name, MAX_DESCRIPTION_CHARS),
            parameters={"type": "object", "properties": {}, **remote.input_schema},
            arguments=ANY_ARGUMENTS,
            timeout_s=self.server.timeout_s,
            parallel=bool(remote.annotations and remote.annotations.read_only_hint),
        )

    async def _call(self, tool: str, arguments: dict[str, Any]) -> str:
        """The result of one call as text. Raises ToolError."""
        try:
            async with asyncio.timeout(WAIT_S):
                await self._ready.wait()
        except TimeoutError:
            raise self._away() from None
        assert self._client
        try:
            result = await self._client.call_tool(tool, arguments)
        except MCPError as error:
            self._doubt.set()
            if error.code in (CONNECTION_CLOSED, REQUEST_TIMEOUT):
                raise self._away() from error
            raise ToolError(f"The server {self.name} refuses the call: {error.message[:2000]}") from error
        except Exception as error:
            self._doubt.set()
            log.warning("MCP server %s: %s failed: %s", self.name, tool, reason_of(error))
            raise self._away() from error
        except asyncio.CancelledError:  # it took too long; perhaps nobody is there any more
            self._doubt.set()
            raise
        text = text_of(result)
        if result.is_error:
            raise ToolError(text or f"The tool {tool} failed and did not say why.")
        return text

    def _away(self) -> ToolError:
        return ToolError(f"The server {self.name} cannot be reached. Do without its tools.", "server_unavailable")


async def list_all(client: Client) -> list[RemoteTool]:
    """The tools of a server, all pages."""
    found: list[RemoteTool] = []
    cursor = None
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        found += page.tools
        if not (cursor := page.next_cursor):
            break
    return found


def said_of(tool: Tool) -> Tool:
    """What is told of a tool, without the function that calls it; to compare."""
    return replace(tool, function=said_of)


def text_of(result: CallToolResult) -> str:
    """What the model is shown of a result: the texts; of anything else that it is there."""
    parts = []
    for block in result.content:
        if block.type == "text":
            parts.append(block.text)
        elif block.type == "resource_link":
            parts.append(f"[{block.name}: {block.uri}]")
        elif block.type == "resource":
            parts.append(getattr(block.resource, "text", f"[{block.resource.uri}, not text]"))
        else:
            parts.append(f"[{block.type}, {block.mime_type}, not shown]")
    if not parts and result.structured_content is not None:
        return as_text(result.structured_content)
    return "\n".join(parts)


def reason_of(error: BaseException) -> str:
    """The first cause of a failure, in one line; the SDK wraps it in groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"[:200]
