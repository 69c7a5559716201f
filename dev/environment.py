"""The checkout's own `.venv` with exactly what requirements.txt pins. Standard library only: runs before all else."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

from dev import apt
from dev.common import LOCAL, ROOT, VENV, DevError, last_lines, say
from dev.locks import file_lock
from dev.processes import become

REQUIREMENTS = ROOT / "requirements.txt"
STAMP = VENV / "turnkeeper-installed.txt"  # written last: what is in .venv, as `wanted` says it
UNFINISHED = LOCAL / "environment.unfinished"  # there while .venv is being changed
LOCK = LOCAL / "environment.lock"
RESTARTED = "TURNKEEPER_DEV_RESTARTED"


def enter() -> None:
    """Go on inside `.venv`, made or brought up to date first. Returns only when this process already runs there."""
    restarted = os.environ.pop(RESTARTED, None)
    prepare()
    if inside():
        return
    if restarted:
        raise DevError(f"{venv_python()} does not run in {VENV}: unset PYTHONHOME, or remove {VENV} and try again")
    become([venv_python(), ROOT / "dev", *sys.argv[1:]], {**os.environ, RESTARTED: "1"})


def inside() -> bool:
    """Whether this Python is the one of `.venv`."""
    return Path(sys.prefix).resolve() == VENV.resolve()


def venv_python() -> Path:
    """The path of `.venv`'s Python, there or not."""
    return VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def prepare() -> None:
    """Make `.venv` match requirements.txt; costs a millisecond when it does. Safe beside other runs of itself."""
    if up_to_date():
        return
    with file_lock(LOCK, "Waiting for another run that is setting up .venv …") as lock:
        if not up_to_date():
            build(lock)


def up_to_date() -> bool:
    """Whether the stamp in `.venv` names this requirements.txt and a Python that still runs."""
    try:
        stamp = STAMP.read_text("utf-8")
    except OSError:
        return False
    if not venv_python().exists():  # the Python it was made from is gone
        return False
    # The same requirements under another Python than ours: .venv decides, so that two Pythons can share it.
    return stamp == wanted(sys.implementation.cache_tag) or stamp == wanted(tag_of(venv_python()))


def wanted(python_tag: str) -> str:
    """The stamp of an environment that has all of requirements.txt, for a Python such as `cpython-311`."""
    return f"{hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()} {python_tag}\n"


def tag_of(python: Path) -> str:
    """Name and version of a Python, as `cpython-311`; empty if it does not run or is too old for us."""
    ask = "import sys; print(sys.implementation.cache_tag if sys.version_info >= (3, 11) else '')"
    try:
        answer = subprocess.run([python, "-I", "-c", ask], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return answer.stdout.strip()


def build(lock: int) -> None:
    """Make or complete `.venv`. The caller holds the lock, whose handle pip gets too (see `run`)."""
    say(f"Setting up {VENV.name} from {REQUIREMENTS.name} (about a minute the first time) …")
    # A run that was killed may have left half a package, which pip would take for a whole one: begin again.
    if UNFINISHED.exists() or not has_pip():
        UNFINISHED.touch()
        make_venv(lock)
    UNFINISHED.touch()
    try:
        install(lock)
    except DevError:
        UNFINISHED.unlink()  # pip itself gave up and left things as they were
        raise
    new_stamp = STAMP.with_suffix(".new")
    new_stamp.write_text(wanted(tag_of(venv_python())), "utf-8")
    new_stamp.replace(STAMP)
    UNFINISHED.unlink()


def has_pip() -> bool:
    """Whether `.venv` is there, its Python runs, and pip runs in it."""
    return bool(tag_of(venv_python())) and run([venv_python(), "-I", "-m", "pip", "--version"]).returncode == 0


def make_venv(lock: int) -> None:
    """A new, empty `.venv`, whatever was there before."""
    if importlib.util.find_spec("ensurepip") is None:
        install_ensurepip()
    # From within a broken .venv, the Python it was made from does the work.
    python = getattr(sys, "_base_executable", None) or sys.executable
    result = run([python, "-m", "venv", "--clear", VENV], lock)
    if result.returncode != 0:
        raise DevError(f"{VENV} could not be made:\n{last_lines(result.stdout)}")


def install_ensurepip() -> None:
    """Debian and Ubuntu ship Python without `ensurepip`, which the module `venv` needs, unless a package is added."""
    package = f"python{sys.version_info.major}.{sys.version_info.minor}-venv"
    if apt.may_install():
        apt.install(package, "python3-venv")
    importlib.invalidate_caches()
    if importlib.util.find_spec("ensurepip") is None:
        raise DevError(
            f"{sys.executable} has no ensurepip, so it cannot make {VENV}.\n"
            f"On Debian and Ubuntu: apt-get install {package} (as root), then run this again.\n"
            "Elsewhere: use a Python from python.org, your package manager, pyenv or uv."
        )


def install(lock: int) -> None:
    """Let pip install requirements.txt. Raises DevError with pip's own words."""
    quiet = ["--quiet", "--disable-pip-version-check", "--no-input"]
    result = run([venv_python(), "-I", "-m", "pip", "install", *quiet, "--requirement", REQUIREMENTS], lock)
    if result.returncode != 0:
        raise DevError(f"pip could not install {REQUIREMENTS.name}; it says:\n{last_lines(result.stdout, 30)}")


def run(command: list[str | Path], lock: int | None = None) -> subprocess.CompletedProcess[str]:
    """Run quietly and collect the output.

    The child inherits the lock: if we are killed and it goes on, the next run waits until it is through.
    """
    # A user's habit of installing with --user would be refused inside a virtual environment.
    environ = {**os.environ, "PIP_USER": "0"}
    return subprocess.run(
        command,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        pass_fds=[lock] if lock is not None and os.name == "posix" else [],
        check=False,
    )
