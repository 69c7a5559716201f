"""Tools: typed functions that the model may ask for, the registry that holds them, and the budget they spend.

The model only *asks*; here the request is checked, counted and carried out, and the result goes back as an
observation. Whatever goes wrong in a tool becomes an observation too, so that the model can do something about it.
"""

import asyncio
import inspect
import json
import logging
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Annotated, Any, Literal, NotRequired, TypeVar, cast, get_args, get_origin, get_type_hints, overload
from zoneinfo import ZoneInfo

import pydantic_core
from pydantic import ConfigDict, Field, PydanticUserError, TypeAdapter, ValidationError, WrapValidator
from typing_extensions import TypedDict

from errors import StopRun, ToolError
from run import Budget, RunContext
from text import clean_text, cut_text
from workers import DaemonThreads, ToolFailed

log = logging.getLogger(__name__)
F = TypeVar("F", bound=Callable[..., Any])

MAX_OBSERVATION_CHARS = 20_000  # what the model is shown of one result
MAX_RECORD_CHARS = 1_000_000  # what of one result is kept for people
MAX_TOOL_THREADS = 64
LEGAL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")  # what model services take as the name of a function


def keep_int(value: Any, to_float: Callable[[Any], float]) -> float:
    """An int is a float already (PEP 484): 12 stays 12, so that 12 * 8 is 96 and not 96.0. True is no number."""
    if isinstance(value, bool):
        raise ValueError("should be a number")
    number = to_float(value)
    return value if type(value) is int else number


Number = Annotated[float, Field(allow_inf_nan=False), WrapValidator(keep_int)]


@dataclass(frozen=True)
class ToolCall:
    """One request of the model.

    arguments: None where they could not be read; `problem` then says why, and `written` is what the model wrote.
    """

    id: str
    name: str
    arguments: dict[str, Any] | None
    problem: str = ""
    written: str = ""

    def as_dict(self) -> dict[str, Any]:
        """In the wire format, always legal: a name and arguments that could not be used are made harmless."""
        name = self.name if LEGAL_NAME.fullmatch(self.name) else re.sub(r"[^A-Za-z0-9_-]", "_", self.name)[:64] or "_"
        arguments = json.dumps(self.arguments or {}, ensure_ascii=False)
        return {"id": self.id, "type": "function", "function": {"name": name, "arguments": arguments}}


@dataclass(frozen=True)
class ToolResult:
    """What a tool returns where the model needs only a part. text: for the model; record: the whole, for people."""

    text: str
    record: str


@dataclass(frozen=True)
class Observation:
    """What the model is given back for one call. code: what kind of error, None where it went well.

    record: the whole result for people, where the model is given a part of it.
    """

    call: ToolCall
    text: str
    code: str | None = None
    duration_ms: float = 0.0
    stop_reason: str | None = None  # the tool ends the run
    record: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """In the wire format of the model."""
        return {"role": "tool", "tool_call_id": self.call.id, "content": self.text}


@dataclass(frozen=True)
class Stop:
    """Why a run ends among its tool calls. blocked: the call too many; failed: what a tool said that ended it."""

    reason: str
    blocked: ToolCall | None = None
    failed: Observation | None = None


