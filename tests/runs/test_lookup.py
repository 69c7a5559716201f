"""Runs are looked at and removed by their owners, under /api/runs and beside conversations."""

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from fastapi.testclient import TestClient

import runtime
from tests.conftest import MakeClient, Store, path_of
from tests.support.runs import ALICE, BOB, KEPT, KEYS, SUM, bearer, chat, record_of
from tests.support.scripted_model import ScriptedModel
from tests.support.waiting import until
from tests.support.ways import read_events


def listed(client: TestClient, key: str = "", **query: Any) -> dict[str, Any]:
    answer = client.get("/api/runs", params=query, headers=bearer(key) if key else {})
    assert answer.status_code == 200, answer.text
    page: dict[str, Any] = answer.json()
    return page


def places_of(store: Store, text: str) -> list[str]:
    """Every table and column of the whole schema in which a text stands."""
    columns = store.rows(
        "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = DATABASE() "
        "AND data_type IN ('varchar', 'char', 'text', 'mediumtext', 'longtext', 'json')"
    )
    assert ("run_records", "record") in columns and ("messages", "content") in columns
    return [
        f"{table}.{column}"
        for table, column in columns
        if store.rows(f"SELECT 1 FROM `{table}` WHERE INSTR(CONVERT(`{column}` USING utf8mb4), %s) LIMIT 1", text)
    ]


