"""`python3 -m dev bench`: what one turn costs, beside the goals of DESIGN §8.

The turn: `POST /chat` with "What is 12 times 8?" → history read → the model asks for `calculator` → the model answers →
turn stored → JSON. The service runs in one process with its default settings; model (`bench_model.py`), load generator
(`load.py`) and a private MariaDB stand beside it, all of them on this machine and stopped at the end.

CPU per turn is the figure to trust: the clock of the process, all its threads, over the turns answered. Turns per
second and milliseconds also measure whatever else the machine was doing.
"""

import argparse
import http.client
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from config import Settings
from db import Database
from dev.common import LOCAL, ROOT, DevError, last_lines, say
from dev.load import QUESTION, Report
from dev.locks import file_lock
from dev.mariadb import PrivateServer
from dev.ports import any_port
from dev.processes import stop_child
from migrate import migrate

FOLDER = LOCAL / "bench"
PARTS = ("load", "statements", "growth", "streaming", "inflight")

# The same turn of other software, measured elsewhere on a similar machine, at 16 connections: turns/s, CPU ms.
FLOOR = (3278.0, 0.16)
BEST_FRAMEWORK = (85.0, 11.0)

STORED_MESSAGES = (10, 100, 1000, 4000)
TURNS_IN_FLIGHT = 500
SLOW_MODEL_MS = 2000.0
TOKENS = (20, 520)  # of a short and a long streamed answer; the difference is what tokens cost

# Name of the report, and the server's counters that add up to it.
COUNTERS = {
    "statements": ("Questions",),
    "SELECT": ("Com_select",),
    "INSERT": ("Com_insert",),
    "UPDATE": ("Com_update",),
    "DELETE": ("Com_delete",),
    "SET": ("Com_set_option",),
    "BEGIN": ("Com_begin",),
    "COMMIT": ("Com_commit",),
    "ROLLBACK": ("Com_rollback",),
    "connections": ("Connections",),
    "fsyncs": ("Innodb_data_fsyncs",),
    "rows read": (
        "Handler_read_first",
        "Handler_read_key",
        "Handler_read_last",
        "Handler_read_next",
        "Handler_read_prev",
        "Handler_read_rnd",
        "Handler_read_rnd_next",
    ),
    "bytes to service": ("Bytes_sent",),
    "bytes from service": ("Bytes_received",),
}

Environ = dict[str, str]


@dataclass(frozen=True)
class Options:
    parts: tuple[str, ...]
    seconds: float
    rounds: int
    connections: tuple[int, ...]
    stored_messages: tuple[int, ...]
    json_file: Path | None
    settings: Environ  # given to the service on top of its defaults


@dataclass(frozen=True)
class Measured:
    """Some turns and what they cost. CPU figures are ms per answered turn, None where the system does not tell."""

    turns: int
    errors: int
    error_kinds: dict[str, int]
    not_stored: int  # answered, but without its two messages
    half_stored: int  # conversations holding anything but whole turns
    seconds: float
    turns_per_s: float
    p50_ms: float
    p99_ms: float
    service_cpu_ms: float | None
    database_cpu_ms: float | None
    model_cpu_ms: float | None
    load_cpu_ms: float
    per_turn: dict[str, float]  # what `Stage.counters` counts

    @property
    def wrong(self) -> int:
        return self.errors + self.not_stored + self.half_stored


@dataclass(frozen=True)
class Goal:
    text: str
    figure: str
    met: bool | None  # None: not measured here


@dataclass
class Results:
    """What was measured; a part that did not run is empty."""

    machine: dict[str, str | int | float]
    load: dict[int, list[Measured]] = field(default_factory=dict)  # by connections, one per round
    statements: dict[str, Measured] = field(default_factory=dict)  # of a first turn and of a later one
    growth: dict[int, list[Measured]] = field(default_factory=dict)  # by messages already stored, one per round
    streaming: dict[str, float] = field(default_factory=dict)  # us per token, by how they arrive
    streamed: list[Measured] = field(default_factory=list)
    inflight: Measured | None = None
    inflight_service: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)  # parts that could not be measured, and why

    def all_measured(self) -> list[Measured]:
        rounds = [one for by in (self.load, self.growth) for several in by.values() for one in several]
        return [*rounds, *self.statements.values(), *self.streamed, *([self.inflight] if self.inflight else [])]


