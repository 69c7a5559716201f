"""Tools: how a function becomes one, what the model is told of it, and what it can never be made to do."""

import asyncio
import json
import random
import sys
import types
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import date, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, Optional
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field

import model
from config import Settings
from errors import ConfigError
from reply import CLOSE, BadReply, Draft, TextGate, finish, parse_arguments, without_thought
from run import Budget, RunContext
from runtime import Runtime
from tools import (
    Observation,
    ToolCall,
    ToolRegistry,
    as_text,
    calculator,
    describe,
    register_calculator,
    register_clock,
)

Json = dict[str, Any]

thoroughly = hypothesis_settings(max_examples=300, deadline=None, derandomize=True, database=None)


def schema_of(function: Callable[..., Any]) -> Json:
    parameters: Json = describe(function).schema()["function"]["parameters"]
    return parameters


def carry_out(tools: ToolRegistry, name: str, arguments: Json | None, problem: str = "") -> Observation:
    """One call by itself."""
    call = ToolCall("call_1", name, arguments, problem)
    return asyncio.run(tools.call(call, RunContext(budget=Budget())))


def tool_named(name: str, function: Callable[[], Any]) -> Callable[[], Any]:
    """A tool of any name and result."""

    def tool() -> Any:
        """Give it."""
        return function()

    tool.__name__ = name
    return tool


def calculate(a: object, b: object, operation: str) -> Observation:
    tools = ToolRegistry()
    register_calculator(tools)
    return carry_out(tools, "calculator", {"a": a, "b": b, "operation": operation})


# ---------------------------------------------------------------------------------------- from function to tool


SHIPPED: list[str] = []


class Address(BaseModel):
    """Where something is sent."""

    city: str
    title: str | None = Field(None, description="how to address them")


def ship(
    title: Annotated[str, Field(description="what is sent", min_length=2)],
    to: Address,
    kind: Literal["letter", "parcel"],
    weight: float,
    tags: list[str],
    *,
    day: date | None = None,
    copies: Annotated[int, Field(ge=1, le=9)] = 1,
    note: Optional[str] = None,  # noqa: UP045 -- the older way to write it is met too
) -> str:
    """Send something.

    It is gone then.
    """
    SHIPPED.append(title)
    return "sent"


def test_a_function_tells_the_model_its_name_its_docstring_and_its_types() -> None:
    told = describe(ship).schema()
    assert told["type"] == "function"
    assert told["function"]["name"] == "ship"
    assert told["function"]["description"] == "Send something.\n\nIt is gone then."
    parameters = told["function"]["parameters"]
    assert parameters["type"] == "object"
    assert parameters["additionalProperties"] is False
    assert parameters["required"] == ["title", "to", "kind", "weight", "tags"]
    properties = parameters["properties"]
    assert properties["title"] == {"description": "what is sent", "minLength": 2, "type": "string"}
    assert properties["kind"] == {"enum": ["letter", "parcel"], "type": "string"}
    assert properties["weight"] == {"type": "number"}
    assert properties["tags"] == {"items": {"type": "string"}, "type": "array"}
    assert properties["copies"] == {"maximum": 9, "minimum": 1, "type": "integer"}
    assert {"type": "null"} in properties["note"]["anyOf"]
    assert {"format": "date", "type": "string"} in properties["day"]["anyOf"]
    address = parameters["$defs"]["Address"]
    assert properties["to"] == {"$ref": "#/$defs/Address"}
    assert address["required"] == ["city"]
    assert address["properties"]["title"]["description"] == "how to address them"


def test_a_schema_is_plain_json_and_has_no_titles_of_its_own() -> None:
    text = json.dumps(schema_of(ship))
    assert '"title": "' not in text
    assert '"title": {' in text  # an argument of that name stays


def test_a_tool_without_arguments_has_a_schema_that_vendors_take() -> None:
    def now() -> str:
        """The time."""
        return "12:00"

    assert schema_of(now) == {"type": "object", "properties": {}, "additionalProperties": False}


