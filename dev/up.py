"""`dev up`, `dev with`: a database, a model and the service or another program, together until it ends."""

from __future__ import annotations

import http.client
import ipaddress
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from types import FrameType
from urllib.parse import urlsplit

from dev import configuration, database, ports, sample
from dev.common import DevError
from dev.processes import exit_status, start_child, stop_child

READY_WITHIN_S = 60.0
DEFAULTS = {"TOOLSETS": "calculator,clock", "TRACE_RETENTION_DAYS": "7"}
DEMO = "demo"
QUESTION = '{"conversation_id": "agent001", "message": "What is 12 * 8 / 4?"}'
QUESTION_OF_SHOP = '{"conversation_id": "shop001", "message": "Which city has the most customers?"}'


class Family:
    """Our children and the signals that end them.

    Before the service runs, a signal ends this program as an exception. Then the first one is passed to the service,
    which finishes its turns; the second one kills every child.
    """

    def __init__(self) -> None:
        self._children: list[subprocess.Popen[str]] = []
        self._service: subprocess.Popen[str] | None = None
        self._received: list[int] = []
        self._serving = False

    def listen(self) -> None:
        """Take over the signals that ask a program to end: Ctrl-C, kill, a terminal that is closed."""
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):
            if number := getattr(signal, name, None):
                signal.signal(number, self._on_signal)

    def start(self, command: list[str], environ: Mapping[str, str], *, read_output: bool) -> subprocess.Popen[str]:
        """Start a child that is killed with all others by a second signal."""
        child = start_child(command, environ, read_output=read_output)
        self._children.append(child)
        return child

    def start_service(self, command: list[str], environ: Mapping[str, str]) -> subprocess.Popen[str]:
        """Start the child that signals are meant for from now on."""
        self._serving = True
        self._service = self.start(command, environ, read_output=False)
        for number in self._received:  # came in while it was being started
            self._pass_on(number)
        return self._service

    def first_signal(self) -> int | None:
        """The signal that began to end this program, if one did."""
        return self._received[0] if self._received else None

    def no_more_exceptions(self) -> None:
        """Signals must not break off the cleaning up that begins now."""
        self._serving = True

    def close(self) -> None:
        """Stop whoever still runs."""
        for child in self._children:
            stop_child(child)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._received.append(number)
        if len(self._received) > 1:
            for child in self._children:
                child.kill()
        elif self._serving:
            self._pass_on(number)
        else:
            raise SystemExit(128 + number)

    def _pass_on(self, number: int) -> None:
        # On Windows the console has told the service of Ctrl-C already, and there are no other signals to send.
        if self._service is not None and os.name == "posix":
            self._service.send_signal(number)


def refuse_busy_port(host: str, port: int) -> None:
    """Raise DevError when the service could not listen there."""
    if port and not ports.can_listen(host, port):
        raise DevError(f"port {port} is in use on {host}: choose another with --port, or end the program that has it")


def main(host: str, port: int, sample_name: str | None = None) -> int:
    """Serve, with a sample where one is named. The exit status is the service's own."""
    refuse_busy_port(host, port)
    port = port or ports.any_port(host)
    return with_family(sample_name, partial(serve, host, port))


def run(command: list[str], sample_name: str | None = None) -> int:
    """Run a program in this checkout as the service would run: its database, its model. Its exit status."""
    words = [sys.executable, *command[1:]] if command[0] in ("python", "python3") else command

    def go(environ: dict[str, str], family: Family, stack: ExitStack, asked: Mapping[str, str] | None) -> int:
        prepare(environ, family, stack, asked)
        try:
            return exit_status(family.start_service(words, environ).wait())
        except OSError as error:
            raise DevError(f"{words[0]} cannot be run: {error.strerror}") from None

    return with_family(sample_name, go)


def with_family(sample_name: str | None, work: Callable[..., int]) -> int:
    """`work(environ, family, stack, asked)` with the settings, and everything stopped that it started."""
    given = configuration.read()
    if sample_name:
        sample.refuse_elsewhere(given)
    family = Family()
    family.listen()
    with ExitStack() as stack:
        stack.callback(family.close)
        try:
            return work({**DEFAULTS, **given}, family, stack, given if sample_name else None)
        finally:
            family.no_more_exceptions()


def serve(
    host: str, port: int, environ: dict[str, str], family: Family, stack: ExitStack, asked: Mapping[str, str] | None
) -> int:
    """Start all of it, and wait for the service to end. asked: the user's settings, where a sample is wanted."""
    label, demo = prepare(environ, family, stack, asked)
    service = family.start_service(service_command(host, port), environ)
    if not wait_until_ready(service, host, port) and (number := family.first_signal()):
        return 128 + number  # told to stop while it was still being loaded, a program ends in any odd way
    if service.poll() is None:
        with_sample = asked is not None and "text2sql" in environ.get("TOOLSETS", "")
        print(report(host, port, label, model_label(environ, demo), with_sample), flush=True)
    return exit_status(service.wait())


