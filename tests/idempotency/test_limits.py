"""A key widens no limit, and what is known of it counts before what keeps a new turn from beginning."""

import uuid

import pytest

from tests.conftest import MakeClient, Store
from tests.support.gate import Beside, Gate
from tests.support.keyed import CONFLICT, IN_PROGRESS, MISMATCH, chat, is_replay, key_row, refused
from tests.support.pairs import pairs
from tests.support.scripted_model import Json, ScriptedModel
from tests.support.waiting import LONG, until

OVERLOADED = 503, "overloaded"
RATE_LIMITED = 429, "rate_limited"
ALICE = "a" * 20


@pytest.mark.parametrize(
    ("settings", "conversations", "answered", "refusal"),
    [
        ({"max_in_flight": 2}, 8, 2, OVERLOADED),
        ({"environ": {"API_KEYS": f"alice:{ALICE}", "API_IN_FLIGHT": "2"}}, 8, 2, RATE_LIMITED),
        ({"conversation_busy": "reject"}, 1, 1, CONFLICT),
    ],
    ids=["in flight", "in flight of one owner", "one at a time in a conversation"],
)
def test_a_key_walks_past_no_limit_and_is_free_again_where_it_was_refused(
    client_for: MakeClient,
    store: Store,
    model: ScriptedModel,
    gates: list[Gate],
    beside: Beside,
    settings: Json,
    conversations: int,
    answered: int,
    refusal: tuple[int, str],
) -> None:
    client = client_for(**settings)
    owner = "alice" if "environ" in settings else ""
    client.headers["authorization"] = f"Bearer {ALICE}"
    model.answers_by(gates[0].answer("Hello."))
    names = [str(uuid.uuid4()) for _ in range(conversations)] * (8 // conversations)
    keys = [str(uuid.uuid4()) for _ in names]
    asked = [beside(chat, client, name, "Hi", key) for name, key in zip(names, keys, strict=True)]
    until(lambda: sum(one.done() for one in asked) == len(asked) - answered)
    gates[0].open()
    answers = [one.result(LONG) for one in asked]
    done = [answer.status_code == 200 for answer in answers]
    assert sum(done) == answered
    assert {refused(answer) for answer in answers if answer.status_code != 200} == {refusal}
    assert [key_row(store, key, owner) is not None for key in keys] == done


def test_a_busy_conversation_gives_back_what_it_answered_before(
    client_for: MakeClient,
    store: Store,
    model: ScriptedModel,
    conversation_id: str,
    gates: list[Gate],
    beside: Beside,
    key: str,
) -> None:
    client = client_for(conversation_busy="reject")
    model.says("Hello.").answers_by(gates[0].answer("Later."), forever=False)
    assert chat(client, conversation_id, "Hi", key).status_code == 200
    running = beside(chat, client, conversation_id, "And?", f"{key}-2")
    gates[0].wait()
    assert is_replay(chat(client, conversation_id, "Hi", key))
    assert refused(chat(client, conversation_id, "Something else", key)) == MISMATCH
    assert refused(chat(client, conversation_id, "And?", f"{key}-2")) == IN_PROGRESS
    assert refused(chat(client, conversation_id, "A third", f"{key}-3")) == CONFLICT
    gates[0].open()
    assert running.result(LONG).status_code == 200
    assert pairs(store, conversation_id) == [("Hi", "Hello."), ("And?", "Later.")]
