"""`dev test`: the test suite, on nothing but its own database and its own settings."""

from __future__ import annotations

import os
import subprocess
import sys

from dev import configuration, mariadb_program
from dev.common import say
from dev.processes import become

TABLES = """\
tests/storage tests/faults tests/test_migrations.py tests/idempotency tests/runs
tests/test_access.py tests/test_conversations.py tests/test_chat.py tests/test_torture.py
tests/text2sql tests/test_sample.py""".split()


def main(arguments: list[str]) -> int:
    """Become pytest, whose exit status is ours. `--all` is for us, the rest is for pytest."""
    everything = "--all" in arguments
    arguments = [word for word in arguments if word != "--all"]
    if arguments[:1] == ["--"]:  # what follows is for pytest even if it looks like ours
        del arguments[0]
    environ = configuration.for_tests()
    if everything:
        environ["TURNKEEPER_TEST_ALL"] = "1"
    if not os.environ.get("TEST_DATABASE_URL"):
        need_a_server()
    # A later -m of the caller's own counts instead. -ra: what was skipped, and why, is shown at the end.
    selection = ["-m", "" if everything else "not slow"]
    # Two files at a time, each with a server of its own: much of the time they wait. A server that is given is one for
    # all, so there it is one file. A later -n of the caller's own counts instead.
    at_once = ["-n", "0" if os.environ.get("TEST_DATABASE_URL") else "2", "--dist", "loadfile"]
    pytest = [sys.executable, "-m", "pytest", "-ra", *at_once]
    if not everything:
        become([*pytest, *selection, *arguments], environ)
    status = subprocess.call([*pytest, *selection, *arguments], env=environ)
    return status or on_real_mysql([*pytest, "-m", "not slow"], environ)


def on_real_mysql(pytest: list[str], environ: dict[str, str]) -> int:
    """What touches the tables once more, on MySQL itself where there is one; its exit status, 0 where there is none."""
    program = mariadb_program.real_mysql()
    if os.environ.get("TEST_DATABASE_URL") or program is None:
        say(
            "Not tried on real MySQL: set TURNKEEPER_MYSQLD to a mysqld from 8.0 up, and leave TEST_DATABASE_URL unset."
        )
        return 0
    say(f"Once more on {program.name}, what touches the tables …")
    return subprocess.call([*pytest, *TABLES], env={**environ, "MARIADBD": str(program.path)})


def need_a_server() -> None:
    """Install the server that the tests start one of their own of. Where that fails, they decide what to skip."""
    try:
        mariadb_program.ensure_installed()
    except mariadb_program.NotInstalled as error:
        say(f"Tests that need a database will not run unless Docker does: {error}\n    or set TEST_DATABASE_URL")
