"""After a DELETE: keys leave marks without content, and no retry revives the conversation."""

import uuid

from fastapi.testclient import TestClient

from tests.conftest import Store, path_of
from tests.support.gate import Beside, Gate
from tests.support.keyed import CONFLICT, MISMATCH, Row, chat, expire, key_row, post, refused
from tests.support.pairs import pairs
from tests.support.scripted_model import ScriptedModel
from tests.support.waiting import LONG
from tests.support.ways import WAYS


def test_a_deleted_conversation_leaves_marks_without_content_and_is_not_revived(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    model.echoes()
    keys = [str(uuid.uuid4()) for _ in range(3)]
    other_key, other = str(uuid.uuid4()), f"{conversation_id}-2"
    first = [chat(client, conversation_id, f"secret {number}", key) for number, key in enumerate(keys)]
    kept = chat(client, other, "kept", other_key)
    assert client.delete(path_of(conversation_id)).status_code == 204
    asked = len(model.requests)
    for number, key in enumerate(keys):
        assert key_row(store, key) == Row("deleted", None, first[number].json()["run_id"], conversation_id)
        for way in WAYS:
            answer = post(client, way, {"conversation_id": conversation_id, "message": f"secret {number}"}, key)
            assert (answer.status_code, refused(answer)) == (409, CONFLICT)
            assert "deleted" in answer.json()["detail"]
        assert refused(chat(client, conversation_id, "another", key)) == MISMATCH
    assert len(model.requests) == asked
    assert store.rows("SELECT id FROM conversations WHERE conversation_id = %s", conversation_id) == []
    assert pairs(store, conversation_id) == []
    everything = store.rows("SELECT * FROM idempotency_keys WHERE conversation_id = %s", conversation_id)
    assert "secret" not in str(everything)
    assert chat(client, other, "kept", other_key).content == kept.content


def test_a_mark_of_a_deleted_conversation_leaves_its_successor_alone(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    model.echoes()
    old, new = str(uuid.uuid4()), str(uuid.uuid4())
    chat(client, conversation_id, "old", old)
    client.delete(path_of(conversation_id))
    answer = chat(client, conversation_id, "new", new)
    assert answer.json()["turn"] == 1
    assert refused(chat(client, conversation_id, "old", old)) == CONFLICT
    assert chat(client, conversation_id, "new", new).content == answer.content
    assert pairs(store, conversation_id) == [("new", "echo: new")]
    expire(store, old)
    assert chat(client, conversation_id, "old", old).json()["turn"] == 2


def test_a_conversation_deleted_while_a_turn_with_a_key_is_answered_stays_deleted(
    client: TestClient,
    store: Store,
    model: ScriptedModel,
    conversation_id: str,
    key: str,
    beside: Beside,
    gates: list[Gate],
) -> None:
    model.says("A1").answers_by(gates[0].answer("A2"), forever=False)
    client.post("/chat", json={"conversation_id": conversation_id, "message": "Q1"})
    answer = beside(chat, client, conversation_id, "Q2", key)
    gates[0].wait()
    assert client.delete(path_of(conversation_id)).status_code == 204
    gates[0].open()
    assert refused(answer.result(LONG)) == CONFLICT
    assert refused(chat(client, conversation_id, "Q2", key)) == CONFLICT  # as clients do by themselves after a 409
    assert pairs(store, conversation_id) == []
    row = key_row(store, key)
    assert row and (row.state, row.answer) == ("deleted", None)