def test_a_run_is_its_owners_alone(
    client_for: MakeClient, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    client = client_for(environ=KEPT | KEYS)
    model.says("Plum.")
    run_id = chat(client, conversation_id, "secret", ALICE)["run_id"]
    nobodys = "0198aaaa-0000-7000-8000-000000000000"
    for method in ("GET", "DELETE"):
        theirs = client.request(method, f"/api/runs/{run_id}", headers=bearer(BOB))
        assert (theirs.status_code, theirs.json()["code"]) == (404, "not_found")
        assert theirs.text == client.request(method, f"/api/runs/{nobodys}", headers=bearer(BOB)).text
        assert client.request(method, f"/api/runs/{run_id}").status_code == 401
    assert listed(client, BOB)["data"] == []
    assert listed(client, BOB, conversation_id=conversation_id)["data"] == []
    stats = client.get("/api/statistics", headers=bearer(BOB)).json()
    assert [group["runs"] for group in stats["groups"].values()] == [0, 0, 0]
    assert record_of(client, run_id, ALICE)["answer"] == "Plum."


def test_deleting_a_run_leaves_the_messages(
    kept: TestClient, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    model.says("Stays.")
    run_id = chat(kept, conversation_id)["run_id"]
    assert kept.delete(f"/api/runs/{run_id}").status_code == 204
    assert kept.delete(f"/api/runs/{run_id}").status_code == 404
    assert places_of(store, run_id) == ["messages.run_id"]
    assert len(store.messages(conversation_id)) == 2


def test_deleting_a_conversation_leaves_its_name_nowhere(
    kept: TestClient, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    model.says("One.").then_asks_for("calculator", **SUM).fails(401)
    chat(kept, conversation_id, f"I say {conversation_id}")
    chat(kept, conversation_id, max_steps=1)
    chat(kept, conversation_id)
    assert len(listed(kept, conversation_id=conversation_id)["data"]) == 3
    assert len(places_of(store, conversation_id)) > 3
    assert kept.delete(path_of(conversation_id)).status_code == 204
    assert places_of(store, conversation_id) == []
    orphans = "SELECT 1 FROM run_records LEFT JOIN runs USING (id) WHERE runs.id IS NULL"
    assert store.rows(orphans) == []


def test_a_turn_under_way_when_its_conversation_is_deleted_leaves_no_run_of_it(
    kept: TestClient, store: Store, model: ScriptedModel, conversation_id: str, pool: ThreadPoolExecutor
) -> None:
    model.says("One.").then_says("Late.", delay_s=0.5)
    chat(kept, conversation_id)
    late = pool.submit(chat, kept, conversation_id, f"again {conversation_id}")
    model.wait_for_requests(2)
    assert kept.delete(path_of(conversation_id)).status_code == 204
    assert late.result()["code"] == "turn_conflict"
    assert places_of(store, conversation_id) == []


def test_runs_are_kept_for_their_days_and_no_longer(
    client_for: MakeClient,
    store: Store,
    model: ScriptedModel,
    conversation_id: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runtime, "HOUSEKEEPING_S", 0.1)
    client = client_for(environ=KEPT)
    model.says("Old.").then_says("Older than nothing.").then_says("New.")
    old, nearly, new = [chat(client, conversation_id)["run_id"] for _ in range(3)]
    for run_id, days in ((old, 7.01), (nearly, 6.99)):
        at = datetime.now(UTC) - timedelta(days=days)
        store.rows("UPDATE runs SET started_at = %s WHERE run_id = %s", at.replace(tzinfo=None), run_id)
    store.rows("INSERT INTO run_cancellations VALUES (%s, '', NOW(6) - INTERVAL 2 HOUR)", old)
    until(lambda: client.get(f"/api/runs/{old}").status_code == 404)
    until(lambda: not store.rows("SELECT 1 FROM run_cancellations WHERE run_id = %s", old))
    assert places_of(store, old) == ["messages.run_id"]
    assert record_of(client, nearly)["answer"] == "Older than nothing."
    assert record_of(client, new)["answer"] == "New."
    assert len(store.messages(conversation_id)) == 6


def test_the_list_is_newest_first_and_its_pages_hold_while_runs_come_and_go(
    kept: TestClient, model: ScriptedModel, conversation_id: str
) -> None:
    model.echoes()
    ids = [chat(kept, conversation_id, f"question {n}")["run_id"] for n in range(7)]
    seen, after = [], None
    while True:
        page = listed(kept, conversation_id=conversation_id, limit=3, **({"after": after} if after else {}))
        seen += [run["run_id"] for run in page["data"]]
        assert page["has_more"] == (page["next"] is not None)
        if not page["has_more"]:
            break
        after = page["next"]
        chat(kept, conversation_id, "one more")
        kept.delete(f"/api/runs/{seen[-1]}")  # where the cursor stands
    assert seen == ids[::-1]
    newest = listed(kept, limit=1)["data"][0]
    assert newest["question"] == "one more"
    assert (newest["turn"], newest["status"], newest["total_tokens"], newest["tool_calls"]) == (9, "completed", 15, 0)
    assert datetime.fromisoformat(newest["started_at"]).tzinfo is not None


def test_the_list_is_filtered_by_how_runs_ended(kept: TestClient, model: ScriptedModel, conversation_id: str) -> None:
    model.says("ok").fails(401).asks_for("calculator", **SUM)
    chat(kept, conversation_id)
    chat(kept, conversation_id)
    chat(kept, conversation_id, max_steps=1)
    for reason in ("completed", "error", "max_steps"):
        (run,) = listed(kept, conversation_id=conversation_id, stop_reason=reason)["data"]
        assert run["stop_reason"] == reason
    assert listed(kept, conversation_id=conversation_id, stop_reason="timeout")["data"] == []


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=201", "after=xyz", "after=YzE", "stop_reason=A'--", "conversation_id=%20", "limit=a"]
)
def test_a_list_that_cannot_be_read_is_refused(kept: TestClient, query: str) -> None:
    answer = kept.get(f"/api/runs?{query}")
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")


@pytest.mark.parametrize("run_id", ["x", "0" * 36 + "1", "Z" * 36])
def test_what_is_no_run_id_is_refused(kept: TestClient, run_id: str) -> None:
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/cancel")):
        assert kept.request(method, f"/api/runs/{run_id}{path}").status_code == 422


def test_a_question_outside_any_conversation_is_answered_and_leaves_no_message(
    kept: TestClient, store: Store, model: ScriptedModel
) -> None:
    model.asks_for("calculator", **SUM).then_says("5.")
    before = store.rows("SELECT COUNT(*) FROM messages")
    body = kept.post("/api/runs", json={"question": "2 + 3?"}).json()
    assert (body["answer"], body["conversation_id"], body["turn"], body["status"]) == ("5.", None, None, "completed")
    assert [event["type"] for event in body["trace"]][-1] == "run_stopped"
    budget = body["trace"][-1]["details"]["execution_budget"]
    assert (budget["max_steps"], budget["max_tool_calls"]) == (4, 8)
    assert store.rows("SELECT COUNT(*) FROM messages") == before
    record = record_of(kept, body["run_id"])
    assert (record["answer"], record["conversation_id"], record["turn"]) == ("5.", None, None)
    assert record["events"] == body["trace"]
    assert record["history"] == {"messages": 0, "first_id": None, "last_id": None, "left_out_turns": 0}


def test_a_question_has_four_rounds_and_eight_tool_calls_unless_it_says_otherwise(
    kept: TestClient, model: ScriptedModel
) -> None:
    for _ in range(4):
        model.asks_for("calculator", **SUM)
    body = kept.post("/api/runs", json={"question": "Q"}).json()
    assert (body["stop_reason"], body["steps"], body["tool_calls"]) == ("max_steps", 4, 3)
    model.asks_for_all(*[("calculator", SUM)] * 9)
    body = kept.post("/api/runs", json={"question": "Q"}).json()
    assert (body["stop_reason"], body["steps"], body["tool_calls"]) == ("tool_call_limit", 1, 8)
    model.asks_for_all(*[("calculator", SUM)] * 9).then_says("ok")
    body = kept.post("/api/runs", json={"question": "Q", "max_tool_calls": 9}).json()
    assert (body["answer"], body["tool_calls"]) == ("ok", 9)


def test_a_question_within_a_conversation_becomes_a_turn_of_it(
    kept: TestClient, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    model.says("One.").then_says("Two.")
    chat(kept, conversation_id, "first")
    body = kept.post("/api/runs", json={"question": "second", "conversation_id": conversation_id}).json()
    assert (body["turn"], body["conversation_id"]) == (2, conversation_id)
    assert "One." in str(model.requests[1])
    assert store.messages(conversation_id)[2:] == [("user", "second"), ("assistant", "Two.")]


def test_a_question_is_streamed_event_by_event_and_the_result_comes_after_the_run_is_stored(
    kept: TestClient, model: ScriptedModel
) -> None:
    model.asks_for("calculator", **SUM).then_says("It is 5.")
    answer = kept.post("/api/runs/stream", json={"question": "2 + 3?"})
    events = read_events(answer.content)
    assert [event.name for event in events if event.name != "delta"] == ["started", *["trace"] * 8, "result"]
    result = events[-1].data
    assert "".join(e.data["text"] for e in events if e.name == "delta" and e.data["step"] == 2) == "It is 5."
    record = record_of(kept, result["run_id"])
    assert [event.data for event in events if event.name == "trace"] == record["events"] == result["trace"]


def test_a_question_that_fails_is_told_in_the_stream_and_stored(kept: TestClient, model: ScriptedModel) -> None:
    model.asks_for("calculator", **SUM).fails(401)
    events = read_events(kept.post("/api/runs/stream", json={"question": "Q"}).content)
    assert (events[-1].name, events[-1].data["code"]) == ("error", "model_unauthorized")
    assert record_of(kept, events[-1].data["run_id"])["tools"] == {"calculator": {"succeeded": 1, "failed": 0}}


BAD = [
    {},
    {"question": ""},
    {"question": " \n"},
    {"question": "a\0b"},
    {"question": "Q", "message": "Q"},
    {"question": "Q", "max_steps": 0},
    {"question": "Q", "max_tool_calls": -1},
    {"question": "Q", "max_steps": "4"},
    {"question": "Q", "conversation_id": " a"},
    {"question": "Q", "model": ""},
    {"question": "Q", "model": "\ud800"},
    {"question": "字" * 101},
]


@pytest.mark.parametrize("body", BAD, ids=lambda body: ascii(body)[:40])
def test_both_ways_of_asking_have_the_same_rules(client_for: MakeClient, body: dict[str, Any]) -> None:
    client = client_for(environ=KEPT, max_message_chars=100)
    for path in ("/api/runs", "/api/runs/stream"):
        answer = client.post(path, content=json.dumps(body), headers={"content-type": "application/json"})
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
