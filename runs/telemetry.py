"""Spans for OpenTelemetry: the HTTP requests through FastAPI's own support, the runs from their events.

    POST /chat                     FastAPI's, or whatever span the turn was begun in
    └─ invoke_agent                the run, from run_started to run_stopped
       ├─ chat {model}             one request to the model, tried again or not
       └─ execute_tool {name}      one call that was carried out

Only opentelemetry-api is needed, which comes with FastAPI. Where nobody has set up a provider, or OTEL_SDK_DISABLED is
true, no listener is registered. No question, answer, argument, result or name of a conversation goes into a span
unless TELEMETRY_CONTENT is true.
"""

import asyncio
import json
import os
import time
from collections.abc import Callable, MutableMapping
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from fastapi import FastAPI
from fastapi.telemetry import TelemetryConfig
from opentelemetry import context as otel
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer
from opentelemetry.util.types import AttributeValue
from pydantic import BaseModel
from starlette.types import ASGIApp, Receive, Scope, Send

from config import Settings
from logs import RUN_ID
from run import Event
from runtime import Runtime
from tools import ToolRegistry

# The names of spans and attributes: the semantic conventions for generative AI, HTTP and errors, and two of our own.
INVOKE_AGENT, CHAT, EXECUTE_TOOL = "invoke_agent", "chat", "execute_tool"
OPERATION, PROVIDER = "gen_ai.operation.name", "gen_ai.provider.name"
REQUEST_MODEL, FINISH_REASONS = "gen_ai.request.model", "gen_ai.response.finish_reasons"
INPUT_TOKENS, OUTPUT_TOKENS = "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"
TOOL_NAME, TOOL_CALL_ID, TOOL_TYPE = "gen_ai.tool.name", "gen_ai.tool.call.id", "gen_ai.tool.type"
SERVER_ADDRESS, SERVER_PORT, ERROR_TYPE = "server.address", "server.port", "error.type"
URL_PATH, URL_QUERY = "url.path", "url.query"
RUN, STOP_REASON = "turnkeeper.run.id", "turnkeeper.stop_reason"
# Content: set only where TELEMETRY_CONTENT is true.
CONVERSATION_ID = "gen_ai.conversation.id"
INPUT_MESSAGES, OUTPUT_MESSAGES = "gen_ai.input.messages", "gen_ai.output.messages"
TOOL_ARGUMENTS, TOOL_RESULT = "gen_ai.tool.call.arguments", "gen_ai.tool.call.result"

WIRE_FORMAT = "openai"  # the provider as far as it can be known: whose it really is, server.address tells
LEFT_OUT = "REDACTED"  # FastAPI's word for what it does not show
PROBES = ("/healthz", "/readyz", "/metrics")

Attributes = dict[str, AttributeValue]


class TelemetrySettings(BaseModel):
    """The section TELEMETRY of the settings."""

    content: bool = False  # TELEMETRY_CONTENT: what was asked, said and done goes into the spans


# ---------------------------------------------------------------------------------------- plugging in


def register_telemetry(runtime: Runtime) -> None:
    """Have runs leave spans, if there is somebody to give them to once the application starts."""
    content = runtime.settings.section("telemetry", TelemetrySettings).content

    async def listen() -> None:
        # Only now: FastAPI sets up what the environment asks for as the application starts.
        listeners, tracer = runtime.turns.listeners, tracer_there_is()
        if tracer and not any(isinstance(listener, RunSpans) for listener in listeners):
            listeners.append(RunSpans(tracer, runtime.tools, address_of(runtime.settings), content))

    runtime.in_background.append(listen)


def http_telemetry() -> TelemetryConfig:
    """How FastAPI makes spans of requests: for FastAPI(telemetry=…). Without a provider it makes none."""
    if is_disabled():
        return {"tracing": False, "metrics": False, "logs": False}
    config: TelemetryConfig = {"operation_spans": False, "logs": False, "exclude": is_probe}
    if "FASTAPI_OTEL_AUTO_CONFIGURE" not in os.environ:
        # What somebody has set up exports by itself; a second exporter would send everything twice.
        config["auto_configure"] = tracer_there_is() is None
    return config


def hide_paths(app: FastAPI, settings: Settings) -> None:
    """Keep the paths, which may hold names of conversations, out of this application's spans; `http.route` stays."""
    if not settings.section("telemetry", TelemetrySettings).content and not is_disabled():
        app.add_middleware(HiddenPaths)


def is_disabled() -> bool:
    """Whether OTEL_SDK_DISABLED says so."""
    return os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"


def tracer_there_is() -> Tracer | None:
    """Our tracer; None where nobody has set up a provider, or it gives nothing on."""
    provider = trace.get_tracer_provider()
    if is_disabled() or isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    tracer = provider.get_tracer("turnkeeper")
    return None if isinstance(tracer, trace.NoOpTracer) else tracer


