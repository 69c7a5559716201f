"""Spans: what a real OpenTelemetry SDK is given of requests and runs, what it is not given, and when it is."""

import asyncio
import io
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest
import uvicorn
from fastapi import FastAPI
from fastapi.testclient import TestClient
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

import runs
import runtime as runtime_module
from errors import ConfigError
from logs import TEXT, JsonLine, OneLine
from main import chat_router, create_app
from runs.telemetry import RunSpans
from runtime import Runtime
from tests.conftest import MakeClient, MakeService, MakeSettings, free_port, path_of
from tests.support.scripted_model import ScriptedModel
from tests.support.ways import WAYS, ask

THIS = "tests.test_telemetry"
Script = Callable[[ScriptedModel], Any]


async def rest(seconds: float) -> str:
    """Wait; may do so beside others."""
    await asyncio.sleep(seconds)
    return "rested"


async def rest_alone(seconds: float) -> str:
    """Wait, alone, and leave a span of its own."""
    with trace.get_tracer("a library").start_as_current_span("inside a tool"):
        await asyncio.sleep(seconds)
    return "rested"


def register(runtime: Runtime) -> None:
    """The toolset of this file."""
    runtime.tools.tool(parallel=True)(rest)
    runtime.tools.tool(rest_alone)


class Spans:
    """What was exported."""

    def __init__(self, exporter: InMemorySpanExporter) -> None:
        self.exporter = exporter

    def all(self) -> list[ReadableSpan]:
        """In the order in which they began."""
        return sorted(self.exporter.get_finished_spans(), key=lambda span: span.start_time or 0)

    def named(self, name: str) -> ReadableSpan:
        """The only one of this name."""
        (found,) = [span for span in self.all() if span.name == name]
        return found

    def tree(self, parent: ReadableSpan | None = None) -> list[Any]:
        """[name, [children]] of those below `parent`; of those without one, by default."""
        below = parent.context.span_id if parent else None
        children = [span for span in self.all() if (span.parent.span_id if span.parent else None) == below]
        return [[span.name, self.tree(span)] if self.tree(span) else span.name for span in children]

    def wait_for(self, name: str) -> ReadableSpan:
        """The span of this name, within some seconds."""
        for _ in range(1500):
            if any(span.name == name for span in self.all()):
                return self.named(name)
            time.sleep(0.02)
        raise AssertionError(f"no span {name}, but {[span.name for span in self.all()]}")

    def text(self) -> str:
        """All that the spans hold."""
        return "\n".join(span.to_json() for span in self.all())


