"""An MCP server with a few tools, for tests: over standard input and output, or HTTP on the port that is given."""

import os
import sys
import time

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

box = MCPServer("box")


@box.tool(annotations=ToolAnnotations(read_only_hint=True))
def add(a: int, b: int = 1) -> int:
    """Add two whole numbers."""
    return a + b


@box.tool()
def fail() -> str:
    """Never works."""
    raise ToolError("the box is closed")


@box.tool()
def slow() -> str:
    """Takes long."""
    time.sleep(30)
    return "late"


@box.tool()
def much() -> str:
    """Says a lot."""
    return "x" * 1_000_000


@box.tool()
def die() -> str:
    """Ends the server in the middle of the call."""
    os._exit(1)


@box.tool()
def about() -> str:
    """The process and its environment."""
    return f"{os.getpid()} {' '.join(sorted(os.environ))}"


@box.tool()
def secret() -> str:
    """Not for the model."""
    return "secret"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        box.run("streamable-http", port=int(sys.argv[1]))
    else:
        box.run()
