"""Programs we start: replaced by, waited for, or kept as children that never outlive us. Standard library only."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from dev.common import ROOT

PR_SET_PDEATHSIG = 1


def become(command: Sequence[str | Path], environ: Mapping[str, str] | None = None) -> NoReturn:
    """Go on as `command` in the checkout: the same process where the system can do that, else a child we wait for."""
    os.chdir(ROOT)
    words = [str(word) for word in command]
    env = dict(os.environ if environ is None else environ)
    sys.stdout.flush()
    sys.stderr.flush()
    if sys.platform != "win32":
        os.execve(words[0], words, env)
    # Windows' exec returns to the shell at once and leaves the new program in the background.
    sys.exit(subprocess.run(words, env=env, check=False).returncode)


def run_unbroken(command: Sequence[str], environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run to the end even when Ctrl-C arrives meanwhile, for what must not be left half done (a package manager)."""
    process = subprocess.Popen(
        command,
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate()
    except BaseException:
        process.communicate()
        raise
    return subprocess.CompletedProcess(command, process.returncode, output)


def _stop_when_parent_dies() -> Callable[[], object] | None:
    """What a new child does first: on Linux, ask to be told to stop if we die with no chance to stop it (kill -9)."""
    if sys.platform != "linux":
        return None
    try:
        import ctypes

        prctl = ctypes.CDLL(None).prctl
    except (ImportError, OSError, AttributeError):  # a Python built without ctypes: this comfort is missing then
        return None
    return lambda: prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def start_child(
    command: Sequence[str], environ: Mapping[str, str], *, read_output: bool = False
) -> subprocess.Popen[str]:
    """Start a child in a session of its own, so that the terminal's Ctrl-C comes to us alone and we decide."""
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if read_output else None,
        text=True,
        encoding="utf-8",
        errors="replace",
        start_new_session=os.name == "posix",
        preexec_fn=_stop_when_parent_dies(),
    )


def stop_child(process: subprocess.Popen[str], patience_s: float = 3.0) -> None:
    """Ask to stop, then insist."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(patience_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def exit_status(returncode: int) -> int:
    """As a shell has it: 128 + n for a program ended by signal n."""
    return returncode if returncode >= 0 else 128 - returncode
