"""A client of the HTTP service on one page, for backends that do not embed it. It needs httpx2 only.

with Turnkeeper("http://127.0.0.1:8000", key="…") as service:
    print(service.chat("agent001", "What is 12 * 8 / 4?")["answer"])

Copy it. What is asked twice is done once: a message is sent with an Idempotency-Key and tried again under the same one,
so that a lost answer costs nothing and stores nothing twice.
"""

import json
import random
import time
import uuid
from collections.abc import Iterator
from types import TracebackType
from typing import Any, NamedTuple, NotRequired, Self, TypedDict
from urllib.parse import quote

import httpx2

AGAIN = {"request_in_progress", "rate_limited", "overloaded", "model_rate_limited", "model_unavailable", "model_error"}
AGAIN |= {
    "model_timeout",
    "store_unavailable",
    "unavailable",
}  # with the same key: a turn that was stored after all is given back


class Usage(TypedDict):
    """Tokens, None where the model service did not count them."""

    input_tokens: int | None
    output_tokens: int | None
    total_tokens: int | None


class Answer(TypedDict):
    """How a turn ended. status `incomplete`: there is no answer, nothing was stored, `notice` says why."""

    answer: str | None
    status: str
    stop_reason: str
    conversation_id: str
    turn: int | None
    run_id: str
    steps: int
    tool_calls: int
    usage: Usage
    notice: NotRequired[str]


class Message(TypedDict):
    """A stored message; created_at in UTC, ISO 8601."""

    id: int
    role: str
    content: str
    created_at: str


class Event(NamedTuple):
    """An event of a stream: `started`, `delta`, `trace`, or `result`, whose data is an Answer."""

    name: str
    data: dict[str, Any]


class Problem(Exception):
    """The service refused or failed. Decide by `code`; the text is for people."""

    def __init__(self, status: int, code: str, detail: str, retry_after_s: float | None = None) -> None:
        super().__init__(f"{status} {code}: {detail}")
        self.status, self.code, self.detail, self.retry_after_s = status, code, detail, retry_after_s


class Turnkeeper:
    """A connection to one service. tries: how often a request is sent at most; timeout_s: longer than a turn takes."""

    def __init__(
        self, url: str, key: str = "", *, user: str = "", tries: int = 4, timeout_s: float = 330, pause_s: float = 0.5
    ) -> None:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        headers |= {"X-User-Id": quote(user, safe="")} if user else {}  # for a key that may act for users
        self.http = httpx2.Client(base_url=url, headers=headers, timeout=httpx2.Timeout(timeout_s, connect=5))
        self.tries, self.pause_s = tries, pause_s

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.http.close()

    def chat(self, conversation_id: str, message: str, **options: Any) -> Answer:
        """Say something in a conversation. options: max_steps, max_tool_calls, model. Raises Problem, httpx2 errors."""
        body = {"conversation_id": conversation_id, "message": message, **options}
        answer: Answer = self._ask("POST", "/chat", json=body, headers={"Idempotency-Key": str(uuid.uuid4())}).json()
        return answer

    def stream(self, conversation_id: str, message: str, **options: Any) -> Iterator[Event]:
        """The same, told as it happens. The last event is `result`. Not tried again: text has been passed on already.

        The deltas whose `step` is the result's `steps` are the answer. A caller that stops listening does not stop
        the turn.
        """
        body = {"conversation_id": conversation_id, "message": message, **options}
        with self.http.stream("POST", "/chat/stream", json=body) as response:
            if response.status_code != 200:
                response.read()
                raise problem_of(response)
            for event in events_of(response.iter_text()):
                if event.name == "error":
                    raise Problem(event.data["status"], event.data["code"], event.data["detail"])
                yield event
                if event.name == "result":
                    return
        raise httpx2.RemoteProtocolError("the stream ended without a result; read the messages to see what was stored")

    def conversations(self) -> Iterator[dict[str, Any]]:
        """Your conversations, newest first; pages are fetched as they are needed."""
        return self._pages("/api/conversations")

    def messages(self, conversation_id: str) -> Iterator[Message]:
        """What was said, in order."""
        rows: Iterator[Any] = self._pages(f"{path_of(conversation_id)}/messages")
        return rows

    def rename(self, conversation_id: str, title: str | None) -> dict[str, Any]:
        """Give a conversation another title; None takes it away."""
        changed: dict[str, Any] = self._ask("PATCH", path_of(conversation_id), json={"title": title}).json()
        return changed

    def delete(self, conversation_id: str) -> None:
        """Remove a conversation and everything in it. Raises Problem `not_found` where there is none (any more)."""
        self._ask("DELETE", path_of(conversation_id))

    def _pages(self, path: str) -> Iterator[dict[str, Any]]:
        page: dict[str, Any] = {"next": None, "has_more": True}
        while page["has_more"]:
            page = self._ask(
                "GET", path, params={"limit": 200} | ({"after": page["next"]} if page["next"] else {})
            ).json()
            yield from page["data"]

    def _ask(self, method: str, path: str, **request: Any) -> httpx2.Response:
        """One request, sent again while that makes sense: nothing here is done twice by being asked twice."""
        for left in reversed(range(self.tries)):
            try:
                response = self.http.request(method, path, **request)
                if response.is_success:
                    return response
                problem = problem_of(response)
                if not left or problem.code not in AGAIN:
                    raise problem
                wait_s = problem.retry_after_s
            except httpx2.TransportError:  # not reached, or its answer was lost
                if not left:
                    raise
                wait_s = None
            pause_s = self.pause_s * 2 ** (self.tries - left - 1) * random.uniform(0.5, 1)
            time.sleep(min(max(wait_s or 0, pause_s), 60))
        raise AssertionError("tries should be 1 or more")


def path_of(conversation_id: str) -> str:
    """An id may hold any character; in a path each of them is escaped, dots too: `..` is a name here."""
    return "/api/conversations/" + quote(conversation_id, safe="").replace(".", "%2E")


def problem_of(response: httpx2.Response) -> Problem:
    """What an answer other than 2xx says, also where something on the way has said it and not the service."""
    after = response.headers.get("retry-after", "")
    try:
        body = response.json()
        code, detail = str(body["code"]), str(body["detail"])
    except (ValueError, KeyError, TypeError):
        code, detail = (
            "model_unavailable" if response.status_code in (502, 503, 504) else "unknown",
            response.text[:200],
        )
    return Problem(response.status_code, code, detail, float(after) if after.isdecimal() else None)


def events_of(pieces: Iterator[str]) -> Iterator[Event]:
    """The events of text/event-stream; comments, which keep the connection open, are passed over."""
    waiting = ""
    for piece in pieces:
        # Only a line feed ends a line here: a text may hold what str.splitlines would take for one.
        *blocks, waiting = (waiting + piece).split("\n\n")
        for block in blocks:
            fields = dict(line.split(": ", 1) for line in block.split("\n") if not line.startswith(":"))
            if "event" in fields:
                yield Event(fields["event"], json.loads(fields["data"]))
