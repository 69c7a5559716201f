"""One turn, whichever way it came in: wait in line, load the history, run the agent, save both messages.

Every turn runs in a task of its own, so a caller that leaves cancels nothing, and a save that has begun is awaited to
its end. Turns of one conversation follow one another; turns of different ones know nothing of each other.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agent import RunResult, run_agent, stop
from config import Settings
from db import Database
from errors import ChatError, ConversationBusy, Overloaded, RateLimited, StoreUnavailable, TurnConflict
from idempotency import Claim, claim_key, finish_key, free_key
from logs import RUN_ID
from memory import Also, History, Place, load_history, save_turn
from model import Model
from run import Budget, Event, OnText, Run, RunContext
from tools import ToolRegistry

log = logging.getLogger(__name__)

LEASE_MARGIN_S = 60.0  # a key's lease outlasts the turn and its save


@dataclass(frozen=True)
class Question:
    """What a caller wants answered. Where a limit or the model is None, the settings' own holds.

    max_calls_of: calls of single tools, by name, where their own limits are too many.
    conversation_id: None for a question outside any conversation, which leaves no messages.
    instructions: added to the system prompt. given: the caller's own messages in the wire format, in place of a stored
    history; message is then only for the record. callers_tools: see run_agent; not for a conversation of ours.
    after: how many turns the conversation has to hold, else TurnConflict; None for any number.
    key, fingerprint: the caller's Idempotency-Key and what makes the request the same; see idempotency.py.
    """

    owner: str
    conversation_id: str | None
    message: str
    max_steps: int | None = None
    max_tool_calls: int | None = None
    model: str | None = None
    instructions: str = ""
    given: tuple[dict[str, Any], ...] | None = None
    callers_tools: tuple[dict[str, Any], ...] = ()
    after: int | None = None
    key: str | None = None
    fingerprint: str = ""
    max_calls_of: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class GivenMessage:
    """A message of the caller's own history, passed on as it is."""

    message: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        return self.message


