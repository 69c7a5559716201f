"""A run is cancelled between its steps, by its owner, from whichever process."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fastapi.testclient import TestClient

from tests.conftest import MakeClient, MakeService, Store
from tests.support.runs import ALICE, BOB, KEPT, KEYS, bearer, chat, record_of
from tests.support.scripted_model import ScriptedModel
from tests.support.waiting import until
from tests.support.ways import read_events

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