def test_arguments_arrive_with_their_types_and_defaults_stay_the_functions_own() -> None:
    seen: list[Any] = []
    tools = ToolRegistry()

    @tools.tool
    def take(to: Address, day: date, price: Decimal, count: int, share: float, note: str = "none") -> str:
        """Take it."""
        seen.extend([to, day, price, count, share, note])
        return "taken"

    given = {"to": {"city": "Oslo"}, "day": "2031-05-06", "price": "0.10", "count": 3, "share": 12}
    assert carry_out(tools, "take", given).text == "taken"
    assert seen == [Address(city="Oslo", title=None), date(2031, 5, 6), Decimal("0.10"), 3, 12, "none"]
    assert type(seen[4]) is int


WRONG: list[tuple[Json, str]] = [
    ({}, "title: is required and missing"),
    ({"explain": "x"}, "explain: is not an argument of this tool"),
    ({"arguments": {"title": "Tea"}}, "arguments: is not an argument of this tool"),
    ({"title": "T"}, "title: String should have at least 2 characters"),
    ({"title": 5}, "title: Input should be a valid string"),
    ({"title": None}, "title: Input should be a valid string"),
    ({"kind": "PARCEL"}, "kind: Input should be 'letter' or 'parcel'"),
    ({"weight": "heavy"}, "weight: "),
    ({"weight": True}, "weight: "),
    ({"weight": "NaN"}, "weight: Input should be a finite number"),
    ({"weight": 10**400}, "weight: "),
    ({"tags": "a, b"}, "tags: Input should be a valid list"),
    ({"tags": [1]}, "tags.0: Input should be a valid string"),
    ({"to": {"city": None}}, "to.city: Input should be a valid string"),
    ({"to": []}, "to: "),
    ({"copies": 10}, "copies: Input should be less than or equal to 9"),
    ({"copies": 1.5}, "copies: "),
]
RIGHT: Json = {"title": "Tea", "to": {"city": "Oslo"}, "kind": "parcel", "weight": 1, "tags": []}


@pytest.mark.parametrize(("change", "said"), WRONG, ids=[said for _, said in WRONG])
def test_wrong_arguments_are_named_and_the_tool_is_not_run(change: Json, said: str) -> None:
    SHIPPED.clear()
    tools = ToolRegistry()
    tools.tool(ship)
    observation = carry_out(tools, "ship", {**RIGHT, **change} if change else {})
    assert observation.code == "bad_arguments"
    assert said in observation.text
    assert observation.text.endswith("It takes: title, to, kind, weight, tags, day, copies, note.")
    assert len(observation.text) < 1000
    assert not SHIPPED
    assert carry_out(tools, "ship", RIGHT).text == "sent"
    assert SHIPPED == ["Tea"]


def test_an_argument_with_a_name_of_any_length_makes_a_short_observation() -> None:
    observation = calculate_with({f"{'x' * 100_000}{n}": n for n in range(50)})
    assert observation.code == "bad_arguments"
    assert len(observation.text) < 1000


def calculate_with(arguments: Json) -> Observation:
    tools = ToolRegistry()
    register_calculator(tools)
    return carry_out(tools, "calculator", arguments)


def test_the_context_is_filled_by_us_however_it_is_annotated_and_the_model_cannot_set_it() -> None:
    tools = ToolRegistry()

    def plain(context: RunContext, text: str) -> str:
        """Say it."""
        return context.owner

    def optional(text: str, context: RunContext | None = None) -> str:
        """Say it."""
        return context.owner if context else "nobody"

    def annotated(text: str, context: Annotated[RunContext, "of this run"]) -> str:
        """Say it."""
        return context.owner

    for function in (plain, optional, annotated):
        tools.tool(function)
        assert list(schema_of(function)["properties"]) == ["text"]
        context = RunContext(owner="ada", budget=Budget())
        call = ToolCall("call_1", function.__name__, {"text": "x"})
        assert asyncio.run(tools.call(call, context)).text == "ada"
        forged = ToolCall("call_1", function.__name__, {"text": "x", "context": {"owner": "eve"}})
        assert asyncio.run(tools.call(forged, context)).code == "bad_arguments"


# ---------------------------------------------------------------------------------------- what is no tool


def undocumented(text: str) -> str:
    return text


def untyped(text) -> str:  # type: ignore[no-untyped-def]
    """Say it."""
    return str(text)


def starred(*texts: str) -> str:
    """Say it."""
    return "".join(texts)


