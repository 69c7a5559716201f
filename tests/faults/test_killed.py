"""Server and service are killed at every point of a turn, once and for a long time."""

import contextlib
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest

from dev.mariadb import PrivateServer
from tests.conftest import MakeClient, MakeService, Store, path_of
from tests.support.faults import COMMIT, INSERT_MESSAGES, UNAVAILABLE, Proxy, chat, crash, echoed, is_stored, refused
from tests.support.gate import Beside
from tests.support.pairs import pairs
from tests.support.scripted_model import Json, ScriptedModel, completion
from tests.support.waiting import LONG, until


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