def address_of(settings: Settings) -> Attributes:
    """The host and port of the model service, where BASE_URL names them."""
    parts = urlsplit(settings.base_url)
    if not parts.hostname:
        return {}
    return {SERVER_ADDRESS: parts.hostname, SERVER_PORT: parts.port or (80 if parts.scheme == "http" else 443)}


def is_probe(scope: MutableMapping[str, Any]) -> bool:
    """Whether a request is one that nobody wants to see every few seconds."""
    return str(scope.get("path", "")).removeprefix(scope.get("root_path", "")) in PROBES


class HiddenPaths:
    """Middleware: takes path and query out of the span of the request."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        span = trace.get_current_span()
        if scope["type"] == "http" and span.is_recording():
            span.set_attribute(URL_PATH, LEFT_OUT)
            if scope.get("query_string"):
                span.set_attribute(URL_QUERY, LEFT_OUT)
        await self.app(scope, receive, send)


# ---------------------------------------------------------------------------------------- spans of runs


@dataclass
class OpenRun:
    """A run whose span has begun. Times in nanoseconds since 1970.

    inside: the context in which others are children of `span`; tokens: what gives the contexts before back.
    calls: what the model asked for in this step, by call id. asked_ns: when it did; free_ns: since when nothing of it
    has been at work.
    """

    run_id: str
    span: Span
    inside: Context
    model: str = ""
    tokens: list[Token[Context]] = field(default_factory=list)
    chat: Span | None = None
    code: str = "internal_error"  # of the last error of the model
    said: str = ""  # by the model in its last reply
    calls: dict[str, dict[str, Any]] = field(default_factory=dict)
    asked_ns: int = 0
    free_ns: int = 0


OPEN: ContextVar[OpenRun | None] = ContextVar("open_run", default=None)  # of the turn at work


class RunSpans:
    """A listener that makes spans of a run's events.

    It is called in the turn's own task as each event happens, so the request's span is the one at hand, and the time
    is the event's: an event's own `at` is cut to milliseconds, which would let a span begin before its parent.
    """

    def __init__(self, tracer: Tracer, tools: ToolRegistry, address: Attributes, content: bool) -> None:
        self.tracer, self.tools, self.address, self.content = tracer, tools, address, content
        self._hear: dict[str, Callable[[OpenRun, dict[str, Any], int], None]] = {
            "model_request": self._model_request,
            "model_response": self._model_response,
            "model_error": self._model_error,
            "tool_call": self._tool_call,
            "tool_result": self._tool_result,
            "run_stopped": self._stopped,
        }

    def __call__(self, event: Event) -> None:
        now_ns, kind = time.time_ns(), event["type"]
        run = OPEN.get()
        if kind == "run_started":
            self._started(event["details"], now_ns)
        elif run is not None and run.run_id == RUN_ID.get() and kind in self._hear:
            self._hear[kind](run, event["details"], now_ns)

    def _started(self, details: dict[str, Any], now_ns: int) -> None:
        attributes: Attributes = {OPERATION: INVOKE_AGENT, PROVIDER: WIRE_FORMAT, RUN: RUN_ID.get()}
        attributes[REQUEST_MODEL] = details["model"]
        if self.content:
            attributes[INPUT_MESSAGES] = message("user", text_parts(details["question"]))
            if (name := details.get("conversation_id")) is not None:
                attributes[CONVERSATION_ID] = name
        span = self.tracer.start_span(INVOKE_AGENT, attributes=attributes, start_time=now_ns)
        if not span.is_recording():  # sampled out: nothing more to do for this run
            OPEN.set(None)
            return
        run = OpenRun(RUN_ID.get(), span, trace.set_span_in_context(span), details["model"])
        run.tokens.append(otel.attach(run.inside))
        OPEN.set(run)
        if task := asyncio.current_task():
            task.add_done_callback(partial(end_what_is_open, run))

    def _model_request(self, run: OpenRun, _: dict[str, Any], now_ns: int) -> None:
        attributes: Attributes = {OPERATION: CHAT, PROVIDER: WIRE_FORMAT, REQUEST_MODEL: run.model, **self.address}
        name = f"{CHAT} {run.model}"
        run.chat = self.tracer.start_span(
            name, run.inside, kind=SpanKind.CLIENT, attributes=attributes, start_time=now_ns
        )
        run.tokens.append(otel.attach(trace.set_span_in_context(run.chat)))

    def _model_response(self, run: OpenRun, details: dict[str, Any], now_ns: int) -> None:
        run.said, run.calls = details["text"], {}
        attributes = tokens_of(details["usage"])
        if details["finish_reason"]:
            attributes[FINISH_REASONS] = [details["finish_reason"]]
        if self.content:
            asked = [
                {"type": "tool_call", "id": call["call_id"], "name": call["tool"], "arguments": call["arguments"]}
                for call in details["tool_calls"]
            ]
            attributes[OUTPUT_MESSAGES] = message(
                "assistant", [*text_parts(run.said), *asked], finish_reason=details["finish_reason"]
            )
        self._end_chat(run, attributes, now_ns)

    def _model_error(self, run: OpenRun, details: dict[str, Any], now_ns: int) -> None:
        run.code = details["code"]
        self._end_chat(run, {ERROR_TYPE: run.code}, now_ns)

    def _end_chat(self, run: OpenRun, attributes: Attributes, now_ns: int) -> None:
        if run.chat is not None:
            otel.detach(run.tokens.pop())
            end(run.chat, attributes, now_ns)
            run.chat = None

    def _tool_call(self, run: OpenRun, details: dict[str, Any], now_ns: int) -> None:
        if not run.calls:  # the first of its step
            run.asked_ns = run.free_ns = now_ns
        run.calls[details["call_id"]] = details

    def _tool_result(self, run: OpenRun, details: dict[str, Any], now_ns: int) -> None:
        """The call as a span. Results of calls that ran beside each other come together, when all are there."""
        name, call = details["tool"], run.calls.get(details["call_id"], {})
        tools = [self.tools.get(one["tool"]) for one in run.calls.values()]
        together = len(tools) > 1 and all(tool is not None and tool.parallel for tool in tools)
        start_ns = run.asked_ns if together else run.free_ns
        end_ns = min(start_ns + round(details["duration_ms"] * 1e6), now_ns)
        run.free_ns = now_ns
        attributes: Attributes = {OPERATION: EXECUTE_TOOL, TOOL_CALL_ID: details["call_id"], TOOL_TYPE: "function"}
        known = self.tools.get(name) is not None
        if known or self.content:  # another name is only what a model wrote
            attributes[TOOL_NAME] = name
        if self.content:
            attributes[TOOL_ARGUMENTS] = as_json(call.get("arguments"))
            attributes[TOOL_RESULT] = details["text"]
        title = f"{EXECUTE_TOOL} {name}" if known else EXECUTE_TOOL
        span = self.tracer.start_span(title, run.inside, attributes=attributes, start_time=start_ns)
        end(span, {} if details["ok"] else {ERROR_TYPE: details["code"]}, end_ns)

    def _stopped(self, run: OpenRun, details: dict[str, Any], now_ns: int) -> None:
        """A budget that is spent is no error; only a run that ends in one is marked."""
        reason = details["stop_reason"]
        self._end_chat(run, {ERROR_TYPE: reason}, now_ns)  # one that is still open was cut short
        attributes: Attributes = {STOP_REASON: reason, **tokens_of(details["token_usage"])}
        if reason == "error":
            attributes[ERROR_TYPE] = run.code
        if self.content and reason == "completed":
            attributes[OUTPUT_MESSAGES] = message("assistant", text_parts(run.said), finish_reason="stop")
        while run.tokens:
            otel.detach(run.tokens.pop())
        end(run.span, attributes, now_ns)
        OPEN.set(None)


def end_what_is_open(run: OpenRun, task: "asyncio.Task[Any]") -> None:
    """A turn has ended: where it did so without its run's last event, by a defect, the spans say so."""
    for span in (run.chat, run.span):
        if span is not None and span.is_recording():
            error = None if task.cancelled() else task.exception()
            defect = error and (error.__cause__ or error)  # what the caller is told of it stands before it
            end(span, {ERROR_TYPE: type(defect).__name__ if defect else "cancelled"}, time.time_ns())


def end(span: Span, attributes: Attributes, at_ns: int) -> None:
    """End a span; one with an error is marked as failed."""
    if attributes:
        span.set_attributes(attributes)
    if ERROR_TYPE in attributes:
        span.set_status(StatusCode.ERROR)
    span.end(at_ns)


def tokens_of(usage: dict[str, Any] | None) -> Attributes:
    """What is known of the tokens; what is not known is left out."""
    known = {INPUT_TOKENS: (usage or {}).get("input_tokens"), OUTPUT_TOKENS: (usage or {}).get("output_tokens")}
    return {name: count for name, count in known.items() if count is not None}


def text_parts(text: str | None) -> list[dict[str, Any]]:
    """A text as the conventions have the parts of a message; none where there is no text."""
    return [{"type": "text", "content": text}] if text else []


def message(role: str, parts: list[dict[str, Any]], **more: Any) -> str:
    """A list of one message, as JSON."""
    return as_json([{"role": role, "parts": parts, **more}])


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
