"""`dev test`: the test suite, on nothing but its own database and its own settings."""

from __future__ import annotations

import os
import sys

from dev import configuration, mariadb
from dev.common import say
from dev.processes import become


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
    # A later -m of the caller's own counts instead of ours. -ra: what was skipped, and why, is shown at the end.
    selection = ["-m", "" if everything else "not slow"]
    # Two files at a time: much of the time they wait. A later -n of the caller's own counts instead, `-n 0` for one.
    at_once = ["-n", "2", "--dist", "loadfile"]
    become([sys.executable, "-m", "pytest", "-ra", *at_once, *selection, *arguments], environ)


def need_a_server() -> None:
    """Install the server that the tests start one of their own of. Where that fails, they decide what to skip."""
    try:
        mariadb.ensure_installed()
    except mariadb.NotInstalled as error:
        say(f"Tests that need a database will not run unless Docker does: {error}\n    or set TEST_DATABASE_URL")
