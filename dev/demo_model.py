"""The demo model: a small deterministic OpenAI-compatible server, for a first look without an API key.

    python -m dev.demo_model [--port N] [--parent PID]

It prints `ready http://127.0.0.1:PORT/v1` when it serves. It keeps no state: `decide` looks at the messages and the
tools of one request, as a real model would, and either answers or asks for one tool call. It never calculates; every
figure in an answer comes from an observation or from the history.
"""

import argparse
import hashlib
import json
import os
import re
import signal
import socketserver
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from . import demo_shop as shop
from . import demo_words as words

Json = dict[str, Any]

MODEL = "demo"
PIECE_CHARS, PIECE_PAUSE_S = 3, 0.004  # how a stream is cut, and how long it waits between two pieces
ROLES = ("system", "developer", "user", "assistant", "tool")
MAX_BODY_BYTES = 50_000_000
PARENT_POLL_S = 0.5

# ------------------------------------------------------------------ what the request says


class BadRequest(Exception):
    """The request is refused, in the shape of OpenAI's errors."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.status = status
        error = {"message": message, "type": "invalid_request_error", "param": param, "code": code}
        self.body: Json = {"error": error}


@dataclass(frozen=True)
class Turn:
    """The newest user message of a transcript, what was said before it, and what tools have answered since."""

    question: str
    history: list[tuple[str, str]]  # (role, text) of user messages and answers, oldest first
    observations: list[tuple[str, str]]  # (tool, text), oldest first

    @property
    def chinese(self) -> bool:
        return words.is_chinese(self.question)

    def observed(self, tool: str) -> list[str]:
        return [text for name, text in self.observations if name == tool]


@dataclass(frozen=True)
class Reply:
    """Either text, or one tool call."""

    text: str = ""
    tool: str = ""
    arguments: Json = field(default_factory=dict)


def text_of(content: object, where: str) -> str:
    """The text of a message: a string, or the text parts of a list."""
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, list) and all(isinstance(part, dict) for part in content):
        return "".join(str(part.get("text", "")) for part in content if part.get("type") == "text")
    raise BadRequest(f"{where}.content should be a string or a list of parts", param=where)


def turn_of(messages: Sequence[Json]) -> Turn:
    last_user = max((at for at, m in enumerate(messages) if m["role"] == "user"), default=-1)
    history: list[tuple[str, str]] = []
    observations: list[tuple[str, str]] = []
    tool_of: dict[object, str] = {}
    for at, message in enumerate(messages):
        text = text_of(message.get("content"), f"messages[{at}]")
        for call in message.get("tool_calls") or []:
            tool_of[call.get("id")] = call["function"]["name"]
        if message["role"] == "tool" and at > last_user:
            observations.append((tool_of.get(message.get("tool_call_id"), ""), text))
        elif message["role"] in ("user", "assistant") and at < last_user and text:
            history.append((message["role"], text))
    question = text_of(messages[last_user].get("content"), "messages") if last_user >= 0 else ""
    return Turn(question, history, observations)


def offered(tools: Sequence[Json], name: str, *parameters: str) -> Json | None:
    """The parameters of the tool `name` if it is offered and takes at least these parameters."""
    for tool in tools:
        function = tool.get("function") or {}
        properties: Json = (function.get("parameters") or {}).get("properties") or {}
        if function.get("name") == name and set(parameters) <= properties.keys():
            return properties
    return None


# ------------------------------------------------------------------ what it answers

SIGNS = {"add": "+", "subtract": "-", "multiply": "×", "divide": "÷"}
CALCULATOR, CLOCK, SQL = "calculator", "current_time", "run_sql"

# (Chinese, English)
TEXTS: Mapping[str, tuple[str, str]] = {
    "help": (
        "你好！我是演示模型（demo），不是真正的大模型。我会做加减乘除，例如“先计算12乘以8，再把结果除以4”；"
        "我记得这个会话里算出的结果和你的名字；有时钟工具时还能报时；有样例商店时（dev up --sample shop）能查它的数据，"
        "例如“哪个城市的顾客最多？”。要接入真正的模型，请设置 BASE_URL、API_KEY 和 DEFAULT_MODEL。",
        "Hello! I am the demo model, not a real one. I can add, subtract, multiply and divide, for example "
        '"What is 12 times 8, then divided by 4?"; I remember the results and your name within this conversation; '
        "with a clock tool I tell the time; of the sample shop (dev up --sample shop) I can look up a few things, "
        'such as "Which city has the most customers?". To use a real model, set BASE_URL, API_KEY and DEFAULT_MODEL.',
    ),
    "no_tool": (
        "我不能计算：这次没有提供 calculator 工具。",
        "I cannot calculate: no calculator tool is offered to me here.",
    ),
    "unsupported": (
        "这个我算不出来：calculator 工具只会加、减、乘、除。",
        "That could not be calculated: the calculator tool only adds, subtracts, multiplies and divides.",
    ),
    "unreadable": (
        "这个算式我没看懂，所以算不出来。请换一种写法，例如 (1 + 2) * 3。",
        "I do not understand this expression, so it could not be calculated. Try another form, such as (1 + 2) * 3.",
    ),
    "no_result": (
        "在这个会话里还没有算出过结果。",
        "There is no result in this conversation yet.",
    ),
    "result": ("刚才的结果是 {}。", "The result was {}."),
    "final": ("，最终结果是 {}。", ". The result is {}."),
    "finals": ("，结果分别是 {}。", ". The results are {}."),
    "and": ("，", ", "),
    "end": ("。", "."),
    "by_zero": (
        "{} 算不出来：除数不能为零（division by zero）。",
        "{} could not be calculated: a number cannot be divided by zero.",
    ),
    "failed": ("{} 算不出来，工具的回答是：{}", "{} could not be calculated. The tool answered: {}"),
    "meet": ("你好，{}！很高兴认识你。", "Hello, {}! Nice to meet you."),
    "name": ("你叫{}。", "Your name is {}."),
    "no_name": ("你还没有告诉我你的名字。", "You have not told me your name yet."),
    "time": ("现在的时间是 {}。", "The time is {}."),
    "no_clock": (
        "我不知道现在几点：这次没有提供 current_time 工具。",
        "I do not know the time: no current_time tool is offered to me here.",
    ),
    "no_sql": (
        "这要查数据库，而这次没有提供 run_sql 工具。用 python3 -m dev up --sample shop 启动，就有样例数据可问。",
        "That is in a database, and no run_sql tool is offered to me here. `python3 -m dev up --sample shop` has one.",
    ),
    "draft": (
        "演示模型不会描述表：请设置 BASE_URL、API_KEY 和 DEFAULT_MODEL。",
        "The demo model describes no tables: set BASE_URL, API_KEY and DEFAULT_MODEL.",
    ),
    "no_time": ("查不到现在的时间，工具的回答是：{}", "The time is not to be had. The tool answered: {}"),
}
DRAFT = "You draft the description of one database table"  # how the catalogue of Text2SQL begins
# Answers of ours whose numbers are no results.
NO_RESULT_IN = ("BASE_URL", "算不出来", "could not be calculated", "现在的时间是", "The time is")


def say(turn: Turn, key: str, *values: object) -> str:
    return TEXTS[key][0 if turn.chinese else 1].format(*values)


def decide(messages: Sequence[Json], tools: Sequence[Json]) -> Reply:
    """The reply to a transcript: asks for a tool call, or answers."""
    turn = turn_of(messages)
    if any(message["role"] == "system" and DRAFT in str(message.get("content")) for message in messages):
        return Reply(say(turn, "draft"))
    plan = words.read_arithmetic(turn.question)
    if plan is not None and (plan.plain or not plan.needs_earlier or result_in(turn.history)):
        return calculate(turn, plan, tools)
    if known := shop.known(turn.question):
        return ask_shop(turn, known, tools)
    if words.asks_for_time(turn.question):
        return tell_time(turn, tools)
    return Reply(answer_from_history(turn))


def answer_from_history(turn: Turn) -> str:
    if words.asks_for_name(turn.question):
        said = [text for role, text in turn.history if role == "user"] + [turn.question]
        name = next(filter(None, map(words.name_in, reversed(said))), None)
        return say(turn, "name", name) if name else say(turn, "no_name")
    if name := words.name_in(turn.question):
        return say(turn, "meet", name)
    if words.asks_for_result(turn.question):
        result = result_in(turn.history)
        return say(turn, "result", result) if result else say(turn, "no_result")
    return say(turn, "help")


def result_in(history: Sequence[tuple[str, str]]) -> str | None:
    """The last number of the newest answer that has a result; rows of a database are none."""
    before = ["", *(text if role == "user" else "" for role, text in history)]
    pairs = zip(history, before, strict=False)
    answers = [text for (role, text), question in pairs if role == "assistant" and not shop.known(question)]
    numbers = (words.last_number(text) for text in reversed(answers) if not any(mark in text for mark in NO_RESULT_IN))
    return next(filter(None, numbers), None)


def calculate(turn: Turn, plan: words.Plan, tools: Sequence[Json]) -> Reply:
    """Ask for the next operation of the plan, or answer when all have been observed."""
    if plan.problem:
        return Reply(say(turn, plan.problem))
    earlier = result_in(turn.history) or ""
    if plan.needs_earlier and not earlier:
        return Reply(say(turn, "no_result"))
    if offered(tools, CALCULATOR, "a", "b", "operation") is None:
        return Reply(say(turn, "no_tool"))
    observed = [number_observed(text) for text in turn.observed(CALCULATOR)][: len(plan.operations)]
    lines: list[str] = []
    for at, operation in enumerate(plan.operations):
        a, b = (operand_text(operand, observed, earlier) for operand in (operation.a, operation.b))
        if at == len(observed):
            return Reply(
                tool=CALCULATOR,
                arguments={"a": words.to_number(a), "b": words.to_number(b), "operation": operation.name},
            )
        line = f"{a} {SIGNS[operation.name]} {f'({b})' if b.startswith('-') else b}"
        result = observed[at]
        if result is None:
            failure = explain(turn, line, turn.observed(CALCULATOR)[at])
            return Reply(say(turn, "and").join([*lines, failure]))
        lines.append(f"{line} = {result}")
    return Reply(say(turn, "and").join(lines) + closing(turn, [str(observed[at]) for at in plan.final], len(lines)))


def operand_text(operand: words.Operand, observed: Sequence[str | None], earlier: str) -> str:
    if isinstance(operand, words.Earlier):
        return earlier
    if isinstance(operand, words.Result):
        return observed[operand.index] or ""
    return str(operand)


def closing(turn: Turn, finals: Sequence[str], operations: int) -> str:
    if operations == 1:
        return say(turn, "end")
    if len(finals) == 1:
        return say(turn, "final", finals[0])
    return say(turn, "finals", "、".join(finals) if turn.chinese else ", ".join(finals))


def number_observed(text: str) -> str | None:
    """The number an observation gives, as it is written: `96`, `24.0`, `{"result": 96}`; None if it is none."""
    text = text.strip()
    if re.fullmatch(r"-?\d+(\.\d+)?([eE][+-]?\d+)?", text):
        return text if words.is_finite(text) else None
    try:
        value = json.loads(text, parse_float=str, parse_int=str, parse_constant=str)
    except (ValueError, RecursionError):
        return None
    if isinstance(value, dict) and not value.get("error"):
        value = next((value[key] for key in ("result", "value", "answer") if isinstance(value.get(key), str)), None)
    return number_observed(value) if isinstance(value, str) and value != text else None


def explain(turn: Turn, line: str, observation: str) -> str:
    if re.search(r"\bzero\b|ZeroDivision|零", observation):
        return say(turn, "by_zero", line)
    return say(turn, "failed", line, observation[:300])


def tell_time(turn: Turn, tools: Sequence[Json]) -> Reply:
    parameters = offered(tools, CLOCK)
    if parameters is None:
        return Reply(say(turn, "no_clock"))
    if observed := turn.observed(CLOCK):
        return Reply(say(turn, "time" if re.search(r"\d", observed[-1]) else "no_time", observed[-1][:300]))
    zone = words.zone_in(turn.question)
    return Reply(tool=CLOCK, arguments={"time_zone": zone} if zone and "time_zone" in parameters else {})


def ask_shop(turn: Turn, known: shop.Known, tools: Sequence[Json]) -> Reply:
    """Ask the database, correct a statement that failed, and answer from the rows."""
    if offered(tools, SQL, "sql") is None:
        return Reply(say(turn, "no_sql"))
    observed = turn.observed(SQL)
    if sql := shop.next_sql(known, turn.question, observed):
        return Reply(tool=SQL, arguments={"sql": sql})
    return Reply(shop.answer(known, turn.question, observed[-1])[0 if turn.chinese else 1])


# ------------------------------------------------------------------ the wire format


def checked(body: object) -> Json:
    """A request body that `decide` can work on. Raises BadRequest."""
    if not isinstance(body, dict):
        raise BadRequest("the body should be a JSON object")
    if not isinstance(body.get("model"), str):
        raise BadRequest("you must provide a model parameter", param="model")
    if body["model"] != MODEL:
        message = f"The model {body['model']!r} does not exist; this server has {MODEL!r} only"
        raise BadRequest(message, param="model", code="model_not_found", status=404)
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequest("messages should be a list with at least one message", param="messages")
    for at, message in enumerate(messages):
        check_message(message, f"messages[{at}]")
    tools = body.get("tools")
    if tools is not None and not (isinstance(tools, list) and tools and all(isinstance(tool, dict) for tool in tools)):
        raise BadRequest("tools should be a list with at least one tool, or absent", param="tools")
    return body


def check_message(message: object, where: str) -> None:
    if not isinstance(message, dict) or message.get("role") not in ROLES:
        raise BadRequest(f"{where} should be an object with a known role", param=where)
    calls = message.get("tool_calls")
    if calls is not None and not isinstance(calls, list):
        raise BadRequest(f"{where}.tool_calls should be a list", param=where)
    for call in calls or []:
        function = call.get("function") if isinstance(call, dict) else None
        if function is None or not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise BadRequest(f"{where}.tool_calls should be a list of function calls", param=where)


def tokens(text: str) -> int:
    return -(-len(text) // 4)


def usage_of(body: Json, reply: Reply) -> Json:
    asked = tokens(json.dumps(body["messages"], ensure_ascii=False))
    written = tokens(reply.text or reply.tool + json.dumps(reply.arguments, ensure_ascii=False))
    return {"prompt_tokens": asked, "completion_tokens": written, "total_tokens": asked + written}


def reply_to(body: Json) -> tuple[Json, Reply]:
    """The completion without its choices, and what to answer. The same request has the same ids."""
    tools = body.get("tools") or []
    reply = decide(body["messages"], tools if body.get("tool_choice") != "none" else [])
    mark = hashlib.sha256(json.dumps(body["messages"]).encode()).hexdigest()[:24]
    head = {"id": f"chatcmpl-{mark}", "created": int(time.time()), "model": MODEL, "system_fingerprint": "demo"}
    return head, reply


def call_of(head: Json, reply: Reply) -> Json:
    function = {"name": reply.tool, "arguments": json.dumps(reply.arguments, ensure_ascii=False)}
    return {"id": f"call_{head['id'][-24:]}", "type": "function", "function": function}


def completion(body: Json) -> Json:
    head, reply = reply_to(body)
    message: Json = {"role": "assistant", "content": reply.text or None}
    if reply.tool:
        message["tool_calls"] = [call_of(head, reply)]
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if reply.tool else "stop", "logprobs": None}
    return {**head, "object": "chat.completion", "choices": [choice], "usage": usage_of(body, reply)}


def chunks(body: Json) -> Iterator[Json]:
    """The same completion as the chunks of a stream."""
    head, reply = reply_to(body)
    head |= {"object": "chat.completion.chunk"}
    with_usage = bool((body.get("stream_options") or {}).get("include_usage"))

    def chunk(delta: Json, finish_reason: str | None = None) -> Json:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason, "logprobs": None}
        return {**head, "choices": [choice], **({"usage": None} if with_usage else {})}

    yield chunk({"role": "assistant", "content": None if reply.tool else ""})
    if reply.tool:
        call = call_of(head, reply)
        arguments, call["function"]["arguments"] = call["function"]["arguments"], ""
        yield chunk({"tool_calls": [{"index": 0, **call}]})
        for piece in pieces(arguments):
            yield chunk({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]})
    for piece in pieces(reply.text):
        yield chunk({"content": piece})
    yield chunk({}, "tool_calls" if reply.tool else "stop")
    if with_usage:
        yield {**head, "choices": [], "usage": usage_of(body, reply)}


def pieces(text: str) -> Iterator[str]:
    for start in range(0, len(text), PIECE_CHARS):
        yield text[start : start + PIECE_CHARS]


# ------------------------------------------------------------------ the server


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512

    def server_bind(self) -> None:
        """Bind without asking a name server for our own name, which can take seconds."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]

    def handle_error(self, request: object, client_address: object) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *args: object) -> None:
        """Say nothing: standard output has the one line `ready`, and the caller has its own log."""

    def do_GET(self) -> None:
        model = {"id": MODEL, "object": "model", "created": 1_700_000_000, "owned_by": "turnkeeper"}
        known: dict[str, Json] = {
            "/v1/models": {"object": "list", "data": [model]},
            f"/v1/models/{MODEL}": model,
        }
        found = known.get(self.path.partition("?")[0].rstrip("/"))
        self.send_json(200, found) if found else self.send_json(404, self.no_such_path())

    def do_POST(self) -> None:
        try:
            raw = self.read_body()
            if self.path.partition("?")[0].rstrip("/") != "/v1/chat/completions":
                return self.send_json(404, self.no_such_path())
            try:
                body = json.loads(raw)
                json.dumps(body, ensure_ascii=False).encode()  # a lone surrogate could not be answered
            except (ValueError, RecursionError):
                raise BadRequest("the body is not valid JSON in UTF-8") from None
            body = checked(body)
            if body.get("stream"):
                return self.send_stream(chunks(body))
            self.send_json(200, completion(body))
        except BadRequest as refused:
            self.send_json(refused.status, refused.body)

    def no_such_path(self) -> Json:
        return BadRequest(f"Invalid URL ({self.command} {self.path})", status=404).body

    def read_body(self) -> bytes:
        length = self.headers.get("content-length", "")
        if not length.isdecimal() or int(length) > MAX_BODY_BYTES:
            self.close_connection = True
            raise BadRequest(f"a body with a Content-Length of at most {MAX_BODY_BYTES} bytes is expected")
        return self.rfile.read(int(length))

    def send_json(self, status: int, body: Json) -> None:
        content = json.dumps(body, ensure_ascii=False).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        if self.close_connection:
            self.send_header("connection", "close")
        self.end_headers()
        self.wfile.write(content)

    def send_stream(self, events: Iterator[Json]) -> None:
        """Server-sent events in chunked encoding, ended by `[DONE]`."""
        first = next(events)  # a bad request is refused before anything is sent
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("cache-control", "no-cache")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        self.send_event(json.dumps(first, ensure_ascii=False))
        for event in events:
            time.sleep(PIECE_PAUSE_S)
            self.send_event(json.dumps(event, ensure_ascii=False))
        self.send_event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def send_event(self, data: str) -> None:
        content = f"data: {data}\n\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(content), content))