@dataclass(frozen=True)
class Tool:
    """A function, and what the model and the loop have to know about it.

    timeout_s: its own time limit where the default does not fit.
    parallel: it only reads and may run beside others; otherwise it runs alone.
    max_calls, limit_reason: calls per run, and the stop reason of the call too many.
    before: looks at a call that the budget permits, before it is counted; a Stop ends the run there, and the call
    costs nothing. What went wrong so far stands in the context's `failed`.
    """

    function: Callable[..., Any]
    name: str
    description: str
    parameters: dict[str, Any]
    arguments: TypeAdapter[Any]
    context_name: str | None = None
    timeout_s: float | None = None
    parallel: bool = False
    max_calls: int | None = None
    limit_reason: str = "tool_call_limit"
    before: Callable[[ToolCall, RunContext], Stop | None] | None = None

    def schema(self) -> dict[str, Any]:
        """The tool as the model is told of it."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}

    def check(self, call: ToolCall) -> dict[str, Any]:
        """The arguments with their types. Raises ToolError that names what is missing, unknown or of a wrong type."""
        if call.arguments is None:
            raise ToolError(f"The arguments of {self.name} cannot be used: {call.problem}", "bad_arguments")
        try:
            return cast("dict[str, Any]", self.arguments.validate_python(call.arguments))
        except ValidationError as error:
            faults = "; ".join(
                f"{'.'.join(map(str, fault['loc']))[:80]}: {FAULTS.get(fault['type'], fault['msg'])}"
                for fault in error.errors(include_url=False, include_context=False, include_input=False)[:5]
            )
            takes = ", ".join(self.parameters["properties"]) or "no arguments"
            raise ToolError(f"Wrong arguments for {self.name}: {faults}. It takes: {takes}.", "bad_arguments") from None


FAULTS = {"missing": "is required and missing", "extra_forbidden": "is not an argument of this tool"}


def describe(function: Callable[..., Any], **options: Any) -> Tool:
    """The Tool of a typed function: name, docstring and annotations say everything. Raises TypeError if they do not."""
    name = getattr(function, "__name__", "")
    if not LEGAL_NAME.fullmatch(name):
        raise TypeError(f"a tool's name has letters, digits, _ and - only, at most 64: {name!r}")
    description = inspect.getdoc(function)
    if not description:
        raise TypeError(f"the tool {name} needs a docstring: it is what the model reads")
    try:
        hints = get_type_hints(function, include_extras=True)
    except NameError as error:
        raise TypeError(f"the tool {name} has a type that cannot be found: {error}") from error
    fields: dict[str, Any] = {}
    context_name = None
    for parameter in inspect.signature(function).parameters.values():
        hint = hints.get(parameter.name)
        if hint is RunContext or RunContext in get_args(hint):  # RunContext | None, Annotated[RunContext, …]
            context_name = parameter.name
            continue
        if hint is None or parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(f"the tool {name} needs a type for {parameter}, and no * or / parameters")
        hint = widen(hint)
        fields[parameter.name] = hint if parameter.default is parameter.empty else NotRequired[hint]
    shape: Any = TypedDict(f"{name}_arguments", fields)  # type: ignore[misc]
    shape.__pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[attr-defined]
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(shape)
        return Tool(function, name, description, plain_schema(adapter), adapter, context_name, **options)
    except PydanticUserError as error:
        raise TypeError(f"the tool {name} has a type that has no JSON schema: {error}") from error


def widen(hint: Any) -> Any:
    """`float` -> Number, in Annotated[float, …] too."""
    if get_origin(hint) is Annotated and get_args(hint)[0] is float:
        return Annotated[(Number, *get_args(hint)[1:])]
    return Number if hint is float else hint


def plain_schema(adapter: TypeAdapter[Any]) -> dict[str, Any]:
    """A JSON schema without the titles that pydantic makes up."""

    def bare(node: Any) -> Any:
        if isinstance(node, dict):
            return {k: bare(v) for k, v in node.items() if not (k == "title" and isinstance(v, str))}
        return [bare(item) for item in node] if isinstance(node, list) else node

    return {"properties": {}, **cast("dict[str, Any]", bare(adapter.json_schema()))}


def over(budget: Budget, tool: Tool | None) -> str | None:
    """The stop reason if one more call of `tool` is not permitted."""
    if not budget.time_left_s():
        return "timeout"
    if budget.tool_calls >= budget.max_tool_calls:
        return "tool_call_limit"
    if tool and budget.calls_of[tool.name] >= budget.max_calls_of.get(tool.name, float("inf")):
        return tool.limit_reason
    return None


class ToolRegistry:
    """Name -> tool, one for each application."""

    def __init__(self) -> None:
        self._tools: dict[str, Tool] = {}
        self._threads = DaemonThreads(MAX_TOOL_THREADS)

    @overload
    def tool(self, function: F, /) -> F: ...
    @overload
    def tool(self, /, **options: Any) -> Callable[[F], F]: ...
    def tool(self, function: F | None = None, /, **options: Any) -> F | Callable[[F], F]:
        """Register a function: `@registry.tool` or `@registry.tool(timeout_s=60, parallel=True, …)`; see Tool."""
        if function is None:
            return lambda later: self._add(later, options)
        return self._add(function, options)

    def _add(self, function: F, options: dict[str, Any]) -> F:
        self.add(describe(function, **options))
        return function

    def add(self, tool: Tool) -> None:
        """Register a tool that no typed function describes. Raises TypeError if its name is in use."""
        if tool.name in self._tools:
            raise TypeError(f"there are two tools named {tool.name}")
        self._tools[tool.name] = tool

    def remove(self, name: str) -> None:
        """Take a tool away. A run under way that asks for it is told that there is none of this name."""
        self._tools.pop(name, None)

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    def get(self, name: str) -> Tool | None:
        """The tool of this name, if there is one."""
        return self._tools.get(name)

    def find(self, name: str) -> Tool:
        """The tool of this name. Raises ToolError that names those there are."""
        if tool := self.get(name):
            return tool
        there = ", ".join(self._tools) or "none"
        raise ToolError(f"There is no tool named {name[:80]!r}. The tools are: {there}.", "unknown_tool")

    def schemas(self, budget: Budget | None = None) -> list[dict[str, Any]]:
        """What the model is told: a description for each tool, but for those of which `budget` permits no call."""
        forbidden = {name for name, limit in budget.max_calls_of.items() if not limit} if budget else set()
        return [tool.schema() for tool in self._tools.values() if tool.name not in forbidden]

    def limits(self) -> dict[str, int]:
        """The calls per run of the tools that have a limit of their own."""
        return {tool.name: tool.max_calls for tool in self._tools.values() if tool.max_calls is not None}

    # ------------------------------------------------------------------------------------ carrying out

    async def call_all(
        self, calls: Sequence[ToolCall], context: RunContext, on_result: Callable[[Observation], None]
    ) -> Stop | None:
        """Carry out the calls of one step in order; each observation goes to `on_result`. Why the run ends here, if so.

        Only calls that all may run beside others do. What is left of a step after a stop is not carried out.
        """
        tools = [self.get(call.name) for call in calls]
        together = len(calls) > 1 and all(tool is not None and tool.parallel for tool in tools)
        for group in [calls] if together else [[call] for call in calls]:
            permitted: list[ToolCall] = []
            stop: Stop | None = None
            for call in group:  # the budget is spent in the model's order before anything starts
                tool = self.get(call.name)
                if reason := over(context.budget, tool):
                    stop = Stop(reason, blocked=call)
                    break
                if tool and tool.before and (stop := tool.before(call, context)):
                    break
                context.budget.spend(call.name)
                permitted.append(call)
            for observation in await asyncio.gather(*(self.call(call, context) for call in permitted)):
                on_result(observation)
                if observation.code:
                    context.failed.append(observation)
                if observation.stop_reason:
                    stop = Stop(observation.stop_reason, failed=observation)
            if stop:
                return stop
        return None

    async def call(self, call: ToolCall, context: RunContext) -> Observation:
        """Carry out one call. Never raises: what goes wrong is told to the model, what is our defect is logged."""
        started, stop_reason, code, record = time.perf_counter(), None, None, None
        try:
            tool = self.find(call.name)
            result: Any = await self._run(tool, tool.check(call), context)
            text = as_text(result.text if isinstance(result, ToolResult) else result)
            whole = result.record if isinstance(result, ToolResult) else text
            if whole != text or len(text) > MAX_OBSERVATION_CHARS:
                record = cut_text(clean_text(whole), MAX_RECORD_CHARS)
        except StopRun as error:
            text, code, stop_reason = str(error), error.code, error.stop_reason
        except ToolError as error:
            text, code = str(error), error.code
        except TimeoutError:
            text, code = f"The tool {call.name} took too long and was given up. Do without it.", "timeout"
        except Exception as error:
            log.exception("tool %s failed in call %s of run %s", call.name, call.id, context.run_id)
            kind = str(error) if isinstance(error, ToolFailed) else type(error).__name__
            text = f"The tool {call.name} failed ({kind}). Check the arguments or do without it."
            code = "tool_failed"
        duration_ms = (time.perf_counter() - started) * 1000
        text = cut_text(clean_text(text), MAX_OBSERVATION_CHARS) or "(empty)"
        return Observation(call, text, code, duration_ms, stop_reason, record)

    async def _run(self, tool: Tool, arguments: dict[str, Any], context: RunContext) -> Any:
        if tool.context_name:
            arguments = {**arguments, tool.context_name: context}
        timeout_s = min(tool.timeout_s or context.budget.tool_timeout_s, context.time_left_s())
        work = partial(tool.function, **arguments)
        result = work() if inspect.iscoroutinefunction(tool.function) else await self._threads.run(work, timeout_s)
        if not inspect.isawaitable(result):
            return result
        try:
            async with asyncio.timeout(min(timeout_s, context.time_left_s())):
                return await result
        except Exception:
            raise
        except BaseException as error:  # SystemExit: a tool ends neither its turn nor the service
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and (task is None or task.cancelling()):
                raise  # the turn is cancelled, not only something within the tool
            raise ToolFailed(type(error).__name__) from error

    def close(self) -> None:
        """Let idle threads end; a stuck one ends with the process."""
        self._threads.close()


def as_text(result: Any) -> str:
    """A tool's result for the model: text as it is, everything else as JSON.

    Decimal and times as exact text, bytes as hexadecimal, sets as lists, NaN and infinities as null, what JSON does
    not know as str().
    """
    if isinstance(result, str):
        return result
    if result is None:
        return "(no result)"
    try:
        return pydantic_core.to_json(result, inf_nan_mode="null", bytes_mode="hex", fallback=str).decode()
    except (UnicodeEncodeError, pydantic_core.PydanticSerializationError):  # a lone surrogate; clean_text takes it out
        plain = pydantic_core.to_jsonable_python(result, inf_nan_mode="null", bytes_mode="hex", fallback=str)
        return json.dumps(plain, ensure_ascii=False)


# ---------------------------------------------------------------------------------------- the tools that come along


def calculator(
    a: Annotated[float, Field(description="the first number")],
    b: Annotated[float, Field(description="the second number")],
    operation: Annotated[Literal["add", "subtract", "multiply", "divide"], Field(description="what to do with them")],
) -> float:
    """Do one arithmetic operation on two numbers."""
    if operation == "divide" and b == 0:
        raise ToolError("Division by zero has no result. Tell the user, or use another divisor.", "division_by_zero")
    operations: dict[str, Callable[[float, float], float]] = {
        "add": lambda x, y: x + y,
        "subtract": lambda x, y: x - y,
        "multiply": lambda x, y: x * y,
        "divide": lambda x, y: x / y,
    }
    if operation not in operations:
        raise ValueError(f"no such operation: {operation}")
    result = operations[operation](a, b)
    if abs(result) == float("inf") or len(str(result)) > 400:
        raise ToolError("The result is too large for this calculator.", "too_large")
    return result


def current_time(
    time_zone: Annotated[str, Field(description="an IANA name such as Asia/Shanghai; UTC if left out")] = "UTC",
) -> str:
    """The date and time now, with the day of the week, in a time zone."""
    try:
        zone = ZoneInfo(time_zone)
    except (KeyError, OSError, ValueError) as error:  # not found, or not a name at all
        raise ToolError(f"There is no time zone {time_zone[:40]!r}. Use a name such as Asia/Shanghai.") from error
    return datetime.now(zone).strftime("%Y-%m-%d %H:%M:%S %A, ") + time_zone


def register_calculator(tools: ToolRegistry) -> None:
    """The toolset `calculator`."""
    tools.tool(parallel=True)(calculator)


def register_clock(tools: ToolRegistry) -> None:
    """The toolset `clock`."""
    tools.tool(parallel=True)(current_time)
