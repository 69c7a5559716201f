"""One turn, whichever way it came in: wait in line, load the history, run the agent, save both messages.

Every turn runs in a task of its own, so a caller that leaves cancels nothing, and a save that has begun is awaited to
its end. Turns of one conversation follow one another; turns of different ones know nothing of each other.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from agent import RunResult, run_agent, stop
from config import Settings
from db import Database
from errors import ChatError, ConversationBusy, Overloaded, RateLimited
from idempotency import Claim, claim_key, finish_key, free_key
from logs import RUN_ID
from memory import Also, History, Place, load_history, save_turn
from model import Model
from run import Budget, Event, Run, RunContext
from tools import ToolRegistry

log = logging.getLogger(__name__)

LEASE_MARGIN_S = 60.0  # a key's lease outlasts the turn and its save


@dataclass(frozen=True)
class Question:
    """What a caller wants answered. Where a limit or the model is None, the settings' own holds.

    key, fingerprint: the caller's Idempotency-Key and what makes the request the same; see idempotency.py.
    """

    owner: str
    conversation_id: str
    message: str
    max_steps: int | None = None
    max_tool_calls: int | None = None
    model: str | None = None
    key: str | None = None
    fingerprint: str = ""


@dataclass(frozen=True)
class Turn:
    """A turn that has ended. number: its place in the conversation, None where nothing was stored.

    body: the answer as it was stored with the caller's key, to be sent as it stands; None where there was no key.
    """

    question: Question
    result: RunResult
    number: int | None
    duration_ms: float
    body: str | None = None


@dataclass(frozen=True)
class Begun:
    """A turn under way, by the task that ends with it or with a ChatError."""

    run_id: str
    task: asyncio.Task[Turn]


@dataclass(frozen=True)
class Replayed:
    """The answer that the same request was given before."""

    body: str


BodyOf = Callable[[Turn], str]


@dataclass
class Line:
    """Those who wait for one conversation."""

    lock: asyncio.Lock
    length: int = 0


class Turns:
    """All turns under way in this process."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        model: Model,
        tools: ToolRegistry,
        system_prompt: Callable[[], str],
    ) -> None:
        self.settings, self.database, self.model, self.tools = settings, database, model, tools
        self.system_prompt = system_prompt
        self.listeners: list[Callable[[Event], None]] = []  # told of every event of every run
        self.max_of_one_owner: int | None = None  # turns of one owner at once
        self._tasks: dict[asyncio.Task[Turn], str] = {}  # with their owners
        self._lines: dict[tuple[str, str], Line] = {}

    @property
    def in_flight(self) -> int:
        """How many turns are under way, waiting ones too."""
        return len(self._tasks)

    async def answer(self, question: Question, body_of: BodyOf | None = None) -> Turn | Replayed:
        """Answer one message. Stores the message and the final answer, or neither. Raises ChatError."""
        begun = await self.begin(question, body_of=body_of)
        return begun if isinstance(begun, Replayed) else await asyncio.shield(begun.task)

    async def begin(
        self,
        question: Question,
        listener: Callable[[Event], None] | None = None,
        on_text: Callable[[str, int], None] | None = None,
        body_of: BodyOf | None = None,
    ) -> Begun | Replayed:
        """Begin to answer, or say what was answered before to a request with this key.

        listener, on_text: told of each event of the run and each piece of text as it happens. body_of: what the caller
        will be sent, for a question with a key. Raises ChatError where the turn cannot begin.
        """
        self._admit(question)
        run = Run(listeners=[*self.listeners, *([listener] if listener else [])])
        claim = None
        if question.key is not None:
            lease_s = self.settings.turn_timeout_s + LEASE_MARGIN_S
            at = (question.owner, question.key, question.fingerprint, question.conversation_id)
            claim = Claim(*at, run.id, lease_s)
            if (body := await self.database.run(claim_key, claim)) is not None:
                return Replayed(body)
        line = self._lines.setdefault((question.owner, question.conversation_id), Line(asyncio.Lock()))
        line.length += 1
        work = self._answer(question, line, run, claim, body_of, on_text)
        task = asyncio.create_task(work, name=f"run {run.id}")
        self._tasks[task] = question.owner
        task.add_done_callback(self._ended)
        return Begun(run.id, task)

    def _admit(self, question: Question) -> None:
        """Raise where this process takes no more: at all, of one owner, or in one conversation."""
        if len(self._tasks) >= self.settings.max_in_flight:
            raise Overloaded
        if self.max_of_one_owner and list(self._tasks.values()).count(question.owner) >= self.max_of_one_owner:
            raise RateLimited
        busy = (question.owner, question.conversation_id) in self._lines
        if busy and self.settings.conversation_busy == "reject":
            raise ConversationBusy(retry_after_s=1)

    async def _answer(
        self,
        question: Question,
        line: Line,
        run: Run,
        claim: Claim | None,
        body_of: BodyOf | None,
        on_text: Callable[[str, int], None] | None,
    ) -> Turn:
        """The turn, and its key given back where nothing was stored for it."""
        turn = None
        RUN_ID.set(run.id)
        try:
            turn = await self._stored(question, line, run, claim, body_of, on_text)
            return turn
        except ChatError as error:
            error.run_id = run.id
            log.info("ended %s", error.code)
            raise
        finally:
            if claim and (turn is None or turn.number is None):
                with contextlib.suppress(ChatError):  # then its lease will end
                    await self.database.run(free_key, claim)

    async def _stored(
        self,
        question: Question,
        line: Line,
        run: Run,
        claim: Claim | None,
        body_of: BodyOf | None,
        on_text: Callable[[str, int], None] | None,
    ) -> Turn:
        """Wait in line, load, run, save."""
        settings, started = self.settings, time.perf_counter()
        budget = Budget(
            max_steps=least(question.max_steps, settings.max_steps),
            max_tool_calls=least(question.max_tool_calls, settings.max_tool_calls),
            deadline=time.monotonic() + settings.turn_timeout_s,
            tool_timeout_s=settings.tool_timeout_s,
        )
        number, body = None, None
        async with self._in_line(question, line, budget) as my_turn:
            if not my_turn:
                result = stop(run, budget, "timeout")
            else:
                history = await self._load(question)
                result = await self._run(question, history, budget, run, on_text)
                if result.answer is not None:
                    number = history.place.turn
                    also: list[Also] = []
                    if claim and body_of:
                        ended = Turn(question, result, number, (time.perf_counter() - started) * 1000)
                        body = body_of(ended)
                        also = [finish_key(claim, body)]
                    await self._save(history.place, question.message, result.answer, run.id, also)
        duration_ms = (time.perf_counter() - started) * 1000
        log.info("ended %s after %d steps, %.0f ms", result.stop_reason, budget.steps, duration_ms)
        return Turn(question, result, number, duration_ms, body)

    async def _load(self, question: Question) -> History:
        window = self.settings.history_turns, self.settings.history_chars
        return await self.database.run(load_history, question.owner, question.conversation_id, *window)

    async def _run(
        self,
        question: Question,
        history: History,
        budget: Budget,
        run: Run,
        on_text: Callable[[str, int], None] | None,
    ) -> RunResult:
        """The agent on this conversation."""
        return await run_agent(
            history.messages,
            question.message,
            self.model,
            self.tools,
            budget,
            system=self.system_prompt(),
            run=run,
            context=RunContext(question.owner, question.conversation_id, run.id, budget),
            model_name=question.model,
            on_text=on_text,
        )

    async def _save(self, place: Place, message: str, answer: str, run_id: str, also: list[Also]) -> None:
        """Store the turn. Once begun it is awaited to its end, also when the service is ending."""
        saving = asyncio.ensure_future(self.database.run(save_turn, place, message, answer, run_id, also))
        try:
            await asyncio.shield(saving)
        except asyncio.CancelledError:
            await saving

    @contextlib.asynccontextmanager
    async def _in_line(self, question: Question, line: Line, budget: Budget) -> AsyncIterator[bool]:
        """Wait for the turns of this conversation that came before. False if the time is up before they have ended."""
        try:
            try:
                async with asyncio.timeout(budget.time_left_s()):
                    await line.lock.acquire()
            except TimeoutError:
                yield False
                return
            try:
                yield True
            finally:
                line.lock.release()
        finally:
            line.length -= 1
            if not line.length:
                del self._lines[question.owner, question.conversation_id]

    def _ended(self, task: asyncio.Task[Turn]) -> None:
        del self._tasks[task]
        if not task.cancelled() and (error := task.exception()) and not isinstance(error, ChatError):
            # A defect of ours: its caller is told so, if there still is one; here is the only place to see it whole.
            log.error("%s failed", task.get_name(), exc_info=error)

    async def drain(self, seconds: float) -> None:
        """Let the turns under way end, for so long; what is left then is cancelled and stores nothing more."""
        if self._tasks:
            _, late = await asyncio.wait(list(self._tasks), timeout=seconds)
            for task in late:
                task.cancel()
            if late:
                log.warning("%d turns were not done when the service ended", len(late))
                await asyncio.wait(late, timeout=15)


def least(asked: int | None, limit: int) -> int:
    """What was asked for, if it is lower than the limit; 0 is a number too."""
    return limit if asked is None else min(asked, limit)
