"""The connection is cut at any statement of a turn: nothing is lost and nothing is doubled."""

import time

import pytest

from dev.mariadb import PrivateServer
from tests.conftest import MakeClient, Store, path_of
from tests.support.faults import (
    BEGIN,
    COMMIT,
    CONFLICT,
    INSERT_MESSAGES,
    LOAD,
    LOOK,
    UNAVAILABLE,
    Proxy,
    chat,
    crash,
    echoed,
    is_stored,
    kill_connections,
    refused,
    root,
)
from tests.support.gate import Beside
from tests.support.pairs import pairs
from tests.support.scripted_model import ScriptedModel
from tests.support.waiting import LONG, until

INSERT_CONVERSATION, UPDATE_CONVERSATION = b"\x03INSERT INTO conversations", b"\x03UPDATE conversations SET turns"

FIRST_TURN = [LOAD, BEGIN, INSERT_CONVERSATION, INSERT_MESSAGES, COMMIT]

LATER_TURN = [LOAD, BEGIN, UPDATE_CONVERSATION, INSERT_MESSAGES, COMMIT]

POINTS = [
    pytest.param(turn, statement, id=f"turn {turn}, {statement[1:].decode().strip()}")
    for turn, statements in ((1, FIRST_TURN), (3, LATER_TURN))
    for statement in statements
]


@pytest.mark.parametrize(("turn", "statement"), POINTS)
@pytest.mark.parametrize("seen", [False, True], ids=["before the server saw it", "after the server did it"])
def test_a_connection_cut_at_any_statement_of_a_turn_costs_nothing(
    client_for: MakeClient,
    proxy: Proxy,
    store: Store,
    model: ScriptedModel,
    conversation_id: str,
    turn: int,
    statement: bytes,
    seen: bool,
) -> None:
    model.echoes()
    client = client_for(db_port=proxy.port, db_pool_size=1)
    for number in range(1, turn):
        chat(client, conversation_id, f"Q{number}")
    cut = proxy.cut_reply_to if seen else proxy.cut_before
    cut(statement)
    assert is_stored(chat(client, conversation_id, f"Q{turn}"), turn)
    assert (proxy.cuts, proxy.armed) == (1, 0)
    assert is_stored(chat(client, conversation_id, "and on"), turn + 1)
    assert pairs(store, conversation_id) == echoed(*[f"Q{number}" for number in range(1, turn + 1)], "and on")
    assert len(model.requests) == turn + 1  # nobody asked the model twice


@pytest.mark.parametrize(("turn", "statement"), POINTS)
def test_a_server_that_crashes_after_any_statement_of_a_turn_costs_nothing_once_it_is_back(
    client_for: MakeClient,
    proxy: Proxy,
    server: PrivateServer,
    store: Store,
    model: ScriptedModel,
    conversation_id: str,
    turn: int,
    statement: bytes,
) -> None:
    model.echoes()
    client = client_for(db_port=proxy.port, db_pool_size=1)
    for number in range(1, turn):
        chat(client, conversation_id, f"Q{number}")
    proxy.on_cut = lambda: crash(server)
    proxy.cut_reply_to(statement)
    assert is_stored(chat(client, conversation_id, f"Q{turn}"), turn)
    assert (proxy.cuts, proxy.armed) == (1, 0)
    assert pairs(store, conversation_id) == echoed(*[f"Q{number}" for number in range(1, turn + 1)])


