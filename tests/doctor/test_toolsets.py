"""The layer `tools`: toolsets that are not there, cannot be used or are forbidden."""

from pathlib import Path

import pytest

from tests.support.examination import Examine


def test_toolsets_that_are_not_there_or_cannot_be_used(
    examine: Examine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mend = "TOOLSETS (from the environment) takes calculator, clock"
    examine(TOOLSETS="calculator,clok").assert_fails("tools", "TOOLSETS names 'clok'", mend)
    examine(TOOLSETS="json").assert_fails("tools", "needs a function register", mend)
    examine(TOOLSETS="calculator,calculator").assert_fails("tools", "two tools named calculator", mend)
    (tmp_path / "doctors_toolset.py").write_text("def register(runtime):\n    raise RuntimeError('not today')\n")
    monkeypatch.syspath_prepend(tmp_path)
    examine(TOOLSETS="doctors_toolset").assert_fails("tools", "RuntimeError: not today", mend)


def test_tools_that_are_registered_and_forbidden(examine: Examine) -> None:
    report = examine(MAX_TOOL_CALLS="0", TOOLSETS="calculator,clock")
    report.assert_warns("tools", "calculator, current_time from calculator, clock", "MAX_TOOL_CALLS=0 forbids")
