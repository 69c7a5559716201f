"""The load generator of `dev bench`: turns, one after the other, on each of N kept connections.

    python -m dev.load --port 8000 --connections 16 --seconds 5

Every answer is checked: status 200 and an `answer` that contains 96. Prints one JSON object, the fields of `Report`.
The generator is a process of its own and speaks HTTP/1.1 itself, so that it takes little from the cores it shares.
"""

import argparse
import asyncio
import gc
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import cast

if sys.platform != "win32":
    from uvloop import run as run_loop
else:
    from asyncio import run as run_loop

CONTENT_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)", re.IGNORECASE)
CODE = re.compile(rb'"code":\s*"(\w+)"')
RIGHT_ANSWER = re.compile(rb'"answer":\s*"[^"]*96')
QUESTION = "What is 12 times 8?"


@dataclass(frozen=True)
class Report:
    """What one run of the generator saw. Times of turns are those of answered turns."""

    conversation: str  # the fixed conversation, or what the id of each new one begins with
    turns: int  # answered: 200 and the right text
    errors: int
    error_kinds: dict[str, int]
    unanswered: list[str]  # conversations whose turn was an error
    seconds: float  # from the first request to the last answer
    turns_per_s: float
    p50_ms: float
    p99_ms: float
    max_ms: float
    cpu_ms: float  # of the generator, per turn


@dataclass(frozen=True)
class Plan:
    """What to send. Exactly one of `seconds` and `turns` is set."""

    port: int
    path: str
    connections: int
    seconds: float | None
    turns: int | None
    conversation: str | None  # None: a new conversation for each turn
    timeout_s: float


class WrongAnswer(Exception):
    """An answer came, and it was not the right one."""


class Caller(asyncio.Protocol):
    """One kept connection that asks one thing at a time."""

    def __init__(self) -> None:
        self.buffer = bytearray()
        self.reply: asyncio.Future[bytes] | None = None
        self.open = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop has a class of its own

    def connection_lost(self, error: Exception | None) -> None:
        self.open = False
        if self.reply and not self.reply.done():
            self.reply.set_exception(ConnectionError("connection lost"))

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        if self.reply and not self.reply.done() and is_whole(self.buffer):
            self.reply.set_result(bytes(self.buffer))
            self.buffer.clear()

    async def ask(self, request: bytes, timeout_s: float) -> bytes:
        """The whole response. Raises ConnectionError, TimeoutError."""
        self.reply = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        async with asyncio.timeout(timeout_s):
            return await self.reply


def is_whole(response: bytearray) -> bool:
    end = response.find(b"\r\n\r\n")
    if end < 0:
        return False
    length = CONTENT_LENGTH.search(response, 0, end + 2)
    if length:
        return len(response) >= end + 4 + int(length[1])
    return response.endswith(b"\r\n0\r\n\r\n")  # chunked, as event streams are


def check(response: bytes) -> None:
    """Raises WrongAnswer, naming the kind of error, unless the turn was answered rightly."""
    if response[9:12] != b"200":
        code = CODE.search(response)
        raise WrongAnswer(response[9:12].decode(errors="replace") + (f" {code[1].decode()}" if code else ""))
    if not RIGHT_ANSWER.search(response):
        raise WrongAnswer("200 without the right answer")


class Load:
    """Hands out turns until the plan is fulfilled and counts what became of them."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.prefix = f"bench-{time.time_ns():x}"
        self.latencies_ms: list[float] = []
        self.error_kinds: Counter[str] = Counter()
        self.unanswered: list[str] = []
        self.taken = 0
        self.head = (
            f"POST {plan.path} HTTP/1.1\r\nHost: 127.0.0.1:{plan.port}\r\nContent-Type: application/json\r\n"
            "Content-Length: "
        )

    def take(self) -> str | None:
        """The conversation of the next turn, or None when there is none left to send."""
        if self.plan.turns is not None and self.taken >= self.plan.turns:
            return None
        if self.plan.seconds is not None and time.perf_counter() - self.started >= self.plan.seconds:
            return None
        self.taken += 1
        return self.plan.conversation or f"{self.prefix}-{self.taken}"

    def request(self, conversation: str) -> bytes:
        body = json.dumps({"conversation_id": conversation, "message": QUESTION})
        return f"{self.head}{len(body)}\r\n\r\n{body}".encode()

    async def run(self) -> Report:
        callers = [await self.connect() for _ in range(self.plan.connections)]
        self.started, cpu_s = time.perf_counter(), time.process_time()
        await asyncio.gather(*(self.keep_asking(caller) for caller in callers))
        return self.report(time.perf_counter() - self.started, time.process_time() - cpu_s)

    async def connect(self) -> Caller:
        _, caller = await asyncio.get_running_loop().create_connection(Caller, "127.0.0.1", self.plan.port)
        return caller

    async def keep_asking(self, caller: Caller) -> None:
        while (conversation := self.take()) is not None:
            started = time.perf_counter()
            try:
                if not caller.open:
                    caller = await self.connect()
                check(await caller.ask(self.request(conversation), self.plan.timeout_s))
            except (OSError, TimeoutError, WrongAnswer) as error:
                self.error_kinds[str(error) if isinstance(error, WrongAnswer) else type(error).__name__] += 1
                self.unanswered.append(conversation)
                if not isinstance(error, WrongAnswer):  # a late answer must not pass for that of the next turn
                    caller.transport.abort()
                    caller.open = False
                    await asyncio.sleep(0.05)
            else:
                self.latencies_ms.append((time.perf_counter() - started) * 1000)
        caller.transport.close()

    def report(self, seconds: float, cpu_s: float) -> Report:
        ordered = sorted(self.latencies_ms) or [0.0]
        turns = len(self.latencies_ms)
        return Report(
            conversation=self.plan.conversation or self.prefix,
            turns=turns,
            errors=len(self.unanswered),
            error_kinds=dict(self.error_kinds),
            unanswered=self.unanswered,
            seconds=seconds,
            turns_per_s=turns / seconds,
            p50_ms=ordered[len(ordered) // 2],
            p99_ms=ordered[len(ordered) * 99 // 100],
            max_ms=ordered[-1],
            cpu_ms=cpu_s * 1000 / max(turns, 1),
        )


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="dev.load", description="Sends turns and measures them.")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--path", default="/chat", help="/chat, or /chat/stream")
    parser.add_argument("--connections", type=int, default=1)
    until = parser.add_mutually_exclusive_group(required=True)
    until.add_argument("--seconds", type=float, help="start no turn after this time")
    until.add_argument("--turns", type=int, help="send this many turns")
    parser.add_argument("--conversation", help="send every turn to this conversation instead of a new one each")
    parser.add_argument("--timeout-s", type=float, default=60.0, help="longest wait for one answer")
    gc.disable()  # a pause of the generator would be measured as one of the service; this process lives for seconds
    report = run_loop(Load(Plan(**vars(parser.parse_args(argv)))).run())
    print(json.dumps(asdict(report)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
