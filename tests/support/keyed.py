"""Requests with an `Idempotency-Key`, their answers, and what MySQL holds of both."""

import json
from dataclasses import dataclass
from typing import Any

import httpx2
from fastapi.testclient import TestClient

from tests.conftest import Store
from tests.support.scripted_model import Json
from tests.support.ways import read_events

Reply = httpx2.Response
Http = TestClient | httpx2.Client

CONFLICT = 409, "turn_conflict"
IN_PROGRESS = 409, "request_in_progress"
MISMATCH = 422, "idempotency_mismatch"
INVALID = 422, "invalid_request"
UNAVAILABLE = 503, "store_unavailable"


def post(http: Http, way: str, body: Json, key: str) -> Reply:
    headers = {"Idempotency-Key": key, "Content-Type": "application/json"}
    return http.post(way, content=json.dumps(body), headers=headers)  # escaped, so that anything can be sent


def chat(http: Http, conversation_id: str, message: str, key: str, **more: Any) -> Reply:
    return post(http, "/chat", {"conversation_id": conversation_id, "message": message, **more}, key)


def body_of(answer: Reply) -> str:
    """The text of an answer's body; of a stream, that of its `result`, or of its `error`."""
    if not answer.headers["content-type"].startswith("text/event-stream"):
        return answer.text
    last = answer.content.rstrip(b"\n").rpartition(b"\n")[2]
    assert read_events(answer.content)[-1].name in ("result", "error")
    return last.removeprefix(b"data: ").decode()


def is_replay(answer: Reply) -> bool:
    """Whether an answer says that it is an earlier one."""
    assert answer.headers.get("idempotency-replayed") in (None, "true")
    return answer.status_code == 200 and "idempotency-replayed" in answer.headers


def refused(answer: Reply) -> tuple[int, str]:
    """Status and code of an answer that is an error, of a stream too."""
    problem = json.loads(body_of(answer))
    assert "idempotency-replayed" not in answer.headers
    return problem["status"], problem["code"]


@dataclass(frozen=True)
class Row:
    """What the table holds of a key."""

    state: str
    answer: str | None
    run_id: str
    conversation_id: str


def key_row(store: Store, key: str, owner: str = "") -> Row | None:
    """The row of a key, None where there is none."""
    columns = "state, answer, run_id, conversation_id"
    rows = store.rows(f"SELECT {columns} FROM idempotency_keys WHERE owner = %s AND name = %s", owner, key)
    return Row(*rows[0]) if rows else None


def end_lease(store: Store, key: str) -> None:
    store.rows("UPDATE idempotency_keys SET leased_until = NOW(6) - INTERVAL 1 SECOND WHERE name = %s", key)


def expire(store: Store, key: str) -> None:
    store.rows("UPDATE idempotency_keys SET expires_at = NOW(6) - INTERVAL 1 SECOND WHERE name = %s", key)
