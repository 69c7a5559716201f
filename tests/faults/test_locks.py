"""Somebody else holds the lock, takes the place or deletes the conversation."""

import contextlib
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pymysql
import pytest

from dev.mariadb import PrivateServer
from tests.conftest import MakeClient, MakeService, Service, Store, path_of
from tests.support.faults import CONFLICT, UNAVAILABLE, Reply, chat, echoed, is_stored, our_connections, refused, root
from tests.support.gate import Beside
from tests.support.pairs import pairs
from tests.support.scripted_model import Json, ScriptedModel, completion
from tests.support.waiting import LONG, until


def metric(server: PrivateServer, name: str) -> int:
    with root(server) as ask:
        return int(ask(f"SELECT count FROM information_schema.innodb_metrics WHERE name = '{name}'")[0][0])


def somebody_waits(server: PrivateServer) -> bool:
    """Whether a transaction waits for a lock."""
    time.sleep(0.15)  # the server renews its list only after nobody has looked at it for a tenth of a second
    with root(server) as ask:
        return bool(ask("SELECT trx_id FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"))


@pytest.fixture
def rival(store: Store, server: PrivateServer) -> Iterator["pymysql.Connection[Any]"]:
    """Another program in a transaction of its own."""
    with contextlib.closing(store.connect()) as connection:
        connection.begin()
        yield connection


def lock_conversation(rival: "pymysql.Connection[Any]", conversation_id: str) -> None:
    with rival.cursor() as cursor:
        cursor.execute("SELECT id FROM conversations WHERE conversation_id = %s FOR UPDATE", (conversation_id,))


def test_a_turn_that_is_the_victim_of_a_deadlock_is_stored_at_the_next_try(
    client_for: MakeClient,
    server: PrivateServer,
    store: Store,
    model: ScriptedModel,
    conversation_id: str,
    rival: "pymysql.Connection[Any]",
    beside: Beside,
) -> None:
    model.echoes()
    client, before = client_for(), metric(server, "lock_deadlocks")
    chat(client, conversation_id, "Q1")
    with rival.cursor() as cursor:
        # The server gives up the transaction that has changed less: not this one.
        many = [(f"{conversation_id}-{number}",) for number in range(100)]
        cursor.executemany("INSERT INTO conversations (conversation_id, turns) VALUES (%s, 0)", many)
        cursor.execute("SELECT id FROM messages WHERE conversation_id = %s AND id > 2 FOR UPDATE", (conversation_id,))
        answer = beside(chat, client, conversation_id, "Q2")
        until(lambda: somebody_waits(server))
        cursor.execute("UPDATE conversations SET title = 'x' WHERE conversation_id = %s", (conversation_id,))
        assert metric(server, "lock_deadlocks") == before + 1
        rival.rollback()
    assert is_stored(answer.result(LONG), 2)
    assert pairs(store, conversation_id) == echoed("Q1", "Q2")


def test_a_turn_that_waited_too_long_for_a_lock_is_stored_once_the_lock_is_free(
    client_for: MakeClient,
    server: PrivateServer,
    store: Store,
    model: ScriptedModel,
    conversation_id: str,
    rival: "pymysql.Connection[Any]",
    beside: Beside,
) -> None:
    model.echoes()
    client, before = client_for(), metric(server, "lock_timeouts")
    chat(client, conversation_id, "Q1")
    lock_conversation(rival, conversation_id)
    answer = beside(chat, client, conversation_id, "Q2")
    until(lambda: metric(server, "lock_timeouts") > before)
    rival.rollback()
    assert is_stored(answer.result(LONG), 2)
    assert pairs(store, conversation_id) == echoed("Q1", "Q2")


def test_a_lock_that_is_never_freed_ends_the_turn_and_stores_nothing(
    client_for: MakeClient,
    store: Store,
    model: ScriptedModel,
    conversation_id: str,
    rival: "pymysql.Connection[Any]",
) -> None:
    model.echoes()
    client = client_for()
    chat(client, conversation_id, "Q1")
    lock_conversation(rival, conversation_id)
    began = time.monotonic()
    assert refused(chat(client, conversation_id, "Q2")) == UNAVAILABLE
    assert time.monotonic() - began < LONG
    assert client.get(path_of(conversation_id) + "/messages").status_code == 200  # reading waits for nobody
    rival.rollback()
    time.sleep(0.5)
    assert pairs(store, conversation_id) == echoed("Q1")
    assert is_stored(chat(client, conversation_id, "Q3"), 2)


