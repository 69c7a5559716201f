"""A toolset whose tool looks at each call before it is counted: TOOLSETS=tests.support.careful_tools."""

from errors import ToolError
from run import RunContext
from runtime import Runtime
from tools import Stop, ToolCall


def look(call: ToolCall, context: RunContext) -> Stop | None:
    """End the run at a call that failed in it before."""
    failed = [observation for observation in context.failed if observation.call.arguments == call.arguments]
    return Stop("asked_again", blocked=call, failed=failed[0]) if failed else None


def guess(number: int) -> str:
    """Guess a number."""
    if number != 7:
        raise ToolError(f"It is not {number}.", "wrong_guess")
    return "right"


def register(runtime: Runtime) -> None:
    """Add the tool."""
    runtime.tools.tool(before=look, max_calls=2)(guess)
