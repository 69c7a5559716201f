"""Statistics over runs, stored ones and those in files: counted from what each run recorded, never estimated.

Real models, the demo model and runs that did not record which are kept apart. A mean is taken over the runs that
recorded the figure, and says over how many.
"""

from typing import Any

from pydantic import BaseModel

from db import Database

from .files import row_of_file, runs_in_folder
from .store import stored_among

NOTE = (
    "A completed run gave an answer; whether the answer is right is not measured here. Means cover only runs that "
    "recorded the figure; tokens are what model services reported, and no cost is derived from them."
)
MODES = ("real", "demo", "unknown")
FIGURES = ("steps", "tool_calls", "duration_ms", "model_ms", "tool_ms")
TOKENS = ("input_tokens", "output_tokens", "total_tokens")


class Mean(BaseModel):
    """A mean and the number of runs it covers; null where none recorded the figure."""

    mean: float | None
    runs: int


class ToolCount(BaseModel):
    """How often a tool succeeded and failed. Calls blocked before they were carried out are not counted."""

    succeeded: int
    failed: int


class Group(BaseModel):
    """The runs of one mode."""

    runs: int
    completed: int
    completed_ratio: float | None
    means: dict[str, Mean]
    tokens_recorded: dict[str, int | None]
    runs_with_tokens: int
    stop_reasons: dict[str, int]
    tools: dict[str, ToolCount]


class Files(BaseModel):
    """How many run files under `artifacts/` were counted, and how many JSON files there were left out."""

    counted: int
    left_out: int


class StatisticsReply(BaseModel):
    """The statistics of an owner's stored runs. files: null where the caller may not see them."""

    note: str
    groups: dict[str, Group]
    files: Files | None


def statistics(database: Database, owner: str, with_files: bool) -> StatisticsReply:
    """Count the owner's stored runs and, if wanted, the run files. Reads short rows and files; changes nothing."""
    sums = ", ".join(f"SUM({name}), COUNT({name})" for name in (*FIGURES, *TOKENS))
    same = "mode, stop_reason, tools"
    rows = database.read(f"SELECT {same}, COUNT(*), {sums} FROM runs WHERE owner = %s GROUP BY {same}", (owner,))
    files = None
    if with_files:
        found, left_out = runs_in_folder()
        stored = stored_among(database, owner, [run["run_id"] for run in found if is_id(run["run_id"])])
        others = [run for run in found if run["run_id"] not in stored]
        rows += [row_of_file(run, (*FIGURES, *TOKENS)) for run in others]
        files = Files(counted=len(others), left_out=left_out)
    groups = {mode: group_of([row for row in rows if row[0] == mode]) for mode in MODES}
    return StatisticsReply(note=NOTE, groups=groups, files=files)


def is_id(run_id: str | None) -> bool:
    """Whether a run of this id can be among the stored ones."""
    return run_id is not None and len(run_id) == 36 and run_id.isascii()


def group_of(rows: list[tuple[Any, ...]]) -> Group:
    """One mode's rows, each for one stop reason and one use of tools, put together."""
    runs = sum(row[3] for row in rows)
    stop_reasons: dict[str, int] = {}
    tools: dict[str, ToolCount] = {}
    for _, stop_reason, used, count, *_ in rows:
        stop_reasons[stop_reason] = stop_reasons.get(stop_reason, 0) + count
        for part in used.split(",") if used else []:
            name, succeeded, failed = part.rsplit(":", 2)
            known = tools.setdefault(name, ToolCount(succeeded=0, failed=0))
            known.succeeded += int(succeeded) * count
            known.failed += int(failed) * count
    completed = stop_reasons.get("completed", 0)
    totals = {
        name: (sum(row[4 + 2 * at] or 0 for row in rows), sum(row[5 + 2 * at] for row in rows))
        for at, name in enumerate((*FIGURES, *TOKENS))
    }
    return Group(
        runs=runs,
        completed=completed,
        completed_ratio=completed / runs if runs else None,
        means={name: mean_of(*totals[name]) for name in FIGURES},
        tokens_recorded={name: int(totals[name][0]) if totals[name][1] else None for name in TOKENS},
        runs_with_tokens=max(totals[name][1] for name in TOKENS),
        stop_reasons=stop_reasons,
        tools=tools,
    )


def mean_of(total: Any, runs: int) -> Mean:
    return Mean(mean=round(float(total) / runs, 3) if runs else None, runs=runs)
