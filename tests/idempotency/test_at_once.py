"""Requests while the first one is still being answered, and many of them at once over several processes."""

import contextlib
import threading
import time
import uuid

import pytest

from tests.conftest import MakeClient, MakeService, Service, Store
from tests.support.gate import Beside, Gate
from tests.support.keyed import CONFLICT, IN_PROGRESS, MISMATCH, Reply, body_of, chat, is_replay, key_row, post, refused
from tests.support.pairs import pairs
from tests.support.scripted_model import ScriptedModel, completion, last_user_text
from tests.support.waiting import LONG, until
from tests.support.ways import WAYS


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("elsewhere", [False, True], ids=["same process", "another process"])
def test_a_request_that_is_still_being_answered_is_told_so_and_answered_once_it_is_done(
    client_for: MakeClient,
    store: Store,
    model: ScriptedModel,
    conversation_id: str,
    key: str,
    beside: Beside,
    gates: list[Gate],
    way: str,
    elsewhere: bool,
) -> None:
    client = client_for()
    other = client_for() if elsewhere else client
    body = {"conversation_id": conversation_id, "message": "Hi"}
    model.answers_by(gates[0].answer("Hello."), forever=False)
    first = beside(post, client, way, body, key)
    gates[0].wait()
    again = post(other, way, body, key)
    assert (again.status_code, refused(again)) == (409, IN_PROGRESS)
    assert int(again.headers["retry-after"]) >= 1
    assert again.headers["content-type"] == "application/problem+json"
    assert refused(post(other, way, body | {"message": "other"}, key)) == MISMATCH
    row = key_row(store, key)
    assert row and (row.state, row.answer) == ("running", None)
    gates[0].open()
    last = post(other, way, body, key) if first.result(LONG) else None
    assert last and is_replay(last)
    assert body_of(last) == body_of(first.result())
    assert pairs(store, conversation_id) == [("Hi", "Hello.")]


def test_a_lease_is_longer_than_a_turn_may_last_and_a_key_is_kept_for_a_day(
    client_for: MakeClient, store: Store, model: ScriptedModel, conversation_id: str, key: str
) -> None:
    model.says("Hello.")
    assert chat(client_for(turn_timeout_s=100), conversation_id, "Hi", key).status_code == 200
    seconds = "TIMESTAMPDIFF(SECOND, NOW(6), leased_until), TIMESTAMPDIFF(SECOND, NOW(6), expires_at)"
    with contextlib.closing(store.connect(init_command="SET time_zone = '+00:00'")) as connection:
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT {seconds} FROM idempotency_keys WHERE name = %s", (key,))
            row = cursor.fetchone()
    assert row
    assert 100 + 30 < row[0] < 100 + 90
    assert 24 * 3600 - 60 < row[1] <= 24 * 3600


def test_of_many_requests_with_one_key_at_the_same_instant_one_runs(
    service_for: MakeService, store: Store, model: ScriptedModel, conversation_id: str, beside: Beside
) -> None:
    services = [service_for(), service_for()]
    model.echoes(delay_s=0.3)
    for number in range(1, 6):
        key, start = str(uuid.uuid4()), threading.Barrier(12)

        def ask(service: Service, number: int = number, key: str = key, start: threading.Barrier = start) -> Reply:
            start.wait(LONG)
            return chat(service.http, conversation_id, f"Q{number}", key)

        asked = [beside(ask, services[one % 2]) for one in range(12)]
        answers = [future.result(LONG) for future in asked]
        done = [answer for answer in answers if answer.status_code == 200]
        assert len([answer for answer in done if not is_replay(answer)]) == 1
        assert all(refused(answer) == IN_PROGRESS for answer in answers if answer.status_code != 200)
        done += [chat(service.http, conversation_id, f"Q{number}", key) for service in services]
        assert len({answer.content for answer in done}) == 1
        assert len(model.requests) == number
    assert pairs(store, conversation_id) == [(f"Q{number}", f"echo: Q{number}") for number in range(1, 6)]


def test_a_caller_that_leaves_a_stream_finds_the_answer_when_it_comes_back(
    service_for: MakeService,
    store: Store,
    model: ScriptedModel,
    conversation_id: str,
    key: str,
    gates: list[Gate],
) -> None:
    service = service_for()
    body = {"conversation_id": conversation_id, "message": "Hi"}
    model.answers_by(gates[0].answer("Hello."), forever=False)
    with service.http.stream("POST", "/chat/stream", json=body, headers={"Idempotency-Key": key}) as stream:
        assert next(stream.iter_bytes()).startswith(b"id: 1\nevent: started\n")
        gates[0].wait()
    gates[0].open()
    until(lambda: pairs(store, conversation_id))
    again = post(service.http, "/chat", body, key)
    assert is_replay(again)
    assert again.json()["answer"] == "Hello."


@pytest.fixture
def three_services(service_for: MakeService) -> list[Service]:
    return [service_for(DB_POOL_SIZE="4") for _ in range(3)]


def test_of_fifty_turns_at_once_over_three_processes_what_is_answered_is_stored_and_the_rest_is_not(
    three_services: list[Service], store: Store, model: ScriptedModel, conversation_id: str, beside: Beside
) -> None:
    model.echoes(delay_s=0.02)
    asked = {
        f"Q{number}": beside(three_services[number % 3].chat, conversation_id, f"Q{number}") for number in range(50)
    }
    answers = {question: future.result(LONG) for question, future in asked.items()}
    stored = {answer.json()["turn"]: question for question, answer in answers.items() if answer.status_code == 200}
    assert all(refused(answer) == CONFLICT for answer in answers.values() if answer.status_code != 200)
    in_order = [(stored[turn], f"echo: {stored[turn]}") for turn in sorted(stored)]
    assert pairs(store, conversation_id) == in_order
    assert len(in_order) >= 50 // 3  # of each round one wins


def test_fifty_turns_at_once_over_three_processes_with_keys_and_retries_are_all_stored_once(
    three_services: list[Service], store: Store, model: ScriptedModel, conversation_id: str, beside: Beside
) -> None:
    model.answers_by(
        lambda request: completion({"role": "assistant", "content": f"echo: {last_user_text(request)}"}, "stop")(
            request
        )
    )

    def insist(number: int) -> Reply:
        """Another process each time, until it is answered."""
        key = f"{conversation_id}-{number}".encode().hex()[:255]
        for attempt in range(500):
            answer = chat(three_services[(number + attempt) % 3].http, conversation_id, f"Q{number}", key)
            if answer.status_code == 200:
                return answer
            assert refused(answer) in (CONFLICT, IN_PROGRESS)
            time.sleep(0.01 * (number % 7))
        raise AssertionError("never answered")

    answers = [future.result(2 * LONG) for future in [beside(insist, number) for number in range(50)]]
    questions = {answer.json()["turn"]: f"Q{number}" for number, answer in enumerate(answers)}
    in_order = [(questions[turn], f"echo: {questions[turn]}") for turn in range(1, 51)]
    assert pairs(store, conversation_id) == in_order
    states = store.rows("SELECT state FROM idempotency_keys WHERE conversation_id = %s", conversation_id)
    assert states == [("done",)] * 50