def double_starred(**texts: str) -> str:
    """Say it."""
    return "".join(texts)


def positional(text: str, /) -> str:
    """Say it."""
    return text


def of_nothing_known(text: "Nowhere") -> str:  # type: ignore[name-defined]  # noqa: F821
    """Say it."""
    return str(text)


def of_no_schema(text: Callable[[], str]) -> str:
    """Say it."""
    return text()


def of_a_foreign_class(text: random.Random) -> str:
    """Say it."""
    return str(text)


def 计算(text: str) -> str:
    """A name that model services refuse."""
    return text


def a_name_of_more_than_sixty_four_characters_which_no_model_service_takes() -> str:
    """Say it."""
    return ""


UNFIT: list[tuple[Callable[..., Any], str]] = [
    (undocumented, "docstring"),
    (untyped, "needs a type for text"),
    (starred, "no \\* or / parameters"),
    (double_starred, "no \\* or / parameters"),
    (positional, "no \\* or / parameters"),
    (of_nothing_known, "of_nothing_known has a type that cannot be found"),
    (of_no_schema, "of_no_schema has a type that has no JSON schema"),
    (of_a_foreign_class, "of_a_foreign_class has a type that has no JSON schema"),
    (计算, "letters, digits"),
    (a_name_of_more_than_sixty_four_characters_which_no_model_service_takes, "at most 64"),
    (lambda text: text, "letters, digits"),
    (partial(undocumented, "x"), "letters, digits"),
]


@pytest.mark.parametrize(("function", "said"), UNFIT, ids=range(len(UNFIT)))
def test_what_cannot_be_told_to_a_model_is_refused_when_it_is_registered(
    function: Callable[..., Any], said: str
) -> None:
    tools = ToolRegistry()
    with pytest.raises(TypeError, match=said):
        tools.tool(function)
    assert list(tools) == []


def test_two_tools_of_one_name_are_refused() -> None:
    tools = ToolRegistry()
    tools.tool(calculator)
    with pytest.raises(TypeError, match="two tools named calculator"):
        tools.tool(calculator)


def test_an_option_that_no_tool_has_is_refused() -> None:
    with pytest.raises(TypeError, match="timeout"):
        ToolRegistry().tool(timeout=5)(calculator)


# ---------------------------------------------------------------------------------------- toolsets by their names


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    """A module that can be imported as `a_toolset`."""
    made = types.ModuleType("a_toolset")
    monkeypatch.setitem(sys.modules, "a_toolset", made)
    yield made


def runtime_with(toolsets: str) -> Runtime:
    return Runtime(Settings.from_env({"TOOLSETS": toolsets}))


def test_toolsets_are_named_or_given_by_the_path_of_a_module(module: types.ModuleType) -> None:
    module.register = lambda runtime: runtime.tools.tool(tool_named("doze", lambda: None))  # type: ignore[attr-defined]
    assert [tool.name for tool in runtime_with(" clock , calculator,a_toolset").tools] == [
        "current_time",
        "calculator",
        "doze",
    ]


@pytest.mark.parametrize("name", ["no_such_toolset", "no.such.toolset", ".relative", "a_toolset.part", "calculator.x"])
def test_a_toolset_that_is_not_there_is_named_with_those_that_are(name: str, module: types.ModuleType) -> None:
    with pytest.raises(ConfigError, match="TOOLSETS names .*which is none of calculator, clock") as raised:
        runtime_with(name)
    assert name in str(raised.value)


