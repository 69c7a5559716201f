"""The request to the model: what it holds, where it goes, and when none is made."""

import pytest
from fastapi.testclient import TestClient

from tests.conftest import MakeClient, Store
from tests.support.odd_replies import GOOD, asks, call
from tests.support.outcomes import answered, both_ways, failed, left_nothing, stopped
from tests.support.recording_tools import RUNS
from tests.support.scripted_model import ScriptedModel
from tests.support.ways import ask


@both_ways
def test_a_service_that_has_moved_is_followed(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, way: str
) -> None:
    model.raw("", 308, headers={"location": f"{model.base_url}/chat/completions"}).says("Hello.")
    answered(ask(client, way, conversation_id), store, conversation_id, "Hello.")
    assert model.requests[0] == model.requests[1]


def test_a_request_carries_no_cookie_and_nothing_about_the_machine(
    client: TestClient, model: ScriptedModel, conversation_id: str
) -> None:
    for message in ("Q1", "Q2"):
        model.says("Hello.", headers={"set-cookie": "who=you"})
        ask(client, "/chat", conversation_id, message=message)
    first, second = model.headers
    assert set(first) == {"host", "accept", "accept-encoding", "authorization", "content-length", "content-type",
                          "user-agent", "x-stainless-retry-count"}  # fmt: skip
    assert {**second, "content-length": first["content-length"]} == first


@both_ways
@pytest.mark.parametrize(("missing", "status", "code"), [("api_key", 500, "model_unauthorized")])
def test_without_a_key_no_request_is_made(
    client_for: MakeClient, model: ScriptedModel, conversation_id: str, way: str, missing: str, status: int, code: str
) -> None:
    failed(ask(client_for(**{missing: ""}), way, conversation_id), status, code)
    assert not model.requests


@both_ways
def test_without_a_model_no_request_is_made_unless_the_caller_names_one(
    client_for: MakeClient, model: ScriptedModel, conversation_id: str, way: str
) -> None:
    client = client_for(default_model="")
    failed(ask(client, way, conversation_id), 400, "model_not_found")
    assert not model.requests
    model.says("Hello.")
    assert ask(client, way, conversation_id, model="theirs").status == 200
    assert model.requests[0]["model"] == "theirs"


@both_ways
def test_where_tools_are_forbidden_none_are_offered_and_none_are_carried_out(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, way: str
) -> None:
    asks(model, call("note", GOOD))
    stopped(ask(client, way, conversation_id, max_tool_calls=0), "tool_call_limit")
    assert not {"tools", "tool_choice"} & set(model.requests[0])
    assert not RUNS
    left_nothing(client, store, model, conversation_id, max_tool_calls=0)
