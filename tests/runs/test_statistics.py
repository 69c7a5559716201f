"""Figures over many runs."""

from pathlib import Path

from fastapi.testclient import TestClient

from tests.conftest import MakeClient, Store
from tests.support.runs import ALICE, KEPT, KEYS, SUM, bearer, chat, statistics_of
from tests.support.scripted_model import ScriptedModel


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
