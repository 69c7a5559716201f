"""Who is served where there are no keys: callers on this machine, and no web page that reaches in through a browser."""

from typing import Any

import pytest
from fastapi import FastAPI, Header
from fastapi.testclient import TestClient

from main import chat_router, create_app
from runtime import Runtime
from tests.conftest import MakeClient, MakeSettings, Store, path_of
from tests.support.scripted_model import ScriptedModel

PATHS = ["/api/conversations", "/api/tools", "/healthz", "/readyz"]


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.1:8000", "localhost:8000", "LOCALHOST", "[::1]:8000", "127.1.2.3"]
)
def test_a_caller_on_this_machine_is_served_under_every_loopback_name(client: TestClient, host: str) -> None:
    assert client.get("/api/tools", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},  # a name rebound to 127.0.0.1
        {"host": "127.0.0.1.evil.example"},
        {"host": "localhost.evil.example:8000"},
        {"host": "127.0.0.1@evil.example"},
        {"host": "0.0.0.0"},
        {"host": "192.168.1.5:8000"},
        {"host": ""},
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1.evil.example"},
        {"origin": "file://"},
        {"host": "[::1"},
        {"host": "[localhost]"},
        {"origin": "http://["},
        {"origin": "http://[::1].evil.example"},
        {"host": "[::1].evil.example:8000"},
        {"x-forwarded-for": "203.0.113.9"},
        {"x-forwarded-for": "127.0.0.1"},
        {"forwarded": "for=203.0.113.9"},
        {"x-real-ip": "127.0.0.1"},
        {"via": "1.1 proxy"},
    ],
    ids=str,
)
def test_what_comes_from_elsewhere_through_this_machine_is_refused_on_every_path(
    client: TestClient, headers: dict[str, str]
) -> None:
    for path in PATHS:
        answer = client.get(path, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden"), path
    message = {"conversation_id": "a", "message": "Hi"}
    assert client.post("/chat", json=message, headers=headers).status_code == 403
    assert client.post("/chat/stream", json=message, headers=headers).status_code == 403


@pytest.mark.parametrize("origin", ["http://127.0.0.1:8000", "http://localhost:3000", "http://[::1]"])
def test_a_page_of_this_machine_may_call(client: TestClient, origin: str) -> None:
    assert client.get("/api/tools", headers={"origin": origin}).status_code == 200


@pytest.mark.parametrize("address", ["192.168.1.5", "203.0.113.9", "::ffff:203.0.113.9", "testclient"])
def test_a_caller_on_another_machine_is_told_why_it_is_not_served(settings_for: MakeSettings, address: str) -> None:
    with TestClient(create_app(settings_for()), base_url="http://127.0.0.1", client=(address, 50000)) as client:
        answer = client.get("/api/tools")
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    assert "keys" in answer.json()["detail"]


def test_no_answer_allows_another_origin_to_read_it(client_for: MakeClient) -> None:
    answer = client_for().get("/api/tools", headers={"origin": "http://localhost:3000"})
    assert not [name for name in answer.headers if name.startswith("access-control-")]


def test_a_host_application_says_itself_who_calls_and_what_is_stored_belongs_to_that_caller(
    settings_for: MakeSettings, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    async def user(x_user: str = Header()) -> str:
        return x_user

    host = FastAPI()
    host.include_router(chat_router(Runtime(settings_for()), caller=user), prefix="/assistant")
    with TestClient(host) as client:
        for owner in ("alice", "bob"):
            model.says(f"Hello {owner}.")
            body = {"conversation_id": conversation_id, "message": "Hi"}
            answer = client.post("/assistant/chat", json=body, headers={"x-user": owner})
            assert answer.json()["turn"] == 1
        problem = client.post("/assistant/chat", json={"question": "Hi"}, headers={"x-user": "a"})
        assert problem.headers["content-type"] == "application/problem+json"
        assert client.get("/assistant/api/conversations/none", headers={"x-user": "a"}).json()["code"] == "not_found"
    owners = store.rows("SELECT owner FROM conversations WHERE conversation_id = %s ORDER BY id", conversation_id)
    assert owners == [("alice",), ("bob",)]


@pytest.mark.parametrize("found", [0, False, 7, None, "x" * 101, "\ud800"], ids=repr)
def test_what_names_no_owner_is_a_defect_of_the_host_and_reaches_nothing(
    settings_for: MakeSettings, store: Store, model: ScriptedModel, conversation_id: str, found: Any, client: TestClient
) -> None:
    model.says("Hello.")
    client.post("/chat", json={"conversation_id": conversation_id, "message": "Hi"})

    async def user() -> Any:
        return found

    host = FastAPI()
    host.include_router(chat_router(Runtime(settings_for()), caller=user), prefix="/assistant")
    with TestClient(host, raise_server_exceptions=False) as visitor:
        answers = [
            visitor.post("/assistant/chat", json={"conversation_id": conversation_id, "message": "Hi"}),
            visitor.get("/assistant/api/conversations"),
            visitor.delete(f"/assistant{path_of(conversation_id)}"),
        ]
        for answer in answers:
            assert (answer.status_code, answer.json()["code"]) == (500, "internal_error")
    assert len(model.requests) == 1
    assert len(store.messages(conversation_id)) == 2
