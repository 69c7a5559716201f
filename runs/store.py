"""The tables of stored runs: written with a turn, listed, read, deleted, swept."""

import json
import logging
import math
import re
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pymysql
from pymysql.cursors import Cursor

from db import Database, error_number, may_try_again
from errors import NotFound
from memory import Also, as_time
from run import Event
from text import clean_text, title_of
from turn import Recorder, Turn

log = logging.getLogger(__name__)

MAX_RECORD_BYTES = 1_000_000
# What is tried in turn: texts of so many characters at most, and so many events.
CUTS = ((None, None), (100_000, None), (5_000, None), (500, None), (500, 100), (100, 10), (100, 0))
SWEEP_ROWS = 500
DEMO = "demo"  # the name of the demo model

COLUMNS = (
    "run_id owner conversation_id turn question model mode stop_reason error_code steps tool_calls "
    "input_tokens output_tokens total_tokens duration_ms model_ms tool_ms tools started_at"
).split()
INSERT_RUN = f"INSERT INTO runs ({', '.join(COLUMNS)}) VALUES ({', '.join(['%s'] * len(COLUMNS))})"
INSERT_RECORD = "INSERT INTO run_records (id, record) VALUES (LAST_INSERT_ID(), %s)"
STILL_THERE = "SELECT 1 FROM conversations WHERE id = %s LOCK IN SHARE MODE"
PACKET_TOO_LARGE, LOCK_WAIT = 1153, 1205


# ---------------------------------------------------------------------------------------- what is written


def recorder_for(default_model: str) -> Recorder:
    """What makes of each ended turn what is written of its run."""

    def recorder(turn: Turn) -> Also:
        failures = 0

        def write(cursor: Cursor) -> None:
            nonlocal failures
            if failures < 2:  # the turn is tried again without what took its transaction down twice
                failures += 1
                write_run(cursor, turn, default_model)

        return write

    return recorder


def write_run(cursor: Cursor, turn: Turn, default_model: str) -> None:
    """Both rows of a run, or neither. Nothing of a run whose conversation was deleted while it went on.

    Raises only what has undone the transaction anyway: the turn is worth more than the record of its run.
    """
    if turn.number is None and turn.history is not None and turn.history.place.key is not None:
        if not cursor.execute(STILL_THERE, (turn.history.place.key,)):
            return
    try:
        record = record_of(turn, default_model)
        text, row = bounded(record), row_of(record, turn.question.owner)
    except Exception:  # a defect of ours
        log.exception("run %s was not recorded", turn.result.run.id)
        return
    cursor.execute("SAVEPOINT run")
    try:
        cursor.execute(INSERT_RUN, row)
        cursor.execute(INSERT_RECORD, (text,))
    except pymysql.Error as error:
        number = error_number(error)
        if number == PACKET_TOO_LARGE:  # the server hangs up after it
            raise pymysql.err.OperationalError(2013, "lost") from error
        if may_try_again(error) and number != LOCK_WAIT:
            raise
        cursor.execute("ROLLBACK TO SAVEPOINT run")
        log.error("run %s was not recorded: %s", turn.result.run.id, number)


def record_of(turn: Turn, default_model: str) -> dict[str, Any]:
    """A run as one JSON object: what is exported, stored and shown. What is not known is null."""
    question, result, run = turn.question, turn.result, turn.result.run
    usage = result.usage.as_dict()
    started = next((event["at"] for event in run.events), datetime.now(UTC).isoformat())
    return {
        "version": 1,
        "run_id": run.id,
        "conversation_id": question.conversation_id,
        "turn": turn.number,
        "question": question.message,
        "answer": result.answer,
        "status": "completed" if result.stop_reason == "completed" else "incomplete",
        "stop_reason": result.stop_reason,
        "error_code": (result.notice or "internal_error") if result.stop_reason == "error" else None,
        "notice": None if result.stop_reason == "error" else result.notice,
        "model": run.model or question.model or default_model,
        "mode": "demo" if default_model == DEMO else "real",  # one service answers for whatever model is named
        "started_at": started,
        "duration_ms": round(turn.duration_ms, 3),
        "model_duration_ms": round(run.model_ms, 3),
        "tool_duration_ms": round(run.tool_ms, 3),
        "execution_budget": result.budget.as_dict(),
        "token_usage": {
            **usage,
            "rounds": run.rounds,
            "rounds_recorded": sum(part.known for part in run.usages),
        },
        "history": carried(turn),
        "tools": tools_of(run.events),
        "events": [with_record(event, run.records.get(at)) for at, event in enumerate(run.events)],
    }


def with_record(event: Event, record: str | None) -> Event:
    """The event with the whole result, where the model was given a part of it."""
    return event if record is None else {**event, "details": {**event["details"], "record": record}}