# The stage: database, service and model, and how to look at them from outside.


def cpu_s(pid: int | None) -> float | None:
    """CPU seconds a process has used so far, all its threads, or None where the system does not tell."""
    if sys.platform != "linux" or pid is None:
        return None
    try:
        return time.clock_gettime((~pid << 3) | 2)  # the number by which Linux knows the CPU clock of a process
    except OSError:
        after_name = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")


def memory_mb(pid: int, name: str) -> float:
    """`VmRSS` or `VmHWM` (the peak) of a process; 0 where the system does not tell."""
    status = Path(f"/proc/{pid}/status")
    if not status.exists():
        return 0.0
    lines = (line.split() for line in status.read_text(encoding="utf-8").splitlines())
    return next((int(words[1]) / 1024 for words in lines if words[0] == f"{name}:"), 0.0)


def allow_many_files() -> None:
    """In-flight turns hold two sockets each; many shells allow 1,024 open files."""
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 8192 if hard == resource.RLIM_INFINITY else min(8192, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@contextmanager
def running(command: Sequence[str], environ: Environ, port: int, log: Path) -> Iterator[int]:
    """The pid of a server of ours that answers on `port`; it is stopped afterwards.

    It has a session of its own: Ctrl-C reaches only the bench, which then comes by here.
    """
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            text=True,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + 60
        while not is_healthy(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise DevError(
                    f"{' '.join(command[1:4])} did not get ready:\n{last_lines(log.read_text(errors='replace'))}"
                )
            time.sleep(0.05)
        yield process.pid
    finally:
        stop_child(process, patience_s=10)


def fetch(port: int, path: str) -> bytes:
    """The body of a GET answered 200. Raises OSError."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        try:
            connection.request("GET", path)
            reply = connection.getresponse()
            if reply.status != 200:
                raise OSError(f"{path} answers {reply.status}")
            return reply.read()
        except http.client.HTTPException as error:
            raise OSError(f"{path} answers no HTTP") from error


def serves(port: int, path: str) -> bool:
    """Whether there is anything at `path` to POST to."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        connection.request("POST", path, "{}", {"Content-Type": "application/json"})
        return connection.getresponse().status not in (404, 405)


def is_healthy(port: int) -> bool:
    try:
        fetch(port, "/healthz")
    except OSError:
        return False
    return True


@dataclass(frozen=True)
class Service:
    """One running service with a model of its own."""

    port: int
    pid: int
    model_port: int
    model_pid: int


class Stage:
    """The private database, emptied, with our schema; services are started on it."""

    def __init__(self, server: PrivateServer, settings: Environ) -> None:
        kept = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "SYSTEMROOT", "VIRTUAL_ENV")
        self.server = server
        # Nothing else of the caller's environment: its keys and limits would be measured too.
        self.environ = {name: os.environ[name] for name in kept if name in os.environ}
        self.environ |= {"ENV_FILE": "", "API_KEY": "bench", "DEFAULT_MODEL": "bench"}
        self.environ |= {**server.environment(), **settings}
        self.log = FOLDER / "bench.log"
        self.log.write_bytes(b"")
        self.admin = server.admin()
        self.admin.autocommit(True)
        self.create_schema()

    def create_schema(self) -> None:
        name = self.environ["DB_NAME"]
        self.query(f"DROP DATABASE IF EXISTS `{name}`")
        self.query(f"CREATE DATABASE `{name}` CHARACTER SET utf8mb4")
        self.query(f"USE `{name}`")
        self.query("SET GLOBAL innodb_flush_log_at_trx_commit = 1")  # a commit is on the disk before it is answered
        database = Database(Settings.from_env({**self.environ, "BASE_URL": "http://127.0.0.1:1/v1"}))
        try:
            migrate(database)
        finally:
            database.close()

    def query(self, statement: str, values: Sequence[object] | None = None) -> Sequence[Sequence[Any]]:
        with self.admin.cursor() as cursor:
            cursor.execute(statement, values)
            rows: Sequence[Sequence[Any]] = cursor.fetchall()
            return rows

    def counters(self, service: Service) -> dict[str, int]:
        """What the database and the model have been asked until now, by the names of the report."""
        found = {name: int(value) for name, value in self.query("SHOW GLOBAL STATUS") if str(value).isdecimal()}
        asked = {name: sum(found.get(counter, 0) for counter in counters) for name, counters in COUNTERS.items()}
        model = json.loads(fetch(service.model_port, "/stats"))
        names = {"model calls": "requests", "model streams": "streams", "bytes to model": "bytes"}
        return {**asked, **{name: model[theirs] for name, theirs in names.items()}}

    @contextmanager
    def service(self, latency_ms: float = 0, tokens: int = 12, token_ms: float = 0) -> Iterator[Service]:
        """Our service in one process, ready and warm, and its model."""
        model_port, port = any_port("127.0.0.1"), any_port("127.0.0.1")
        model = ["-m", "dev.bench_model", "--port", str(model_port), "--latency-ms", str(latency_ms)]
        model += ["--tokens", str(tokens), "--token-ms", str(token_ms)]
        uvicorn = ["-m", "uvicorn", "main:app", "--port", str(port), "--no-access-log", "--log-level", "warning"]
        environ = {**self.environ, "BASE_URL": f"http://127.0.0.1:{model_port}/v1"}
        with (
            running([sys.executable, *model], self.environ, model_port, self.log) as model_pid,
            running([sys.executable, *uvicorn], environ, port, self.log) as pid,
        ):
            service = Service(port, pid, model_port, model_pid)
            run_load(service, turns=3 if latency_ms else 200, connections=3 if latency_ms else 16)
            yield service

    def measure(self, service: Service, conversation: str = "", **load: object) -> Measured:
        """Send turns as `run_load` does; add what they cost and whether they were stored."""
        if conversation:
            load["conversation"] = conversation
        pids = (service.pid, self.server.pid, service.model_pid)
        turns_before = self.stored_turns(conversation)
        zero = self.counters(service)
        before, cpu_before = self.counters(service), [cpu_s(pid) for pid in pids]
        report = run_load(service, **load)
        cpu_after, after = [cpu_s(pid) for pid in pids], self.counters(service)
        service_ms, database_ms, model_ms = (
            None if start is None or end is None else (end - start) * 1000 / report.turns
            for start, end in zip(cpu_before, cpu_after, strict=True)
        )
        not_stored, half_stored = self.check_stored(report, turns_before if conversation else None)
        return Measured(
            turns=report.turns,
            errors=report.errors,
            error_kinds=report.error_kinds,
            not_stored=not_stored,
            half_stored=half_stored,
            seconds=report.seconds,
            turns_per_s=report.turns_per_s,
            p50_ms=report.p50_ms,
            p99_ms=report.p99_ms,
            service_cpu_ms=service_ms,
            database_cpu_ms=database_ms,
            model_cpu_ms=model_ms,
            load_cpu_ms=report.cpu_ms,
            # Counting is counted too: as much as between `zero` and `before`.
            per_turn={name: (after[name] - 2 * before[name] + zero[name]) / report.turns for name in after},
        )

    def stored_turns(self, conversation: str) -> int:
        found = self.query("SELECT turns FROM conversations WHERE owner = '' AND conversation_id = %s", (conversation,))
        return int(found[0][0]) if found else 0

    def check_stored(self, report: Report, turns_before: int | None) -> tuple[int, int]:
        """How many answered turns are not stored, and how many conversations hold anything but whole turns.

        turns_before: of the one conversation that had all the turns; None when each turn had a new one.
        """
        rows = self.query(
            "SELECT c.conversation_id, c.turns, COUNT(m.id), COALESCE(SUM(m.role = 'assistant'), 0)"
            " FROM conversations c LEFT JOIN messages m ON m.owner = c.owner AND m.conversation_id = c.conversation_id"
            " WHERE c.owner = '' AND c.conversation_id LIKE %s GROUP BY c.conversation_id, c.turns",
            (f"{report.conversation}%",),
        )
        whole = {name: turns for name, turns, messages, answers in rows if messages == 2 * turns and answers == turns}
        if turns_before is None:
            stored = len(whole.keys() - set(report.unanswered))
        else:
            stored = sum(whole.values()) - turns_before
        return max(0, report.turns - stored), len(rows) - len(whole)

    def seed(self, conversation: str, messages: int) -> None:
        """A conversation that already holds `messages` messages, short ones."""
        turns = messages // 2
        self.query("BEGIN")
        self.query(
            "INSERT INTO conversations (owner, conversation_id, turns, created_at, updated_at)"
            " VALUES ('', %s, %s, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6))",
            (conversation, turns),
        )
        said = (("assistant", "The result of 12 times 8 is 96."), ("user", QUESTION))
        rows = [(conversation, number, *said[number % 2]) for number in range(1, 2 * turns + 1)]
        with self.admin.cursor() as cursor:
            cursor.executemany(
                "INSERT INTO messages (conversation_id, owner, id, role, content, run_id, created_at)"
                " VALUES (%s, '', %s, %s, %s, NULL, UTC_TIMESTAMP(6))",
                rows,
            )
        self.query("COMMIT")


def run_load(service: Service, **load: object) -> Report:
    """One run of `load.py`; `load` are its options. Raises DevError when no turn at all was answered."""
    command = [sys.executable, "-m", "dev.load", "--port", str(service.port)]
    for name, value in load.items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, start_new_session=True)
    if done.returncode:
        raise DevError(f"The load generator failed:\n{last_lines(done.stderr)}")
    report = Report(**json.loads(done.stdout))
    if not report.turns:
        raise DevError(f"No turn was answered: {report.error_kinds}")
    return report


