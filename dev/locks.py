"""Locks between processes. The system drops them when their holder dies, however it dies."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dev.common import say

if sys.platform == "win32":
    import msvcrt
    import time

    def try_lock(handle: int) -> bool:
        """Take the lock if it is free."""
        os.lseek(handle, 0, os.SEEK_SET)
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

    def wait_for_lock(handle: int) -> None:
        """Take the lock as soon as it is free."""
        while not try_lock(handle):
            time.sleep(0.1)

else:
    import fcntl

    def try_lock(handle: int) -> bool:
        """Take the lock if it is free."""
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def wait_for_lock(handle: int) -> None:
        """Take the lock as soon as it is free."""
        fcntl.flock(handle, fcntl.LOCK_EX)

    def share_lock(handle: int) -> None:
        """Take the lock beside others who share it; `try_lock` of anybody else fails until all have let go."""
        fcntl.flock(handle, fcntl.LOCK_SH)


def open_lock(path: Path) -> int:
    """A handle to lock; closing it lets go."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o644)


@contextmanager
def file_lock(path: Path, waiting: str = "") -> Iterator[int]:
    """Hold `path` alone. `waiting` is said when somebody else has it. Yields the handle, for a child to hold it too."""
    handle = open_lock(path)
    try:
        if not try_lock(handle):
            if waiting:
                say(waiting)
            wait_for_lock(handle)
        yield handle
    finally:
        os.close(handle)
