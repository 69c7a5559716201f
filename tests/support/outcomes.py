"""How a turn ended whose model was odd, for its caller, in MySQL and for the next turn of the conversation."""

from typing import Any

import pytest
from fastapi.testclient import TestClient

import model as model_module
from tests.conftest import Store
from tests.support.scripted_model import ScriptedModel
from tests.support.ways import WAYS, Outcome, ask

KEY = "sk-leak-5d1f0a9b7c"
LEAK = "LEAK-vendor-text-93ab1c"  # stands in every error text of the service that is asked
ONCE_MORE = model_module.RETRIES + 1  # requests of a turn whose every try may be made again

both_ways = pytest.mark.parametrize("way", WAYS)


def keeps_secrets(text: str, model: ScriptedModel) -> None:
    """Neither the key, nor an address, nor words of the vendor, nor a stack."""
    for secret in (KEY, LEAK, model.base_url, model.base_url.split("/")[2], "Traceback", 'File "', "aiohttp", "openai"):
        assert secret not in text, text[:2000]


def left_nothing(
    client: TestClient, store: Store, scripted: ScriptedModel, conversation_id: str, before: int = 0, **more: Any
) -> None:
    """Nothing new is stored, and the conversation goes on as if nothing had been."""
    assert len(store.messages(conversation_id)) == before
    scripted.says("Still here.")
    after = ask(client, "/chat", conversation_id, "And now?", **more)
    assert (after.status, after.body["answer"]) == (200, "Still here.")
    assert store.messages(conversation_id)[before:] == [("user", "And now?"), ("assistant", "Still here.")]
    roles = [message["role"] for message in scripted.requests[-1]["messages"]]
    assert roles == ["system", *["user", "assistant"] * (before // 2), "user"]


def answered(outcome: Outcome, store: Store, conversation_id: str, answer: str) -> None:
    """The turn is completed, and MySQL holds it."""
    assert (outcome.status, outcome.body.get("answer")) == (200, answer), outcome.text[-500:]
    assert outcome.body["status"] == "completed"
    assert store.messages(conversation_id) == [("user", "Hi"), ("assistant", answer)]


def stopped(outcome: Outcome, reason: str) -> None:
    """The turn ended early, and says why."""
    assert (outcome.status, outcome.body.get("stop_reason")) == (200, reason), outcome.text[-500:]
    assert (outcome.body["status"], outcome.body["answer"], outcome.body["turn"]) == ("incomplete", None, None)
    assert outcome.body["notice"]


def failed(outcome: Outcome, status: int, code: str) -> None:
    """The turn ended with a problem of the contract."""
    assert (outcome.status, outcome.body.get("code")) == (status, code), outcome.text[-500:]
    assert {"type", "title", "status", "detail", "code", "run_id"} == set(outcome.body)