def carried(turn: Turn) -> dict[str, Any]:
    """What the model was given of the conversation, by reference: the ids of the messages, and the turns left out."""
    history = turn.history
    if history is None or not history.messages:
        return {"messages": 0, "first_id": None, "last_id": None, "left_out_turns": history.left_out if history else 0}
    last = 2 * (history.place.turn - 1)
    count = len(history.messages)
    return {"messages": count, "first_id": last - count + 1, "last_id": last, "left_out_turns": history.left_out}


def tools_of(events: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """How often each tool succeeded and failed. Calls blocked before they were carried out are not among them."""
    counts: Counter[tuple[str, bool]] = Counter()
    for event in events:
        if event["type"] == "tool_result":
            details = event["details"]  # of an old file perhaps, which says less
            counts[str(details.get("tool"))[:100], bool(details.get("ok", not details.get("error")))] += 1
    names = sorted({name for name, _ in counts})
    return {name: {"succeeded": counts[name, True], "failed": counts[name, False]} for name in names}


def row_of(record: dict[str, Any], owner: str) -> tuple[Any, ...]:
    """The short row of a run."""
    usage, budget = record["token_usage"] or {}, record["execution_budget"] or {}
    started = datetime.fromisoformat(record["started_at"]).astimezone(UTC).replace(tzinfo=None)
    values = {
        **{name: record.get(name) for name in COLUMNS},
        "owner": owner,
        "question": title_of(clean_text(record["question"])),
        "model": clean_text(record["model"])[:200],
        "steps": budget.get("steps"),
        "tool_calls": budget.get("tool_calls"),
        **{name: usage.get(name) for name in ("input_tokens", "output_tokens", "total_tokens")},
        "model_ms": record["model_duration_ms"],
        "tool_ms": record["tool_duration_ms"],
        "stop_reason": clean_word(record["stop_reason"]),
        "error_code": record["error_code"] and clean_word(record["error_code"]),
        "tools": tools_text(record["tools"]),
        "started_at": started,
    }
    return tuple(values[name] for name in COLUMNS)


def tools_text(tools: dict[str, dict[str, int]]) -> str:
    """`name:succeeded:failed,…`; empty where there are too many to keep."""
    parts = [
        f"{re.sub('[:,]', '_', clean_text(name))}:{n['succeeded']}:{n['failed']}" for name, n in sorted(tools.items())
    ]
    text = ",".join(parts)
    return text if len(text) <= 2000 else ""


def clean_word(text: str) -> str:
    """A stop reason or code as the column takes it; tools bring their own."""
    return re.sub(r"[^!-~]", "_", text)[:40]


def bounded(record: dict[str, Any]) -> str:
    """The record as JSON of a bounded size: long texts are cut first, then the events in the middle left out."""
    for text_limit, event_limit in CUTS:
        kept = record if event_limit is None else with_fewer_events(record, event_limit)
        text = as_json(kept if text_limit is None else cut_texts(kept, text_limit))
        if len(text.encode()) <= MAX_RECORD_BYTES:
            break
    return text


def with_fewer_events(record: dict[str, Any], limit: int) -> dict[str, Any]:
    """The record with the first and the last of its events."""
    events = record["events"]
    left_out = max(len(events) - limit, 0)
    half = limit // 2
    return {**record, "events": [*events[:half], *events[half + left_out :]], "events_left_out": left_out}


def as_json(value: Any, **options: Any) -> str:
    """JSON that every reader and MySQL take, whatever the value holds."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, **options)
        text.encode()
        return text
    except (ValueError, TypeError):  # NaN, a lone surrogate, something that JSON does not know
        return json.dumps(plain(value), ensure_ascii=False, **options)


def plain(value: Any) -> Any:
    """The same, of what JSON knows only."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, dict):
        return {clean_text(str(name)): plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return None if isinstance(value, float) else clean_text(str(value))


def cut_texts(value: Any, limit: int) -> Any:
    """The same with every text at most `limit` characters, and a word about the rest."""
    if isinstance(value, str):
        return value if len(value) <= limit else f"{value[:limit]}… [{len(value) - limit} more characters not recorded]"
    if isinstance(value, dict):
        return {cut_texts(name, limit): cut_texts(inner, limit) for name, inner in value.items()}
    return [cut_texts(inner, limit) for inner in value] if isinstance(value, list | tuple) else value


# ---------------------------------------------------------------------------------------- looking and removing

SHOWN = (
    "SELECT id, run_id, conversation_id, turn, question, model, mode, stop_reason, error_code, steps, tool_calls, "
    "input_tokens, output_tokens, total_tokens, duration_ms, model_ms, tool_ms, started_at FROM runs"
)
NAMES = SHOWN.removeprefix("SELECT ").removesuffix(" FROM runs").split(", ")


def list_runs(
    database: Database, owner: str, limit: int, before: int | None, filters: dict[str, str | None]
) -> tuple[list[dict[str, Any]], int | None]:
    """The owner's runs, newest first: a page and the mark of the next. filters: conversation_id, stop_reason."""
    conditions = ["owner = %s", "id < %s"]
    values: list[Any] = [owner, before if before is not None else 1 << 62]
    for name in ("conversation_id", "stop_reason"):
        if filters.get(name) is not None:
            conditions.append(f"{name} = %s")
            values.append(filters[name])
    where = " WHERE " + " AND ".join(conditions) + " ORDER BY id DESC LIMIT %s"
    rows = database.read(SHOWN + where, (*values, limit + 1))
    page = [dict(zip(NAMES, row, strict=True)) for row in rows[:limit]]
    for run in page:
        run["started_at"] = as_time(run["started_at"])
        run["status"] = "completed" if run["stop_reason"] == "completed" else "incomplete"
    return page, rows[limit - 1][0] if len(rows) > limit else None


def get_run(database: Database, owner: str | None, run_id: str) -> dict[str, Any]:
    """The whole record of one run. owner: None for the operator, who may see all. Raises NotFound."""
    whose, values = ("", ()) if owner is None else (" AND r.owner = %s", (owner,))
    rows = database.read(
        f"SELECT d.record FROM runs AS r JOIN run_records AS d ON d.id = r.id WHERE r.run_id = %s{whose}",
        (run_id, *values),
    )
    if not rows:
        raise NotFound(what="run")
    record: dict[str, Any] = json.loads(rows[0][0])
    return record


def delete_run(database: Database, owner: str, run_id: str) -> None:
    """Remove a stored run; the messages of its turn stay. Raises NotFound."""

    def delete(commit_lost: bool) -> None:
        with database.transaction() as cursor:
            if not cursor.execute("DELETE FROM runs WHERE run_id = %s AND owner = %s", (run_id, owner)):
                if not commit_lost:
                    raise NotFound(what="run")

    database.again(delete)


def forget_runs(cursor: Cursor, owner: str, conversation_id: str) -> None:
    """Remove the runs of a conversation that is being deleted."""
    cursor.execute("DELETE FROM runs WHERE conversation_id = %s AND owner = %s", (conversation_id, owner))


def sweep_runs(days: int) -> Callable[[Database], bool]:
    """What forgets runs older than `days`, a few hundred at a time and from the oldest on."""

    def sweep(database: Database) -> bool:
        with database.cursor() as cursor:
            over = cursor.execute(FORGET_CANCELLATIONS, (SWEEP_ROWS,))
        rows = database.read("SELECT id, started_at FROM runs ORDER BY id LIMIT %s", (SWEEP_ROWS,))
        oldest_kept = datetime.now(UTC) - timedelta(days=days)
        old = [key for key, started_at in rows if as_time(started_at) < oldest_kept]
        if old:
            with database.cursor() as cursor:
                cursor.execute(f"DELETE FROM runs WHERE id IN ({', '.join(['%s'] * len(old))})", old)
        return SWEEP_ROWS in (len(old), over)

    return sweep


# ---------------------------------------------------------------------------------------- stopping one elsewhere

FORGET_CANCELLATIONS = "DELETE FROM run_cancellations WHERE created_at < NOW(6) - INTERVAL 1 HOUR LIMIT %s"


def ask_to_cancel(database: Database, owner: str, run_id: str) -> None:
    """Leave word for whichever process has the run."""

    def ask(_: bool) -> None:
        with database.cursor() as cursor:
            cursor.execute(
                "INSERT INTO run_cancellations (run_id, owner) VALUES (%s, %s) ON DUPLICATE KEY UPDATE owner = owner",
                (run_id, owner),
            )

    database.again(ask)


def cancellations(database: Database, run_ids: list[str]) -> list[tuple[str, str]]:
    """Which of these runs were asked to stop, and by which owner."""
    marks = ", ".join(["%s"] * len(run_ids))
    rows = database.read(f"SELECT run_id, owner FROM run_cancellations WHERE run_id IN ({marks})", tuple(run_ids))
    return [(run_id, owner) for run_id, owner in rows]


def stored_among(database: Database, owner: str, run_ids: list[str]) -> set[str]:
    """Which of these runs are stored as the owner's."""
    if not run_ids:
        return set()
    marks = ", ".join(["%s"] * len(run_ids))
    statement = f"SELECT run_id FROM runs WHERE owner = %s AND run_id IN ({marks})"
    return {run_id for (run_id,) in database.read(statement, (owner, *run_ids))}
