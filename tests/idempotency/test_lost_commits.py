"""The reply to COMMIT is lost: what was done is done once, and what was not is done."""

import pytest

from dev.proxy import COMMIT, CuttableProxy
from tests.conftest import MakeClient, Store, path_of
from tests.support.keyed import CONFLICT, chat, is_replay, key_row, refused
from tests.support.pairs import pairs
from tests.support.scripted_model import Json, ScriptedModel, completion


@pytest.mark.parametrize("done", [True, False], ids=["done", "not done"])
def test_a_claim_whose_commit_was_lost_is_made_once(
    client_for: MakeClient,
    store: Store,
    model: ScriptedModel,
    conversation_id: str,
    key: str,
    proxy: CuttableProxy,
    done: bool,
) -> None:
    model.says("Hello.")
    client = client_for(db_port=proxy.port)
    for _ in range(2):
        (proxy.cut_reply_to if done else proxy.cut_before)(COMMIT)
    first = chat(client, conversation_id, "Hi", key)
    assert (first.status_code, first.json()["answer"]) == (200, "Hello.")
    assert (proxy.cuts, proxy.armed) == (2, 0)
    assert len(model.requests) == 1
    assert pairs(store, conversation_id) == [("Hi", "Hello.")]
    assert chat(client, conversation_id, "Hi", key).content == first.content


@pytest.mark.parametrize("turn", [1, 2])
@pytest.mark.parametrize("done", [True, False], ids=["done", "not done"])
@pytest.mark.parametrize("statement", [COMMIT, b"UPDATE idempotency_keys SET state = 'done'"])
def test_a_turn_whose_commit_was_lost_is_stored_once_with_its_key(
    client_for: MakeClient,
    store: Store,
    model: ScriptedModel,
    conversation_id: str,
    key: str,
    proxy: CuttableProxy,
    turn: int,
    done: bool,
    statement: bytes,
) -> None:
    def answer(request: Json) -> Json:
        for _ in range(1 if done and statement == COMMIT else 3):
            (proxy.cut_reply_to if done else proxy.cut_before)(statement)
        return completion({"role": "assistant", "content": "Hello."}, "stop")(request)

    client = client_for(db_port=proxy.port)
    if turn == 2:
        model.says("A1")
        client.post("/chat", json={"conversation_id": conversation_id, "message": "Q1"})
    model.answers_by(answer, forever=False)
    first = chat(client, conversation_id, "Hi", key)
    assert (first.status_code, first.json()["turn"]) == (200, turn)
    assert proxy.armed == 0
    assert len(pairs(store, conversation_id)) == turn
    again = chat(client, conversation_id, "Hi", key)
    assert is_replay(again)
    assert again.content == first.content


def test_a_turn_deleted_while_its_commit_was_lost_is_not_stored_again(
    client_for: MakeClient, store: Store, model: ScriptedModel, conversation_id: str, key: str
) -> None:
    """With a key even a first turn that was deleted can be told from one that never arrived."""
    elsewhere = client_for()

    class Deleting(CuttableProxy):
        def count_cut(self) -> None:
            assert elsewhere.delete(path_of(conversation_id)).status_code == 204
            super().count_cut()

    with Deleting(store.settings["db_host"], store.settings["db_port"]) as proxy:

        def answer(request: Json) -> Json:
            proxy.cut_reply_to(COMMIT)
            return completion({"role": "assistant", "content": "Hello."}, "stop")(request)

        model.answers_by(answer, forever=False)
        assert refused(chat(client_for(db_port=proxy.port), conversation_id, "Hi", key)) == CONFLICT
        assert proxy.cuts == 1
    assert pairs(store, conversation_id) == []
    row = key_row(store, key)
    assert row and (row.state, row.answer) == ("deleted", None)