# The parts.


def measure_load(stage: Stage, options: Options, results: Results) -> None:
    """Turns of new conversations at each number of connections, interleaved, as the noise comes in waves."""
    with stage.service() as service:
        for number in range(1, options.rounds + 1):
            for connections in options.connections:
                say(f"load: round {number} of {options.rounds}, {connections} connections")
                measured = stage.measure(service, seconds=options.seconds, connections=connections)
                results.load.setdefault(connections, []).append(measured)
        results.machine["MB of the service after the load"] = round(memory_mb(service.pid, "VmRSS"))


def measure_statements(stage: Stage, options: Options, results: Results) -> None:
    """What the database is asked per turn: the first of a conversation, and a later one."""
    with stage.service() as service:
        say("statements")
        conversation = f"bench-statements-{time.time_ns()}"
        run_load(service, turns=1, conversation=conversation)
        results.statements["first turn"] = stage.measure(service, turns=100)
        results.statements["later turn"] = stage.measure(service, turns=100, conversation=conversation)


def measure_growth(stage: Stage, options: Options, results: Results) -> None:
    """One more turn in a conversation that already holds many messages."""
    with stage.service() as service:
        for number in range(1, options.rounds + 1):
            for messages in options.stored_messages:
                say(f"growth: round {number} of {options.rounds}, {messages} messages")
                conversation = f"bench-growth-{messages}-{time.time_ns()}"
                stage.seed(conversation, messages)
                run_load(service, turns=2, conversation=conversation)
                measured = stage.measure(service, turns=20, conversation=conversation)
                results.growth.setdefault(messages, []).append(measured)


