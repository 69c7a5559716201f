"""What every command shares: where things lie and how a failure is told. Standard library only."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCAL = ROOT / ".local"
VENV = ROOT / ".venv"


class DevError(Exception):
    """A failure its reader can do something about: shown as a message, without a stack trace."""


def say(text: str) -> None:
    """Tell what is going on, on stderr, so that stdout keeps what was asked for."""
    print(text, file=sys.stderr, flush=True)


def last_lines(text: str, count: int = 12) -> str:
    """The end of a program's output, indented, to be shown below a message of ours."""
    return "\n".join(f"    {line}" for line in text.rstrip().splitlines()[-count:])
