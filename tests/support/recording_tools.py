"""A toolset that writes down what was really carried out: TOOLSETS=tests.support.recording_tools."""

import time
from typing import Any

from runtime import Runtime

RUNS: list[tuple[str, dict[str, Any]]] = []  # of this process


def note(text: str, times: int = 1) -> str:
    """Write a text down."""
    RUNS.append(("note", {"text": text, "times": times}))
    return f"noted: {text}"


def now() -> str:
    """The time, which stands still here."""
    RUNS.append(("now", {}))
    return "2031-05-06 07:08:09"


def pause(seconds: float) -> str:
    """Do nothing for some seconds."""
    RUNS.append(("pause", {"seconds": seconds}))
    time.sleep(seconds)
    return f"waited {seconds}"


def register(runtime: Runtime) -> None:
    """Add the tools."""
    for function in (note, now, pause):
        runtime.tools.tool(function)
