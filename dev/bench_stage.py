"""The stage of a bench: database, service and model, what they cost, and how to look at them from outside."""

import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from config import Settings
from db import Database
from dev.bench_results import Measured
from dev.common import LOCAL, ROOT, DevError, last_lines
from dev.load import QUESTION, Report
from dev.mariadb import PrivateServer
from dev.ports import any_port
from dev.processes import stop_child
from migrate import migrate

FOLDER = LOCAL / "bench"

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
