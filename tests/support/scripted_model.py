"""A chat model that says what the test wrote down, over real HTTP, and refuses what a strict vendor would refuse.

    with ScriptedModel() as model:
        model.asks_for("calculator", a=12, b=8, operation="multiply").then_says("96")
        ...                      # run what is tested with base_url=model.base_url and any key
        model.finish()           # fails on refused requests, on unexpected ones and on script steps left over

Each request takes the next step of the script; a step with `forever=True` stays. A request with `stream: true` gets
the same reply as an event stream.
"""

import contextlib
import json
import re
import socket
import socketserver
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Literal, Self

from .waiting import LONG

Json = dict[str, Any]
Answer = Callable[[Json], Json]
Arguments = Mapping[str, Any] | str  # as text: exactly what the model writes, valid or not

USAGE: Json = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
CONTENT_PIECES, ARGUMENT_PIECES = 4, 3

# ------------------------------------------------------------------ what a strict vendor refuses

ROLES = ("system", "developer", "user", "assistant", "tool")
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def parse_strictly(text: str) -> Any:
    """JSON without NaN, Infinity and lone surrogates. Raises ValueError."""

    def refuse(name: str) -> None:
        raise ValueError(f"{name} is not JSON")

    try:
        value = json.loads(text, parse_constant=refuse)
        json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return value


def is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


