"""Runs written to files."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.support.runs import ALICE, BOB, bearer, record_of, statistics_of
from tests.support.scripted_model import ScriptedModel


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
