"""What is written to the log, and how: LOG_FORMAT text, json, or classroom (the step log of the course).

A line of the log is one line, whatever a message holds. Prompts, answers, arguments and keys are not logged; the
classroom's step log shows contents, because that is what it is for.
"""

import json
import logging
import sys
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

from opentelemetry import trace

REQUEST_ID: ContextVar[str] = ContextVar("request_id", default="-")  # of the request that is being answered
RUN_ID: ContextVar[str] = ContextVar("run_id", default="-")  # of the run that answers it
ESCAPES = {code: f"\\x{code:02x}" for code in (*range(32), 127, 0x85, 0x2028, 0x2029)}

TEXT = "%(asctime)s %(levelname)s %(name)s [%(request_id)s %(run_id)s%(trace)s]: %(message)s"


def trace_id() -> str | None:
    """The trace that this is part of, where OpenTelemetry is set up."""
    context = trace.get_current_span().get_span_context()
    return trace.format_trace_id(context.trace_id) if context.is_valid else None


class OneLine(logging.Formatter):
    """Plain text; control characters are escaped, so that nothing from outside can forge a line.

    Only the stack of an exception takes more lines, each of which begins with a bar.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = record.message.translate(ESCAPES)
        record.request_id, record.run_id = REQUEST_ID.get(), RUN_ID.get()
        record.trace = f" {found}" if (found := trace_id()) else ""
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:
        lines = super().formatException(ei).split("\n")
        return "\n".join(f"| {line.translate(ESCAPES)}" for line in lines)


class JsonLine(logging.Formatter):
    """One JSON object a line: time, level, logger, the ids at work, message, and the stack of an exception."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "request_id": REQUEST_ID.get(),
            "run_id": RUN_ID.get(),
            "trace_id": trace_id(),
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def configure_logging(log_format: str) -> None:
    """Set up the process's log on standard error. Leaves it alone where somebody has done so already."""
    root = logging.getLogger()
    if root.handlers:
        return
    handler = logging.StreamHandler()
    formatter = JsonLine() if log_format == "json" else OneLine(TEXT)
    handler.setFormatter(formatter)
    root.addHandler(handler)
    if log_format == "json":
        for server in ("uvicorn", "uvicorn.access"):  # which sets up its own lines before it asks for us
            for own in logging.getLogger(server).handlers:
                own.setFormatter(formatter)
    root.setLevel(logging.INFO)
    for chatty in ("httpx2", "httpcore2", "openai", "aiohttp", "asyncio", "mcp"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


def print_step(event: dict[str, Any]) -> None:
    """The course's step log: what the model said, chose and was given, step by step."""
    details = event["details"]
    if event["type"] == "model_request":
        lines = [f"当前Step: {event['step']}"]
    elif event["type"] == "model_response":
        lines = [f"模型 content: {details['text']}", f"模型 tool_calls: {details['tool_calls'] or None}"]
    elif event["type"] == "tool_call":
        lines = [f"模型选择工具: {details['tool']}", f"模型生成参数: {details['arguments']}"]
    elif event["type"] == "tool_result":
        lines = [f"工具执行结果: {details['text']}"]
    else:
        return
    print("\n".join(lines), file=sys.stdout, flush=True)
