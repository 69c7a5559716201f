"""The server hangs, and the service still answers."""

import socket
import time

import pytest

import db
from db import Database
from dev.mariadb import PrivateServer
from tests.conftest import MakeClient, Store
from tests.support.faults import UNAVAILABLE, chat, echoed, is_stored, refused
from tests.support.pairs import pairs
from tests.support.scripted_model import Json, ScriptedModel, completion
from tests.support.waiting import LONG, until


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
