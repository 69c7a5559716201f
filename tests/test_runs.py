"""Stored runs: "how did it come to that?" has an answer for every run, for its owner, as long as it is kept."""

import contextlib
import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

import runtime
from tests.conftest import MakeClient, MakeService, Store, path_of
from tests.support.scripted_model import ScriptedModel
from tests.support.waiting import until
from tests.support.ways import read_events

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


def listed(client: TestClient, key: str = "", **query: Any) -> dict[str, Any]:
    answer = client.get("/api/runs", params=query, headers=bearer(key) if key else {})
    assert answer.status_code == 200, answer.text
    page: dict[str, Any] = answer.json()
    return page


def kinds(record: dict[str, Any]) -> list[str]:
    return [event["type"] for event in record["events"]]


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


def commits(store: Store) -> int:
    return int(store.rows("SHOW GLOBAL STATUS LIKE 'Com_commit'")[0][1])


@pytest.fixture
def kept(client_for: MakeClient) -> TestClient:
    """The service that keeps runs."""
    return client_for(environ=KEPT)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as threads:
        yield threads


# ---------------------------------------------------------------------------------------- what is stored


def test_a_run_is_stored_in_the_commit_of_its_turn_and_nowhere_in_the_messages(
    kept: TestClient, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    model.says("Warm.").then_asks_for("calculator", **SUM).then_says("五。")
    chat(kept, conversation_id, "warm up")
    before = commits(store)
    body = chat(kept, conversation_id, "What is 2 + 3?")
    assert commits(store) - before == 1
    assert store.messages(conversation_id)[2:] == [("user", "What is 2 + 3?"), ("assistant", "五。")]
    record = record_of(kept, body["run_id"])
    assert (record["conversation_id"], record["turn"], record["question"]) == (conversation_id, 2, "What is 2 + 3?")
    assert (record["answer"], record["status"], record["stop_reason"]) == ("五。", "completed", "completed")
    assert (record["model"], record["mode"], record["error_code"]) == ("scripted", "real", None)
    assert kinds(record) == [
        "run_started", "model_request", "model_response", "tool_call", "tool_result", "model_request", "model_response",
        "run_stopped",
    ]  # fmt: skip
    assert record["events"][4]["details"] | {"duration_ms": 0} == {
        "call_id": "call_1", "tool": "calculator", "ok": True, "code": None, "text": "5", "duration_ms": 0
    }  # fmt: skip
    assert record["token_usage"] == {
        "input_tokens": 20, "output_tokens": 10, "total_tokens": 30, "rounds": 2, "rounds_recorded": 2
    }  # fmt: skip
    assert record["execution_budget"] == {
        "max_steps": 10, "steps": 2, "max_tool_calls": 30, "tool_calls": 1, "max_calls_of": {},
        "calls_of": {"calculator": 1},
    }  # fmt: skip
    assert record["tools"] == {"calculator": {"succeeded": 1, "failed": 0}}
    assert record["duration_ms"] >= record["model_duration_ms"] + record["tool_duration_ms"] > 0


def test_what_the_model_was_sent_can_be_rebuilt_from_the_record(
    kept: TestClient, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    model.says("一。").then_says("二。").then_asks_for("calculator", **SUM).then_says("五。")
    for message in ("first", "second"):
        chat(kept, conversation_id, message)
    record = record_of(kept, chat(kept, conversation_id, "third")["run_id"])
    carried = record["history"]
    assert carried == {"messages": 4, "first_id": 1, "last_id": 4, "left_out_turns": 0}
    rebuilt = [
        {"role": role, "content": content}
        for role, content in store.rows(
            "SELECT role, content FROM messages WHERE conversation_id = %s AND id BETWEEN %s AND %s ORDER BY id",
            conversation_id, carried["first_id"], carried["last_id"],
        )
    ]  # fmt: skip
    rebuilt.append({"role": "user", "content": record["question"]})
    for event in record["events"][:-3]:  # up to the last request
        details = event["details"]
        if event["type"] == "model_response":
            calls = [
                {"id": c["call_id"], "type": "function",
                 "function": {"name": c["tool"], "arguments": json.dumps(c["arguments"])}}
                for c in details["tool_calls"]
            ]  # fmt: skip
            rebuilt.append({"role": "assistant", "content": details["text"] or None, "tool_calls": calls})
        elif event["type"] == "tool_result":
            rebuilt.append({"role": "tool", "tool_call_id": details["call_id"], "content": details["text"]})
    sent = [{**m, "content": m.get("content") or None} for m in model.requests[-1]["messages"][1:]]
    assert sent == rebuilt
    assert [e["details"]["messages"] for e in record["events"] if e["type"] == "model_request"] == [6, 8]


def test_a_window_on_the_history_is_recorded_by_its_ids(
    client_for: MakeClient, model: ScriptedModel, conversation_id: str
) -> None:
    client = client_for(environ=KEPT, history_turns=1)
    model.says("a").then_says("b").then_says("c")
    last = [chat(client, conversation_id, message) for message in ("1", "2", "3")][-1]
    assert record_of(client, last["run_id"])["history"] == {
        "messages": 2, "first_id": 3, "last_id": 4, "left_out_turns": 1
    }  # fmt: skip


def test_a_run_that_stopped_early_is_stored_without_a_turn(
    kept: TestClient, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    model.asks_for("calculator", **SUM)
    body = chat(kept, conversation_id, max_tool_calls=0)
    record = record_of(kept, body["run_id"])
    assert (record["status"], record["stop_reason"], record["turn"]) == ("incomplete", "tool_call_limit", None)
    assert (record["answer"], record["notice"]) == (None, body["notice"])
    assert record["events"][-1]["details"]["blocked_call"]["arguments"] == SUM
    assert record["tools"] == {}
    assert store.messages(conversation_id) == []


def test_a_run_that_ended_in_an_error_keeps_what_had_happened(
    kept: TestClient, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    model.asks_for("calculator", **SUM).fails(401, "Incorrect API key provided: sk-test")
    body = chat(kept, conversation_id)
    record = record_of(kept, body["run_id"])
    assert (record["stop_reason"], record["error_code"], record["notice"]) == ("error", "model_unauthorized", None)
    assert kinds(record)[-4:] == ["tool_result", "model_request", "model_error", "run_stopped"]
    assert record["token_usage"] == {
        "input_tokens": 10, "output_tokens": 5, "total_tokens": 15, "rounds": 2, "rounds_recorded": 1
    }  # fmt: skip
    assert "sk-test" not in json.dumps(record)
    assert store.messages(conversation_id) == []


def test_the_loser_of_a_race_is_stored_as_a_conflict(
    kept: TestClient, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    def meanwhile(request: dict[str, Any]) -> dict[str, Any]:
        store.rows("UPDATE conversations SET turns = turns WHERE conversation_id = %s", conversation_id)
        store.rows(
            "INSERT INTO conversations (owner, conversation_id, turns, title) VALUES ('', %s, 1, 't')", conversation_id
        )
        message = {"role": "assistant", "content": "late"}
        return {"id": "1", "object": "chat.completion", "created": 1, "model": "scripted",
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}  # fmt: skip

    model.answers_by(meanwhile, forever=False)
    body = chat(kept, conversation_id)
    assert body["code"] == "turn_conflict"
    record = record_of(kept, body["run_id"])
    assert (record["stop_reason"], record["error_code"], record["turn"]) == ("error", "turn_conflict", None)


def test_nothing_is_stored_of_runs_unless_it_is_wanted(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    model.says("Hello.")
    body = chat(client, conversation_id)
    model.says("Hello.")
    client.post("/api/runs", json={"question": "outside?"})
    assert store.rows("SELECT 1 FROM runs WHERE conversation_id = %s", conversation_id) == []
    assert client.get(f"/api/runs/{body['run_id']}").status_code == 404


def test_a_record_is_bounded_and_stays_valid_json(
    client_for: MakeClient, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    client = client_for(environ=KEPT, **NOTES)
    for _ in range(2):
        model.asks_for_all(*[("note", {"text": "字" * 4_000}) for _ in range(15)])
    model.says("完" * 50_000)
    question = "问" * 30_000
    body = chat(client, conversation_id, question)
    assert body["tool_calls"] == 30
    ((size, text),) = store.rows(
        "SELECT LENGTH(record), record FROM run_records JOIN runs USING (id) WHERE run_id = %s", body["run_id"]
    )
    assert size < 1_000_000
    record = json.loads(text)
    assert record["tools"] == {"note": {"succeeded": 30, "failed": 0}}
    assert record["question"].startswith("问问") and "more characters not recorded" in record["question"]
    assert kinds(record)[0] == "run_started" and kinds(record)[-1] == "run_stopped"
    assert store.messages(conversation_id) == [("user", question), ("assistant", "完" * 50_000)]


def test_whole_results_are_kept_for_people_as_far_as_the_record_has_room(
    client_for: MakeClient, store: Store, model: ScriptedModel
) -> None:
    client = client_for(environ=KEPT, toolsets=("tests.support.run_tools",))
    for pages, kept in ((500, 50_000), (9_000, 100_000)):
        model.asks_for("look", pages=pages).then_asks_for("look", pages=2).then_says("Done.")
        record = record_of(client, client.post("/api/runs", json={"question": "Q"}).json()["run_id"])
        first, second = (event["details"] for event in record["events"] if event["type"] == "tool_result")
        assert (first["text"], second["record"]) == ("页" * 100, "页" * 200)
        assert first["record"].count("页") == kept
        assert ("more characters not recorded" in first["record"]) == (pages == 9_000)
        shown = [message["content"] for message in model.requests[-1]["messages"] if message["role"] == "tool"]
        assert shown == ["页" * 100] * 2


def test_a_result_that_is_cut_for_the_model_is_whole_in_the_record(
    client_for: MakeClient, model: ScriptedModel
) -> None:
    client = client_for(environ=KEPT, toolsets=("tests.support.run_tools",))
    model.asks_for("read", pages=300).then_asks_for("read", pages=200).then_says("Done.")
    record = record_of(client, client.post("/api/runs", json={"question": "Q"}).json()["run_id"])
    first, second = (event["details"] for event in record["events"] if event["type"] == "tool_result")
    assert "[cut here: 10000 more characters]" in first["text"] and first["record"] == "页" * 30_000
    assert len(second["text"]) == 20_000 and "record" not in second


def test_thousands_of_calls_in_one_reply_do_not_make_a_record_too_large(
    client_for: MakeClient, store: Store, model: ScriptedModel
) -> None:
    client = client_for(environ=KEPT, max_tool_calls=10_000)
    model.asks_for_all(*[("calculator", SUM | {"c": 4}) for _ in range(2000)])
    model.says("Done.")
    answer = client.post("/api/runs", json={"question": "Q", "max_tool_calls": 2000, "include_trace": False}).json()
    record = record_of(client, answer["run_id"])
    assert len(json.dumps(record, ensure_ascii=False).encode()) < 1_000_000
    assert record["events_left_out"] > 0
    assert record["tools"] == {"calculator": {"succeeded": 0, "failed": 2000}}


def test_odd_arguments_are_recorded_and_cost_no_turn(
    kept: TestClient, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    odd = ['{"a": NaN}', '{"a": 1e999}', '{"a": "\\ud800"}', '{"a": "\\u0000"}', "[]", "not json", '{"\\udfff": 1}']
    model.asks_for_all(*[("calculator", text) for text in odd]).then_says("ok")
    body = chat(kept, conversation_id)
    assert body["answer"] == "ok"
    record = record_of(kept, body["run_id"])
    assert record["tools"]["calculator"]["failed"] == len(odd)


def test_a_tools_own_stop_reason_is_recorded_whatever_it_is(client_for: MakeClient, model: ScriptedModel) -> None:
    client = client_for(environ=KEPT, toolsets=("tests.support.run_tools",))
    for reason in ("sql_recovery_stopped", "原因" * 40):
        model.asks_for("give_up", reason=reason)
        run_id = client.post("/api/runs", json={"question": "Q"}).json()["run_id"]
        record = record_of(client, run_id)
        assert record["stop_reason"] == reason
        assert record["events"][-1]["details"]["failure"]["call_id"]


# ------------------------------------------------------------------ only the run cannot be stored


@pytest.fixture
def fragile(client_for: MakeClient, fragile_store: Store) -> TestClient:
    """The service that keeps runs, on a database that a test may harm."""
    return client_for(environ=KEPT, **fragile_store.settings, **NOTES)


def set_packet(store: Store, size: int) -> int:
    """Another max_allowed_packet; the one before."""
    assert store.server
    with contextlib.closing(store.server.admin()) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT @@GLOBAL.max_allowed_packet")
        ((before,),) = cursor.fetchall()
        cursor.execute(f"SET GLOBAL max_allowed_packet = {size}")
        return int(before)


def test_a_table_that_is_missing_costs_the_run_and_not_the_turn(
    fragile: TestClient, fragile_store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    model.says("Kept.").then_says("Kept.").then_asks_for("note", text="x")
    for table in ("run_records", "runs"):
        fragile_store.rows(f"RENAME TABLE {table} TO away")
        try:
            body = chat(fragile, conversation_id, table)
            assert body["answer"] == "Kept."
            if table == "runs":
                early = chat(fragile, conversation_id, "early", max_steps=1)
                assert early["stop_reason"] == "max_steps"
        finally:
            fragile_store.rows(f"RENAME TABLE away TO {table}")
        assert fragile.get(f"/api/runs/{body['run_id']}").status_code == 404
    assert len(fragile_store.messages(conversation_id)) == 4
    assert fragile_store.rows("SELECT 1 FROM runs") == []  # no half of a run either


def test_a_record_larger_than_the_server_takes_costs_the_run_and_not_the_turn(
    client_for: MakeClient, fragile_store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    before = set_packet(fragile_store, 65_536)
    try:
        client = client_for(environ=KEPT, **fragile_store.settings, **NOTES)
        for _ in range(2):
            model.asks_for_all(*[("note", {"text": "x" * 20_000}) for _ in range(4)]).then_says("Small.")
            assert chat(client, conversation_id)["answer"] == "Small."
    finally:
        set_packet(fragile_store, before)
    assert len(fragile_store.messages(conversation_id)) == 4
    assert fragile_store.rows("SELECT 1 FROM runs WHERE conversation_id = %s", conversation_id) == []


def test_somebody_who_locks_the_runs_costs_the_run_and_not_the_turn(
    fragile: TestClient, fragile_store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    model.says("Before.").then_says("Kept.")
    chat(fragile, conversation_id)
    locker = fragile_store.connect()
    try:
        locker.begin()
        locker.cursor().execute("SELECT * FROM runs FOR UPDATE")
        assert chat(fragile, conversation_id)["answer"] == "Kept."
    finally:
        locker.close()
    assert len(fragile_store.messages(conversation_id)) == 4
    assert fragile_store.rows("SELECT turn FROM runs WHERE conversation_id = %s", conversation_id) == [(1,)]


# ---------------------------------------------------------------------------------------- looking and removing


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


# ---------------------------------------------------------------------------------------- /api/runs


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


# ---------------------------------------------------------------------------------------- cancelling


WAITING = ("tests.support.run_tools",)


def test_a_cancelled_run_stops_before_its_next_step_and_stores_no_message(
    client_for: MakeClient,
    store: Store,
    model: ScriptedModel,
    conversation_id: str,
    tmp_path: Path,
    pool: ThreadPoolExecutor,
) -> None:
    client = client_for(environ=KEPT | KEYS, toolsets=WAITING)
    file = tmp_path / "run"
    model.asks_for("wait", file=str(file))
    turn = pool.submit(chat, client, conversation_id, "Wait", ALICE)
    until(file.exists)
    run_id = file.read_text()
    wrong = client.post(f"/api/runs/{run_id}/cancel", headers=bearer(BOB))
    assert (wrong.status_code, wrong.json()["status"]) == (202, "asked")
    right = client.post(f"/api/runs/{run_id}/cancel", headers=bearer(ALICE))
    assert (right.status_code, right.json()) == (202, {"run_id": run_id, "status": "stopping"})
    file.unlink()
    body = turn.result()
    assert (body["stop_reason"], body["answer"], body["status"]) == ("cancelled", None, "incomplete")
    assert body["notice"]
    assert store.messages(conversation_id, "alice") == []
    record = record_of(client, run_id, ALICE)
    assert (record["stop_reason"], record["turn"]) == ("cancelled", None)
    assert record["tools"] == {"wait": {"succeeded": 1, "failed": 0}}


def test_a_run_cancelled_while_the_model_writes_its_answer_stores_no_message(
    service_for: MakeService, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    model.says("Unwanted and long in coming.", gap_s=0.2)
    service = service_for(**KEPT)
    body = {"conversation_id": conversation_id, "message": "Hi"}
    with service.http.stream("POST", "/chat/stream", json=body) as answer:
        received = b""
        for piece in answer.iter_bytes():
            begun, received = b"event: delta" in received, received + piece
            if not begun and b"event: delta" in received:
                run_id = json.loads(received.split(b"data: ")[1].split(b"\n")[0])["run_id"]
                assert service.http.post(f"/api/runs/{run_id}/cancel").json()["status"] == "stopping"
    last = read_events(received)[-1]
    assert (last.name, last.data["stop_reason"]) == ("result", "cancelled")
    assert store.messages(conversation_id) == []
    record = service.http.get(f"/api/runs/{run_id}").json()
    assert (record["stop_reason"], record["answer"]) == ("cancelled", None)
    assert record["events"][-2]["details"]["text"] == "Unwanted and long in coming."  # that it was said is kept


def test_a_run_is_cancelled_from_another_process_by_its_owner_only(
    service_for: MakeService,
    store: Store,
    model: ScriptedModel,
    conversation_id: str,
    tmp_path: Path,
    pool: ThreadPoolExecutor,
) -> None:
    environment = KEPT | KEYS | {"TOOLSETS": WAITING[0]}
    here, there = pool.map(lambda _: service_for(**environment), range(2))
    file = tmp_path / "run"
    model.asks_for("wait", file=str(file)).then_asks_for("wait", file=str(file))
    body = {"conversation_id": conversation_id, "message": "Wait"}
    turn = pool.submit(here.http.post, "/chat", json=body, headers=bearer(ALICE))
    until(file.exists)
    run_id = file.read_text()
    assert there.http.post(f"/api/runs/{run_id}/cancel", headers=bearer(BOB)).json()["status"] == "asked"
    time.sleep(2)  # longer than a process takes to notice
    file.unlink()
    model.wait_for_requests(2)  # it went on
    until(file.exists)
    assert there.http.post(f"/api/runs/{run_id}/cancel", headers=bearer(ALICE)).json()["status"] == "asked"
    time.sleep(4)
    file.unlink()
    assert turn.result().json()["stop_reason"] == "cancelled"
    assert store.messages(conversation_id, "alice") == []
    assert there.http.get(f"/api/runs/{run_id}", headers=bearer(ALICE)).json()["stop_reason"] == "cancelled"


def test_cancelling_a_run_that_has_ended_changes_nothing(
    kept: TestClient, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    model.says("Done.").then_says("Again.")
    run_id = chat(kept, conversation_id)["run_id"]
    for _ in range(2):
        assert kept.post(f"/api/runs/{run_id}/cancel").json()["status"] == "asked"
    assert record_of(kept, run_id)["stop_reason"] == "completed"
    assert chat(kept, conversation_id)["answer"] == "Again."


# ---------------------------------------------------------------------------------------- recall


RECALL = {"toolsets": ("recall", "tests.support.recording_tools")}


def tool_messages(model: ScriptedModel, request: int = -1) -> list[str]:
    return [m["content"] for m in model.requests[request]["messages"] if m["role"] == "tool"]


def test_the_model_reads_in_a_later_turn_what_a_tool_returned_in_an_earlier_one(
    client_for: MakeClient, model: ScriptedModel, conversation_id: str
) -> None:
    client = client_for(environ=KEPT, **RECALL)
    model.asks_for("note", text="订单 4711").then_says("Noted.")
    model.says("Nothing used.")
    model.asks_for("recall_run").then_asks_for("recall_run", turn=1).then_asks_for("recall_run", turn=2).then_says("ok")
    chat(client, conversation_id, "note it")
    chat(client, conversation_id, "talk")
    chat(client, conversation_id, "what was it?")
    newest, first, second = tool_messages(model)
    assert json.loads(newest) == json.loads(first)
    assert json.loads(first) == [
        {
            "turn": 1,
            "question": "note it",
            "tools": [{"tool": "note", "arguments": {"text": "订单 4711"}, "result": "noted: 订单 4711"}],
        }
    ]
    assert second == "No tool results of earlier turns are kept for this conversation."


def test_recall_shows_no_other_owners_and_no_other_conversations_runs(
    client_for: MakeClient, model: ScriptedModel, conversation_id: str
) -> None:
    client = client_for(environ=KEPT | KEYS, **RECALL)
    model.asks_for("note", text="secret of Alice").then_says("Noted.")
    chat(client, conversation_id, "note it", ALICE)
    for name, key in ((conversation_id, BOB), (conversation_id + "2", ALICE), (conversation_id.upper(), ALICE)):
        model.asks_for("recall_run").then_asks_for("recall_run", turn=1).then_says("Nothing.")
        chat(client, name, "what was it?", key)
        assert tool_messages(model) == ["No tool results of earlier turns are kept for this conversation."] * 2
    model.asks_for("recall_run").then_says("Nothing.")
    client.post("/api/runs", json={"question": "outside"}, headers=bearer(ALICE))
    assert tool_messages(model) == ["No tool results of earlier turns are kept for this conversation."]
    # The arguments cannot widen it.
    model.asks_for("recall_run", owner="alice").then_asks_for("recall_run", turn="1 OR 1=1").then_says("Nothing.")
    chat(client, conversation_id, "and now?", BOB)
    assert "secret" not in str(tool_messages(model))


def test_recall_is_bounded_and_leaves_out_what_was_not_stored(
    client_for: MakeClient, model: ScriptedModel, conversation_id: str
) -> None:
    client = client_for(environ=KEPT, max_tool_calls=100, **RECALL)
    model.asks_for("note", text="unfinished")
    chat(client, conversation_id, max_tool_calls=0)
    for turn in range(7):
        model.asks_for_all(*[("note", {"text": f"turn {turn + 1} " + "长" * 1_500})] * 20).then_says("Noted.")
        chat(client, conversation_id)
    model.asks_for("recall_run").then_says("ok")
    chat(client, conversation_id)
    (told,) = tool_messages(model)
    assert len(told) < 8_100
    assert "turn 7" in told and "unfinished" not in told
    assert told.endswith("more characters]")


def test_recall_after_the_conversation_was_deleted_finds_nothing_of_the_one_before(
    client_for: MakeClient, model: ScriptedModel, conversation_id: str
) -> None:
    client = client_for(environ=KEPT, **RECALL)
    model.asks_for("note", text="gone").then_says("Noted.").then_asks_for("recall_run").then_says("Nothing.")
    chat(client, conversation_id)
    client.delete(path_of(conversation_id))
    chat(client, conversation_id)
    assert tool_messages(model) == ["No tool results of earlier turns are kept for this conversation."]


# ---------------------------------------------------------------------------------------- statistics


def statistics_of(client: TestClient, key: str = ALICE) -> dict[str, Any]:
    answer = client.get("/api/statistics", headers=bearer(key))
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


@pytest.fixture
def counting(
    client_for: MakeClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: Store
) -> Iterator[TestClient]:
    """The service with an owner who has no runs yet, who may see the statistics, in a folder without files."""
    from access.keys import hash_of

    store.rows("DELETE FROM runs WHERE owner IN ('alice', 'bob')")
    keys = tmp_path / "keys.toml"
    keys.write_text(f'[[key]]\nname = "alice"\nhash = "{hash_of(ALICE)}"\nmay = ["statistics"]\n', encoding="utf-8")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    yield client_for(environ=KEPT | {"API_KEYS": f"bob:{BOB}", "API_KEYS_FILE": str(keys)})


def test_statistics_count_what_was_recorded_and_nothing_else(
    counting: TestClient, model: ScriptedModel, conversation_id: str
) -> None:
    model.asks_for_all(("calculator", SUM), ("calculator", {"a": 1}), ("nothing", {})).then_says("5.")
    model.says("No usage.", usage=None)
    model.asks_for_all(("calculator", SUM), ("calculator", SUM))
    model.fails(401)
    for more in ({}, {}, {"max_tool_calls": 1}, {}):
        chat(counting, conversation_id, key=ALICE, **more)
    found = statistics_of(counting)
    assert "not measured" in found["note"] and "right" in found["note"]
    assert list(found["groups"]) == ["real", "demo", "unknown"]
    real = found["groups"]["real"]
    assert (real["runs"], real["completed"], real["completed_ratio"]) == (4, 2, 0.5)
    assert real["stop_reasons"] == {"completed": 2, "tool_call_limit": 1, "error": 1}
    # The call over the limit was not carried out and is not counted; the failed ones are.
    assert real["tools"] == {"calculator": {"succeeded": 2, "failed": 1}, "nothing": {"succeeded": 0, "failed": 1}}
    assert real["means"]["tool_calls"] == {"mean": 1.0, "runs": 4}
    assert real["means"]["steps"] == {"mean": 1.25, "runs": 4}
    assert real["means"]["duration_ms"]["runs"] == 4 and real["means"]["duration_ms"]["mean"] > 0
    assert real["tokens_recorded"] == {"input_tokens": 30, "output_tokens": 15, "total_tokens": 45}
    assert real["runs_with_tokens"] == 2  # unknown is not zero
    empty = found["groups"]["demo"]
    assert (empty["runs"], empty["completed_ratio"], empty["tokens_recorded"]["total_tokens"]) == (0, None, None)
    assert empty["means"]["duration_ms"] == {"mean": None, "runs": 0}
    assert found["files"] == {"counted": 0, "left_out": 0}


def test_runs_of_the_demo_model_are_kept_apart_whatever_model_was_named(
    client_for: MakeClient, store: Store, model: ScriptedModel
) -> None:
    store.rows("DELETE FROM runs WHERE owner = 'alice'")
    client = client_for(environ=KEPT | KEYS, default_model="demo")
    model.echoes()
    for more in ({}, {"model": "gpt-4"}):
        client.post("/api/runs", json={"question": "Q", **more}, headers=bearer(ALICE))
    groups = client.get("/api/statistics", headers=bearer(ALICE)).json()["groups"]
    assert {mode: group["runs"] for mode, group in groups.items()} == {"real": 0, "demo": 2, "unknown": 0}


def test_statistics_change_nothing_and_ask_no_model(
    counting: TestClient, store: Store, model: ScriptedModel, tmp_path: Path
) -> None:
    before = store.rows("SELECT * FROM runs ORDER BY id")
    written = [int(store.rows(f"SHOW GLOBAL STATUS LIKE 'Com_{kind}'")[0][1]) for kind in ("insert", "update")]
    statistics_of(counting)
    assert store.rows("SELECT * FROM runs ORDER BY id") == before
    assert written == [int(store.rows(f"SHOW GLOBAL STATUS LIKE 'Com_{kind}'")[0][1]) for kind in ("insert", "update")]
    assert model.requests == []
    assert list((tmp_path / "here").iterdir()) == []


# ------------------------------------------------------------------ run files


def a_run(**more: Any) -> dict[str, Any]:
    """A run file that says little."""
    return {"run_id": None, "stop_reason": "completed", "events": [{"type": "run_started", "details": {}}], **more}


OLD = {  # without id, mode, times and summary
    "question": "请列出数据库中的交通机构",
    "events": [
        {"type": "tool_result", "step": 1, "details": {"tool": "run_sql", "ok": True}},
        {"type": "tool_result", "step": 2, "details": {"tool": "run_sql", "error": {"code": "syntax"}}},
        {"type": "run_stopped", "step": 2, "details": {"stop_reason": "max_steps"}},
    ],
}


def put(name: str, content: Any) -> Path:
    file = Path("artifacts", name)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return file


def test_run_files_are_counted_once_for_each_run_and_old_ones_each(counting: TestClient, model: ScriptedModel) -> None:
    model.says("Stored.")
    stored = counting.post("/api/runs", json={"question": "Q"}, headers=bearer(ALICE)).json()["run_id"]
    put("stored.json", record_of(counting, stored, ALICE))
    put("a/one.json", a_run(run_id="r-1", mode="demo", duration_ms=10, token_usage={"total_tokens": 7}))
    put("b/c/one-again.json", a_run(run_id="r-1", mode="demo", duration_ms=10))
    put("old-1.json", OLD)
    put("old-2.json", OLD)
    found = statistics_of(counting)
    assert found["files"] == {"counted": 3, "left_out": 0}
    assert found["groups"]["real"]["runs"] == 1
    demo, unknown = found["groups"]["demo"], found["groups"]["unknown"]
    assert (demo["runs"], demo["means"]["duration_ms"]) == (1, {"mean": 10.0, "runs": 1})
    assert demo["tokens_recorded"] == {"input_tokens": None, "output_tokens": None, "total_tokens": 7}
    assert (unknown["runs"], unknown["stop_reasons"]) == (2, {"max_steps": 2})
    assert unknown["tools"] == {"run_sql": {"succeeded": 2, "failed": 2}}
    assert unknown["means"]["steps"] == {"mean": None, "runs": 0}


HOSTILE = [
    b"",
    b"{",
    b"[]",
    b"null",
    b"\xff\xfe\x00",
    b"[" * 100_000,
    b'{"events": []}',
    b'{"events": [{"type": "schema_retrieval", "details": {}}], "stop_reason": "completed"}',
    b'{"events": "run_started"}',
    b'{"n": ' + b"9" * 5_000 + b"}",
]


def test_what_is_no_run_file_is_left_out(counting: TestClient, tmp_path: Path) -> None:
    for number, content in enumerate(HOSTILE):
        put(f"{number}.json", content)
    put("large.json", json.dumps(a_run(question="x" * 2_000_000)).encode())
    put("not-json.txt", a_run())
    assert statistics_of(counting)["files"] == {"counted": 0, "left_out": len(HOSTILE) + 1}


def test_odd_values_in_a_run_file_are_not_recorded_values(counting: TestClient) -> None:
    text = json.dumps(a_run(mode="\ud800", stop_reason="\ud800\n原因" * 90, tools={"\ud800,:" * 9: {"succeeded": 1}}))
    text = text.replace('"run_id": null', '"duration_ms": NaN, "run_id": 1e999, "model_duration_ms": 1e999')
    put("odd.json", text.encode())
    huge = 10**400
    put("huge.json", a_run(execution_budget={"steps": huge, "tool_calls": True}, token_usage={"total_tokens": -1}))
    put("types.json", a_run(events=[7, {"type": "tool_result", "details": [1]}, {"type": []}], tools=[], mode=["real"]))
    found = statistics_of(counting)
    assert found["files"] == {"counted": 3, "left_out": 0}
    unknown = found["groups"]["unknown"]
    assert unknown["runs"] == 3
    assert {mean["runs"] for mean in unknown["means"].values()} == {0}
    assert unknown["runs_with_tokens"] == 0


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_links_and_pipes_are_not_followed(counting: TestClient, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "run.json").write_text(json.dumps(a_run()))
    put("mine.json", a_run())
    Path("artifacts/file.json").symlink_to(outside / "run.json")
    Path("artifacts/folder").symlink_to(outside)
    Path("artifacts/loop").symlink_to(".")
    os.mkfifo("artifacts/pipe.json")
    assert statistics_of(counting)["files"] == {"counted": 1, "left_out": 0}


def test_the_number_of_files_that_are_read_is_bounded(counting: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    from runs import files

    monkeypatch.setattr(files, "MAX_FILES", 5)
    monkeypatch.setattr(files, "MAX_LOOKED_AT", 12)
    for number in range(20):
        put(f"{number:02}.json", a_run())
    assert statistics_of(counting)["files"] == {"counted": 5, "left_out": 7}


def test_run_files_are_for_those_who_may_see_the_statistics(counting: TestClient, client: TestClient) -> None:
    put("one.json", a_run(mode="real"))
    assert statistics_of(counting, ALICE)["groups"]["real"]["runs"] == 1
    theirs = statistics_of(counting, BOB)
    assert (theirs["files"], theirs["groups"]["real"]["runs"]) == (None, 0)
    assert client.get("/api/statistics").json()["files"] == {"counted": 1, "left_out": 0}  # no keys: everybody may
