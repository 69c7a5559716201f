"""What a bench found, in tables, and which goals of DESIGN §8 are met."""

import statistics
from collections.abc import Callable, Mapping, Sequence

from dev.bench_results import SLOW_MODEL_MS, TOKENS, TURNS_IN_FLIGHT, Goal, Measured, Results

# The same turn of other software, measured elsewhere on a similar machine, at 16 connections: turns/s, CPU ms.
FLOOR = (3278.0, 0.16)
BEST_FRAMEWORK = (85.0, 11.0)


def median(measured: Sequence[Measured], name: str) -> float | None:
    """The median of a field or a counter over the rounds, or None where it could not be measured."""
    found = (one.per_turn[name] if name in one.per_turn else getattr(one, name) for one in measured)
    values = [value for value in found if value is not None]
    return statistics.median(values) if values else None


def shown(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows of text as columns, the first line being the heads; figures to the right, the first column to the left."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join([row[0].ljust(widths[0]), *cells[1:]]).rstrip())
    return "\n".join(lines)


def load_report(results: Results) -> str:
    rows = ["connections,turns/s,least,most,p50 ms,p99 ms,CPU ms,least,database,model,load,errors,lost,half".split(",")]
    for connections, measured in results.load.items():
        rates = [one.turns_per_s for one in measured]
        rows.append(
            [
                str(connections),
                shown(median(measured, "turns_per_s"), 0),
                shown(min(rates), 0),
                shown(max(rates), 0),
                shown(median(measured, "p50_ms")),
                shown(median(measured, "p99_ms")),
                shown(median(measured, "service_cpu_ms"), 2),
                shown(min((one.service_cpu_ms for one in measured if one.service_cpu_ms), default=None), 2),
                *(shown(median(measured, f"{name}_cpu_ms"), 2) for name in ("database", "model", "load")),
                *(str(sum(getattr(one, name) for one in measured)) for name in ("errors", "not_stored", "half_stored")),
            ]
        )
    return (
        "New conversations. CPU ms per turn: service, database, model, load generator. lost: answered, not stored.\n"
        f"{table(rows)}\n"
        "Model and load generator do the same work always: if their figures differ from another day's, so does the"
        " machine.\n"
        f"Measured elsewhere on a similar machine, 16 connections: a hand-written floor {FLOOR[0]:,.0f} turns/s and"
        f" {FLOOR[1]} CPU ms, the best framework {BEST_FRAMEWORK[0]:.0f} and {BEST_FRAMEWORK[1]:.0f}."
    )


def statements_report(results: Results) -> str:
    kinds = list(results.statements.values())
    rows = [["per turn", *results.statements]]
    rows += [[name, *(shown(kind.per_turn[name], 2) for kind in kinds)] for name in kinds[0].per_turn]
    return f"What the database and the model are asked, one turn after the other.\n{table(rows)}"


def growth_report(results: Results) -> str:
    rows = ["messages stored,p50 ms,CPU ms,database CPU ms,rows read,bytes read,bytes to the model".split(",")]
    for messages, measured in results.growth.items():
        rows.append(
            [
                f"{messages:,}",
                shown(median(measured, "p50_ms")),
                shown(median(measured, "service_cpu_ms"), 2),
                shown(median(measured, "database_cpu_ms"), 2),
                *(shown(median(measured, name), 0) for name in ("rows read", "bytes to service", "bytes to model")),
            ]
        )
    return f"One more turn in a conversation that already holds messages.\n{table(rows)}"


def streaming_report(results: Results) -> str:
    lines = [f"tokens arriving {how}: {figure:.0f} us" for how, figure in results.streaming.items()]
    head = f"/chat/stream, answers of {TOKENS[0]} and {TOKENS[1]} tokens: CPU of the service per token."
    return "\n".join([head, *(lines or ["the service has no /chat/stream, or asks its model for no stream"])])


def inflight_report(results: Results) -> str:
    measured, service = results.inflight, results.inflight_service
    assert measured
    return (
        f"{TURNS_IN_FLIGHT} turns at once, the model takes {SLOW_MODEL_MS / 1000:.0f} s per call (two per turn).\n"
        f"answered {measured.turns}, errors {measured.errors} {measured.error_kinds or ''}, lost {measured.not_stored},"
        f" all in {measured.seconds:.1f} s, p50 {measured.p50_ms / 1000:.2f} s,"
        f" {shown(measured.service_cpu_ms, 2)} CPU ms per turn\n"
        f"/healthz meanwhile: p50 {service['healthz_p50_ms']:.1f} ms, max {service['healthz_max_ms']:.0f} ms,"
        f" {service['healthz_failed']} failed;"
        f" memory {service['idle_mb']:.0f} MB before, {service['peak_mb']:.0f} MB at most"
    )


REPORTS: Mapping[str, Callable[[Results], str]] = {
    "load": load_report,
    "statements": statements_report,
    "growth": growth_report,
    "streaming": streaming_report,
    "inflight": inflight_report,
}


def below(text: str, figure: float | None, limit: float, unit: str, digits: int = 1) -> Goal:
    return Goal(text, f"{shown(figure, digits)} {unit}".strip(), None if figure is None else figure <= limit)


def load_goals(results: Results) -> list[Goal]:
    measured = results.load.get(16, [])
    rate, wanted = median(measured, "turns_per_s"), 5 * BEST_FRAMEWORK[0]
    runs = [one for rounds in results.load.values() for one in rounds]
    lost = sum(one.not_stored + one.half_stored for one in runs)
    return [
        below("at most 2.0 CPU ms per turn at 16 connections", median(measured, "service_cpu_ms"), 2.0, "ms", 2),
        Goal(
            f"5 times the turns/s of the best framework, {wanted:.0f}, at 16 connections",
            f"{shown(rate, 0)} turns/s",
            None if rate is None else rate >= wanted,
        ),
        below("no turn unanswered, however many connections", sum(one.errors for one in runs), 0, "errors", 0),
        below("every answered turn stored, no half turn", lost, 0, f"of {sum(one.turns for one in runs):,}", 0),
    ]


def statements_goals(results: Results) -> list[Goal]:
    goals = []
    for kind, measured in results.statements.items():
        commits, fsyncs, new = (measured.per_turn[name] for name in ("COMMIT", "fsyncs", "connections"))
        figure = f"{commits:.2f} commits, {fsyncs:.2f} fsyncs, {new:.2f} connections"
        # A page that is written back now and then is not the turn's.
        met = round(commits, 1) == 1 and 0.95 <= fsyncs <= 1.25 and new == 0
        goals.append(Goal(f"one commit, one fsync, no new connection, {kind}", figure, met))
    return goals


def growth_goals(results: Results) -> list[Goal]:
    least, most = min(results.growth), max(results.growth)
    few, many = (median(results.growth[messages], "service_cpu_ms") for messages in (least, most))
    goal = Goal(
        f"a turn on {most:,} messages costs what it costs on {least} (noise: half as much again)",
        f"{shown(few, 2)} and {shown(many, 2)} CPU ms",
        None if few is None or many is None else many <= 1.5 * few,
    )
    rows = median(results.growth[most], "rows read")
    return [goal, below("no statement that grows with the conversation", rows, 100, "rows read", 0)]


def streaming_goals(results: Results) -> list[Goal]:
    hows = ("together", "one by one")
    return [below(f"at most 60 us per token, arriving {how}", results.streaming.get(how), 60, "us", 0) for how in hows]


def inflight_goals(results: Results) -> list[Goal]:
    measured, service = results.inflight, results.inflight_service
    assert measured
    p50_ms, max_ms = service["healthz_p50_ms"], service["healthz_max_ms"]
    at_once = p50_ms <= 10 and not service["healthz_failed"]
    return [
        below(f"{TURNS_IN_FLIGHT} turns in flight without an error, all stored", measured.wrong, 0, "wrong", 0),
        Goal("/healthz answers at once meanwhile (p50, 10 ms)", f"{p50_ms:.1f} ms, at most {max_ms:.0f}", at_once),
        below("under 400 MB", service["peak_mb"] or None, 400, "MB", 0),
    ]


GOALS: Mapping[str, Callable[[Results], list[Goal]]] = {
    "load": load_goals,
    "statements": statements_goals,
    "growth": growth_goals,
    "streaming": streaming_goals,
    "inflight": inflight_goals,
}


def goals_report(goals: Sequence[Goal]) -> str:
    words = {True: "met", False: "NOT MET", None: "unknown"}
    width = max((len(goal.text) for goal in goals), default=0)
    lines = [f"{words[goal.met]:8} {goal.text.ljust(width)}  {goal.figure}" for goal in goals]
    return "\n".join(["Goals of DESIGN §8.", *lines])
