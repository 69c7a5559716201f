"""Run files: a run as one JSON file, written and read back, and those under `artifacts/` for the statistics.

Older files lack fields that newer ones have, and files come from anywhere: what a file does not say, or says in another
shape, is None here. Nothing is worked out that was not recorded.
"""

import json
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from errors import TurnkeeperError
from text import clean_text

from .store import as_json, clean_word, tools_of, tools_text

FOLDER = Path("artifacts")  # of the working directory
MAX_FILE_BYTES = 2_000_000  # a record of ours has half of that at most
MAX_FILES, MAX_TOTAL_BYTES, MAX_LOOKED_AT = 500, 50_000_000, 10_000  # read for one request for statistics

TEXTS = "run_id conversation_id question answer status stop_reason error_code notice model mode started_at".split()
NUMBERS = "turn duration_ms model_duration_ms tool_duration_ms events_left_out".split()
OBJECTS = "execution_budget token_usage history".split()
OF_A_RUN = {"run_started", "model_request", "model_response", "model_error", "tool_call", "tool_result", "run_stopped"}


class NotARun(TurnkeeperError):
    """A file is none that holds a run. The message says why."""


def write_run_file(file: Path, record: dict[str, Any]) -> None:
    """Write a run as one JSON file, whole or not at all. Folders that are missing are made. Raises OSError."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        part.write_text(as_json(record, indent=2) + "\n", encoding="utf-8")
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)


def try_writing(file: Path) -> None:
    """Find out before a run whether its file can be written. Raises OSError."""
    if file.is_dir():
        raise IsADirectoryError(f"{file} is a folder; name a file in it")
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=file.parent):
        pass


def read_run_file(file: Path) -> dict[str, Any]:
    """The run in a file, as it stands there; see with_every_field. Raises NotARun."""
    try:
        if not stat.S_ISREG(file.stat().st_mode):
            raise NotARun(f"{file} is no file")
        with file.open("rb") as opened:
            content = opened.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise NotARun(f"{file} cannot be read: {reason}") from error
    if len(content) > MAX_FILE_BYTES:
        raise NotARun(f"{file} is larger than the record of a run can be")
    return run_in(content, str(file))


def run_in(content: bytes, name: str = "this") -> dict[str, Any]:
    """The run in the content of a file. Raises NotARun."""
    try:
        found = json.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise NotARun(f"{name} is not JSON") from error
    events = found.get("events") if isinstance(found, dict) else None
    ended = isinstance(found, dict) and all(isinstance(found.get(name), str) for name in ("run_id", "stop_reason"))
    if not isinstance(events, list) or not (
        any(isinstance(one, dict) and is_of_a_run(one) for one in events) or (ended and not events)
    ):
        raise NotARun(f"{name} holds no record of a run")
    run: dict[str, Any] = found
    return run


def is_of_a_run(event: dict[str, Any]) -> bool:
    return isinstance(event.get("type"), str) and event["type"] in OF_A_RUN


def with_every_field(found: dict[str, Any]) -> dict[str, Any]:
    """The record with all fields in their shapes. What only the event `run_stopped` says is taken from there."""
    record: dict[str, Any] = {name: text_of(found.get(name)) for name in TEXTS}
    record |= {name: number_of(found.get(name)) for name in NUMBERS}
    record |= {name: found[name] if isinstance(found.get(name), dict) else None for name in OBJECTS}
    record["events"] = [event_of(event) for event in found["events"] if isinstance(event, dict)]
    stops = [event["details"] for event in record["events"] if event["type"] == "run_stopped"]
    stopped: dict[str, Any] = stops[-1] if stops else {}
    record["stop_reason"] = record["stop_reason"] or text_of(stopped.get("stop_reason"))
    for name in ("model_duration_ms", "tool_duration_ms"):
        record[name] = number_of(stopped.get(name)) if record[name] is None else record[name]
    for name in ("execution_budget", "token_usage"):
        record[name] = stopped[name] if record[name] is None and isinstance(stopped.get(name), dict) else record[name]
    tools = found.get("tools")
    record["tools"] = tools if is_count_of_tools(tools) else tools_of(record["events"])
    return record


def event_of(event: dict[str, Any]) -> dict[str, Any]:
    details = event.get("details")
    return {
        "type": text_of(event.get("type")) or "unknown",
        "step": number_of(event.get("step")),
        "at": text_of(event.get("at")),
        "details": details if isinstance(details, dict) else {},
    }


def text_of(value: Any) -> str | None:
    """A text, if it is one that says something."""
    return clean_text(value) if isinstance(value, str) and value else None


def number_of(value: Any) -> float | None:
    """A number, if it is one that a run can have recorded."""
    right = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e15
    return value if right else None


def is_count_of_tools(tools: Any) -> bool:
    """Whether it has the shape of `tools` in a record: {"calculator": {"succeeded": 2, "failed": 0}}."""
    return isinstance(tools, dict) and all(
        isinstance(count, dict) and all(type(count.get(name)) is int for name in ("succeeded", "failed"))
        for count in tools.values()
    )


# ---------------------------------------------------------------------------------------- for the statistics


def runs_in_folder(folder: Path | None = None) -> tuple[list[dict[str, Any]], int]:
    """The runs in the files of a folder and those below it, each once, and how many JSON files were left out.

    A run that stands in several files is one run; files that name no run are counted each. Links are not followed.
    """
    found: dict[str, dict[str, Any]] = {}
    left_out, total = 0, 0
    for file in json_files(folder or FOLDER):
        try:
            size = file.stat(follow_symlinks=False).st_size
            if len(found) >= MAX_FILES or total + size > MAX_TOTAL_BYTES:
                raise NotARun("there are too many")
            total += size
            record = with_every_field(read_run_file(file))
        except (NotARun, OSError):
            left_out += 1
            continue
        found.setdefault(record["run_id"] or f"file {file}", record)
    return list(found.values()), left_out


def json_files(folder: Path) -> Iterator[Path]:
    """The plain files named *.json, by name; at most so many names are looked at."""
    looked_at = 0
    for parent, folders, names in os.walk(folder):  # follows no links
        folders.sort()
        for name in sorted(names):
            looked_at += 1
            if looked_at > MAX_LOOKED_AT:
                return
            file = Path(parent, name)
            if name.endswith(".json") and stat.S_ISREG(file.lstat().st_mode):
                yield file


def row_of_file(record: dict[str, Any], figures: tuple[str, ...]) -> tuple[Any, ...]:
    """A run of a file as the statistics read one: mode, stop reason, tools, 1, then (sum, count) of each figure."""
    budget, usage = record["execution_budget"] or {}, record["token_usage"] or {}
    known = {
        "steps": budget.get("steps"),
        "tool_calls": budget.get("tool_calls"),
        "model_ms": record["model_duration_ms"],
        "tool_ms": record["tool_duration_ms"],
        "duration_ms": record["duration_ms"],
        **{name: usage.get(name) for name in ("input_tokens", "output_tokens", "total_tokens")},
    }
    values = [number_of(known[name]) for name in figures]
    counted = [part for value in values for part in (value or 0, int(value is not None))]
    reason = clean_word(record["stop_reason"] or "unknown")
    reason = reason if re.fullmatch(r"[A-Za-z0-9_.-]+", reason) else "unknown"
    mode = record["mode"] if record["mode"] in ("real", "demo") else "unknown"
    return mode, reason, tools_text(record["tools"]), 1, *counted