@pytest.mark.parametrize("commits", [True, False], ids=["who commits", "who gives up"])
def test_a_first_turn_waits_for_another_writer_of_the_same_conversation(
    client_for: MakeClient,
    server: PrivateServer,
    store: Store,
    model: ScriptedModel,
    conversation_id: str,
    rival: "pymysql.Connection[Any]",
    beside: Beside,
    commits: bool,
) -> None:
    model.echoes()
    with rival.cursor() as cursor:
        cursor.execute("INSERT INTO conversations (conversation_id, turns) VALUES (%s, 1)", (conversation_id,))
        messages = "INSERT INTO messages (conversation_id, id, role, content, run_id) VALUES (%s, %s, %s, 'rival', 'r')"
        cursor.executemany(messages, [(conversation_id, 1, "user"), (conversation_id, 2, "assistant")])
        answer = beside(chat, client_for(), conversation_id, "Q1")
        until(lambda: somebody_waits(server))
        rival.commit() if commits else rival.rollback()
    if commits:
        assert refused(answer.result(LONG)) == CONFLICT
        assert pairs(store, conversation_id) == [("rival", "rival")]
    else:
        assert is_stored(answer.result(LONG), 1)
        assert pairs(store, conversation_id) == echoed("Q1")


def test_of_two_services_that_answer_in_one_conversation_at_once_one_stores_its_turn_each_time(
    service_for: MakeService, store: Store, model: ScriptedModel, conversation_id: str, beside: Beside
) -> None:
    both_asked = threading.Barrier(2, timeout=LONG)

    def answer(request: Json) -> Json:
        both_asked.wait()  # so both have read the same history
        text = f"echo: {request['messages'][-1]['content']}"
        return completion({"role": "assistant", "content": text}, "stop")(request)

    model.answers_by(answer)
    services: list[Service] = [service_for(), service_for()]
    won: list[str] = []
    for turn in (1, 2, 3):
        asked = [
            beside(service.chat, conversation_id, f"{name}{turn}") for name, service in zip("ab", services, strict=True)
        ]
        answers: list[Reply] = [each.result(LONG) for each in asked]
        winner, loser = sorted(answers, key=lambda answer: answer.status_code)
        assert is_stored(winner, turn)
        assert refused(loser) == CONFLICT
        won.append(winner.json()["answer"].removeprefix("echo: "))
    assert pairs(store, conversation_id) == echoed(*won)


@pytest.mark.parametrize("anew", [False, True], ids=["deleted", "deleted and begun anew"])
@pytest.mark.parametrize("turn", [2, 3])
def test_a_conversation_deleted_while_the_model_thinks_is_neither_revived_nor_mixed(
    client_for: MakeClient, store: Store, model: ScriptedModel, conversation_id: str, turn: int, anew: bool
) -> None:
    client, elsewhere = client_for(), client_for()
    script = model
    for number in range(1, turn):
        script = script.says(f"A{number}")
        assert is_stored(chat(client, conversation_id, f"Q{number}"), number)
    done: list[Reply] = []

    def answer(request: Json) -> Json:
        done.append(elsewhere.delete(path_of(conversation_id)))
        if anew:
            done.append(chat(elsewhere, conversation_id, "new"))
        return completion({"role": "assistant", "content": "late"}, "stop")(request)

    model.answers_by(answer, forever=False)
    if anew:
        model.says("new")
    assert refused(chat(client, conversation_id, "late")) == CONFLICT
    assert [each.status_code for each in done] == ([204, 200] if anew else [204])
    assert pairs(store, conversation_id) == ([("new", "new")] if anew else [])


def test_fifty_turns_at_once_over_three_connections_lose_nothing_and_mix_nothing(
    client_for: MakeClient, server: PrivateServer, store: Store, model: ScriptedModel, beside: Beside
) -> None:
    model.echoes(delay_s=0.05)
    client = client_for(db_pool_size=3)
    names = [f"{uuid.uuid4()}" for _ in range(50)]
    for turn in (1, 2, 3):
        for answer in [beside(chat, client, name, f"{name} {turn}") for name in names]:
            assert is_stored(answer.result(LONG), turn)
    assert 1 <= len(our_connections(server)) <= 3
    for name in names:
        assert pairs(store, name) == echoed(*[f"{name} {turn}" for turn in (1, 2, 3)])
    for request in model.requests:
        own = request["messages"][-1]["content"].split()[0]
        assert all(own in message["content"] for message in request["messages"] if message["role"] != "system")
