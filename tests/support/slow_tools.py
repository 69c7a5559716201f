"""A toolset for tests that need a tool to be under way: `TOOLSETS=tests.support.slow_tools`."""

import time
from pathlib import Path

from runtime import Runtime


def register(runtime: Runtime) -> None:
    """Add the tool."""

    @runtime.tools.tool(timeout_s=60)
    def nap(seconds: float, mark: str) -> str:
        """Sleep for so many seconds, and make the file `mark` before."""
        Path(mark).touch()
        time.sleep(seconds)
        return "slept"
