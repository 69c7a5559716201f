"""`dev check`: what can be said about the code without running the service."""

from __future__ import annotations

import subprocess
import sys

from dev import configuration
from dev.common import ROOT

HOUSE_TEST = "tests/test_house.py"
CHECKS = {
    "lint (ruff check)": ["ruff", "check"],
    "format (ruff format)": ["ruff", "format", "--check"],
    "types (mypy)": ["mypy"],
    "imports (the test of the house)": ["pytest", "-q", HOUSE_TEST],
}


def main() -> int:
    """Run all, whatever fails on the way; then one line for each. Exit status 1 if any failed."""
    verdicts = {name: verdict(command) for name, command in CHECKS.items()}
    for name, result in verdicts.items():
        print(f"{result:7} {name}")
    return int("FAILED" in verdicts.values())


def verdict(command: list[str]) -> str:
    """Run one check; its output is shown only when it fails."""
    if HOUSE_TEST in command and not (ROOT / HOUSE_TEST).exists():
        return "absent"
    result = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        env=configuration.for_tests(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    if result.returncode == 0:
        return "ok"
    print(f"{' '.join(command)}\n{result.stdout}", flush=True)
    return "FAILED"
