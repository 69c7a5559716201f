"""The model of `dev torture`: it answers, uses the calculator, dawdles, hangs or fails, as its seed has it.

What becomes of a request depends on the seed, on the question, and on how often it was asked before: on no clock.
"""

import contextlib
import json
import random
import socket
import socketserver
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Json = dict[str, Any]

# What it does, and how often of 100 times.
HABITS = {"answer": 52, "calculate": 25, "dawdle": 10, "hang": 2, "fail": 4, "drop": 3, "say nothing": 2, "be cut": 2}
HANG_S = 4.0  # longer than the service waits


def answer_to(question: str) -> str:
    """The only right answer to a question."""
    return f"Answer to {question}"


class TortureModel:
    """Serves on a free port until it is closed. did: how often it did what."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.calm = False  # then it always answers
        self.did: Counter[str] = Counter()
        self._asked: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._server = Server(("127.0.0.1", 0), Handler)
        self._server.model = self
        threading.Thread(target=self._server.serve_forever, daemon=True, name="model").start()

    @property
    def base_url(self) -> str:
        """What BASE_URL has to be."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def close(self) -> None:
        """Take no more requests."""
        self._server.shutdown()
        self._server.server_close()

    def habit(self, question: str) -> tuple[str, float]:
        """What to do this time, and a number from 0 to 1 that says how much."""
        with self._lock:
            self._asked[question] += 1
            chance = random.Random(f"{self.seed} {question} {self._asked[question]}")
            [habit] = ["answer"] if self.calm else chance.choices(list(HABITS), list(HABITS.values()))
            self.did[habit] += 1
        return habit, chance.random()


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    model: TortureModel

    def server_bind(self) -> None:
        """Without asking a name server for our own name."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "127.0.0.1", int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A service that was killed is not missed."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 1.0  # an idle connection is closed, so that none is left to be counted at the end
    server: Server

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        messages = request["messages"]
        question = next(str(message["content"]) for message in reversed(messages) if message["role"] == "user")
        habit, much = self.server.model.habit(question)
        if habit == "calculate" and messages[-1]["role"] != "tool":
            call = {"name": "calculator", "arguments": '{"a": 12, "b": 8, "operation": "multiply"}'}
            asked = {"id": f"call_{len(messages)}", "type": "function", "function": call}
            return self.reply(request, {"content": None, "tool_calls": [asked]}, "tool_calls")
        if habit in ("dawdle", "hang"):
            time.sleep(much if habit == "dawdle" else HANG_S)
        if habit == "fail":
            return self.send(500, b'{"error": {"message": "out of order", "type": "server_error"}}')
        if habit == "drop":
            self.close_connection = True
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)
            return None
        said = "" if habit == "say nothing" else answer_to(question)
        return self.reply(request, {"content": said}, "length" if habit == "be cut" else "stop")

    def reply(self, request: Json, message: Json, finish_reason: str) -> None:
        """One message, whole or in pieces, as the request has it."""
        head = {"id": "chatcmpl-torture", "created": 1700000000, "model": request["model"]}
        if not request.get("stream"):
            choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish_reason}
            return self.send(200, json.dumps({**head, "object": "chat.completion", "choices": [choice]}).encode())
        calls = [{"index": 0, **call} for call in message.get("tool_calls", [])]
        text = message["content"] or ""
        deltas: list[Json] = [{"role": "assistant", "content": ""}]
        deltas += [{"tool_calls": calls}] if calls else [{"content": text[:9]}, {"content": text[9:]}]
        choices: list[Json] = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
        choices.append({"index": 0, "delta": {}, "finish_reason": finish_reason})
        events = [json.dumps({**head, "object": "chat.completion.chunk", "choices": [one]}) for one in choices]
        return self.send(
            200, "".join(f"data: {event}\n\n" for event in [*events, "[DONE]"]).encode(), "text/event-stream"
        )

    def send(self, status: int, content: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
