"""What becomes of a turn when the database, the way to it, or the service fails: stored whole and once, or not at all.

The server is this module's own, to be killed, frozen and filled; faults on the way to it are a proxy's.
"""

import contextlib
import gc
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pymysql
import pytest
from fastapi.testclient import TestClient

import db
from config import Settings
from db import Database
from dev.mariadb import PrivateServer
from dev.proxy import CuttableProxy
from tests.conftest import MakeClient, MakeService, Service, Store, path_of
from tests.support.scripted_model import Json, ScriptedModel, completion
from tests.support.waiting import LONG, until

Reply = httpx2.Response


class Proxy(CuttableProxy):
    """Calls `on_cut` when a fault has struck and before the service learns of it."""

    def __init__(self, port: int) -> None:
        self.on_cut: Callable[[], object] = lambda: None
        super().__init__("127.0.0.1", port)

    def count_cut(self) -> None:
        self.on_cut()
        super().count_cut()


@pytest.fixture(scope="module")
def store(fragile_store: Store) -> Store:
    """The store of every fixture here is the one that may be harmed."""
    return fragile_store


@pytest.fixture
def server(store: Store) -> Iterator[PrivateServer]:
    """The server, healed afterwards."""
    assert store.server
    yield store.server
    store.server.start()  # thaws it, too


@pytest.fixture
def proxy(server: PrivateServer) -> Iterator[Proxy]:
    """The way from the service to the database, to be cut."""
    with Proxy(server.port) as proxy:
        yield proxy


@pytest.fixture
def beside() -> Iterator[Callable[..., "Future[Any]"]]:
    """Does something beside the test: `beside(function, *arguments).result(LONG)`."""
    with ThreadPoolExecutor(60) as threads:
        yield threads.submit


Beside = Callable[..., "Future[Any]"]


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where giving up is not what is tested, it need not take five seconds."""
    monkeypatch.setattr(db, "RETRY_S", 1.0)


def chat(client: TestClient, conversation_id: str, message: str) -> Reply:
    return client.post("/chat", json={"conversation_id": conversation_id, "message": message})


def is_stored(answer: Reply, turn: int) -> bool:
    return answer.status_code == 200 and answer.json()["turn"] == turn


def refused(answer: Reply) -> tuple[int, str]:
    """Status and code of an answer that is an error; one that may pass says when to come back."""
    problem = answer.json()
    assert answer.headers["content-type"] == "application/problem+json"
    assert (answer.status_code == 503) == ("retry-after" in answer.headers)
    return answer.status_code, problem["code"]


CONFLICT = 409, "turn_conflict"
UNAVAILABLE = 503, "store_unavailable"


def pairs(store: Store, conversation_id: str) -> list[tuple[str, str]]:
    """The turns that MySQL holds: (question, answer). Fails if one of them is not whole."""
    turns = store.rows("SELECT turns FROM conversations WHERE conversation_id = %s", conversation_id)
    rows = store.rows(
        "SELECT id, role, content, run_id FROM messages WHERE conversation_id = %s ORDER BY id", conversation_id
    )
    assert len(turns) == (1 if rows else 0)
    assert len(rows) == 2 * sum(count for (count,) in turns)
    assert [number for number, *_ in rows] == list(range(1, len(rows) + 1))
    assert [role for _, role, *_ in rows] == ["user", "assistant"] * (len(rows) // 2)
    runs = [run_id for *_, run_id in rows]
    assert runs[::2] == runs[1::2]
    assert len(set(runs)) == len(rows) // 2
    texts = [content for _, _, content, _ in rows]
    return list(zip(texts[::2], texts[1::2], strict=True))


def echoed(*questions: str) -> list[tuple[str, str]]:
    """What MySQL holds after these turns with a model that echoes."""
    return [(question, f"echo: {question}") for question in questions]


@contextlib.contextmanager
def root(server: PrivateServer) -> Iterator[Callable[..., list[tuple[Any, ...]]]]:
    """Statements as root, over one connection: `ask("SHOW STATUS …")`."""
    with contextlib.closing(server.admin()) as connection, connection.cursor() as cursor:

        def ask(statement: str) -> list[tuple[Any, ...]]:
            cursor.execute(statement)
            return list(cursor.fetchall())

        yield ask


@contextlib.contextmanager
def server_setting(server: PrivateServer, name: str, value: str) -> Iterator[None]:
    """A global variable of the server, set for a while."""
    with root(server) as ask:
        usual = ask(f"SELECT @@GLOBAL.{name}")[0][0]
        ask(f"SET GLOBAL {name} = {value}")
        try:
            yield
        finally:
            ask(f"SET GLOBAL {name} = {usual}")


def our_connections(server: PrivateServer) -> list[int]:
    """The connections of the application's account."""
    with root(server) as ask:
        return [number for (number,) in ask("SELECT id FROM information_schema.processlist WHERE user = 'turnkeeper'")]