@pytest.mark.parametrize("source", ["1 / 0", "def register(runtime): 1 / 0"], ids=["imported", "registered"])
def test_a_toolset_that_breaks_is_named_with_what_broke(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    (tmp_path / "breaks.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "breaks", raising=False)
    with pytest.raises(ConfigError, match="TOOLSETS.*breaks.*ZeroDivisionError: division by zero"):
        runtime_with("breaks")


def test_a_module_without_a_function_register_is_told_what_is_missing(module: types.ModuleType) -> None:
    with pytest.raises(ConfigError, match=r"'a_toolset'; a module there needs a function register\(runtime\)"):
        runtime_with("a_toolset")


def test_a_tool_that_cannot_be_described_is_an_error_of_the_configuration(module: types.ModuleType) -> None:
    module.register = lambda runtime: runtime.tools.tool(undocumented)  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="TOOLSETS: a_toolset cannot be registered: the tool undocumented needs a"):
        runtime_with("a_toolset")


def test_a_toolset_named_twice_is_an_error_of_the_configuration() -> None:
    with pytest.raises(ConfigError, match="there are two tools named calculator"):
        runtime_with("calculator,calculator")


# ---------------------------------------------------------------------------------------- the tools that come along

FIGURES: list[tuple[object, object, str, str]] = [
    (12, 8, "multiply", "96"),
    (96, 4, "divide", "24.0"),
    (7, 2, "divide", "3.5"),
    (12.0, 8, "multiply", "96.0"),
    (0.1, 0.2, "add", "0.30000000000000004"),
    (-3, 5, "subtract", "-8"),
    (2**53, 1, "add", "9007199254740993"),
    (10**30, 1, "add", "1000000000000000000000000000001"),
    (0, 5, "divide", "0.0"),
    (0, -5.0, "multiply", "-0.0"),
    ("12", 8, "multiply", "96.0"),  # some models send numbers as text
    (1e308, 1, "add", "1e+308"),
]


@pytest.mark.parametrize(("a", "b", "operation", "result"), FIGURES)
def test_the_calculator_calculates(a: object, b: object, operation: str, result: str) -> None:
    observation = calculate(a, b, operation)
    assert (observation.text, observation.code) == (result, None)


NO_FIGURES: list[tuple[object, object, str, str]] = [
    (5, 0, "divide", "division_by_zero"),
    (5, -0.0, "divide", "division_by_zero"),
    (0, 0, "divide", "division_by_zero"),
    (1e308, 1e308, "add", "too_large"),
    (-1e308, 1e308, "multiply", "too_large"),
    (10**300, 10**300, "multiply", "too_large"),
    (1e300, 1e-300, "divide", "too_large"),
    (10**300, 1e-300, "divide", "too_large"),
    (10**400, 1, "add", "bad_arguments"),
    (10**4000, 10**4000, "multiply", "bad_arguments"),
    ("1" * 5000, 1, "add", "bad_arguments"),
    ("inf", 1, "add", "bad_arguments"),
    ("nan", 1, "multiply", "bad_arguments"),
    (True, 1, "add", "bad_arguments"),
    (None, 1, "add", "bad_arguments"),
    ([12], 1, "add", "bad_arguments"),
    ("12+1", 1, "add", "bad_arguments"),
    ("__import__('os')", 1, "add", "bad_arguments"),
    (1, 2, "power", "bad_arguments"),
    (1, 2, "", "bad_arguments"),
    (1, 2, "add; import os", "bad_arguments"),
]


@pytest.mark.parametrize(("a", "b", "operation", "code"), NO_FIGURES, ids=range(len(NO_FIGURES)))
def test_the_calculator_says_what_it_cannot_do(a: object, b: object, operation: str, code: str) -> None:
    observation = calculate(a, b, operation)
    assert observation.code == code
    assert len(observation.text) < 400


@pytest.mark.parametrize("zone", ["UTC", "Asia/Shanghai", "America/New_York", "Etc/GMT+12"])
def test_the_clock_tells_the_time_of_a_zone(zone: str) -> None:
    tools = ToolRegistry()
    register_clock(tools)
    before = datetime.now(ZoneInfo(zone)).replace(microsecond=0, tzinfo=None)
    observation = carry_out(tools, "current_time", {"time_zone": zone})
    after = datetime.now(ZoneInfo(zone)).replace(tzinfo=None)
    told, named = observation.text.rsplit(", ", 1)
    when = datetime.strptime(told, "%Y-%m-%d %H:%M:%S %A")  # noqa: DTZ007 -- the zone stands beside it
    assert before <= when <= after
    assert (named, observation.code) == (zone, None)


@pytest.mark.parametrize(
    "zone", ["Mars/Phobos", "", " ", "Asia", "asia/", "../../etc/passwd", "/etc/passwd", "a\0b", "x" * 5000, "+08:00"]
)
def test_a_zone_that_is_none_is_told_to_the_model_in_a_few_words(zone: str, caplog: pytest.LogCaptureFixture) -> None:
    tools = ToolRegistry()
    register_clock(tools)
    observation = carry_out(tools, "current_time", {"time_zone": zone})
    assert observation.code == "tool_error"
    assert "Use a name such as Asia/Shanghai" in observation.text
    assert len(observation.text) < 200
    assert not caplog.records  # the model's mistake, not a defect of ours


# ---------------------------------------------------------------------------------------- results


class Thing:
    def __str__(self) -> str:
        return "a thing"


class Broken:
    def __str__(self) -> str:
        raise ValueError("no text for this")


def endless() -> list[Any]:
    inner: list[Any] = []
    inner.append(inner)
    return inner


RESULTS: list[tuple[Any, str]] = [
    ("text as it is", "text as it is"),
    (None, "(no result)"),
    ("", "(empty)"),
    (12, "12"),
    (24.0, "24.0"),
    (True, "true"),
    (float("nan"), "null"),
    ({"x": float("inf"), "y": -0.0}, '{"x":null,"y":-0.0}'),
    (Decimal("0.10000000000000000001"), '"0.10000000000000000001"'),
    (date(2031, 5, 6), '"2031-05-06"'),
    (b"\xff\x00", '"ff00"'),
    ({1}, "[1]"),
    ((1, (2,)), "[1,[2]]"),
    ({1: "a", None: "b"}, '{"1":"a","None":"b"}'),
    (Thing(), '"a thing"'),
    ([Thing()], '["a thing"]'),
    (Address(city="Oslo", title=None), '{"city":"Oslo","title":null}'),
    ({"名": "张三"}, '{"名":"张三"}'),
    (10**5000, "1" + "0" * 5000),
    ("a\ud83db\0c", "a\ufffdb\ufffdc"),
    ({"x": "a\ud83d"}, '{"x": "a\ufffd"}'),
    (["\ud83d\ude42"], '["🙂"]'),
    (ValueError("kept as a value"), '"kept as a value"'),
]


@pytest.mark.parametrize(("result", "text"), RESULTS, ids=range(len(RESULTS)))
def test_a_result_of_any_type_is_text_for_the_model(result: Any, text: str) -> None:
    tools = ToolRegistry()

    @tools.tool
    def give() -> Any:
        """Give it."""
        return result

    observation = carry_out(tools, "give", {})
    assert (observation.text, observation.code) == (text, None)
    json.dumps(observation.as_dict(), ensure_ascii=False).encode()


@pytest.mark.parametrize("result", [Broken(), endless()], ids=["no text", "circular"])
def test_a_result_that_cannot_be_written_is_a_tool_that_failed(result: Any) -> None:
    tools = ToolRegistry()

    @tools.tool
    def give() -> Any:
        """Give it."""
        return result

    observation = carry_out(tools, "give", {})
    assert observation.code == "tool_failed"
    assert "no text for this" not in observation.text


def test_a_result_that_is_too_long_is_cut_and_says_so() -> None:
    tools = ToolRegistry()
    tools.tool(tool_named("long", lambda: "字" * 1_000_000))
    tools.tool(tool_named("rows", lambda: [{"id": n, "text": "x" * 100} for n in range(10_000)]))
    for name in ("long", "rows"):
        observation = carry_out(tools, name, {})
        assert observation.code is None
        assert len(observation.text) < 20_100
        assert observation.text.rstrip("]").endswith("more characters")
        assert "[cut here: " in observation.text


# ---------------------------------------------------------------------------------------- for any input at all

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
json_values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=12
)
names = st.sampled_from(["a", "b", "context", "self", "arguments", "__class__", "kwargs", ""]) | st.text(max_size=12)