class Inspection:
    """Reads one request body as a strict vendor does; `breaches` says what it found."""

    def __init__(self, body: Json, require_alternation: bool, reasoning: str | None) -> None:
        self.breaches: list[str] = []
        self.reasoning = reasoning
        self.owed: list[object] = []  # ids of the calls that still want their tool message
        if not is_text(body.get("model")):
            self.refuse("model is missing")
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            self.refuse("messages is empty")
            messages = []
        for at, message in enumerate(messages):
            if isinstance(message, dict):
                self.message(at, message)
            else:
                self.refuse(f"messages[{at}] is no object")
        self.all_answered("at the end")
        self.tools(body)
        if "stream_options" in body and not (body.get("stream") is True and isinstance(body["stream_options"], dict)):
            self.refuse("stream_options should be an object, and only with stream: true")
        if require_alternation:
            self.alternation([m["role"] for m in messages if isinstance(m, dict) and m.get("role") in ROLES])

    def refuse(self, text: str) -> None:
        self.breaches.append(text if len(text) < 300 else text[:300] + "…")

    def message(self, at: int, message: Json) -> None:
        role, content, where = message.get("role"), message.get("content"), f"messages[{at}]"
        if role not in ROLES:
            self.refuse(f"{where}: unknown role {role!r}")
        if role == "tool":
            return self.tool_message(where, message)
        self.all_answered(f"before {where}")
        if role in ("system", "developer") and at:
            self.refuse(f"{where}: a {role} message is not the first")
        if role == "assistant":
            self.assistant_message(where, message)
        elif not is_text(content):
            self.refuse(f"{where}: {role} content should be a non-empty string, not {content!r}")

    def tool_message(self, where: str, message: Json) -> None:
        if message.get("tool_call_id") in self.owed:
            self.owed.remove(message.get("tool_call_id"))
        else:
            self.refuse(f"{where}: answers no open tool call, id {message.get('tool_call_id')!r}")
        if not isinstance(message.get("content"), str):
            self.refuse(f"{where}: tool content should be a string, not {message.get('content')!r}")

    def assistant_message(self, where: str, message: Json) -> None:
        content, calls = message.get("content"), message.get("tool_calls")
        if "tool_calls" in message and not (isinstance(calls, list) and calls):
            self.refuse(f"{where}: tool_calls should be a non-empty list, not {calls!r}")
        if not calls and not is_text(content):
            self.refuse(f"{where}: assistant content should be a non-empty string, not {content!r}")
        if calls and not isinstance(content, str | None):
            self.refuse(f"{where}: assistant content should be a string or null, not {content!r}")
        for call in calls if isinstance(calls, list) else []:
            self.call(where, call if isinstance(call, dict) else {})
        thought = message.get("reasoning_content")
        if self.reasoning == "required" and not isinstance(thought, str):
            self.refuse(f"{where}: an assistant message needs its reasoning_content")
        if self.reasoning == "forbidden" and "reasoning_content" in message:
            self.refuse(f"{where}: reasoning_content is not allowed")

    def call(self, where: str, call: Json) -> None:
        number, function = call.get("id"), call.get("function")
        if not is_text(number) or number in self.owed:
            self.refuse(f"{where}: tool call ids should be distinct non-empty strings, not {number!r}")
        self.owed.append(number)
        if call.get("type") != "function" or not isinstance(function, dict):
            self.refuse(f"{where}: a tool call should have the type function")
            function = {}
        if not (isinstance(function.get("name"), str) and NAME.fullmatch(function["name"])):
            self.refuse(f"{where}: function name {function.get('name')!r}")
        arguments = function.get("arguments")
        try:
            if not isinstance(arguments, str) or not isinstance(parse_strictly(arguments), dict):
                raise ValueError("not a JSON object as a string")
        except ValueError as error:
            self.refuse(f"{where}: arguments {arguments!r}: {error}")

    def all_answered(self, where: str) -> None:
        if self.owed:
            self.refuse(f"{where}: tool calls without their tool message: {self.owed!r}")
            self.owed = []

    def tools(self, body: Json) -> None:
        tools = body.get("tools")
        if "tools" not in body:
            for key in ("tool_choice", "parallel_tool_calls"):
                if key in body:
                    self.refuse(f"{key} without tools")
            return
        if not isinstance(tools, list) or not tools:
            self.refuse("tools should be absent or a non-empty list")
            return
        names = [self.tool(at, tool if isinstance(tool, dict) else {}) for at, tool in enumerate(tools)]
        if len(set(names)) < len(names):
            self.refuse(f"tools have the same name: {names!r}")

    def tool(self, at: int, tool: Json) -> str:
        function = tool.get("function")
        if tool.get("type") != "function" or not isinstance(function, dict):
            self.refuse(f"tools[{at}] should be of the type function")
            return f"[{at}]"
        name, parameters = function.get("name"), function.get("parameters", {"type": "object"})
        if not (isinstance(name, str) and NAME.fullmatch(name)):
            self.refuse(f"tools[{at}]: function name {name!r}")
        if not isinstance(function.get("description", ""), str):
            self.refuse(f"tools[{at}]: description should be a string")
        if not isinstance(parameters, dict) or parameters.get("type") != "object":
            self.refuse(f"tools[{at}]: parameters should be a schema of the type object")
        return str(name)

    def alternation(self, roles: Sequence[str]) -> None:
        """User and assistant take turns, the user begins; what belongs to tool calls counts as the assistant's."""
        sides = ["user" if role == "user" else "assistant" for role in roles if role not in ("system", "developer")]
        spoken = [side for at, side in enumerate(sides) if side == "user" or sides[at - 1 : at] != ["assistant"]]
        if any(side != ("user", "assistant")[at % 2] for at, side in enumerate(spoken)):
            self.refuse(f"roles do not alternate: {' '.join(roles)}")
        asked_for = [at for at, role in enumerate(roles) if role == "assistant"]
        if any(roles[at + 1 : at + 2] == ["assistant"] for at in asked_for) or roles[-1:] == ["assistant"]:
            self.refuse(f"an assistant message is followed by another, or is the last: {' '.join(roles)}")


# ------------------------------------------------------------------ replies


@dataclass(frozen=True)
class Step:
    """One step of the script. `answer` makes the JSON body; without it `content` is sent as it is."""

    name: str  # for people: what was written in the script
    answer: Answer | None = None
    content: bytes = b""
    events: tuple[Json | str, ...] | None = None
    done: bool = True
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str = "application/json"
    fault: Literal["", "hang", "reset", "cut", "drip"] = ""
    cut_after: int = 0
    bytes_per_s: float = 0.0
    delay_s: float = 0.0
    gap_s: float = 0.0  # between two events of a stream
    forever: bool = False


def completion(message: Json, finish_reason: str | None, usage: Json | None = USAGE) -> Answer:
    """What makes a whole chat completion for a request; it names the model that was asked for."""

    def answer(request: Json) -> Json:
        choice = {"index": 0, "message": message, "finish_reason": finish_reason}
        body: Json = {
            "id": "chatcmpl-scripted",
            "object": "chat.completion",
            "created": 1_700_000_000,
            "model": request.get("model"),
            "choices": [choice],
        }
        return body if usage is None else {**body, "usage": usage}

    return answer


