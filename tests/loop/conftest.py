"""The loop: what a run may spend, how its tools are carried out, and what is left when it ends early."""

import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest

from errors import ToolError
from tools import ToolRegistry


@pytest.fixture
def ran() -> list[str]:
    """What the tools of a test really did."""
    return []


@pytest.fixture
def tools(ran: list[str]) -> ToolRegistry:
    """A tool that works, one that cannot do what is asked, one that is broken."""
    registry = ToolRegistry()

    @registry.tool
    def echo(text: str) -> str:
        """Say it again."""
        ran.append(text)
        return f"echo {text}"

    @registry.tool
    def refuse(text: str) -> str:
        """Refuse."""
        ran.append(text)
        raise ToolError(f"No {text}. Ask for something else.", "no_such_thing")

    @registry.tool
    def fail(text: str) -> str:
        """Fail."""
        ran.append(text)
        raise KeyError("SECRET-particulars")

    return registry


@pytest.fixture
def toolset(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    """A module that TOOLSETS can name: `a_toolset`. Its tools are what a test puts into `given`."""
    module = types.ModuleType("a_toolset")
    module.given = []  # type: ignore[attr-defined]

    def register(runtime: Any) -> None:
        for function in module.given:
            runtime.tools.tool(function)

    module.register = register  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "a_toolset", module)
    yield module
