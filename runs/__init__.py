"""Stored runs: what happened in each, kept apart from the messages, for people and for statistics.

A run is written in the transaction that stores its turn; one that stored none is written by itself. If only the run
cannot be written, the turn is stored all the same.
"""

import asyncio
import contextlib

from pydantic import BaseModel, Field

from errors import StoreUnavailable
from runtime import Runtime

from .metrics import register_metrics
from .recall import register_recall
from .routes import add_runs
from .store import cancellations, forget_runs, recorder_for, sweep_runs
from .telemetry import hide_paths, http_telemetry, register_telemetry

__all__ = ["RunSettings", "hide_paths", "http_telemetry", "register", "register_recall"]

POLL_S = 1.0


class RunSettings(BaseModel):
    """The section TRACE of the settings."""

    retention_days: int = Field(0, ge=0, le=3650)  # TRACE_RETENTION_DAYS; 0: runs are not stored


def register(runtime: Runtime) -> None:
    """Add stored runs and their routes, metrics and telemetry. Opens no connection."""
    days = runtime.settings.section("trace", RunSettings).retention_days
    runtime.forget.append(forget_runs)
    runtime.sweeps.append(sweep_runs(days))
    if days:
        runtime.turns.recorders.append(recorder_for(runtime.settings.default_model))
    runtime.in_background.append(lambda: watch_cancellations(runtime))
    runtime.routers.append(lambda router, caller: add_runs(router, runtime, caller))
    register_metrics(runtime)
    register_telemetry(runtime)


async def watch_cancellations(runtime: Runtime) -> None:
    """Stop runs of this process that another one was asked to stop. Asks once a second, while there are runs."""
    while True:
        await asyncio.sleep(POLL_S)
        under_way = runtime.turns.runs
        if not under_way:
            continue
        with contextlib.suppress(StoreUnavailable):
            for run_id, owner in await runtime.database.run(cancellations, list(under_way)):
                runtime.turns.cancel(run_id, owner)