def call(tool: str, arguments: Arguments, number: str) -> Json:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {"id": number, "type": "function", "function": {"name": tool, "arguments": text}}


def encode(value: object) -> bytes:
    text = json.dumps(value, ensure_ascii=False)
    try:
        return text.encode()
    except UnicodeEncodeError:  # a lone surrogate travels only as an escape
        return json.dumps(value).encode()


def split(text: str, pieces: int) -> Iterator[str]:
    """`text` in at most `pieces` pieces; none for an empty one."""
    size = max(1, -(-len(text) // pieces))
    for start in range(0, len(text), size):
        yield text[start : start + size]


def deltas(message: Json) -> Iterator[Json]:
    """The deltas of a stream that add up to `message`; what has an odd type stays as it is."""
    texts = [key for key in ("reasoning_content", "content") if isinstance(message.get(key), str)]
    calls = message.get("tool_calls")
    cut = [*texts, *(["tool_calls"] if isinstance(calls, list) else [])]
    yield {key: value for key, value in message.items() if key not in cut} | ({"content": ""} if texts else {})
    for key in texts:
        for piece in split(message[key], CONTENT_PIECES):
            yield {key: piece}
    for index, one in enumerate(calls if isinstance(calls, list) else []):
        function = one.get("function") if isinstance(one, dict) else None
        arguments = function.get("arguments") if isinstance(function, dict) else None
        if not isinstance(arguments, str):
            yield {"tool_calls": [{"index": index, **one} if isinstance(one, dict) else one]}
            continue
        yield {"tool_calls": [{"index": index, **one, "function": {**one["function"], "arguments": ""}}]}
        for piece in split(arguments, ARGUMENT_PIECES):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def as_events(body: Json, include_usage: bool) -> Iterator[Json]:
    """A chat completion as the chunks of an equivalent stream; a body of any other shape is one event as it is."""
    choices = body.get("choices")
    if not isinstance(choices, list) or not all(
        isinstance(c, dict) and isinstance(c.get("message"), dict) for c in choices
    ):
        yield body
        return
    head = {key: value for key, value in body.items() if key not in ("choices", "usage")}
    head |= {"object": "chat.completion.chunk"}
    tail = {"usage": None} if include_usage else {}
    for at, choice in enumerate(choices):
        index = choice.get("index", at)
        for delta in deltas(choice["message"]):
            yield {**head, "choices": [{"index": index, "delta": delta, "finish_reason": None}], **tail}
        reason = choice.get("finish_reason")
        yield {**head, "choices": [{"index": index, "delta": {}, "finish_reason": reason}], **tail}
    if include_usage and "usage" in body:
        yield {**head, "choices": [], "usage": body["usage"]}


def last_user_text(request: Json) -> str:
    return next((str(m["content"]) for m in reversed(request["messages"]) if m["role"] == "user"), "")


# ------------------------------------------------------------------ the model


class ScriptedModel:
    """See the module. `require_alternation` and `reasoning` make it as strict as some vendors are besides."""

    def __init__(
        self,
        *,
        require_alternation: bool = False,
        reasoning: Literal["required", "forbidden"] | None = None,
        port: int = 0,
    ) -> None:
        self.require_alternation = require_alternation
        self.reasoning = reasoning
        self._changed = threading.Condition()
        self._numbers = 0
        self.reset()
        self._server = Server(("127.0.0.1", port), Handler)
        self._server.model = self
        serve = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        serve.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/v1"

    def close(self) -> None:
        """Close the port and every connection."""
        self._server.shutdown()
        self._server.server_close()
        self._server.drop_connections()

    def reset(self) -> None:
        """Forget script, requests and counts, as if nothing had been. Replies on their way are no longer counted."""
        with self._changed:
            self._script: list[Step] = []
            self.requests: list[Json] = []
            self.headers: list[dict[str, str]] = []  # names in lower case
            self.violations: list[str] = []
            self.unexpected: list[str] = []
            self.connections = 0
            self.closed_early = 0
            self._round = object()

    def finish(self) -> None:
        """Raises AssertionError if a request was refused or unexpected, or if script steps are left over."""
        with self._changed:
            left = [step for step in self._script if not step.forever]
            found = [f"refused: {text}" for text in self.violations] + [
                f"unexpected: {text}" for text in self.unexpected
            ]
        if left:
            found.append(f"{len(left)} script steps left over: {', '.join(step.name for step in left[:5])}")
        if found:
            raise AssertionError("the scripted model has complaints:\n  " + "\n  ".join(found))

    def wait_for_requests(self, count: int, timeout_s: float = LONG) -> None:
        """Wait until `count` requests have arrived since the last reset."""
        self.wait_until(lambda: len(self.requests) >= count, timeout_s)

    def wait_until(self, condition: Callable[[], bool], timeout_s: float = LONG) -> None:
        """Wait until `condition`, which looks at `requests`, `connections` or `closed_early`, is true."""
        with self._changed:
            if not self._changed.wait_for(condition, timeout_s):
                counts = (
                    f"{len(self.requests)} requests, {self.connections} connections, {self.closed_early} closed early"
                )
                raise AssertionError(f"waited {timeout_s} s in vain; {counts}")

    # Writing the script ------------------------------------------------------------

    def add(self, step: Step) -> Self:
        with self._changed:
            self._script.append(step)
        return self

    def says(
        self,
        text: str | None,
        *,
        finish_reason: str | None = "stop",
        usage: Json | None = USAGE,
        reasoning_content: str | None = None,
        message: Json | None = None,
        **how: Any,
    ) -> Self:
        """Answer with `text`. message: more fields of the message; how: `delay_s`, `gap_s`, `forever`, `headers`."""
        said: Json = {"role": "assistant", "content": text, **(message or {})}
        if reasoning_content is not None:
            said["reasoning_content"] = reasoning_content
        return self.add(Step(f"says {str(text)[:60]!r}", completion(said, finish_reason, usage), **how))

    def asks_for(self, tool: str, /, **arguments: Any) -> Self:
        """Ask for one call. All keywords are arguments of the tool; with `asks_for_all` the step has options."""
        return self.asks_for_all((tool, arguments))

    def asks_for_all(
        self,
        *calls: tuple[str, Arguments],
        content: str | None = None,
        ids: Sequence[str] | None = None,
        finish_reason: str | None = "tool_calls",
        usage: Json | None = USAGE,
        reasoning_content: str | None = None,
        **how: Any,
    ) -> Self:
        """Ask for several calls in one reply. Arguments given as a string are sent as they are."""

        def answer(request: Json) -> Json:
            numbers = ids or [self._new_id() for _ in calls]
            asked = [call(tool, arguments, number) for (tool, arguments), number in zip(calls, numbers, strict=True)]
            said: Json = {"role": "assistant", "content": content, "tool_calls": asked}
            if reasoning_content is not None:
                said["reasoning_content"] = reasoning_content
            return completion(said, finish_reason, usage)(request)

        return self.add(Step(f"asks for {', '.join(tool for tool, _ in calls)}", answer, **how))

    then_says, then_asks_for, then_asks_for_all = says, asks_for, asks_for_all

    def replies(self, body: Json, status: int = 200, headers: Mapping[str, str] | None = None, **how: Any) -> Self:
        """Any JSON body."""
        return self.add(Step(f"replies {status}", lambda _: body, status=status, headers=headers or {}, **how))

    def raw(self, content: bytes | str, status: int = 200, content_type: str = "application/json", **how: Any) -> Self:
        """Any bytes, the same for streams."""
        return self.add(Step("raw", content=as_bytes(content), status=status, content_type=content_type, **how))

    def events(self, chunks: Iterable[Json | str], done: bool = True, **how: Any) -> Self:
        """An event stream written by hand: one event per chunk, `[DONE]` at the end unless `done=False`."""
        return self.add(Step("events", events=tuple(chunks), done=done, **how))

    def fails(self, status: int, message: str = "failed", headers: Mapping[str, str] | None = None, **how: Any) -> Self:
        """An error in the shape of OpenAI's. how: also `code` and `type` of the error."""
        error = {"message": message, "type": how.pop("type", "error"), "param": None, "code": how.pop("code", None)}
        return self.replies({"error": error}, status, headers, **how)

    def hangs(self, **how: Any) -> Self:
        """Take the request and never answer."""
        return self.add(Step("hangs", fault="hang", **how))

    def resets(self, **how: Any) -> Self:
        """Take the request and reset the connection."""
        return self.add(Step("resets", fault="reset", **how))

    def cuts_after(self, n_bytes: int, body: Json | bytes | str, **how: Any) -> Self:
        """Send the first bytes of a body that is announced whole, then close. A stream loses its end likewise."""
        return self.add(Step("cuts", **self._body(body), fault="cut", cut_after=n_bytes, **how))

    def drips(self, body: Json | bytes | str, bytes_per_s: float, **how: Any) -> Self:
        """Send a body byte by byte."""
        return self.add(Step("drips", **self._body(body), fault="drip", bytes_per_s=bytes_per_s, **how))

    def answers_by(self, function: Answer, *, forever: bool = True, **how: Any) -> Self:
        """Answer with what `function` makes of the request body: for every request, unless `forever=False`."""
        return self.add(Step("answers by a function", function, forever=forever, **how))

    def echoes(self, delay_s: float = 0.0) -> Self:
        """Answer `echo: ` and the last user text, for ever."""
        return self.answers_by(self._echo, delay_s=delay_s)

    def uses_tool_then_echoes(self, tool: str, arguments: Arguments, delay_s: float = 0.0) -> Self:
        """Ask for one call, and echo when its tool message has come, for ever."""

        def answer(request: Json) -> Json:
            if request["messages"][-1]["role"] == "tool":
                return self._echo(request)
            asked = [call(tool, arguments, self._new_id())]
            return completion({"role": "assistant", "content": None, "tool_calls": asked}, "tool_calls")(request)

        return self.answers_by(answer, delay_s=delay_s)

    def _echo(self, request: Json) -> Json:
        return completion({"role": "assistant", "content": f"echo: {last_user_text(request)}"}, "stop")(request)

    def _body(self, body: Json | bytes | str) -> Json:
        return {"answer": lambda _: body} if isinstance(body, dict) else {"content": as_bytes(body)}

    def _new_id(self) -> str:
        with self._changed:
            self._numbers += 1
            return f"call_{self._numbers}"

    # Answering, from the server's threads ------------------------------------------

    def take(self, raw: bytes, headers: Mapping[str, str]) -> tuple[Step, Json, object]:
        """The step for a request, its parsed body, and the round to which both belong."""
        faults: list[str] = []
        body: Json = {}
        try:
            parsed = parse_strictly(raw.decode())
            if isinstance(parsed, dict):
                body = parsed
                faults = Inspection(body, self.require_alternation, self.reasoning).breaches
            else:
                faults.append("the body is no JSON object")
        except ValueError as error:
            faults.append(f"the body is not valid JSON in UTF-8: {error}")
        if not re.fullmatch(r"Bearer \S+", headers.get("authorization", "")):
            faults.append("the header Authorization: Bearer … is missing")
        with self._changed:
            self.requests.append(body)
            self.headers.append(dict(headers))
            self._changed.notify_all()
            self.violations += faults
            return self._next(faults, body), body, self._round

    def _next(self, faults: Sequence[str], body: Json) -> Step:
        if faults:
            return refusal(400, "; ".join(faults))
        if not self._script:
            last = str((body.get("messages") or [{}])[-1])
            self.unexpected.append(
                f"request {len(self.requests)}, after the script had ended; last message {last[:200]}"
            )
            return refusal(500, "the script has ended")
        step = self._script[0]
        if not step.forever:
            del self._script[0]
        return step

    def note_unexpected(self, text: str) -> None:
        with self._changed:
            self.unexpected.append(text)

    def count(self, what: Literal["connections", "closed_early"], round_: object = None) -> None:
        with self._changed:
            if round_ in (None, self._round):
                setattr(self, what, getattr(self, what) + 1)
            self._changed.notify_all()


def as_bytes(content: bytes | str) -> bytes:
    return content if isinstance(content, bytes) else content.encode()


def refusal(status: int, message: str) -> Step:
    kind = "invalid_request_error" if status == 400 else "server_error"
    error = {"message": message, "type": kind, "param": None, "code": None}
    return Step(f"refuses with {status}", lambda _: {"error": error}, status=status)


# ------------------------------------------------------------------ the server


class ClientLeft(Exception):
    """The other side has closed the connection before it had the whole reply."""


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512
    model: ScriptedModel

    def __init__(self, *arguments: Any) -> None:
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self.closing = False
        super().__init__(*arguments)

    def server_bind(self) -> None:
        """Bind without asking a name server for our own name."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._open.add(request)
        self.model.count("connections")
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def drop_connections(self) -> None:
        self.closing = True
        with self._lock:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Server
    step: Step

    def log_message(self, *args: object) -> None:
        """Tests look at `requests` instead."""

    def do_GET(self) -> None:
        model = {"id": "scripted", "object": "model", "created": 1_700_000_000, "owned_by": "tests"}
        self.step = Step("models")
        self.send_whole(encode({"object": "list", "data": [model]}))

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        if self.path.partition("?")[0].rstrip("/") != "/v1/chat/completions":
            self.server.model.note_unexpected(f"POST {self.path}")
            self.step = refusal(404, f"no such path: {self.path}")
            return self.send_whole(encode({"error": {"message": f"no such path: {self.path}"}}))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.step, body, round_ = self.server.model.take(raw, headers)
        try:
            self.answer(body)
        except (ClientLeft, ConnectionError):
            self.close_connection = True
            if not self.server.closing:
                self.server.model.count("closed_early", round_)

    def answer(self, request: Json) -> None:
        step = self.step
        self.pause(step.delay_s)
        if step.fault == "hang":
            self.pause(None)
        if step.fault == "reset":
            return self.reset_connection()
        if step.events is not None:
            events = [event if isinstance(event, str) else encode(event).decode() for event in step.events]
            return self.send_events([*events, *(["[DONE]"] if step.done else [])])
        if step.answer is None:
            return self.send_whole(step.content)
        try:
            body = step.answer(request)
        except Exception as error:  # of a function given to `answers_by`
            self.server.model.note_unexpected(f"{error!r} while the answer was made")
            self.step = refusal(500, repr(error))
            return self.send_whole(encode({"error": {"message": repr(error)}}))
        if request.get("stream") and step.status == 200:
            include_usage = bool((request.get("stream_options") or {}).get("include_usage"))
            return self.send_events([*(encode(event).decode() for event in as_events(body, include_usage)), "[DONE]"])
        self.send_whole(encode(body))

    def send_head(self, content_type: str, framing: tuple[str, str]) -> None:
        self.send_response(self.step.status)
        named = {name.lower(): value for name, value in self.step.headers.items()}
        for name, value in [*({"content-type": content_type} | named).items(), framing]:
            self.send_header(name, value)
        self.end_headers()

    def send_whole(self, content: bytes) -> None:
        self.send_head(self.step.content_type, ("content-length", str(len(content))))
        self.write(self.cut(content))

    def send_events(self, events: Sequence[str]) -> None:
        self.send_head("text/event-stream", ("transfer-encoding", "chunked"))
        left = self.step.cut_after
        for at, event in enumerate(events):
            if at:
                self.pause(self.step.gap_s)
            content = f"data: {event}\n\n".encode()
            if self.step.fault == "cut":
                content, left = content[:left], left - len(content)
            if content:
                self.write(content, chunked=True)
            if self.step.fault == "cut" and left <= 0:
                self.close_connection = True
                return
        self.wfile.write(b"0\r\n\r\n")

    def cut(self, content: bytes) -> bytes:
        if self.step.fault != "cut":
            return content
        self.close_connection = True
        return content[: self.step.cut_after]

    def write(self, content: bytes, chunked: bool = False) -> None:
        drips = self.step.fault == "drip"
        for piece in [content[at : at + 1] for at in range(len(content))] if drips else [content]:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece) if chunked else piece)
            if drips:
                self.pause(1 / self.step.bytes_per_s)

    def pause(self, seconds: float | None) -> None:
        """Wait, for ever if None. Raises ClientLeft as soon as the other side has gone."""
        end = None if seconds is None else time.monotonic() + seconds
        while end is None or end > time.monotonic():
            self.connection.settimeout(None if end is None else max(0.001, end - time.monotonic()))
            try:
                more = self.connection.recv(1, socket.MSG_PEEK)
            except TimeoutError:
                return
            finally:
                self.connection.settimeout(None)
            if not more:
                raise ClientLeft
            time.sleep(0.05)  # the next request is there already; this reply comes first

    def reset_connection(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        socket.close(self.connection.detach())
