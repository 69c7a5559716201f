"""Hundreds of turns at once, and more than the service takes."""

import asyncio
import os
import re
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.conftest import MakeService, Service, Store
from tests.support.scripted_model import Json, ScriptedModel, completion
from tests.support.waiting import LONG


def status_of(service: Service) -> dict[str, int]:
    """Threads and memory (kB) of the service, as Linux counts them."""
    assert service.process
    text = Path(f"/proc/{service.process.pid}/status").read_text(encoding="ascii")
    return {name: int(value.split()[0]) for name, value in re.findall(r"(Threads|VmHWM):\s+(\d+.*)", text)}


async def many_turns(
    service: Service, conversation_id: str, count: int, watch: Callable[[], Coroutine[Any, Any, None]]
) -> list[Any]:
    """As many turns at once, each in a conversation of its own, and meanwhile somebody who watches."""
    limits = httpx2.Limits(max_connections=count + 10)
    url = f"http://127.0.0.1:{service.port}"
    async with httpx2.AsyncClient(base_url=url, timeout=60, limits=limits, trust_env=False) as http:

        async def turn(number: int) -> Any:
            body = {"conversation_id": f"{conversation_id}-{number}", "message": f"question {number}"}
            return await http.post("/chat", json=body)

        *answers, _ = await asyncio.gather(*(turn(number) for number in range(count)), watch())
        return answers


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="counts threads as Linux does")
def test_five_hundred_turns_at_once_are_all_answered_and_meanwhile_the_service_says_that_it_lives(
    service_for: MakeService, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    service = service_for()
    released = threading.Event()
    found: list[dict[str, int]] = []

    def answer(request: Json) -> Json:
        released.wait(LONG)
        text = f"echo: {request['messages'][-1]['content']}"
        return completion({"role": "assistant", "content": text}, "stop")(request)

    async def watch() -> None:
        await asyncio.to_thread(model.wait_for_requests, 500, LONG)
        try:
            async with httpx2.AsyncClient(base_url=service.http.base_url, timeout=LONG, trust_env=False) as http:
                for _ in range(10):
                    assert (await http.get("/healthz")).status_code == 200
                    found.append(status_of(service))
        finally:
            released.set()

    model.answers_by(answer)
    answers = asyncio.run(many_turns(service, conversation_id, 500, watch))
    assert [answer.status_code for answer in answers] == [200] * 500
    assert [answer.json()["answer"] for answer in answers] == [f"echo: question {n}" for n in range(500)]
    stored = store.rows("SELECT content FROM messages WHERE conversation_id LIKE %s", f"{conversation_id}-%")
    assert len(stored) == len(set(stored)) == 1000
    assert max(one["Threads"] for one in found) < 60
    assert status_of(service)["VmHWM"] < 400_000


def test_more_turns_than_the_service_takes_are_told_to_come_back_and_the_others_are_answered(
    service_for: MakeService, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    service = service_for(MAX_IN_FLIGHT="5")
    model.echoes(delay_s=1)

    async def nobody() -> None:
        return None

    answers = asyncio.run(many_turns(service, conversation_id, 20, nobody))
    answered = [answer for answer in answers if answer.status_code == 200]
    refused = [answer for answer in answers if answer.status_code != 200]
    assert len(answered) >= 5
    assert len(refused) >= 1
    assert {(answer.status_code, answer.json()["code"]) for answer in refused} == {(503, "overloaded")}
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)
    stored = store.rows("SELECT content FROM messages WHERE conversation_id LIKE %s", f"{conversation_id}-%")
    assert len(stored) == 2 * len(answered)
    assert service.chat(conversation_id, "Hi").status_code == 200  # and then there is room again
