"""A run while it happens: what it may spend, what it has spent, and each thing that happened, as an event."""

import logging
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import getrandbits
from typing import Any, NamedTuple

log = logging.getLogger(__name__)

Event = dict[str, Any]  # {"type": "tool_result", "step": 2, "at": "2026-…Z", "details": {…}}

NOTICES = {  # for people, in English and Chinese
    "max_steps": ("The question needed more steps than are permitted.", "该问题所需的步数超过上限。"),
    "tool_call_limit": (
        "The question needed more tool calls than are permitted.",
        "该问题所需的工具调用次数超过上限。",
    ),
    "timeout": ("The time for this turn was up before there was an answer.", "本轮时间已用完，尚无答案。"),
    "empty_answer": ("The model gave an empty answer.", "模型给出了空回答。"),
    "length": ("The answer was longer than it may be and was cut off.", "回答超过长度上限而被截断。"),
    "content_filter": ("The model service's content filter stopped the answer.", "模型服务的内容过滤中止了回答。"),
    "cancelled": ("The run was cancelled.", "本次运行已取消。"),
    "tool_calls": ("The answer waits for the caller's own tools.", "回答需等待调用方自己的工具结果。"),
}


class ToolLimit(NamedTuple):
    """How often one tool may be called in a run, as callers name it."""

    tool: str
    toolset: str  # that has the tool


LIMITS: dict[str, ToolLimit] = {}  # what toolsets bring; also the name of the setting, in capitals


def new_run_id() -> str:
    """A UUID of version 7: the time in milliseconds, then chance; ids sort as they were made. Source: RFC 9562."""
    head = time.time_ns() // 1_000_000 << 80
    return str(uuid.UUID(int=head | 7 << 76 | getrandbits(12) << 64 | 2 << 62 | getrandbits(62)))  # an id, no secret


@dataclass
class Budget:
    """What one run may spend, and what it has spent. deadline: on the clock of time.monotonic()."""

    max_steps: int = 10
    max_tool_calls: int = 30
    deadline: float = float("inf")
    tool_timeout_s: float = 30.0
    steps: int = 0
    tool_calls: int = 0
    calls_of: Counter[str] = field(default_factory=Counter)
    max_calls_of: dict[str, int] = field(default_factory=dict)  # of tools that have a limit of their own

    def cap(self, limits: Mapping[str, int]) -> None:
        """Let no tool be called more often than it permits itself; fewer calls that were asked for stay."""
        for tool, limit in limits.items():
            self.max_calls_of[tool] = min(limit, self.max_calls_of.get(tool, limit))

    def time_left_s(self) -> float:
        """Seconds until the deadline, never below 0."""
        return max(self.deadline - time.monotonic(), 0.0)

    def spend(self, tool: str) -> None:
        """Count one call: a failed one too, a blocked one never."""
        self.tool_calls += 1
        self.calls_of[tool] += 1

    def as_dict(self) -> dict[str, Any]:
        """The caps and what was really used."""
        return {
            "max_steps": self.max_steps,
            "steps": self.steps,
            "max_tool_calls": self.max_tool_calls,
            "tool_calls": self.tool_calls,
            "max_calls_of": dict(self.max_calls_of),
            "calls_of": dict(self.calls_of),
        }


@dataclass(frozen=True)
class RunContext:
    """What a tool may know of the run it works for. A parameter of this type is filled by us, not by the model."""

    owner: str = ""
    conversation_id: str = ""
    run_id: str = ""
    budget: Budget = field(default_factory=Budget)
    failed: list[Any] = field(default_factory=list)  # the observations of calls of this run that went wrong

    def time_left_s(self) -> float:
        """Seconds until the turn's time is up."""
        return self.budget.time_left_s()


@dataclass(frozen=True)
class Usage:
    """Tokens of one reply as the service counted them; None where it did not say."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    total_tokens: int | None = None

    @property
    def known(self) -> bool:
        return any(value is not None for value in self.as_dict().values())

    def as_dict(self) -> dict[str, int | None]:
        return {
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "total_tokens": self.total_tokens,
        }

    @classmethod
    def sum_of(cls, parts: Iterable["Usage"]) -> "Usage":
        """What is known of all parts together; a figure that no part has stays unknown."""
        rows = [part.as_dict() for part in parts]

        def total(name: str) -> int | None:
            known = [row[name] for row in rows if row[name] is not None]
            return sum(value for value in known if value is not None) if known else None

        return cls(total("input_tokens"), total("output_tokens"), total("total_tokens"))


OnText = Callable[[int, str], None]
"""Told of each piece of text as it is written, with its step. Text of a step with tool calls is not the answer."""


@dataclass
class Run:
    """One execution of the loop, as it happens: its events, and what they add up to."""

    id: str = field(default_factory=new_run_id)
    model: str = ""  # the model to ask; empty: the settings' own
    listeners: list[Callable[[Event], None]] = field(default_factory=list)
    on_text: OnText | None = None
    events: list[Event] = field(default_factory=list)
    records: dict[int, str] = field(default_factory=dict)  # whole results for people, by the place of their event
    usages: list[Usage] = field(default_factory=list)  # of the replies that came
    rounds: int = 0  # requests to the model, failed ones too
    model_ms: float = 0.0
    tool_ms: float = 0.0
    notice: str | None = None
    cancelled: bool = False  # asked to stop: it does so before its next step

    def note(self, kind: str, step: int, **details: Any) -> None:
        """Add an event and tell it to those who listen. One who fails does not end the run."""
        at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        event = {"type": kind, "step": step, "at": at, "details": details}
        self.events.append(event)
        for listener in self.listeners:
            try:
                listener(event)
            except Exception:
                log.exception("a listener failed at the event %s of run %s", kind, self.id)
