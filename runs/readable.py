"""A run for people to read: the question, each round with what was said, called and returned, and how it ended."""

import json
from collections.abc import Iterator
from typing import Any

from .files import number_of

NOT_RECORDED = "not recorded"
# What a terminal would obey instead of show. Line breaks and tabs stay; a carriage return goes.
CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if code not in (9, 10, 13)}
VISIBLE: dict[int, str | None] = {**CONTROLS, 13: None}


def visible(text: str) -> str:
    """Text without control characters that a terminal obeys."""
    return text.translate(VISIBLE)


def as_text(record: dict[str, Any]) -> str:
    """A run as lines of text. record: as files.with_every_field gives it."""
    return visible("\n".join(lines_of(record)))


def lines_of(record: dict[str, Any]) -> Iterator[str]:
    """All lines. A text of several lines stays several."""
    yield f"run {record['run_id'] or NOT_RECORDED}"
    yield f"model: {record['model'] or NOT_RECORDED} ({record['mode'] or NOT_RECORDED})"
    yield f"started: {record['started_at'] or NOT_RECORDED}"
    if record["conversation_id"]:
        turn = f", turn {record['turn']}" if record["turn"] else ", nothing stored in it"
        yield f"conversation: {record['conversation_id']}{turn}"
    yield from history_lines(record["history"] or {})
    yield from block("question", record["question"] or NOT_RECORDED)
    yield from event_lines(record)
    yield ""
    yield from ending_lines(record)


def history_lines(history: dict[str, Any]) -> Iterator[str]:
    """What the model was given of the conversation before."""
    if history.get("messages"):
        left_out = f"; {history['left_out_turns']} older turns left out" if history.get("left_out_turns") else ""
        yield f"history: messages {history.get('first_id')} to {history.get('last_id')}{left_out}"


def event_lines(record: dict[str, Any]) -> Iterator[str]:
    """What happened, round by round."""
    for event in record["events"]:
        details = event["details"]
        if event["type"] == "model_request":
            yield ""
            yield f"round {event['step'] or NOT_RECORDED}"
        elif event["type"] == "model_response":
            yield f"  the model replied in {ms(details.get('duration_ms'))}, tokens: {tokens(details.get('usage'))}"
            if details.get("text"):
                yield from block("  says", str(details["text"]))
        elif event["type"] == "model_error":
            yield f"  the model failed after {ms(details.get('duration_ms'))}: {details.get('code') or NOT_RECORDED}"
        elif event["type"] == "tool_call":
            yield from block(f"  calls {details.get('tool')}", compact(details.get("arguments")))
        elif event["type"] == "tool_result":
            took = ms(details.get("duration_ms"))
            failed = details.get("code") or ("failed" if details.get("ok") is False else None)
            name = f"  {details.get('tool')} {f'failed ({failed})' if failed else 'returned'} in {took}"
            yield from block(name, str(details.get("text", NOT_RECORDED)))
            if details.get("record"):
                yield from block("  the whole result", str(details["record"]))
        elif event["type"] == "history_shortened":
            yield f"  the history was too long: {details.get('dropped_turns')} turns left out"
        elif event["type"] == "run_stopped" and isinstance(details.get("blocked_call"), dict):
            blocked = details["blocked_call"]
            yield from block(f"  not carried out: {blocked.get('tool')}", compact(blocked.get("arguments")))
    if record["events_left_out"]:
        yield f"  ({record['events_left_out']} events were not recorded)"


def ending_lines(record: dict[str, Any]) -> Iterator[str]:
    """How it ended and what it took."""
    code = f" ({record['error_code']})" if record["error_code"] else ""
    yield f"ended: {record['stop_reason'] or NOT_RECORDED}{code}"
    budget, usage = record["execution_budget"] or {}, record["token_usage"]
    for name, used, limit in (("steps", "steps", "max_steps"), ("tool calls", "tool_calls", "max_tool_calls")):
        yield f"{name}: {number(budget.get(used))} of at most {number(budget.get(limit))}"
    for tool, limit in sorted((budget.get("max_calls_of") or {}).items()):
        yield f"{tool}: {number((budget.get('calls_of') or {}).get(tool, 0))} of at most {number(limit)}"
    times = (ms(record[name]) for name in ("duration_ms", "model_duration_ms", "tool_duration_ms"))
    yield "time: {}; model {}, tools {}".format(*times)
    yield f"tokens: {tokens(usage)}{covered(usage) if is_known(usage) else ''}"
    if record["notice"]:
        yield from block("notice", record["notice"])
    if record["answer"] is not None:
        yield from block("answer", record["answer"])


def block(name: str, text: str) -> list[str]:
    """`name: text`; more lines than one stand below it, indented."""
    lines = text.splitlines() or [""]
    if len(lines) == 1:
        return [f"{name}: {lines[0]}"]
    indent = " " * (len(name) - len(name.lstrip()) + 2)
    return [f"{name}:", *(indent + line for line in lines)]


def compact(arguments: Any) -> str:
    """Arguments in one line."""
    return NOT_RECORDED if arguments is None else json.dumps(arguments, ensure_ascii=False)


def ms(value: Any) -> str:
    return f"{value:.1f} ms" if is_number(value) else NOT_RECORDED


def number(value: Any) -> str:
    return f"{value:g}" if is_number(value) else NOT_RECORDED


def is_number(value: Any) -> bool:
    return number_of(value) is not None


def is_known(usage: Any) -> bool:
    """Whether any tokens were recorded."""
    return isinstance(usage, dict) and any(
        is_number(usage.get(name)) for name in ("input_tokens", "output_tokens", "total_tokens")
    )


def covered(usage: dict[str, Any]) -> str:
    """Of how many rounds the tokens are."""
    of, rounds = usage.get("rounds_recorded"), usage.get("rounds")
    return f", recorded of {of} of {rounds} rounds" if is_number(of) and is_number(rounds) else ""


def tokens(usage: Any) -> str:
    """`10 in, 5 out, 15 in all`; or that none were recorded."""
    if not is_known(usage):
        return NOT_RECORDED
    parts = [("input_tokens", "in"), ("output_tokens", "out"), ("total_tokens", "in all")]
    known = (f"{usage[name]} {word}" for name, word in parts if is_number(usage.get(name)))
    return ", ".join(known)
