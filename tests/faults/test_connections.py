"""Connections that went stale, and how few a turn costs."""

import time
import uuid

import pytest

import db
from dev.mariadb import PrivateServer
from tests.conftest import MakeClient, Store
from tests.support.faults import chat, echoed, errors, is_stored, kill_connections, our_connections, root
from tests.support.gate import Beside
from tests.support.pairs import pairs
from tests.support.scripted_model import ScriptedModel
from tests.support.waiting import LONG, until


def test_a_pool_whose_connections_were_all_killed_answers_as_if_nothing_had_been(
    client_for: MakeClient,
    server: PrivateServer,
    store: Store,
    model: ScriptedModel,
    beside: Beside,
    caplog: pytest.LogCaptureFixture,
) -> None:
    model.echoes(delay_s=0.2)
    client = client_for(db_pool_size=4)
    names = [str(uuid.uuid4()) for _ in range(8)]
    for turn in (1, 2, 3):
        for answer in [beside(chat, client, name, f"Q{turn}") for name in names]:
            assert is_stored(answer.result(LONG), turn)
        assert kill_connections(server) >= 2
        if turn == 2:
            time.sleep(db.CHECK_AFTER_IDLE_S + 0.1)  # once they are pinged before use, once not
    for name in names:
        assert pairs(store, name) == echoed("Q1", "Q2", "Q3")
    assert errors(caplog) == []


@pytest.mark.parametrize("checked", [True, False], ids=["pinged before use", "found out by using it"])
def test_a_connection_that_the_server_gave_up_meanwhile_is_replaced(
    client_for: MakeClient,
    server: PrivateServer,
    store: Store,
    model: ScriptedModel,
    conversation_id: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    checked: bool,
) -> None:
    assert "wait_timeout=600" in db.SESSION
    monkeypatch.setattr(db, "SESSION", db.SESSION.replace(" wait_timeout=600", " wait_timeout=1"))
    monkeypatch.setattr(db, "CHECK_AFTER_IDLE_S", 0.5 if checked else 1000)
    model.echoes()
    client = client_for(db_pool_size=1)
    chat(client, conversation_id, "Q1")
    assert len(our_connections(server)) == 1
    until(lambda: not our_connections(server))
    assert is_stored(chat(client, conversation_id, "Q2"), 2)
    assert pairs(store, conversation_id) == echoed("Q1", "Q2")
    assert errors(caplog) == []


def test_a_turn_opens_no_connection_and_costs_one_read_and_one_transaction_of_two_writes(
    client_for: MakeClient, server: PrivateServer, model: ScriptedModel, conversation_id: str
) -> None:
    names = ("Connections", "Questions", *(f"Com_{kind}" for kind in KINDS))
    model.echoes()
    client = client_for(db_pool_size=1)
    chat(client, str(uuid.uuid4()), "warm")
    with root(server) as ask:

        def counts() -> dict[str, int]:
            rows = ask(f"SHOW GLOBAL STATUS WHERE Variable_name IN {names}")
            return {name: int(value) for name, value in rows}

        for turn, second in ((1, "insert"), (2, "update"), (3, "update")):
            before = counts()
            assert is_stored(chat(client, conversation_id, f"Q{turn}"), turn)
            after = counts()
            cost = {name: after[name] - before[name] for name in names if after[name] != before[name]}
            expected = {"Com_select": 1, "Com_begin": 1, "Com_insert": 1, "Com_commit": 1, "Questions": 6}
            expected[f"Com_{second}"] = expected.get(f"Com_{second}", 0) + 1
            assert cost == expected  # the sixth question is the counting itself


KINDS = (
    "select insert update delete replace begin commit rollback set_option change_db call_procedure lock_tables "
    "savepoint create_table truncate"
).split()


def test_twenty_turns_after_one_another_use_the_connections_that_are_there(
    client_for: MakeClient, server: PrivateServer, model: ScriptedModel, conversation_id: str
) -> None:
    model.echoes()
    client = client_for(db_pool_size=2)
    with root(server) as ask:
        before = int(ask("SHOW GLOBAL STATUS LIKE 'Connections'")[0][1])
        for turn in range(1, 21):
            assert is_stored(chat(client, conversation_id, f"Q{turn}"), turn)
        assert int(ask("SHOW GLOBAL STATUS LIKE 'Connections'")[0][1]) - before <= 2
