"""A model server that costs next to nothing, so that `dev bench` measures the service and not its model.

    python -m dev.bench_model --port 9100 --latency-ms 2000 --tokens 12

It speaks just enough of the OpenAI wire format: after a tool message it answers with text that contains 96, to anything
else with the tool call `calculator(a=12, b=8, operation="multiply")`. Every answer is made once, at the start.
A GET of any path, `/stats` say, tells how much was asked.
"""

import argparse
import asyncio
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import cast

if sys.platform != "win32":
    from uvloop import run as run_loop
else:
    from asyncio import run as run_loop

CONTENT_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)", re.IGNORECASE)
# Inside a JSON string the quotes are escaped, so that no message text can look like a role.
ROLE = re.compile(rb'"role":\s*"(\w+)"')
STREAM = re.compile(rb'"stream":\s*true')
ARGUMENTS = json.dumps({"a": 12, "b": 8, "operation": "multiply"})
USAGE = {"prompt_tokens": 60, "completion_tokens": 12, "total_tokens": 72}


@dataclass
class Stats:
    """What this server was asked since it started."""

    connections: int = 0
    requests: int = 0
    streams: int = 0
    tool_calls: int = 0
    bytes: int = 0


def encoded(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def response(body: bytes, status: str = "200 OK") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def completion(message: dict[str, object], finish_reason: str) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish_reason}
    return response(encoded({**envelope("chat.completion"), "choices": [choice], "usage": USAGE}))


def envelope(kind: str) -> dict[str, object]:
    return {"id": "chatcmpl-bench", "object": kind, "created": 1700000000, "model": "bench"}


def event(data: bytes) -> bytes:
    """One server-sent event, as one chunk of a chunked response."""
    text = b"data: " + data + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(text), text)


def stream(deltas: Sequence[dict[str, object]], finish_reason: str) -> list[bytes]:
    """The parts of a streamed answer: the head with the role, one part per delta, the end."""
    kind = envelope("chat.completion.chunk")

    def choice(delta: dict[str, object], reason: str | None = None) -> bytes:
        return event(encoded({**kind, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}))

    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    end = choice({}, finish_reason) + event(encoded({**kind, "choices": [], "usage": USAGE})) + event(b"[DONE]")
    first = choice({"role": "assistant", "content": ""})
    return [head + first, *(choice(delta) for delta in deltas), end + b"0\r\n\r\n"]


class Answers:
    """Everything this server can say, ready to be written."""

    def __init__(self, tokens: int) -> None:
        pieces = ["12 times 8 is 96.", *[" more"] * (tokens - 1)]
        call = {"id": "call_bench", "type": "function", "function": {"name": "calculator", "arguments": ARGUMENTS}}
        self.text = [completion({"content": "".join(pieces)}, "stop")]
        self.tool_call = [completion({"content": None, "tool_calls": [call]}, "tool_calls")]
        self.text_stream = stream([{"content": piece} for piece in pieces], "stop")
        self.tool_call_stream = stream([{"tool_calls": [{"index": 0, **call}]}], "tool_calls")

    def to(self, body: bytes, stats: Stats) -> list[bytes]:
        """The parts of the answer to the body of one request."""
        roles = ROLE.findall(body)
        after_a_tool = bool(roles) and roles[-1] == b"tool"
        streamed = STREAM.search(body) is not None
        stats.requests += 1
        stats.bytes += len(body)
        stats.streams += streamed
        stats.tool_calls += not after_a_tool
        if after_a_tool:
            return self.text_stream if streamed else self.text
        return self.tool_call_stream if streamed else self.tool_call


class Connection(asyncio.Protocol):
    """One kept connection of the service; one request at a time, as HTTP clients do."""

    def __init__(self, answers: Answers, stats: Stats, latency_s: float, token_s: float) -> None:
        self.answers, self.stats = answers, stats
        self.latency_s, self.token_s = latency_s, token_s
        self.buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop has a class of its own
        self.stats.connections += 1

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        length = CONTENT_LENGTH.search(self.buffer, 0, end + 2)
        total = end + 4 + (int(length[1]) if length else 0)
        if len(self.buffer) < total:
            return
        is_post, body = self.buffer.startswith(b"POST "), bytes(self.buffer[end + 4 : total])
        del self.buffer[:total]
        if not is_post:
            self.transport.write(response(encoded(asdict(self.stats))))
        elif not length:
            self.transport.write(response(b'{"error":{"message":"send a Content-Length"}}', "411 Length Required"))
        elif self.latency_s:
            parts = self.answers.to(body, self.stats)
            asyncio.get_running_loop().call_later(self.latency_s, self.write, parts)
        else:
            self.write(self.answers.to(body, self.stats))

    def write(self, parts: list[bytes]) -> None:
        """Send an answer, whole or with `token_s` between its parts. A caller that left is not missed."""
        if self.transport.is_closing():
            return
        if not self.token_s or len(parts) == 1:
            self.transport.write(b"".join(parts))
            return
        self.transport.write(parts[0])
        asyncio.get_running_loop().call_later(self.token_s, self.write, parts[1:])


async def serve(port: int, latency_ms: float, tokens: int, token_ms: float) -> None:
    loop = asyncio.get_running_loop()
    answers, stats = Answers(tokens), Stats()
    server = await loop.create_server(
        lambda: Connection(answers, stats, latency_ms / 1000, token_ms / 1000), "127.0.0.1", port, backlog=4096
    )
    await server.serve_forever()


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="dev.bench_model", description="A model server that costs next to nothing.")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--latency-ms", type=float, default=0, help="how long the model thinks before each answer")
    parser.add_argument("--tokens", type=int, default=12, help="tokens of the text answer, 1 or more")
    parser.add_argument("--token-ms", type=float, default=0, help="time between streamed tokens; 0: all at once")
    options = parser.parse_args(argv)
    try:
        run_loop(serve(options.port, options.latency_ms, options.tokens, options.token_ms))
    except KeyboardInterrupt:
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
