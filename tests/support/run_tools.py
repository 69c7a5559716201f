"""A toolset for tests of runs: `TOOLSETS=tests.support.run_tools`."""

import time
from pathlib import Path

from errors import StopRun
from run import RunContext
from runtime import Runtime
from tools import ToolResult


def register(runtime: Runtime) -> None:
    """Add the tools."""

    @runtime.tools.tool
    def give_up(reason: str) -> str:
        """End the run."""
        raise StopRun(reason, "It makes no sense to go on.")

    @runtime.tools.tool
    def look(pages: int) -> ToolResult:
        """Look something up: a page for the model, all of them for the record."""
        return ToolResult("页" * 100, "页" * 100 * pages)

    @runtime.tools.tool
    def read(pages: int) -> str:
        """Read so many pages."""
        return "页" * 100 * pages

    @runtime.tools.tool(timeout_s=30)
    def wait(context: RunContext, file: str) -> str:
        """Write the id of the run into `file`, and wait until the file is gone."""
        path = Path(file)
        path.with_suffix(".part").write_text(context.run_id)
        path.with_suffix(".part").rename(path)
        while path.exists():
            time.sleep(0.01)
        return "waited"
