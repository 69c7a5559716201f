"""The toolset that looks at earlier runs."""

import json

from tests.conftest import MakeClient, path_of
from tests.support.runs import ALICE, BOB, KEPT, KEYS, bearer, chat
from tests.support.scripted_model import ScriptedModel

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