def kill_connections(server: PrivateServer) -> int:
    """End them all; how many there were."""
    numbers = our_connections(server)
    with root(server) as ask:
        for number in numbers:
            ask(f"KILL {number}")
    return len(numbers)


def crash(server: PrivateServer) -> None:
    """A crash of the server, which its machine starts again."""
    server.kill()
    server.start()


# ---------------------------------------------------------------------------------------- the connection is cut

# A statement as it goes over the wire begins with the byte that says that it is one: READ COMMITTED is no COMMIT.
LOAD, BEGIN, COMMIT = b"\x03\nSELECT c.id", b"\x03BEGIN", b"\x03COMMIT"
INSERT_CONVERSATION, UPDATE_CONVERSATION = b"\x03INSERT INTO conversations", b"\x03UPDATE conversations SET turns"
INSERT_MESSAGES, LOOK = b"\x03INSERT INTO messages", b"\x03SELECT run_id"
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


# ---------------------------------------------------------------------------------------- the server is killed


def test_a_stopped_database_is_told_before_the_model_is_asked(
    client_for: MakeClient, server: PrivateServer, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    client = client_for()
    assert client.get("/api/conversations").status_code == 200
    server.kill()
    assert refused(chat(client, conversation_id, "Q1")) == UNAVAILABLE
    assert refused(client_for().get(path_of(conversation_id))) == UNAVAILABLE
    assert "database" in client.get("/readyz").json()["detail"]
    assert client.get("/healthz").status_code == 200
    assert model.requests == []
    server.start()
    model.echoes()
    assert is_stored(chat(client, conversation_id, "Q1"), 1)
    assert pairs(store, conversation_id) == echoed("Q1")


def test_a_server_that_crashes_before_a_turn_or_while_the_model_thinks_costs_nothing(
    client_for: MakeClient, server: PrivateServer, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    def answer(request: Json) -> Json:
        crash(server)
        return completion({"role": "assistant", "content": f"A{len(model.requests)}"}, "stop")(request)

    model.answers_by(answer)
    client = client_for()
    for turn in (1, 2):
        crash(server)  # between two turns as well
        assert is_stored(chat(client, conversation_id, f"Q{turn}"), turn)
    assert pairs(store, conversation_id) == [("Q1", "A1"), ("Q2", "A2")]


@pytest.mark.usefixtures("hasty")
def test_a_server_that_is_gone_when_the_answer_is_there_stores_nothing_and_says_so(
    client_for: MakeClient, server: PrivateServer, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    def answer(request: Json) -> Json:
        server.kill()
        return completion({"role": "assistant", "content": "lost"}, "stop")(request)

    model.answers_by(answer, forever=False).echoes()
    client = client_for()
    assert refused(chat(client, conversation_id, "Q1")) == UNAVAILABLE
    server.start()
    assert pairs(store, conversation_id) == []
    assert is_stored(chat(client, conversation_id, "Q2"), 1)


# ---------------------------------------------------------------------------------------- the service is killed


def while_the_model_thinks(model: ScriptedModel, proxy: Proxy, mark: Path) -> Callable[[], None]:
    model.hangs()
    return lambda: model.wait_for_requests(2)


def while_a_tool_sleeps(model: ScriptedModel, proxy: Proxy, mark: Path) -> Callable[[], None]:
    model.asks_for("nap", seconds=30, mark=str(mark))
    return lambda: until(mark.exists)


def before_the_commit(model: ScriptedModel, proxy: Proxy, mark: Path) -> Callable[[], None]:
    model.says("A2")
    proxy.delay_reply_to(INSERT_MESSAGES, LONG)
    return lambda: until(lambda: proxy.held)


def after_the_commit(model: ScriptedModel, proxy: Proxy, mark: Path) -> Callable[[], None]:
    model.says("A2")
    proxy.delay_reply_to(COMMIT, LONG)
    return lambda: until(lambda: proxy.held)


@pytest.mark.parametrize("point", [while_the_model_thinks, while_a_tool_sleeps, before_the_commit, after_the_commit])
def test_a_killed_service_leaves_no_half_turn_and_the_conversation_goes_on(
    service_for: MakeService,
    proxy: Proxy,
    store: Store,
    model: ScriptedModel,
    conversation_id: str,
    beside: Beside,
    tmp_path: Path,
    point: Callable[[ScriptedModel, Proxy, Path], Callable[[], None]],
) -> None:
    toolset = "tests.support.slow_tools"
    service = service_for(DB_PORT=str(proxy.port), TOOLSETS=toolset, TOOL_TIMEOUT_S="60", TURN_TIMEOUT_S="60")
    model.says("A1")
    assert service.chat(conversation_id, "Q1").status_code == 200
    reached = point(model, proxy, tmp_path / "mark")
    asked = beside(service.chat, conversation_id, "Q2")
    reached()
    service.end(kill=True)
    proxy.cut_all()  # what the system does to the connections of a process that is gone
    with pytest.raises(httpx2.TransportError):
        asked.result(LONG)
    acknowledged = [("Q1", "A1")]
    kept = [*acknowledged, ("Q2", "A2")] if point is after_the_commit else acknowledged
    until(lambda: pairs(store, conversation_id) == kept)
    service.start()
    model.says("A3")
    assert service.chat(conversation_id, "Q3").json()["turn"] == len(kept) + 1
    assert pairs(store, conversation_id) == [*kept, ("Q3", "A3")]


# ---------------------------------------------------------------------------------------- connections that went stale


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


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


# ---------------------------------------------------------------------------------------- locks


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


# ---------------------------------------------------------------------------------------- the server refuses


def open_files() -> int:
    """How many files and sockets this process has open."""
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="counts open files as Linux does")
def test_the_socket_file_is_a_way_in_and_one_that_leads_nowhere_leaves_nothing_open(
    client_for: MakeClient, server: PrivateServer, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    model.echoes()
    with root(server) as ask:
        ask("CREATE USER 'near'@'localhost' IDENTIFIED BY 'near by'")
        ask(f"GRANT ALL ON {store.settings['db_name']}.* TO 'near'@'localhost'")
    account = {"db_user": "near", "db_password": "near by"}
    try:
        assert is_stored(chat(client_for(db_socket=str(server.socket), **account), conversation_id, "Q1"), 1)
        assert pairs(store, conversation_id) == echoed("Q1")
    finally:
        with root(server) as ask:
            ask("DROP USER 'near'@'localhost'")
    nowhere = Database(Settings(**store.settings, db_socket=f"{server.socket}.old"))
    gc.disable()
    try:
        before = open_files()
        for _ in range(5):
            with pytest.raises(pymysql.err.OperationalError, match="No such file"):
                nowhere.connect()
        assert open_files() == before
    finally:
        gc.enable()


def test_a_server_without_room_for_another_connection_is_told_as_unavailable_until_there_is_room(
    client_for: MakeClient, server: PrivateServer, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    model.echoes()
    client = client_for()
    with server_setting(server, "max_connections", "10"), contextlib.ExitStack() as others:
        with pytest.raises(pymysql.err.OperationalError) as full:
            for _ in range(20):
                others.enter_context(contextlib.closing(store.connect()))
        assert full.value.args[0] == 1040
        assert refused(chat(client, conversation_id, "Q1")) == UNAVAILABLE
        assert model.requests == []
    until(lambda: client.get("/api/conversations").status_code == 200)
    assert is_stored(chat(client, conversation_id, "Q1"), 1)
    assert pairs(store, conversation_id) == echoed("Q1")


def test_an_answer_larger_than_a_packet_is_not_stored_and_harms_nobody_else(
    client_for: MakeClient, server: PrivateServer, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    with server_setting(server, "max_allowed_packet", "1048576"):
        client = client_for(max_answer_chars=2_000_000, db_pool_size=1)
        model.says("x" * 1_200_000).then_says("x" * 900_000)
        began = time.monotonic()
        assert refused(chat(client, conversation_id, "Q1")) == UNAVAILABLE
        assert time.monotonic() - began < LONG
        assert pairs(store, conversation_id) == []
        assert is_stored(chat(client, conversation_id, "Q2"), 1)
    assert [len(answer) for _, answer in pairs(store, conversation_id)] == [900_000]


def test_a_server_that_only_reads_stores_nothing_and_can_be_read(
    client_for: MakeClient, server: PrivateServer, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    model.echoes()
    client = client_for()
    chat(client, conversation_id, "Q1")
    with server_setting(server, "read_only", "1"):
        assert refused(chat(client, conversation_id, "Q2")) == UNAVAILABLE
        assert refused(client.delete(path_of(conversation_id))) == UNAVAILABLE
        assert len(client.get(path_of(conversation_id) + "/messages").json()["data"]) == 2
    assert pairs(store, conversation_id) == echoed("Q1")
    assert is_stored(chat(client, conversation_id, "Q3"), 2)


def test_a_turn_whose_commit_is_refused_is_not_stored_later_either(
    client_for: MakeClient,
    proxy: Proxy,
    server: PrivateServer,
    store: Store,
    model: ScriptedModel,
    conversation_id: str,
    beside: Beside,
    caplog: pytest.LogCaptureFixture,
) -> None:
    model.echoes()
    client = client_for(db_port=proxy.port, db_pool_size=1)
    proxy.delay_reply_to(INSERT_MESSAGES, LONG)
    answer = beside(chat, client, conversation_id, "Q1")
    until(lambda: proxy.held)  # the server has written the messages, not committed
    with server_setting(server, "read_only", "1"):
        proxy.release()
        assert refused(answer.result(LONG)) == UNAVAILABLE
    assert "save_turn failed: OperationalError (1290" in errors(caplog)[0]
    other = str(uuid.uuid4())
    assert is_stored(chat(client, other, "Q1"), 1)  # over the same connection
    assert pairs(store, conversation_id) == []
    assert is_stored(chat(client, conversation_id, "Q2"), 1)
    assert pairs(store, conversation_id) == echoed("Q2")


@pytest.mark.slow
def test_a_commit_that_a_backup_keeps_waiting_is_given_up_and_not_stored_later_either(
    client_for: MakeClient,
    proxy: Proxy,
    server: PrivateServer,
    store: Store,
    model: ScriptedModel,
    conversation_id: str,
    beside: Beside,
) -> None:
    model.echoes()
    client = client_for(db_port=proxy.port, db_pool_size=1)
    proxy.delay_reply_to(INSERT_MESSAGES, LONG)
    answer = beside(chat, client, conversation_id, "Q1")
    until(lambda: proxy.held)
    with root(server) as ask:
        ask("FLUSH TABLES WITH READ LOCK")
        proxy.release()
        assert refused(answer.result(LONG)) == UNAVAILABLE
        ask("UNLOCK TABLES")
    assert is_stored(chat(client, str(uuid.uuid4()), "Q1"), 1)
    assert pairs(store, conversation_id) == []
    assert is_stored(chat(client, conversation_id, "Q2"), 1)


# ---------------------------------------------------------------------------------------- the server hangs


def freeze(server: PrivateServer) -> None:
    """Freeze it, and wait until it stands still: it may take a moment until the last of its threads does."""

    def stands_still() -> bool:
        with socket.create_connection(("127.0.0.1", server.port), timeout=LONG) as connection:
            connection.settimeout(0.3)
            try:
                connection.recv(1)
            except TimeoutError:
                return True
            return False

    server.freeze()
    until(stands_still)


@pytest.fixture(params=[0.5, pytest.param(db.READ_TIMEOUT_S, marks=pytest.mark.slow)], ids=["in short", "as it is"])
def patience(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> float:
    """How long the service waits for the server, in seconds."""
    monkeypatch.setattr(Database.connect, "__defaults__", (request.param,))
    return float(request.param)


def test_a_frozen_server_is_told_as_unavailable_and_goes_on_when_it_thaws(
    client_for: MakeClient,
    server: PrivateServer,
    store: Store,
    model: ScriptedModel,
    conversation_id: str,
    patience: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model.echoes()
    client, fresh = client_for(), client_for()
    chat(client, conversation_id, "Q1")
    freeze(server)
    for each in (client, fresh):  # one has a connection, the other wants one
        began = time.monotonic()
        assert refused(chat(each, conversation_id, "lost")) == UNAVAILABLE
        assert time.monotonic() - began < 5 + 4 * patience
        assert each.get("/healthz").status_code == 200
    assert len(model.requests) == 1
    server.thaw()
    monkeypatch.undo()
    assert is_stored(chat(client, conversation_id, "Q2"), 2)
    assert is_stored(chat(fresh, conversation_id, "Q3"), 3)
    assert pairs(store, conversation_id) == echoed("Q1", "Q2", "Q3")


@pytest.mark.usefixtures("hasty")
def test_a_server_that_freezes_while_the_model_thinks_stores_nothing_late(
    client_for: MakeClient,
    server: PrivateServer,
    store: Store,
    model: ScriptedModel,
    conversation_id: str,
    patience: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def answer(request: Json) -> Json:
        freeze(server)
        return completion({"role": "assistant", "content": "late"}, "stop")(request)

    model.answers_by(answer, forever=False).echoes()
    client = client_for()
    began = time.monotonic()
    assert refused(chat(client, conversation_id, "lost")) == UNAVAILABLE
    assert time.monotonic() - began < LONG + 2 * patience
    server.thaw()
    monkeypatch.undo()
    time.sleep(0.5)
    assert pairs(store, conversation_id) == []
    assert is_stored(chat(client, conversation_id, "Q1"), 1)


def test_a_frozen_server_does_not_make_a_turn_last_longer_than_it_may(
    client_for: MakeClient, server: PrivateServer, model: ScriptedModel, conversation_id: str
) -> None:
    client = client_for(turn_timeout_s=1.0)
    assert client.get("/api/conversations").status_code == 200
    freeze(server)
    began = time.monotonic()
    assert refused(chat(client, conversation_id, "lost")) == UNAVAILABLE
    assert time.monotonic() - began < db.READ_TIMEOUT_S  # which is how long the database's thread still waits
    server.thaw()


# ---------------------------------------------------------------------------------------- others in the conversation


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


# ---------------------------------------------------------------------------------------- what a turn costs


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


# ---------------------------------------------------------------------------------------- for a long time


@pytest.mark.slow
def test_whatever_dies_whenever_no_acknowledged_turn_is_lost_doubled_or_halved(
    service_for: MakeService, server: PrivateServer, store: Store, model: ScriptedModel, beside: Beside
) -> None:
    model.echoes(delay_s=0.01)
    service, over = service_for(), threading.Event()

    def talk(name: str) -> list[str]:
        acknowledged, number = [], 0
        with httpx2.Client(base_url=f"http://127.0.0.1:{service.port}", timeout=60, trust_env=False) as http:
            while not over.is_set():
                number += 1
                with contextlib.suppress(httpx2.TransportError):
                    answer = http.post("/chat", json={"conversation_id": name, "message": f"{name} {number}"})
                    assert answer.status_code in (200, 503), answer.text
                    acknowledged += [f"{name} {number}"] if answer.status_code == 200 else []
        return acknowledged

    names = [str(uuid.uuid4()) for _ in range(8)]
    talking = {name: beside(talk, name) for name in names}
    for round_ in range(12):
        time.sleep(0.5 + round_ % 5 * 0.17)
        crash(server)
        if round_ % 2:
            service.end(kill=True)
            service.start()
    time.sleep(1)
    over.set()
    for name, talk_ in talking.items():
        acknowledged = talk_.result(90)
        questions = [question for question, _ in pairs(store, name)]
        assert len(acknowledged) > 10
        assert set(acknowledged) <= set(questions)
        assert questions == sorted(set(questions), key=lambda text: int(text.split()[1]))
