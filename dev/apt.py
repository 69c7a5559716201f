"""Installing a package of the distribution, where we may: root on Debian, Ubuntu and their kin."""

from __future__ import annotations

import os
import shutil
import sys

from dev.common import DevError, last_lines, say
from dev.processes import run_unbroken


def may_install() -> bool:
    """Whether `install` has a chance: the family's package manager is here and we are root."""
    return sys.platform == "linux" and os.geteuid() == 0 and shutil.which("apt-get") is not None


def install(*choices: str) -> None:
    """Install the first of `choices` that this release has. Removes none. Raises DevError with apt's words."""
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
    apt = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300"]
    say(f"Installing {choices[0]} with apt-get …")
    # A failing update is no reason to stop: one broken source among many, or lists that are already there.
    output = run_unbroken([*apt, "update"], environ).stdout
    for package in choices:
        result = run_unbroken([*apt, "install", "--yes", "--no-install-recommends", "--no-remove", package], environ)
        if result.returncode == 0:
            return
        output += result.stdout
    raise DevError(f"apt-get could not install {choices[0]}:\n{last_lines(output)}")
