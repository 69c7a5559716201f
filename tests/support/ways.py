"""Both ways into a turn, `/chat` and `/chat/stream`, asked the same and looked at the same."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fastapi.testclient import TestClient

WAYS = ["/chat", "/chat/stream"]


@dataclass(frozen=True)
class StreamEvent:
    """One event of a stream as it was read."""

    id: str
    name: str
    data: dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """How a turn ended for its caller. status: of a stream, what its last event says. text: all that was sent."""

    status: int
    body: dict[str, Any]
    text: str
    headers: Mapping[str, str]
    events: list[StreamEvent] = field(default_factory=list)

    def deltas(self, step: int | None = None) -> str:
        """The joined text of all deltas, or of one step."""
        pieces = [event.data for event in self.events if event.name == "delta"]
        return "".join(piece["text"] for piece in pieces if step in (None, piece["step"]))


def read_events(content: bytes) -> list[StreamEvent]:
    """The events of a stream whose writer ends lines with LF and gives each event an id, a name and one line of data.

    Raises AssertionError for anything else; comments are left out.
    """
    *blocks, rest = content.split(b"\n\n")
    assert rest == b"", f"the stream ends in the middle of an event: {rest[:100]!r}"
    found = []
    for block in blocks:
        if block.startswith(b":"):
            continue
        fields = [line.split(b": ", 1) for line in block.split(b"\n")]
        assert [name for name, _ in fields] == [b"id", b"event", b"data"], block[:200]
        number, name, data = (value.decode("utf-8") for _, value in fields)
        found.append(StreamEvent(number, name, json.loads(data)))
    return found


def ask(
    client: TestClient, way: str, conversation_id: str, message: str = "Hi", headers: Any = None, **more: Any
) -> Outcome:
    """One turn. What holds for every answer is looked at here."""
    body = {"conversation_id": conversation_id, "message": message, **more}
    answer = client.post(way, json=body, headers=headers)
    kind = answer.headers["content-type"].partition(";")[0]
    if kind != "text/event-stream":
        assert (kind == "application/problem+json") == (answer.status_code >= 400)
        return Outcome(answer.status_code, answer.json(), answer.text, answer.headers)
    return streamed(answer.content, answer.headers)


def streamed(content: bytes, headers: Mapping[str, str]) -> Outcome:
    """What a whole stream amounts to: exactly one `result` or `error`, last, ids that count up from 1."""
    events = read_events(content)
    names = [event.name for event in events]
    assert names[0] == "started"
    assert set(names[1:-1]) <= {"delta", "trace"}
    assert names[-1] in ("result", "error"), names[-3:]
    assert [event.id for event in events] == [str(n) for n in range(1, len(events) + 1)]
    last = events[-1]
    status = 200 if last.name == "result" else last.data["status"]
    outcome = Outcome(status, last.data, content.decode("utf-8"), headers, events)
    if last.name == "result":
        assert last.data["run_id"] == events[0].data["run_id"]
    if last.data.get("answer") is not None:
        assert outcome.deltas(last.data["steps"]) == last.data["answer"]
    return outcome