def measure_streaming(stage: Stage, options: Options, results: Results) -> None:
    """CPU per streamed token of `/chat/stream`: the difference between a long and a short answer."""
    few, many = TOKENS
    for how, token_ms in (("together", 0.0), ("one by one", 1.0)):
        with stage.service(tokens=few, token_ms=token_ms) as short, stage.service(0, many, token_ms) as long:
            if not serves(short.port, "/chat/stream"):
                return
            per_token: list[float] = []
            for number in range(1, options.rounds + 1):
                say(f"streaming: round {number} of {options.rounds}, tokens arriving {how}")
                pair = [stage.measure(one, turns=20, connections=2, path="/chat/stream") for one in (short, long)]
                results.streamed += pair
                if not pair[1].per_turn["model streams"]:
                    return  # no stream was asked of the model: nothing to measure
                cost = [one.service_cpu_ms for one in pair]
                if cost[0] is not None and cost[1] is not None:
                    per_token.append((cost[1] - cost[0]) * 1000 / (many - few))
            if per_token:
                results.streaming[how] = statistics.median(per_token)


def measure_inflight(stage: Stage, options: Options, results: Results) -> None:
    """Many turns at once while the model takes its time: who is answered, and is the service still there?"""
    with stage.service(latency_ms=SLOW_MODEL_MS) as service:
        say(f"inflight: {TURNS_IN_FLIGHT} turns at once")
        idle_mb = memory_mb(service.pid, "VmRSS")
        with health_watch(service.port) as health_ms:
            results.inflight = stage.measure(service, turns=TURNS_IN_FLIGHT, connections=TURNS_IN_FLIGHT, timeout_s=120)
        results.inflight_service = {
            "idle_mb": idle_mb,
            "peak_mb": memory_mb(service.pid, "VmHWM"),
            "healthz_failed": sum(one is None for one in health_ms),
            "healthz_p50_ms": statistics.median(one or 0.0 for one in health_ms),
            "healthz_max_ms": max(one or 0.0 for one in health_ms),
        }


