"""Processes of database servers, whoever started them: their words, and whether they have ended."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

# The servers that this process started, with their words: to be reaped when they end.
CHILDREN: dict[int, tuple[subprocess.Popen[bytes], list[str]]] = {}


def command_line(pid: int) -> list[str]:
    """The words with which a process was started; empty if there is no such process or it is dead."""
    child = CHILDREN.get(pid)
    if child is not None and child[0].poll() is None:
        return child[1]  # right after its start the system does not know them yet
    CHILDREN.pop(pid, None)
    if sys.platform == "linux":
        try:
            return Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "surrogateescape").split("\0")
        except OSError:
            return []
    answer = subprocess.run(["ps", "-ww", "-o", "args=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return re.split(r" (?=--)", answer.stdout.strip())  # a space within a path is not followed by two dashes


def other_processes() -> list[int]:
    """All process ids of this machine that we can learn of cheaply."""
    if sys.platform != "linux":
        return []
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def has_ended(pid: int) -> bool:
    """Whether a process is over, perhaps not yet reaped by its parent. Its command line is gone a little earlier."""
    child = CHILDREN.get(pid)
    if child is not None:
        return child[0].poll() is not None
    if sys.platform == "linux":
        try:
            return Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(") ")[2][:1] in ("Z", "X")
        except OSError:
            return True
    answer = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return answer.stdout.strip()[:1] in ("", "Z")
