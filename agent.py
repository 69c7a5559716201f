"""The agent loop: ask the model, carry out the tools it asks for, show it the results, until it answers.

This module knows no HTTP and no SQL. It is handed a history and gives back a result; what it does on the way is told
event by event to whoever listens.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from errors import ChatError
from model import ContextTooLong, Model, OutOfTime
from reply import Reply
from run import NOTICES, Budget, Run, RunContext, Usage
from tools import Observation, Stop, ToolCall, ToolRegistry


class HistoryMessage(Protocol):
    """What the loop needs of a stored message."""

    def as_dict(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class RunResult:
    """How a run ended. answer: None unless stop_reason is `completed`; notice: for people, where it is not."""

    answer: str | None
    stop_reason: str
    run: Run
    budget: Budget
    notice: str | None = None
    handed_back: tuple[ToolCall, ...] = ()  # calls of the caller's own tools; stop_reason is `tool_calls`

    @property
    def usage(self) -> Usage:
        """Tokens of all rounds together, as far as the service counted them."""
        return Usage.sum_of(self.run.usages)


async def run_agent(
    history: Sequence[HistoryMessage],
    question: str | None,
    model: Model,
    tools: ToolRegistry,
    budget: Budget,
    *,
    system: str = "",
    callers_tools: Sequence[dict[str, Any]] = (),
    run: Run | None = None,
    context: RunContext | None = None,
) -> RunResult:
    """Answer `question`, calling tools as the model asks, within `budget`. Stores nothing, changes no argument.

    question: None where the history ends with it already. callers_tools: descriptions of tools that are not ours to
    carry out; a reply that asks for one ends the run, and its calls of them are handed back.
    Raises ChatError when the model cannot be asked.
    """
    run = run or Run()
    context = context or RunContext(run_id=run.id, budget=budget)
    transcript = opening(system, history, question)
    run.model = run.model or model.settings.default_model
    here = context.conversation_id or None
    run.note("run_started", 0, conversation_id=here, question=question, model=run.model, history=len(history))
    budget.cap(tools.limits())
    offered = [*tools.schemas(budget), *callers_tools] if budget.max_tool_calls else [*callers_tools]
    not_ours = {tool["function"]["name"] for tool in callers_tools}
    emptied = False

    while budget.steps < budget.max_steps:
        if run.cancelled or not budget.time_left_s():
            return stop(run, budget, "cancelled" if run.cancelled else "timeout")
        budget.steps += 1
        try:
            reply = await ask(model, transcript, offered, budget, run)
        except OutOfTime:
            return stop(run, budget, "timeout")
        if run.cancelled or reply.finish_reason in ("length", "content_filter"):  # unwanted, or cut: none of it is used
            return stop(run, budget, "cancelled" if run.cancelled else str(reply.finish_reason))
        if reply.is_empty:
            if emptied or budget.steps == budget.max_steps:
                return stop(run, budget, "empty_answer")
            emptied = True  # once may be chance: ask again
            continue
        if not reply.tool_calls:  # the model answered
            return stop(run, budget, "completed", reply.text)
        if theirs := tuple(call for call in reply.tool_calls if call.name in not_ours):
            return replace(stop(run, budget, "tool_calls"), answer=reply.text, handed_back=theirs)
        if budget.steps == budget.max_steps:  # nobody would read the results
            break

        # The model reads its own request and then one observation for each call.
        transcript.append(reply.as_dict())
        ended = await carry_out(reply.tool_calls, tools, context, transcript, run)
        if ended:
            return stop(run, budget, ended.reason, ended=ended)

    return stop(run, budget, "max_steps")


def opening(system: str, history: Sequence[HistoryMessage], question: str | None) -> list[dict[str, Any]]:
    """The transcript that a run begins with: system, what was said before, the question."""
    before = [{"role": "system", "content": system}] if system else []
    asked = [{"role": "user", "content": question}] if question is not None else []
    return [*before, *(message.as_dict() for message in history), *asked]


async def ask(
    model: Model, transcript: list[dict[str, Any]], offered: list[dict[str, Any]], budget: Budget, run: Run
) -> Reply:
    """One reply of the model, or its error, with their events. A transcript that is too long is shortened, once."""
    step, started = budget.steps, time.perf_counter()
    run.note("model_request", step, messages=len(transcript))
    run.rounds += 1
    heard = partial(run.on_text, step) if run.on_text else None
    try:
        reply = await model.complete(
            transcript, offered, time_left_s=budget.time_left_s, name=run.model or None, on_text=heard
        )
    except (ChatError, OutOfTime) as error:
        duration_ms = (time.perf_counter() - started) * 1000
        run.model_ms += duration_ms
        code = error.code if isinstance(error, ChatError) else "timeout"
        run.note("model_error", step, code=code, duration_ms=round(duration_ms, 3), usage=None)
        if isinstance(error, ContextTooLong) and shorten(transcript, run, budget):
            return await ask(model, transcript, offered, budget, run)
        if isinstance(error, ChatError):
            stop(run, budget, "error")
        raise
    run.model_ms += reply.duration_ms
    run.usages.append(reply.usage)
    run.note(
        "model_response",
        step,
        text=reply.text,
        tool_calls=[call_details(call) for call in reply.tool_calls],
        finish_reason=reply.finish_reason,
        duration_ms=round(reply.duration_ms, 3),
        usage=reply.usage.as_dict() if reply.usage.known else None,
    )
    return reply


async def carry_out(
    calls: list[ToolCall], tools: ToolRegistry, context: RunContext, transcript: list[dict[str, Any]], run: Run
) -> Stop | None:
    """Carry out the calls of a step; their observations go into the transcript. Says why the run ends here."""
    step = context.budget.steps
    for call in calls:
        run.note("tool_call", step, **call_details(call))

    def observe(observation: Observation) -> None:
        transcript.append(observation.as_dict())
        run.tool_ms += observation.duration_ms
        if observation.record is not None:
            run.records[len(run.events)] = observation.record
        run.note(
            "tool_result",
            step,
            call_id=observation.call.id,
            tool=observation.call.name,
            ok=observation.code is None,
            code=observation.code,
            text=observation.text,
            duration_ms=round(observation.duration_ms, 3),
        )

    return await tools.call_all(calls, context, observe)


def call_details(call: ToolCall) -> dict[str, Any]:
    """A call as the trace shows it."""
    return {"call_id": call.id, "tool": call.name, "arguments": call.arguments, "problem": call.problem or None}


def shorten(transcript: list[dict[str, Any]], run: Run, budget: Budget) -> bool:
    """Drop the older half of the history, whole turns, because the model takes no more. Once; False if that is over."""
    first = 1 if transcript[0]["role"] == "system" else 0
    question = max((at for at, message in enumerate(transcript) if message["role"] == "user"), default=0)
    turns, odd = divmod(question - first, 2)
    if run.notice or turns < 1 or odd or any("tool_calls" in message for message in transcript[first:question]):
        return False  # not the plain turns that we store: its pairs are not ours to part
    dropped = turns - turns // 2
    del transcript[first : first + 2 * dropped]
    run.notice = f"The model takes no longer conversation: the oldest {dropped} of {turns} turns were left out."
    run.note("history_shortened", budget.steps, dropped_turns=dropped, kept_turns=turns - dropped)
    return True


def stop(run: Run, budget: Budget, reason: str, answer: str | None = None, ended: Stop | None = None) -> RunResult:
    """The end of a run, with its event."""
    recorded = sum(usage.known for usage in run.usages)
    usage = Usage.sum_of(run.usages).as_dict()
    blocked, failed = (ended.blocked, ended.failed) if ended else (None, None)
    run.note(
        "run_stopped",
        budget.steps,
        stop_reason=reason,
        blocked_call=call_details(blocked) if blocked else None,
        failure={"call_id": failed.call.id, "code": failed.code, "explanation": failed.text} if failed else None,
        execution_budget=budget.as_dict(),
        token_usage={**usage, "rounds": run.rounds, "rounds_recorded": recorded} if recorded else None,
        model_duration_ms=round(run.model_ms, 3),
        tool_duration_ms=round(run.tool_ms, 3),
    )
    if reason == "completed":
        return RunResult(answer, reason, run, budget, run.notice)
    if failed and not blocked:  # the tool itself says why
        return RunResult(None, reason, run, budget, failed.text)
    notice = NOTICES[reason][0] if reason in NOTICES else f"The run ended: {reason}."
    return RunResult(None, reason, run, budget, notice)