@dataclass(frozen=True)
class Turn:
    """A turn that has ended. number: its place in the conversation, None where nothing was stored.

    body: the answer as it was stored with the caller's key, to be sent as it stands; None where there was no key.
    """

    question: Question
    result: RunResult
    number: int | None
    duration_ms: float
    history: History | None = None  # what the model was given of the conversation
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
Watcher = Callable[[Turn | BaseException, bool], None]  # told how each turn ended, and whether it had begun
Recorder = Callable[[Turn], Also | None]  # what else is written of a turn, completed or not; None for nothing


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
        self.recorders: list[Recorder] = []
        self.watchers: list[Watcher] = []
        self.runs: dict[str, Run] = {}  # under way, by id
        self.max_of_one_owner: int | None = None  # turns of one owner at once
        self._tasks: dict[asyncio.Task[Turn], str] = {}  # with their owners
        self._claiming: list[str] = []  # the owners of questions whose keys are looked at: they are under way, too
        self._lines: dict[tuple[str, str], Line] = {}

    @property
    def in_flight(self) -> int:
        """How many turns are under way, waiting ones too."""
        return len(self._tasks) + len(self._claiming)

    async def answer(self, question: Question, body_of: BodyOf | None = None) -> Turn | Replayed:
        """Answer one message. Stores the message and the final answer, or neither. Raises ChatError."""
        begun = await self.begin(question, body_of=body_of)
        return begun if isinstance(begun, Replayed) else await asyncio.shield(begun.task)

    async def begin(
        self,
        question: Question,
        listener: Callable[[Event], None] | None = None,
        on_text: OnText | None = None,
        body_of: BodyOf | None = None,
    ) -> Begun | Replayed:
        """Begin to answer, or say what was answered before to a request with this key.

        listener, on_text: told of each event of the run and each piece of text as it happens. body_of: what the caller
        will be sent, for a question with a key. Raises ChatError where the turn cannot begin.
        """
        try:
            self._admit(question)
            return await self._begin(question, listener, on_text, body_of)
        except ChatError as error:
            self._tell(error, began=False)
            raise

    async def _begin(
        self,
        question: Question,
        listener: Callable[[Event], None] | None,
        on_text: OnText | None,
        body_of: BodyOf | None,
    ) -> Begun | Replayed:
        listeners = [*self.listeners, *([listener] if listener else [])]
        run = Run(model=question.model or "", listeners=listeners, on_text=on_text)
        claim = None
        if question.key is not None:
            lease_s = self.settings.turn_timeout_s + LEASE_MARGIN_S
            at = (question.owner, question.key, question.fingerprint, question.conversation_id or "")
            claim = Claim(*at, run.id, lease_s)
            if (body := await self._claim(claim)) is not None:
                return Replayed(body)
        try:
            line = self._stand_in_line(question, run)
        except ConversationBusy:
            await self._free(claim)
            raise
        work = self._answer(question, line, run, claim, body_of)
        task = asyncio.create_task(work, name=f"run {run.id}")
        self._tasks[task] = question.owner
        self.runs[run.id] = run
        task.add_done_callback(self._ended)
        return Begun(run.id, task)

    def cancel(self, run_id: str, owner: str) -> bool:
        """Have a run of this process stop before its next step; whether there is such a run of this owner."""
        for task, owned_by in self._tasks.items():
            if owned_by == owner and task.get_name() == f"run {run_id}" and run_id in self.runs:
                self.runs[run_id].cancelled = True
                return True
        return False

    def _admit(self, question: Question) -> None:
        """Raise where this process takes no more: at all, or of one owner."""
        if self.in_flight >= self.settings.max_in_flight:
            raise Overloaded
        if limit := self.max_of_one_owner:
            if [*self._tasks.values(), *self._claiming].count(question.owner) >= limit:
                raise RateLimited

    async def _claim(self, claim: Claim) -> str | None:
        """Claim a key; meanwhile its question counts as one under way. See claim_key."""
        self._claiming.append(claim.owner)
        try:
            return await self.database.run(claim_key, claim)
        finally:
            self._claiming.remove(claim.owner)

    async def _free(self, claim: Claim | None) -> None:
        """Give a key back. Best effort: a lease ends by itself."""
        if claim:
            with contextlib.suppress(ChatError):
                await self.database.run(free_key, claim)

    def _stand_in_line(self, question: Question, run: Run) -> Line:
        """The line of its conversation, with this question in it. Raises ConversationBusy where none may wait."""
        place = place_of(question, run)
        if place in self._lines and self.settings.conversation_busy == "reject":
            raise ConversationBusy(retry_after_s=1)
        line = self._lines.setdefault(place, Line(asyncio.Lock()))
        line.length += 1
        return line

    async def _answer(
        self,
        question: Question,
        line: Line,
        run: Run,
        claim: Claim | None,
        body_of: BodyOf | None,
    ) -> Turn:
        """The turn; where nothing was stored of it, its key is given back and the run recorded by itself."""
        settings, started = self.settings, time.perf_counter()
        budget = Budget(
            max_steps=least(question.max_steps, settings.max_steps),
            max_tool_calls=least(question.max_tool_calls, settings.max_tool_calls),
            deadline=time.monotonic() + settings.turn_timeout_s,
            tool_timeout_s=settings.tool_timeout_s,
            max_calls_of=dict(question.max_calls_of),
        )
        RUN_ID.set(run.id)
        number, history = None, None
        result = RunResult(None, "error", run, budget)
        try:
            async with self._in_line(question, line, run, budget) as my_turn:
                if not my_turn:
                    result = stop(run, budget, "timeout")
                else:
                    history = await self._load(question, budget)
                    if question.after not in (None, history.place.turn - 1):
                        raise TurnConflict
                    result = await self._run(question, history, budget, run)
                    ended = Turn(question, result, history.place.turn, milliseconds_since(started), history)
                    if result.stop_reason == "completed" and question.conversation_id is not None:
                        body = body_of(ended) if claim and body_of else None
                        await self._save(history.place, ended, claim, body)
                        number = history.place.turn
        except asyncio.CancelledError:
            result = stop(run, budget, "cancelled")
            raise
        except ChatError as error:
            error.run_id = run.id
            result = RunResult(None, "error", run, budget, error.code)
            log.info("ended %s", error.code)
            raise
        except Exception as error:
            # A defect of ours: its caller is told so, if there still is one; here is the only place to see it whole.
            log.error("run %s failed", run.id, exc_info=error)
            defect = ChatError()
            defect.run_id = run.id
            raise defect from error
        finally:
            turn = Turn(question, result, number, milliseconds_since(started), history)
            if number is None:
                await self._leave(turn, claim)
        log.info("ended %s after %d steps, %.0f ms", result.stop_reason, budget.steps, turn.duration_ms)
        return replace(turn, body=body) if number is not None else turn

    async def _leave(self, turn: Turn, claim: Claim | None) -> None:
        """What remains of a turn of which nothing was stored."""
        await self._free(claim)
        try:
            if also := self._also(turn):
                await self.database.run(write_also, also)
        except ChatError:
            pass  # the log has it
        except Exception:
            log.exception("run %s could not be recorded", turn.result.run.id)

    def _also(self, turn: Turn) -> list[Also]:
        """What the recorders have to write of a turn."""
        return [also for recorder in self.recorders if (also := recorder(turn))]

    async def _load(self, question: Question, budget: Budget) -> History:
        """What was said before. A database that hangs does not make the turn last longer than it may."""
        if question.conversation_id is None:
            return History([], Place(question.owner, "", None, 1))
        window = self.settings.history_turns, self.settings.history_chars
        try:
            async with asyncio.timeout(budget.time_left_s()):
                return await self.database.run(load_history, question.owner, question.conversation_id, *window)
        except TimeoutError:
            raise StoreUnavailable from None

    async def _run(self, question: Question, history: History, budget: Budget, run: Run) -> RunResult:
        """The agent on this conversation."""
        given = question.given
        return await run_agent(
            history.messages if given is None else [GivenMessage(message) for message in given],
            question.message if given is None else None,
            self.model,
            self.tools,
            budget,
            system="\n\n".join(filter(None, [self.system_prompt(), question.instructions])),
            callers_tools=question.callers_tools,
            run=run,
            context=RunContext(question.owner, question.conversation_id or "", run.id, budget),
        )

    async def _save(self, place: Place, turn: Turn, claim: Claim | None, body: str | None) -> None:
        """Store the turn. Once begun it is awaited to its end, also when the service is ending."""
        also = self._also(turn)
        if claim and body is not None:
            also.append(finish_key(claim, body))
        texts = turn.question.message, turn.result.answer or ""
        saving = asyncio.ensure_future(self.database.run(save_turn, place, *texts, turn.result.run.id, also))
        try:
            await asyncio.shield(saving)
        except asyncio.CancelledError:
            await saving

    @contextlib.asynccontextmanager
    async def _in_line(self, question: Question, line: Line, run: Run, budget: Budget) -> AsyncIterator[bool]:
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
                del self._lines[place_of(question, run)]
            del self.runs[run.id]

    def _ended(self, task: asyncio.Task[Turn]) -> None:
        del self._tasks[task]
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        self._tell(error or task.result(), began=True)

    def _tell(self, outcome: Turn | BaseException, began: bool) -> None:
        for watcher in self.watchers:
            watcher(outcome, began)

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


def place_of(question: Question, run: Run) -> tuple[str, str]:
    """In which line a question stands: its conversation's, or one of its own, named as no conversation can be."""
    return question.owner, question.conversation_id or f"\n{run.id}"


def milliseconds_since(started: float) -> float:
    """started: on the clock of time.perf_counter()."""
    return (time.perf_counter() - started) * 1000


def write_also(database: Database, also: Sequence[Also]) -> None:
    """What is written of a turn that left no messages."""
    with database.transaction() as cursor:
        for more in also:
            more(cursor)
