"""`python3 -m dev bench`: what one turn costs, beside the goals of DESIGN §8.

The turn: `POST /chat` with "What is 12 times 8?" → history read → the model asks for `calculator` → the model answers →
turn stored → JSON. The service runs in one process with its default settings; model (`bench_model.py`), load generator
(`load.py`) and a private MariaDB stand beside it, all of them on this machine and stopped at the end.

CPU per turn is the figure to trust: the clock of the process, all its threads, over the turns answered. Turns per
second and milliseconds also measure whatever else the machine was doing.
"""

import argparse
import json
import os
import platform
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType

from dev.bench_report import GOALS, REPORTS, goals_report
from dev.bench_results import SLOW_MODEL_MS, TOKENS, TURNS_IN_FLIGHT, Results
from dev.bench_stage import FOLDER, Environ, Stage, allow_many_files, is_healthy, memory_mb, run_load, serves
from dev.common import DevError, say
from dev.locks import file_lock
from dev.mariadb import PrivateServer

PARTS = ("load", "statements", "growth", "streaming", "inflight")
STORED_MESSAGES = (10, 100, 1000, 4000)


@dataclass(frozen=True)
class Options:
    parts: tuple[str, ...]
    seconds: float
    rounds: int
    connections: tuple[int, ...]
    stored_messages: tuple[int, ...]
    json_file: Path | None
    settings: Environ  # given to the service on top of its defaults


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
