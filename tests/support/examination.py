"""What the doctor's tests share: a report as it was told, and the doctor of a copy of the checkout."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dev import configuration

ORDER = "file import configuration network login server charset privileges schema model tools".split()
KEY, PASSWORD = "sk-never-to-be-shown", "pw-never-to-be-shown"


def clean_environment() -> dict[str, str]:
    """This process's environment without settings and without proxies."""
    kept = configuration.for_tests()
    return {name: value for name, value in kept.items() if not name.lower().endswith("_proxy")}


@dataclass
class Report:
    """What the doctor said with --json."""

    status: int
    told: dict[str, Any]

    def layer(self, name: str) -> dict[str, Any]:
        return next(layer for layer in self.told["layers"] if layer["layer"] == name)

    def text(self, name: str) -> str:
        layer = self.layer(name)
        return "\n".join([layer["found"], *layer["way_out"]])

    def assert_fails(self, name: str, *words: str) -> None:
        """The layer that fails is this one, and what is said there holds these words."""
        assert (self.told["failing"], self.status) == ([name], 1), self.told
        self.assert_says(name, "FAIL", *words)
        assert self.layer(name)["way_out"]

    def assert_warns(self, name: str, *words: str) -> None:
        assert (self.told["failing"], self.status) == ([], 0), self.told
        self.assert_says(name, "warn", *words)

    def assert_says(self, name: str, status: str, *words: str) -> None:
        assert self.layer(name)["status"] == status, self.layer(name)
        assert [word for word in words if word not in self.text(name)] == [], self.text(name)


Examine = Callable[..., Report]


Account = Callable[..., dict[str, str]]


def examine_copy(folder: Path, *, before: str = "pass", **environ: str) -> Report:
    """The doctor of a copy, in a process of its own; `before` is run in that process first."""
    code = f"import sys; {before}; from dev import doctor; sys.exit(doctor.main(['--json']))"
    environment = {**clean_environment(), **environ}
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert result.stderr == ""
    return Report(result.returncode, json.loads(result.stdout))
