"""The service ends, and what is under way ends with it: stored or not begun."""

import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from tests.conftest import MakeService, Store
from tests.support.scripted_model import ScriptedModel

TOOLS = "tests.support.recording_tools"  # note, now, pause


def in_background(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Begin something and keep what comes of it."""
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(work())
        except httpx2.TransportError as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, results


@pytest.mark.parametrize("sent", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_service_that_is_asked_to_end_finishes_and_stores_what_is_under_way(
    service_for: MakeService, store: Store, model: ScriptedModel, conversation_id: str, sent: signal.Signals
) -> None:
    service = service_for(TOOLSETS=TOOLS)
    model.asks_for("pause", seconds=0.3).then_says("Done.", delay_s=0.5)
    thread, results = in_background(lambda: service.chat(conversation_id, "Hi"))
    model.wait_for_requests(1)
    assert service.process
    service.process.send_signal(sent)
    thread.join(15)
    service.process.wait(15)
    assert results[0].json()["answer"] == "Done."
    assert store.messages(conversation_id) == [("user", "Hi"), ("assistant", "Done.")]
    assert "Traceback" not in service.log.read_text(encoding="utf-8").replace("KeyboardInterrupt", "")


def test_a_turn_whose_caller_has_left_is_stored_before_the_service_ends(
    service_for: MakeService, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    service = service_for()
    model.says("Done.", delay_s=1)
    body = {"conversation_id": conversation_id, "message": "Hi"}
    with service.http.stream("POST", "/chat/stream", json=body) as answer:
        next(answer.iter_raw())
    model.wait_for_requests(1)
    service.end()
    assert store.messages(conversation_id) == [("user", "Hi"), ("assistant", "Done.")]


@pytest.mark.parametrize("sent", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_second_signal_ends_the_service_at_once_and_nothing_is_left_of_the_turn(
    service_for: MakeService, store: Store, model: ScriptedModel, conversation_id: str, sent: signal.Signals
) -> None:
    service = service_for(TURN_TIMEOUT_S="60", MODEL_TIMEOUT_S="60")
    model.hangs()
    thread, results = in_background(lambda: service.chat(conversation_id, "Hi"))
    model.wait_for_requests(1)
    assert service.process
    service.process.send_signal(sent)
    time.sleep(0.5)
    assert service.process.poll() is None  # it waits for the turn
    service.process.send_signal(signal.SIGINT)
    service.process.wait(10)
    thread.join(10)
    assert not isinstance(results[0], httpx2.Response) or results[0].status_code >= 500
    assert store.messages(conversation_id) == []


def test_a_tool_that_is_stuck_does_not_keep_the_service_from_ending(
    service_for: MakeService, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    service = service_for(TOOLSETS=TOOLS, TOOL_TIMEOUT_S="0.5")
    model.asks_for("pause", seconds=600).then_says("Done without it.")
    assert service.chat(conversation_id, "Hi").json()["answer"] == "Done without it."
    service.end()  # waits 30 s at most
    assert len(store.messages(conversation_id)) == 2
