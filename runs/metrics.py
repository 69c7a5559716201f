"""`/metrics` for Prometheus: what the turns of this process came to, counted from their events and their ends.

Every runtime has a registry of its own, so that several applications live in one process. No label holds what a caller
or a model has chosen: a tool is named where it is registered, codes and stop reasons are words of ours or of a tool,
and even of those there are only so many.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable

from fastapi import APIRouter, Depends, Request, Response
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import choose_encoder

from access import require
from errors import ChatError
from problems import problems
from run import NOTICES, Event
from runtime import Runtime
from turn import Turn

MODEL_BUCKETS_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120)
TOOL_BUCKETS_S = (0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
OTHER = "other"  # the label of what has none of its own
WORD = re.compile(r"[a-z][a-z0-9_]{0,39}")
MAX_WORDS = 64


def register_metrics(runtime: Runtime) -> None:
    """Count what happens in the turns of this runtime, and add the route that tells it."""
    metrics = Metrics(runtime)
    runtime.turns.listeners.append(metrics.hear)
    runtime.turns.watchers.append(metrics.ended)
    runtime.routers.append(lambda router, caller: add_metrics(router, metrics, caller))


def add_metrics(router: APIRouter, metrics: "Metrics", caller: Callable[..., str | Awaitable[str]]) -> None:
    """The route `/metrics`."""

    @router.get(
        "/metrics",
        tags=["operation"],
        response_class=Response,
        responses=problems() | {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
        dependencies=[Depends(caller)],
    )
    async def metrics_of_this_process(request: Request) -> Response:
        """What this process has done since it started, in the text format of Prometheus or OpenMetrics.

        Where there are keys, for those that may see `statistics`.
        """
        require(request, "statistics")
        encode, media_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(metrics.registry), headers={"Content-Type": media_type})


class Metrics:
    """The figures of one runtime."""

    def __init__(self, runtime: Runtime) -> None:
        self.registry = registry = CollectorRegistry()
        self._tools = runtime.tools
        self._codes, self._reasons = Words(), Words()
        turns = Counter(
            "turnkeeper_turns", "Turns that have ended, by stop reason.", ["stop_reason"], registry=registry
        )
        errors = Counter(
            "turnkeeper_turn_errors", "Turns refused or ended by an error, by code.", ["code"], registry=registry
        )
        tokens = Counter("turnkeeper_tokens", "Tokens as model services reported them.", ["kind"], registry=registry)
        failures = Counter("turnkeeper_tool_failures", "Tool calls that failed, by code.", ["code"], registry=registry)
        self._turns, self._errors, self._failures = turns, errors, failures
        self._model_seconds = Histogram(
            "turnkeeper_model_seconds",
            "One request to the model, tries and failures included.",
            buckets=MODEL_BUCKETS_S,
            registry=registry,
        )
        self._tool_seconds = Histogram(
            "turnkeeper_tool_seconds", "One tool call.", ["tool"], buckets=TOOL_BUCKETS_S, registry=registry
        )
        # There from the start, so that the first of a kind is seen as an increase.
        for reason in ("completed", "error", *NOTICES):
            self._turns.labels(self._reasons.label(reason))
        self._input, self._output = tokens.labels("input"), tokens.labels("output")
        self._add_gauges(runtime)

    def _add_gauges(self, runtime: Runtime) -> None:
        """What is looked up when it is asked for."""
        database, registry = runtime.database, self.registry
        looked_up: dict[tuple[str, str], Callable[[], float]] = {
            ("turns_in_flight", "Turns under way, waiting ones too."): lambda: runtime.turns.in_flight,
            ("database_pool_size", "Database threads, and connections, at most."): lambda: database.size,
            ("database_threads_busy", "Database threads at work."): lambda: database.busy,
            ("database_waiting", "Work that waits for a database thread."): lambda: database.waiting,
        }
        for (name, text), look_up in looked_up.items():
            Gauge(f"turnkeeper_{name}", text, registry=registry).set_function(look_up)

    def hear(self, event: Event) -> None:
        """A listener: what the model and the tools did."""
        kind, details = event["type"], event["details"]
        if kind == "tool_result":
            name = details["tool"] if self._tools.get(details["tool"]) else OTHER
            self._tool_seconds.labels(name).observe(details["duration_ms"] / 1000)
            if not details["ok"]:
                self._failures.labels(self._codes.label(details["code"])).inc()
        elif kind in ("model_response", "model_error"):
            self._model_seconds.observe(details["duration_ms"] / 1000)
            if usage := details["usage"]:
                self._input.inc(usage["input_tokens"] or 0)
                self._output.inc(usage["output_tokens"] or 0)

    def ended(self, outcome: Turn | BaseException, began: bool) -> None:
        """A turn has ended, or could not begin: events do not say it of those that fail before or after their run."""
        if isinstance(outcome, Turn):
            self._turns.labels(self._reasons.label(outcome.result.stop_reason)).inc()
        elif isinstance(outcome, asyncio.CancelledError):
            self._turns.labels("cancelled").inc()
        else:
            if began:
                self._turns.labels("error").inc()
            self._errors.labels(outcome.code if isinstance(outcome, ChatError) else ChatError.code).inc()


class Words:
    """Labels out of words that tools bring: only what looks like one, and only the first MAX_WORDS of them."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def label(self, word: str) -> str:
        """The word, or OTHER."""
        if word not in self._known:
            if len(self._known) >= MAX_WORDS or not WORD.fullmatch(word):
                return OTHER
            self._known.add(word)
        return word
