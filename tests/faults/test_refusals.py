"""The server answers, and will not."""

import contextlib
import gc
import os
import time
import uuid
from collections.abc import Iterator

import pymysql
import pytest

from config import Settings
from db import Database
from dev.mariadb import PrivateServer
from tests.conftest import MakeClient, Store, path_of
from tests.support.faults import INSERT_MESSAGES, UNAVAILABLE, Proxy, chat, echoed, errors, is_stored, refused, root
from tests.support.gate import Beside
from tests.support.pairs import pairs
from tests.support.scripted_model import ScriptedModel
from tests.support.waiting import LONG, until


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
