"""Callers with keys, their turns, and the records of their runs."""

from typing import Any

from fastapi.testclient import TestClient

KEPT = {"TRACE_RETENTION_DAYS": "7"}

ALICE, BOB = "key-of-alice-123456", "key-of-bob-1234567"

KEYS = {"API_KEYS": f"alice:{ALICE},bob:{BOB}"}

SUM = {"a": 2, "b": 3, "operation": "add"}

NOTES = {"toolsets": ("tests.support.recording_tools",)}


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def chat(client: TestClient, conversation_id: str, message: str = "Hi", key: str = "", **more: Any) -> dict[str, Any]:
    body = {"conversation_id": conversation_id, "message": message, **more}
    answer = client.post("/chat", json=body, headers=bearer(key) if key else {})
    found: dict[str, Any] = answer.json()
    return found


def record_of(client: TestClient, run_id: str, key: str = "") -> dict[str, Any]:
    answer = client.get(f"/api/runs/{run_id}", headers=bearer(key) if key else {})
    assert answer.status_code == 200, answer.text
    record: dict[str, Any] = answer.json()
    return record


def statistics_of(client: TestClient, key: str = ALICE) -> dict[str, Any]:
    answer = client.get("/api/statistics", headers=bearer(key))
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found
