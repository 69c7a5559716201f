"""Threads for blocking tools, bounded, and apart from those of the database."""

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from errors import ToolError

Outcome = tuple[Any, BaseException | None]


class ToolFailed(Exception):
    """A tool raised something that is neither for the model nor for the run. The message is the kind of exception."""


class DaemonThreads:
    """A bounded number of threads for blocking tools, apart from all others.

    Daemons: a tool that never returns costs one thread, and does not keep the process from ending.
    """

    def __init__(self, limit: int) -> None:
        self._free = asyncio.Semaphore(limit)
        self._idle = 0  # threads that wait for a job
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    async def run(self, function: Callable[[], Any], timeout_s: float) -> Any:
        """`function()` in one of the threads. Raises TimeoutError, and ToolError where no thread got free in time."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        try:
            async with asyncio.timeout_at(deadline):
                await self._free.acquire()
        except TimeoutError:
            raise ToolError("All threads for tools are busy. Do without this tool.", "tool_pool_full") from None
        done: asyncio.Future[Outcome] = loop.create_future()
        inside = contextvars.copy_context()  # the tool sees the context variables of the turn

        def finish(outcome: Outcome) -> None:
            self._idle += 1
            self._free.release()
            if not done.done():
                done.set_result(outcome)

        def job() -> None:
            try:
                outcome: Outcome = (inside.run(function), None)
            except BaseException as error:  # also SystemExit: a tool ends neither its thread nor the service
                outcome = (None, error)
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(finish, outcome)

        self._start(job)
        async with asyncio.timeout_at(deadline):
            result, error = await done
        if error is not None:
            # A StopIteration or SystemExit must not travel on as itself.
            raise error if isinstance(error, ToolError) else ToolFailed(type(error).__name__) from error
        return result

    def _start(self, job: Callable[[], None]) -> None:
        if self._idle:
            self._idle -= 1
        else:
            threading.Thread(target=self._work, daemon=True, name="tool").start()
        self._jobs.put(job)

    def _work(self) -> None:
        while job := self._jobs.get():
            job()

    def close(self) -> None:
        """Let the idle threads end."""
        for _ in range(self._idle):
            self._jobs.put(None)
        self._idle = 0