def test_a_commit_cut_again_and_again_is_stored_once(
    client_for: MakeClient, proxy: Proxy, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    model.echoes()
    client = client_for(db_port=proxy.port)
    for _ in range(4):
        proxy.cut_before(COMMIT)
    proxy.cut_reply_to(COMMIT)
    assert is_stored(chat(client, conversation_id, "Q1"), 1)
    assert (proxy.cuts, proxy.armed) == (5, 0)
    assert pairs(store, conversation_id) == echoed("Q1")


@pytest.mark.parametrize("turn", [1, 2])
def test_the_look_after_a_lost_commit_may_be_cut_too(
    client_for: MakeClient, proxy: Proxy, store: Store, model: ScriptedModel, conversation_id: str, turn: int
) -> None:
    model.echoes()
    client = client_for(db_port=proxy.port)
    for number in range(1, turn):
        chat(client, conversation_id, f"Q{number}")
    proxy.cut_reply_to(COMMIT)
    for _ in range(3):
        proxy.cut_reply_to(LOOK)
    assert is_stored(chat(client, conversation_id, f"Q{turn}"), turn)
    assert (proxy.cuts, proxy.armed) == (4, 0)
    assert pairs(store, conversation_id) == echoed(*[f"Q{number}" for number in range(1, turn + 1)])


def test_a_server_that_comes_back_a_second_after_its_lost_commit_is_asked_what_it_holds(
    client_for: MakeClient,
    proxy: Proxy,
    server: PrivateServer,
    store: Store,
    model: ScriptedModel,
    conversation_id: str,
    beside: Beside,
) -> None:
    def come_back() -> None:
        time.sleep(1)
        server.start()

    def crash_for_a_second() -> None:
        server.kill()
        beside(come_back)

    model.echoes()
    proxy.on_cut = crash_for_a_second
    proxy.cut_reply_to(COMMIT)
    assert is_stored(chat(client_for(db_port=proxy.port), conversation_id, "Q1"), 1)
    assert pairs(store, conversation_id) == echoed("Q1")


@pytest.mark.parametrize(("seen", "kept"), [(True, echoed("Q1")), (False, [])], ids=["done", "not done"])
@pytest.mark.usefixtures("hasty")
def test_a_server_that_stays_away_after_a_lost_commit_is_told_as_unavailable_and_the_history_shows_the_truth(
    client_for: MakeClient,
    proxy: Proxy,
    server: PrivateServer,
    store: Store,
    model: ScriptedModel,
    conversation_id: str,
    seen: bool,
    kept: list[tuple[str, str]],
) -> None:
    model.echoes()
    client = client_for(db_port=proxy.port)
    proxy.on_cut = server.kill
    (proxy.cut_reply_to if seen else proxy.cut_before)(COMMIT)
    began = time.monotonic()
    assert refused(chat(client, conversation_id, "Q1")) == UNAVAILABLE
    assert time.monotonic() - began < LONG
    server.start()
    assert pairs(store, conversation_id) == kept
    assert is_stored(chat(client, conversation_id, "Q2"), len(kept) + 1)
    assert pairs(store, conversation_id) == kept + echoed("Q2")


@pytest.mark.parametrize("turn", [1, 2])
def test_a_lost_commit_that_is_carried_out_only_after_we_looked_is_not_stored_twice(
    client_for: MakeClient,
    proxy: Proxy,
    server: PrivateServer,
    store: Store,
    model: ScriptedModel,
    conversation_id: str,
    beside: Beside,
    turn: int,
) -> None:
    model.echoes()
    client = client_for(db_port=proxy.port)
    for number in range(1, turn):
        chat(client, conversation_id, f"Q{number}")
    proxy.delay_reply_to(INSERT_MESSAGES, LONG)
    answer = beside(chat, client, conversation_id, f"Q{turn}")
    until(lambda: proxy.held)
    with root(server) as ask:
        ask("FLUSH TABLES WITH READ LOCK")  # a commit waits for its end
        proxy.delay_reply_to(COMMIT, LONG)
        proxy.release()
        until(lambda: not proxy.armed)
        time.sleep(0.2)
        proxy.cut_all()
        time.sleep(0.5)
        assert len(pairs(store, conversation_id)) == turn - 1
        ask("UNLOCK TABLES")
    assert is_stored(answer.result(LONG), turn)
    assert pairs(store, conversation_id) == echoed(*[f"Q{number}" for number in range(1, turn + 1)])


def test_a_conversation_deleted_while_its_commit_was_lost_is_not_revived(
    client_for: MakeClient, proxy: Proxy, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    model.echoes()
    client, elsewhere = client_for(db_port=proxy.port), client_for()
    chat(client, conversation_id, "Q1")
    deleted: list[int] = []
    proxy.on_cut = lambda: deleted.append(elsewhere.delete(path_of(conversation_id)).status_code)
    proxy.cut_reply_to(COMMIT)
    assert refused(chat(client, conversation_id, "Q2")) == CONFLICT
    assert deleted == [204]
    assert pairs(store, conversation_id) == []


def test_a_first_turn_whose_commit_was_lost_and_whose_conversation_was_deleted_is_whole_or_absent(
    client_for: MakeClient, proxy: Proxy, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    """Nothing tells a first turn that was deleted meanwhile from one that never arrived: it may be stored again."""
    model.echoes()
    client, elsewhere = client_for(db_port=proxy.port), client_for()
    proxy.on_cut = lambda: elsewhere.delete(path_of(conversation_id))
    proxy.cut_reply_to(COMMIT)
    answer = chat(client, conversation_id, "Q1")
    if answer.status_code == 200:
        assert pairs(store, conversation_id) == echoed("Q1")
    else:
        assert refused(answer) == CONFLICT
        assert pairs(store, conversation_id) == []


def test_a_successor_that_began_while_a_commit_was_lost_is_left_alone(
    client_for: MakeClient, proxy: Proxy, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    model.echoes()
    client, elsewhere = client_for(db_port=proxy.port), client_for()
    chat(client, conversation_id, "Q1")

    def begin_anew() -> None:
        elsewhere.delete(path_of(conversation_id))
        chat(elsewhere, conversation_id, "new")

    proxy.on_cut = begin_anew
    proxy.cut_reply_to(COMMIT)
    assert refused(chat(client, conversation_id, "Q2")) == CONFLICT
    assert pairs(store, conversation_id) == echoed("new")


@pytest.mark.parametrize("turn", [1, 2])
def test_a_commit_that_never_arrived_and_whose_place_somebody_took_is_a_conflict(
    client_for: MakeClient,
    proxy: Proxy,
    server: PrivateServer,
    store: Store,
    model: ScriptedModel,
    conversation_id: str,
    turn: int,
) -> None:
    model.echoes()
    client, elsewhere = client_for(db_port=proxy.port), client_for()
    questions = [f"Q{number}" for number in range(1, turn)]
    for question in questions:
        chat(client, conversation_id, question)

    def take_the_place() -> None:
        kill_connections(server)  # its transaction ends with it
        chat(elsewhere, conversation_id, "theirs")

    proxy.on_cut = take_the_place
    proxy.cut_before(COMMIT)
    assert refused(chat(client, conversation_id, "ours")) == CONFLICT
    assert (proxy.cuts, proxy.armed) == (1, 0)
    assert pairs(store, conversation_id) == echoed(*questions, "theirs")


@pytest.mark.parametrize("seen", [False, True], ids=["before the server saw it", "after the server did it"])
def test_a_cut_connection_does_not_keep_a_conversation_from_being_renamed_or_deleted(
    client_for: MakeClient, proxy: Proxy, store: Store, model: ScriptedModel, conversation_id: str, seen: bool
) -> None:
    model.echoes()
    client = client_for(db_port=proxy.port, db_pool_size=1)
    chat(client, conversation_id, "Q1")
    cut = proxy.cut_reply_to if seen else proxy.cut_before
    cut(b"\x03UPDATE conversations SET title")
    renamed = client.patch(path_of(conversation_id), json={"title": "other"})
    assert (renamed.status_code, renamed.json()["title"]) == (200, "other")
    cut(b"\x03DELETE FROM conversations")
    cut(COMMIT)
    assert client.delete(path_of(conversation_id)).status_code == 204
    assert (proxy.cuts, proxy.armed) == (3, 0)
    assert pairs(store, conversation_id) == []
    assert client.delete(path_of(conversation_id)).status_code == 404