@contextmanager
def health_watch(port: int) -> Iterator[list[float | None]]:
    """Ask `/healthz` every 20 ms; the list fills with milliseconds, None for a call that failed."""
    found: list[float | None] = []
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.02):
            started = time.perf_counter()
            healthy = is_healthy(port)
            found.append((time.perf_counter() - started) * 1000 if healthy else None)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join(30)


MEASURES: Mapping[str, Callable[[Stage, Options, Results], None]] = {
    "load": measure_load,
    "statements": measure_statements,
    "growth": measure_growth,
    "streaming": measure_streaming,
    "inflight": measure_inflight,
}


# The report.


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


def machine() -> dict[str, str | int | float]:
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return {"cores": os.cpu_count() or 0, "load average": round(load, 1), "Python": platform.python_version()}


def read_options(argv: Sequence[str]) -> Options:
    parser = argparse.ArgumentParser(prog="python3 -m dev bench", description="What one turn costs.")
    parser.add_argument("--seconds", type=float, help="length of one load run (5)")
    parser.add_argument("--rounds", type=int, help="runs per figure; the median is reported (3)")
    parser.add_argument("--connections", help="comma separated (1,16,64)")
    parser.add_argument("--only", help=f"comma separated, of {','.join(PARTS)}")
    parser.add_argument("--quick", action="store_true", help="one short round of everything")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the service")
    given = parser.parse_args(argv)
    parts = tuple(given.only.split(",")) if given.only else PARTS
    connections = (given.connections or ("1,16" if given.quick else "1,16,64")).split(",")
    if not all("=" in pair for pair in given.set):
        parser.error("--set wants NAME=VALUE")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"--only knows {', '.join(PARTS)}; not {', '.join(sorted(unknown))}")
    if not all(number.isdecimal() and int(number) > 0 for number in connections):
        parser.error("--connections wants whole numbers from 1 up, comma separated")
    return Options(
        parts=parts,
        seconds=given.seconds or (1.0 if given.quick else 5.0),
        rounds=given.rounds or (1 if given.quick else 3),
        connections=tuple(int(number) for number in connections),
        stored_messages=(STORED_MESSAGES[0], STORED_MESSAGES[-1]) if given.quick else STORED_MESSAGES,
        json_file=given.json,
        settings=dict(pair.split("=", 1) for pair in given.set),
    )


def measure_all(options: Options) -> Results:
    server = PrivateServer(FOLDER)
    server.ensure_installed()
    try:
        server.start()
        stage = Stage(server, options.settings)
        with closing(stage.admin):
            results = Results(machine())
            results.machine["database"] = str(stage.query("SELECT VERSION()")[0][0])
            for part in options.parts:
                try:
                    MEASURES[part](stage, options, results)
                except (DevError, OSError) as error:  # the other parts are still worth having
                    results.failed[part] = str(error)
            return results
    finally:
        server.stop()


def stop_on_sigterm(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main(argv: list[str]) -> int:
    """Measure and report. 0 when every turn was answered and stored, goals met or not; else 1. Raises DevError."""
    options = read_options(argv)
    allow_many_files()
    signal.signal(signal.SIGTERM, stop_on_sigterm)
    with file_lock(FOLDER / "bench.lock", "Waiting for another bench …"):
        results = measure_all(options)
    measured = [part for part in options.parts if part not in results.failed]
    goals = [goal for part in measured for goal in GOALS[part](results)]
    print(", ".join(f"{name} {value}" for name, value in results.machine.items()), f"- medians of {options.rounds}")
    print("All processes share these cores, also with whatever else runs here: differences under 10 % are none.")
    for part in options.parts:
        print(f"\n{REPORTS[part](results) if part in measured else f'{part}: {results.failed[part]}'}")
    print(f"\n{goals_report(goals)}")
    if options.json_file:
        everything = {**asdict(results), "goals": [asdict(goal) for goal in goals]}
        options.json_file.write_text(json.dumps(everything, indent=1) + "\n", encoding="utf-8")
    return int(bool(results.failed) or any(one.wrong for one in results.all_measured()))