def prepare(
    environ: dict[str, str], family: Family, stack: ExitStack, asked: Mapping[str, str] | None
) -> tuple[str, bool]:
    """Have database and model, their settings in `environ`: what the database is, and whether the model is ours."""
    # The model comes up while we see to the database.
    demo = None if configuration.is_set(environ, "BASE_URL", "API_KEY") else start_demo_model(family, environ)
    chosen = database.choose(environ, stack)
    environ.update(chosen.settings)
    if asked is not None:
        environ.update(sample.settings(asked, DEFAULTS["TOOLSETS"], chosen))
    if demo is not None:
        environ.update(BASE_URL=demo_model_url(demo), API_KEY=DEMO, DEFAULT_MODEL=DEMO)
        # It is on this machine: no proxy may stand between.
        environ.update(NO_PROXY=",".join(filter(None, [environ.get("NO_PROXY"), "127.0.0.1"])))
    database.apply_schema(environ, chosen.label)
    if asked is not None:
        sample.sync_catalogue(environ)
    stack.callback(family.close)  # the service ends before its database
    return chosen.label, demo is not None


def service_command(host: str, port: int) -> list[str]:
    """How the service is run; the same works by hand."""
    return [sys.executable, "-m", "uvicorn", "main:app", "--host", host, "--port", str(port), "--no-access-log"]


def start_demo_model(family: Family, environ: Mapping[str, str]) -> subprocess.Popen[str]:
    """Start the model that needs no key; `demo_model_url` waits for it."""
    command = [sys.executable, "-m", "dev.demo_model", "--port", "0", "--parent", str(os.getpid())]
    return family.start(command, environ, read_output=True)


def demo_model_url(demo: subprocess.Popen[str]) -> str:
    """Where the demo model serves, from the line that it prints when it does."""
    lines: queue.Queue[str] = queue.Queue()

    def read() -> None:  # to the end, so that the demo model can never be held up by a full pipe
        assert demo.stdout is not None
        for line in demo.stdout:
            lines.put(line)
        lines.put("")

    threading.Thread(target=read, daemon=True, name="demo-model-output").start()
    try:
        word, _, url = lines.get(timeout=READY_WITHIN_S).strip().partition(" ")
    except queue.Empty:
        raise DevError("the demo model does not start") from None
    if word != "ready":
        raise DevError("the demo model ended at once; what it says stands above")
    return url


def wait_until_ready(service: subprocess.Popen[str], host: str, port: int) -> bool:
    """Wait until the service answers; False when it ends first, having said why. Raises DevError."""
    deadline = time.monotonic() + READY_WITHIN_S
    while service.poll() is None:
        if answers(reachable(host), port):
            return True
        if time.monotonic() > deadline:
            raise DevError(f"the service does not answer on http://{in_url(reachable(host))}:{port}/healthz")
        time.sleep(0.02)
    return False


def answers(host: str, port: int) -> bool:
    """Whether /healthz answers there, whatever it says."""
    connection = http.client.HTTPConnection(host, port, timeout=2)
    try:
        connection.request("GET", "/healthz")
        connection.getresponse().read()
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
    return True


def reachable(host: str) -> str:
    """An address under which a server on `host` answers this machine: 0.0.0.0 and :: mean all of them."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)


def in_url(host: str) -> str:
    """An address as a URL writes it."""
    return f"[{host}]" if ":" in host else host


def is_loopback(host: str) -> bool:
    """Whether only this machine gets there."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def model_label(environ: Mapping[str, str], demo: bool) -> str:
    """Which model answers, for people; without the key."""
    if demo:
        return f"{DEMO}: small and deterministic, no real model (set BASE_URL, API_KEY and DEFAULT_MODEL for one)"
    url = urlsplit(environ.get("BASE_URL", ""))
    where = f" at {url.scheme}://{url.netloc.rpartition('@')[2]}{url.path}" if url.netloc else ""
    return f"{environ.get('DEFAULT_MODEL') or 'no DEFAULT_MODEL set'}{where}, as configured"


def report(host: str, port: int, database_label: str, model: str, with_sample: bool = False) -> str:
    """What was used and what to try."""
    url = f"http://{in_url(reachable(host))}:{port}"
    question = QUESTION_OF_SHOP if with_sample else QUESTION
    of_sample = ["  sample    the shop, in SQL, by an account that may only read; dev/shop/policy.toml"]
    lines = [
        f"Turnkeeper serves {url}",
        f"  database  {database_label}",
        f"  model     {model}",
        *(of_sample if with_sample else ()),
        "  log       below, on this terminal (LOG_FORMAT=json or classroom for other forms)",
        f"  docs      {url}/docs",
        f"  try       curl -s {url}/chat -H 'Content-Type: application/json' -d '{question}'",
        "Ctrl-C stops all of it.",
    ]
    if not is_loopback(host):
        lines.insert(1, f"  note      it listens on {host}, but without keys only callers on this machine are served")
    return "\n".join(lines)