@given(st.dictionaries(names, json_values, max_size=5))
@example({"a": 1.5, "b": "x"})
@example({"a": 10**400})
@example({"a": 1, "context": {"owner": "eve"}})
@thoroughly
def test_whatever_the_arguments_are_a_call_never_raises_and_a_tool_sees_only_what_it_declares(arguments: Json) -> None:
    seen: list[Json] = []
    tools = ToolRegistry()

    def take(a: float, context: RunContext, b: str = "default") -> str:
        """Take two."""
        seen.append({"a": a, "b": b, "owner": context.owner})
        return "taken"

    async def take_async(a: float, context: RunContext, b: str = "default") -> str:
        """Take two."""
        return take(a, context, b)

    tools.tool(take_async)
    observation = asyncio.run(
        tools.call(ToolCall("call_1", "take_async", arguments), RunContext(owner="ada", budget=Budget()))
    )
    if observation.code is None:
        assert set(arguments) <= {"a", "b"}
        (ran,) = seen
        assert ran["owner"] == "ada"
        assert isinstance(ran["a"], float | int) and not isinstance(ran["a"], bool)
        assert isinstance(ran["b"], str)
    else:
        assert observation.code == "bad_arguments"
        assert not seen
        assert len(observation.text) < 1500
    json.dumps(observation.as_dict(), ensure_ascii=False).encode()


