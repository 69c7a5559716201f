"""Waiting for what another thread or process does."""

import time
from collections.abc import Callable

LONG = 30.0  # "does not hang"; everything takes a few seconds at most


def until(condition: Callable[[], object], seconds: float = LONG) -> None:
    """Wait until something is so."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)