def provided(monkeypatch: pytest.MonkeyPatch, **options: Any) -> Spans:
    """The process's provider is set up, for this test only."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False, **options)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    return Spans(exporter)


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Spans:
    """What is exported in this test."""
    return provided(monkeypatch)


@pytest.fixture
def client(spans: Spans, client_for: MakeClient) -> TestClient:
    """The service, with a provider set up before it starts."""
    return client_for(toolsets=f"calculator,{THIS}")


def attributes_of(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def two_calls(model: ScriptedModel) -> None:
    model.asks_for("calculator", a=12, b=8, operation="multiply")
    model.then_asks_for("calculator", a=96, b=4, operation="divide").then_says("24.0")


ROUND = ["chat scripted", "execute_tool calculator"]


@pytest.mark.parametrize("way", WAYS)
def test_a_turn_with_two_tool_calls_is_one_tree(
    client: TestClient, spans: Spans, model: ScriptedModel, conversation_id: str, way: str
) -> None:
    two_calls(model)
    outcome = ask(client, way, conversation_id, include_trace=True)
    assert spans.tree() == [[f"POST {way}", [["invoke_agent", [*ROUND, *ROUND, "chat scripted"]]]]]
    agent, request = spans.named("invoke_agent"), spans.named(f"POST {way}")
    port = int(model.base_url.split(":")[2].split("/")[0])
    about = {"gen_ai.provider.name": "openai", "gen_ai.request.model": "scripted"}
    assert attributes_of(agent) == about | {
        "gen_ai.operation.name": "invoke_agent",
        "turnkeeper.run.id": outcome.body["run_id"],
        "turnkeeper.stop_reason": "completed",
        "gen_ai.usage.input_tokens": 30,
        "gen_ai.usage.output_tokens": 15,
    }
    chats = [span for span in spans.all() if span.name == "chat scripted"]
    for span, reason in zip(chats, ("tool_calls", "tool_calls", "stop"), strict=True):
        assert attributes_of(span) == about | {
            "gen_ai.operation.name": "chat",
            "gen_ai.response.finish_reasons": (reason,),
            "gen_ai.usage.input_tokens": 10,
            "gen_ai.usage.output_tokens": 5,
            "server.address": "127.0.0.1",
            "server.port": port,
        }
        assert span.kind is SpanKind.CLIENT
    for span in spans.all():
        assert span.status.status_code is StatusCode.UNSET
        if span.name == "execute_tool calculator":
            found = attributes_of(span)
            assert found.pop("gen_ai.tool.call.id").startswith("call_")
            assert found == {
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": "calculator",
                "gen_ai.tool.type": "function",
            }
    assert attributes_of(request)["http.route"] == way
    assert attributes_of(request)["http.response.status_code"] == 200


def seconds(span: ReadableSpan) -> tuple[float, float]:
    assert span.start_time
    assert span.end_time
    return span.start_time / 1e9, span.end_time / 1e9


def at(event: dict[str, Any]) -> float:
    return datetime.fromisoformat(event["at"]).timestamp()


def test_spans_begin_and_end_when_the_events_happened(
    client: TestClient, spans: Spans, model: ScriptedModel, conversation_id: str
) -> None:
    model.asks_for("rest_alone", seconds=0.1).then_says("Done.", delay_s=0.2)
    events = ask(client, "/chat", conversation_id, include_trace=True).body["trace"]
    expected: dict[str, list[tuple[float, float]]] = {}
    names = {"run_started": "invoke_agent", "model_request": "chat scripted", "tool_call": "execute_tool rest_alone"}
    ends = {"run_stopped": "run_started", "model_response": "model_request", "tool_result": "tool_call"}
    begun: dict[str, float] = {}
    for event in events:
        begun[event["type"]] = at(event)
        if first := ends.get(event["type"]):
            expected.setdefault(names[first], []).append((begun[first], at(event)))
    for name, times in expected.items():
        found = [seconds(span) for span in spans.all() if span.name == name]
        assert len(found) == len(times)
        for (start, end), (noted_start, noted_end) in zip(found, times, strict=True):
            assert start == pytest.approx(noted_start, abs=0.05)
            assert end == pytest.approx(noted_end, abs=0.05)
    outer = {span.context.span_id: seconds(span) for span in spans.all()}
    for span in spans.all():
        if span.parent and span.name != "inside a tool":
            start, end = outer[span.parent.span_id]
            assert start <= seconds(span)[0] <= seconds(span)[1] <= end


def test_calls_that_ran_beside_each_other_lie_beside_each_other_and_others_do_not(
    client: TestClient, spans: Spans, model: ScriptedModel, conversation_id: str
) -> None:
    model.asks_for_all(("rest", {"seconds": 0.1}), ("rest", {"seconds": 0.3}))
    model.then_asks_for_all(("rest_alone", {"seconds": 0.1}), ("rest", {"seconds": 0.1})).then_says("Done.")
    ask(client, "/chat", conversation_id)
    short, long, last = (seconds(span) for span in spans.all() if span.name == "execute_tool rest")
    alone = seconds(spans.named("execute_tool rest_alone"))
    assert short[0] == long[0]
    assert short[1] - short[0] >= 0.09
    assert long[1] - long[0] >= 0.29
    assert short[1] < long[1]
    assert long[1] <= alone[0] < alone[1] <= last[0] < last[1]


def test_what_a_tool_traces_itself_belongs_to_the_run(
    client: TestClient, spans: Spans, model: ScriptedModel, conversation_id: str
) -> None:
    model.asks_for("rest_alone", seconds=0).then_says("Done.")
    ask(client, "/chat", conversation_id)
    inner, agent = spans.named("inside a tool"), spans.named("invoke_agent")
    assert inner.parent
    assert inner.parent.span_id == agent.context.span_id


@pytest.mark.parametrize("way", WAYS)
def test_the_trace_of_the_caller_goes_on(
    client: TestClient, spans: Spans, model: ScriptedModel, conversation_id: str, way: str
) -> None:
    model.says("Hello.")
    trace_id, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    ask(client, way, conversation_id, headers={"traceparent": f"00-{trace_id}-{parent}-01"})
    assert {f"{span.context.trace_id:032x}" for span in spans.all()} == {trace_id}
    request = spans.named(f"POST {way}")
    assert request.parent
    assert f"{request.parent.span_id:016x}" == parent


def test_turns_at_the_same_time_do_not_mix(
    client: TestClient, spans: Spans, model: ScriptedModel, conversation_id: str
) -> None:
    model.uses_tool_then_echoes("calculator", {"a": 1, "b": 2, "operation": "add"}, delay_s=0.05)
    threads = [threading.Thread(target=ask, args=(client, WAYS[n % 2], f"{conversation_id}-{n}")) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    one = ["invoke_agent", [*ROUND, "chat scripted"]]
    assert sorted(spans.tree()) == sorted([f"POST {way}", [one]] for way in WAYS * 6)


# ---------------------------------------------------------------------------------------- what goes wrong

FAILS: list[tuple[str, Script, dict[str, Any], str | None, dict[str, str]]] = [
    ("a refused key", lambda m: m.fails(401), {}, "model_unauthorized", {"chat scripted": "model_unauthorized"}),
    ("no such model", lambda m: m.fails(404), {"model": "m"}, "model_not_found", {"chat m": "model_not_found"}),
    ("too few steps", lambda m: m.asks_for("rest", seconds=0), {"max_steps": 1}, None, {}),
    ("no calls permitted", lambda m: m.asks_for("rest", seconds=0), {"max_tool_calls": 0}, None, {}),
    ("cut off", lambda m: m.says("half", finish_reason="length"), {}, None, {}),
    (
        "a tool that refuses",
        lambda m: m.asks_for("calculator", a=1, b=0, operation="divide").then_says("No."),
        {},
        None,
        {"execute_tool calculator": "division_by_zero"},
    ),
    ("no such tool", lambda m: m.asks_for("none", x=1).then_says("No."), {}, None, {"execute_tool": "unknown_tool"}),
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("what", "script", "more", "code", "failed"), FAILS, ids=[what for what, *_ in FAILS])
def test_errors_are_marked_and_budgets_that_are_spent_are_not(
    client: TestClient,
    spans: Spans,
    model: ScriptedModel,
    conversation_id: str,
    way: str,
    what: str,
    script: Script,
    more: dict[str, Any],
    code: str | None,
    failed: dict[str, str],
) -> None:
    script(model)
    body = ask(client, way, conversation_id, **more).body
    expected = failed | ({"invoke_agent": code} if code else {})
    inner = [span for span in spans.all() if not span.name.startswith("POST")]
    marked = {span.name: attributes_of(span)["error.type"] for span in inner if not span.status.is_ok}
    assert marked == expected
    assert not [span.name for span in inner if span.status.is_ok and "error.type" in attributes_of(span)]
    agent = attributes_of(spans.named("invoke_agent"))
    assert agent["turnkeeper.stop_reason"] == body.get("stop_reason", "error")


def test_a_call_that_was_not_carried_out_has_no_span(
    client: TestClient, spans: Spans, model: ScriptedModel, conversation_id: str
) -> None:
    model.asks_for_all(("rest", {"seconds": 0}), ("rest", {"seconds": 0}))
    ask(client, "/chat", conversation_id, max_tool_calls=1)
    assert spans.tree() == [["POST /chat", [["invoke_agent", ["chat scripted", "execute_tool rest"]]]]]


class Server:
    """The service under uvicorn in this process, where its spans can be seen."""

    def __init__(self, app: FastAPI) -> None:
        self.port = free_port()
        self.server = uvicorn.Server(uvicorn.Config(app, port=self.port, log_config=None, timeout_graceful_shutdown=1))
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.thread.start()
        while not self.server.started:
            time.sleep(0.01)

    def leave_after_the_first_event(self, conversation_id: str) -> None:
        """A caller of `/chat/stream` that does not stay."""
        with httpx2.Client(base_url=f"http://127.0.0.1:{self.port}", trust_env=False) as http:
            body = {"conversation_id": conversation_id, "message": "Hi"}
            with http.stream("POST", "/chat/stream", json=body) as answer:
                next(answer.iter_bytes())

    def end(self) -> None:
        self.server.should_exit = True
        self.thread.join(20)
        assert not self.thread.is_alive()


@pytest.fixture
def server(spans: Spans, settings_for: MakeSettings) -> Iterator[Server]:
    """The service with a provider, over real connections."""
    server = Server(create_app(settings_for()))
    yield server
    server.end()


def test_a_caller_that_leaves_takes_no_span_away(
    server: Server, spans: Spans, model: ScriptedModel, conversation_id: str
) -> None:
    model.asks_for_all(("calculator", {"a": 1, "b": 2, "operation": "add"}), delay_s=0.3).then_says("3")
    server.leave_after_the_first_event(conversation_id)
    agent = spans.wait_for("invoke_agent")
    assert spans.tree() == [["POST /chat/stream", [["invoke_agent", [*ROUND, "chat scripted"]]]]]
    assert attributes_of(agent)["turnkeeper.stop_reason"] == "completed"
    assert (agent.end_time or 0) > (spans.named("POST /chat/stream").end_time or 0)


def test_a_turn_that_is_cut_short_by_the_end_of_the_service_has_its_spans_ended(
    server: Server,
    spans: Spans,
    model: ScriptedModel,
    conversation_id: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runtime_module, "DRAIN_S", 0.1)
    model.hangs()
    server.leave_after_the_first_event(conversation_id)
    model.wait_for_requests(1)
    server.end()
    assert attributes_of(spans.named("chat scripted"))["error.type"] == "cancelled"
    assert attributes_of(spans.named("invoke_agent"))["turnkeeper.stop_reason"] == "cancelled"
    assert spans.tree() == [["POST /chat/stream", [["invoke_agent", ["chat scripted"]]]]]


def test_a_defect_of_ours_leaves_no_span_open(
    spans: Spans, settings_for: MakeSettings, conversation_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: Any, **__: Any) -> None:
        raise KeyError("defect")

    runtime = Runtime(settings_for())
    runs.register(runtime)
    monkeypatch.setattr(runtime.model, "complete", broken)
    with host_of(runtime) as client:
        assert ask(client, "/assistant/chat", conversation_id).status == 500
    for name in ("chat scripted", "invoke_agent"):
        assert attributes_of(spans.named(name))["error.type"] == "KeyError"
        assert not spans.named(name).status.is_ok


# ---------------------------------------------------------------------------------------- content

SECRETS = ("the secret question", "the secret answer", "secret-argument", "4321")


def with_secrets(model: ScriptedModel) -> None:
    model.asks_for_all(("calculator", {"a": 4321, "b": 0, "operation": "add"}), content="the secret answer, soon")
    model.then_asks_for("secret-argument", a="secret-argument").then_says("the secret answer")


@pytest.mark.parametrize("way", WAYS)
def test_no_content_goes_into_a_span_unless_it_is_asked_for(
    client: TestClient, spans: Spans, model: ScriptedModel, conversation_id: str, way: str
) -> None:
    with_secrets(model)
    ask(client, way, conversation_id, "the secret question")
    assert client.get(path_of(conversation_id)).status_code == 200
    assert client.get(path_of(conversation_id) + "/messages").status_code == 200
    assert client.get("/api/runs", params={"conversation_id": conversation_id}).status_code == 200
    assert client.get(f"/no/such/{conversation_id}").status_code == 404
    assert len(spans.all()) == 11
    for secret in (*SECRETS, conversation_id, path_of(conversation_id), conversation_id[3:]):
        assert secret not in spans.text()
    route = attributes_of(spans.named("GET /api/conversations/{conversation_id}/messages"))["http.route"]
    assert route == "/api/conversations/{conversation_id}/messages"


@pytest.mark.parametrize("way", WAYS)
def test_content_goes_into_the_spans_where_it_is_asked_for(
    spans: Spans, client_for: MakeClient, model: ScriptedModel, conversation_id: str, way: str
) -> None:
    with_secrets(model)
    client = client_for(environ={"TELEMETRY_CONTENT": "true"})
    ask(client, way, conversation_id, "the secret question")
    agent = attributes_of(spans.named("invoke_agent"))
    assert agent["gen_ai.conversation.id"] == conversation_id
    assert json.loads(agent["gen_ai.input.messages"]) == [
        {"role": "user", "parts": [{"type": "text", "content": "the secret question"}]}
    ]
    answer = {"role": "assistant", "parts": [{"type": "text", "content": "the secret answer"}], "finish_reason": "stop"}
    assert json.loads(agent["gen_ai.output.messages"]) == [answer]
    tool = attributes_of(spans.named("execute_tool calculator"))
    assert json.loads(tool["gen_ai.tool.call.arguments"]) == {"a": 4321, "b": 0, "operation": "add"}
    assert tool["gen_ai.tool.call.result"] == "4321"
    first = next(attributes_of(span) for span in spans.all() if span.name == "chat scripted")
    (said,) = json.loads(first["gen_ai.output.messages"])
    assert [part["type"] for part in said["parts"]] == ["text", "tool_call"]
    assert said["parts"][1]["name"] == "calculator"
    unknown = attributes_of(spans.named("execute_tool"))
    assert unknown["gen_ai.tool.name"] == "secret-argument"
    assert attributes_of(spans.named(f"POST {way}"))["url.path"] == way


def test_a_question_outside_any_conversation_names_none(
    spans: Spans, client_for: MakeClient, model: ScriptedModel
) -> None:
    model.says("Hello.")
    client = client_for(environ={"TELEMETRY_CONTENT": "true"})
    assert client.post("/api/runs", json={"question": "Hi"}).status_code == 200
    assert spans.tree() == [["POST /api/runs", [["invoke_agent", ["chat scripted"]]]]]
    assert "gen_ai.conversation.id" not in attributes_of(spans.named("invoke_agent"))


def test_what_is_no_yes_and_no_no_is_refused(settings_for: MakeSettings) -> None:
    with pytest.raises(ConfigError, match="TELEMETRY_CONTENT"):
        create_app(settings_for(environ={"TELEMETRY_CONTENT": "some"}))


# ---------------------------------------------------------------------------------------- on and off


def host_of(runtime: Runtime) -> TestClient:
    """Another application that has our routes."""
    host = FastAPI(telemetry={"operation_spans": False})
    host.include_router(chat_router(runtime), prefix="/assistant")
    return TestClient(host, base_url="http://127.0.0.1", client=("127.0.0.1", 50000))


def heard_by_spans(runtime: Runtime) -> int:
    return sum(isinstance(listener, RunSpans) for listener in runtime.turns.listeners)


def test_in_another_application_the_run_belongs_to_its_request(
    spans: Spans, settings_for: MakeSettings, model: ScriptedModel, conversation_id: str
) -> None:
    model.says("Hello.")
    runtime = Runtime(settings_for())
    runs.register(runtime)
    with host_of(runtime) as client:
        assert heard_by_spans(runtime) == 1
        ask(client, "/assistant/chat", conversation_id)
    assert spans.tree() == [["POST /assistant/chat", [["invoke_agent", ["chat scripted"]]]]]


def test_an_application_that_starts_again_does_not_tell_twice(
    spans: Spans, client: TestClient, model: ScriptedModel, conversation_id: str
) -> None:
    model.says("Hello.")
    with TestClient(client.app, base_url="http://127.0.0.1", client=("127.0.0.1", 50000)) as again:
        ask(again, "/chat", conversation_id)
        assert spans.tree() == [["POST /chat", [["invoke_agent", ["chat scripted"]]]]]


def test_without_a_provider_nothing_listens(
    settings_for: MakeSettings, model: ScriptedModel, conversation_id: str
) -> None:
    model.says("Hello.")
    runtime = Runtime(settings_for())
    runs.register(runtime)
    with host_of(runtime) as client:
        assert ask(client, "/assistant/chat", conversation_id).status == 200
        assert heard_by_spans(runtime) == 0


def test_a_disabled_sdk_is_given_nothing(
    monkeypatch: pytest.MonkeyPatch,
    spans: Spans,
    client_for: MakeClient,
    model: ScriptedModel,
    conversation_id: str,
) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    model.says("Hello.")
    assert ask(client_for(), "/chat", conversation_id).status == 200
    assert spans.all() == []


def test_what_is_not_sampled_leaves_no_span(
    monkeypatch: pytest.MonkeyPatch, client_for: MakeClient, model: ScriptedModel, conversation_id: str
) -> None:
    spans = provided(monkeypatch, sampler=ALWAYS_OFF)
    two_calls(model)
    assert ask(client_for(), "/chat", conversation_id).body["answer"] == "24.0"
    assert spans.all() == []


def test_probes_leave_no_span(client: TestClient, spans: Spans) -> None:
    for path in ("/healthz", "/readyz", "/metrics"):
        assert client.get(path).status_code == 200
    assert spans.all() == []


def test_the_service_runs_without_the_sdk(
    service_for: MakeService, model: ScriptedModel, conversation_id: str, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['opentelemetry.sdk'] = None\n", "utf-8")
    model.says("Hello.")
    service = service_for(PYTHONPATH=str(tmp_path), OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9")
    assert service.chat(conversation_id, "Hi").status_code == 200
    log = service.log.read_text("utf-8")
    assert "Automatic OpenTelemetry export requires" in log
    assert "Traceback" not in log


# ---------------------------------------------------------------------------------------- the log


@pytest.fixture
def lines() -> Iterator[Callable[[], list[str]]]:
    """What is logged meanwhile, as JSON and, after a tab, as text."""
    stream, handler = io.StringIO(), logging.StreamHandler()

    class Both(JsonLine):
        def format(self, record: logging.LogRecord) -> str:
            return f"{super().format(record)}\t{OneLine(TEXT).format(record)}"

    handler.setStream(stream)
    handler.setFormatter(Both())
    logger, level = logging.getLogger("turn"), logging.getLogger("turn").level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield lambda: stream.getvalue().splitlines()
    logger.removeHandler(handler)
    logger.setLevel(level)


def test_lines_of_the_log_carry_the_trace(
    client: TestClient,
    spans: Spans,
    model: ScriptedModel,
    conversation_id: str,
    lines: Callable[[], list[str]],
) -> None:
    model.says("Hello.")
    run_id = ask(client, "/chat", conversation_id).body["run_id"]
    as_json, as_text = next(line for line in lines() if "ended completed" in line).split("\t")
    trace_id = f"{spans.named('invoke_agent').context.trace_id:032x}"
    assert json.loads(as_json)["trace_id"] == trace_id
    assert f" {run_id} {trace_id}]: ended" in as_text


def test_without_a_trace_the_text_is_as_it_was(
    client_for: MakeClient, model: ScriptedModel, conversation_id: str, lines: Callable[[], list[str]]
) -> None:
    model.says("Hello.")
    run_id = ask(client_for(), "/chat", conversation_id).body["run_id"]
    as_json, as_text = next(line for line in lines() if "ended completed" in line).split("\t")
    assert json.loads(as_json)["trace_id"] is None
    assert f" {run_id}]: ended" in as_text