texts = (
    st.text()
    | json_values.map(json.dumps)
    | json_values.map(lambda value: json.dumps(json.dumps(value)))
    | json_values.map(lambda value: f"```json\n{json.dumps(value)}\n```")
    | st.lists(st.sampled_from([*'{}[]":,\\ \n`', "```", "NaN", "1e999", "null", '"a"', "\ud83d", "1"])).map("".join)
)


@given(texts | json_values)
@example("```" + "\n" * 90_000)
@example("`" * 90_000)
@example('{"a": ' * 90_000)
@example('{"a": ' + "9" * 5_000 + "}")
@example("[" * 40_000 + "]" * 40_000)
@example('{"a":' * 200 + "1" + "}" * 200)
@example('"' + '\\"' * 40_000 + '"')
@thoroughly
def test_whatever_a_model_writes_as_arguments_is_an_object_or_what_is_wrong_with_it(raw: Any) -> None:
    arguments, problem = parse_arguments(raw)
    if arguments is None:
        assert problem
    else:
        assert problem == ""
        again = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        again.encode()
        assert json.loads(again) == arguments


@given(json_values)
@thoroughly
def test_arguments_that_are_valid_json_arrive_as_they_were_written(value: Any) -> None:
    assert parse_arguments(json.dumps({"x": value})) == ({"x": value}, "")
    assert parse_arguments(json.dumps(json.dumps({"x": value}))) == ({"x": value}, "")


# Event streams: lines in any of the three ways to end them, cut anywhere.

line_ends = st.sampled_from([b"\n", b"\r\n", b"\r"])
data_text = st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\r\n"), min_size=1).map(
    lambda text: "{" + text + "}"
)
noise = st.sampled_from([b": a comment", b":", b"event: message", b"id: 7", b"retry: 10", b"data", b"nonsense: x"])


@st.composite
def event_streams(draw: st.DrawFn) -> tuple[bytes, list[bytes], list[int]]:
    """A stream, the data of its events, and where it is cut."""
    end = draw(line_ends)
    lines: list[bytes] = []
    expected: list[bytes] = []
    for _ in range(draw(st.integers(0, 5))):
        parts = draw(st.lists(data_text, max_size=3))
        for part in parts:
            lines += draw(st.lists(noise, max_size=2))
            lines.append(draw(st.sampled_from([b"data: ", b"data:", b"data:  "])) + part.encode())
        lines.append(b"")
        if parts:
            expected.append("\n".join(parts).encode())
    content = draw(st.sampled_from([b"", b"\xef\xbb\xbf"])) + b"".join(line + end for line in lines)
    cuts = sorted(draw(st.lists(st.integers(0, len(content)), max_size=12)))
    return content, expected, cuts


async def read_pieces(pieces: list[bytes]) -> list[bytes]:
    async def arriving() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    return [event async for event in model.events(arriving())]


@given(event_streams())
@example((b"data: {1}\r\rdata: {2}\r\r", [b"{1}", b"{2}"], []))
@example((b"data: {1}\r\n\r\ndata: {2}\r\n\r\n", [b"{1}", b"{2}"], [10, 11, 12]))
@example((b"data: {1}\n\ndata:\n\ndata: {2}\n\n", [b"{1}", b"{2}"], [3]))
@example((b"data: {1}", [b"{1}"], []))
@thoroughly
def test_an_event_stream_has_the_same_events_wherever_it_is_cut(stream: tuple[bytes, list[bytes], list[int]]) -> None:
    content, expected, cuts = stream
    borders = [0, *cuts, len(content)]
    pieces = [content[start:end] for start, end in zip(borders, borders[1:], strict=False)]
    assert asyncio.run(read_pieces(pieces)) == expected
    assert asyncio.run(read_pieces([content[at : at + 1] for at in range(len(content))])) == expected


