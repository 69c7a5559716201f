"""What is stored of a run, in the transaction of its turn."""

import json
from typing import Any

from fastapi.testclient import TestClient

from tests.conftest import MakeClient, Store
from tests.support.runs import KEPT, NOTES, SUM, chat, record_of
from tests.support.scripted_model import ScriptedModel


def kinds(record: dict[str, Any]) -> list[str]:
    return [event["type"] for event in record["events"]]


def commits(store: Store) -> int:
    return int(store.rows("SHOW GLOBAL STATUS LIKE 'Com_commit'")[0][1])


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