def is_alive(pid: int, was_parent: bool) -> bool:
    """Whether the process still runs. A child notices its parent's end by having got another parent."""
    if sys.platform == "win32":
        import ctypes

        still_running = 0x102  # WAIT_TIMEOUT
        handle = ctypes.windll.kernel32.OpenProcess(0x100000, False, pid)  # SYNCHRONIZE
        try:
            return bool(handle) and ctypes.windll.kernel32.WaitForSingleObject(handle, 0) == still_running
        finally:
            ctypes.windll.kernel32.CloseHandle(handle)
    if was_parent:
        return os.getppid() == pid
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m dev.demo_model", description="A deterministic model to try with.")
    parser.add_argument("--port", type=int, default=8901, help="port on 127.0.0.1; 0 takes any free one")
    parser.add_argument("--parent", type=int, metavar="PID", help="end when this process has ended")
    options = parser.parse_args(arguments)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    try:
        server = Server(("127.0.0.1", options.port), Handler)
    except OSError as error:
        print(f"cannot listen on 127.0.0.1:{options.port}: {error.strerror}", file=sys.stderr)
        return 1
    with server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True).start()
        print(f"ready http://127.0.0.1:{server.server_port}/v1", flush=True)
        was_parent = options.parent == os.getppid()
        while not stop.wait(PARENT_POLL_S):
            if options.parent and not is_alive(options.parent, was_parent):
                break
        server.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