def test_an_event_is_told_as_soon_as_its_last_line_has_ended() -> None:
    async def first_two() -> list[bytes]:
        async def arriving() -> AsyncIterator[bytes]:
            yield b"data: {1}\r\r"
            await asyncio.sleep(3600)

        found = []
        reading = model.events(arriving())
        async with asyncio.timeout(5):
            async for event in reading:
                found.append(event)
                break
        await reading.aclose()  # type: ignore[attr-defined]
        return found

    assert asyncio.run(first_two()) == [b"{1}"]


# The gate: what is passed on while a reply is written.

SECRET = "思"  # stands in thoughts only
pieces_of_text = st.lists(
    st.sampled_from(
        ["Hello", " ", "\n", "<", "</", "<th", "ink>", "think", "`", "```", "```json\n", "{", "}", "[", "]", '"name"']
        + ["<tool_call>", "<tool", "_call>", "</think>", "<think>", "🙂", "| a |", "`<tool_call>`", "[TOOL_CALLS]"]
    ),
    max_size=12,
).map("".join)


@st.composite
def replies(draw: st.DrawFn) -> tuple[str, list[int], bool]:
    """The text of a reply, perhaps with a thought in front; where it is cut; and whether tools were offered."""
    tag = draw(st.sampled_from(["<think>{}</think>", "<thinking>{}</thinking>", "[THINK]{}[/THINK]", "<think>{}", ""]))
    thought = draw(st.sampled_from(["", "\n", "  "])) + tag.format(SECRET * draw(st.integers(0, 5)))
    text = (thought if tag else "") + draw(pieces_of_text)
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=8)))
    return text, cuts, draw(st.booleans())


@given(replies())
@example(("<think>思</think>\n\nHello", [2, 9, 12], True))
@example(("</think>\n\nHello", [4], True))
@example(("```json\n[1]\n```", [3, 9], True))
@example(("Use `<tool_call>` so.", [5, 6, 10], True))
@example(("[1] is the source", [1], True))
@example(("a < b", [3], True))
@thoroughly
def test_what_is_passed_on_of_a_reply_adds_up_to_its_text_and_never_shows_a_thought(
    reply: tuple[str, list[int], bool],
) -> None:
    text, cuts, tools_offered = reply
    draft = Draft({"calculator"} if tools_offered else set(), text=text, heard=True, complete=True)
    try:
        clean = finish(draft)
    except BadReply:
        clean = None  # a mark of a call with no call behind it
    passed: list[str] = []
    gate = TextGate(passed.append)
    borders = [0, *cuts, len(text)]
    for start, end in zip(borders, borders[1:], strict=False):
        gate.feed(text[start:end])
    assert SECRET not in "".join(passed)
    if clean is None or clean.tool_calls:
        assert "<tool_call>" not in "".join(passed).replace("`<tool_call>", "")
        return
    if CLOSE.search(text) and not clean.text.startswith("".join(passed)):
        # A closing tag further on shows too late that all before it was a thought; model.py asks again then.
        return
    gate.close(clean.text)
    assert "".join(passed) == clean.text


@given(pieces_of_text, pieces_of_text, st.integers(1, 5))
@thoroughly
def test_of_a_model_that_thinks_aloud_nothing_is_passed_on_before_its_thought_has_ended(
    thought: str, rest: str, size: int
) -> None:
    text = SECRET + thought.replace("</think>", "").replace("<", "").replace("`", "") + "</think>" + rest
    passed: list[str] = []
    gate = TextGate(passed.append, after_thought=True)
    for at in range(0, len(text), size):
        gate.feed(text[at : at + size])
    answer = without_thought(text)
    gate.close(answer)
    assert SECRET not in "".join(passed)
    assert "".join(passed) == answer


def test_as_text_is_strict_json_for_everything_that_is_not_text() -> None:
    for result, _ in RESULTS:
        if not isinstance(result, str) and result is not None:
            json.loads(as_text(result).replace("0" * 4000, ""), parse_constant=pytest.fail)
