"""What an operator relies on: logs that cannot be forged and hold no secret, ids that tie things together, headers."""

import json
import logging
import socket
import sys
import threading
import time

import pytest
import uvicorn
from fastapi.testclient import TestClient

import problems
from logs import JsonLine, OneLine, configure_logging
from tests.conftest import MakeClient, MakeService, free_port
from tests.support.scripted_model import ScriptedModel


def test_a_request_id_goes_in_and_comes_out_and_one_is_made_where_none_fits(client_for: MakeClient) -> None:
    client = client_for()
    assert client.get("/healthz", headers={"x-request-id": "abc-1.2_3"}).headers["x-request-id"] == "abc-1.2_3"
    for odd in ("", "a b", "x" * 65, "a\tb", "é".encode().decode("latin-1")):
        made = client.get("/healthz", headers={"x-request-id": odd.encode("latin-1")}).headers["x-request-id"]
        assert len(made) == 32
    assert client.get("/api/conversations/none", headers={"x-request-id": "e-1"}).headers["x-request-id"] == "e-1"


def test_the_log_ties_the_request_to_its_run_and_holds_no_text_and_no_key(
    service_for: MakeService, model: ScriptedModel, conversation_id: str
) -> None:
    model.asks_for("calculator", a=1, b=2, operation="add").then_says("the private answer")
    model.fails(401, "Incorrect API key provided: sk-test")
    service = service_for(LOG_FORMAT="json")
    headers = {"x-request-id": "req-77"}
    body = {"conversation_id": conversation_id, "message": "the private question"}
    run_id = service.http.post("/chat", json=body, headers=headers).json()["run_id"]
    assert service.http.post("/chat", json=body).status_code == 500
    service.end()
    log = service.log.read_text(encoding="utf-8")
    lines = [json.loads(line) for line in log.splitlines()]  # those of uvicorn too
    assert ("req-77", run_id) in [(line["request_id"], line["run_id"]) for line in lines]
    for secret in ("private", "sk-test", "Bearer", conversation_id, service.environment["DB_PASSWORD"]):
        assert secret not in log


def test_what_the_database_has_to_say_is_tied_to_the_request_too(
    service_for: MakeService, conversation_id: str
) -> None:
    service = service_for(LOG_FORMAT="json", DB_PORT=str(free_port()))
    body = {"conversation_id": conversation_id, "message": "Hi"}
    answer = service.http.post("/chat", json=body, headers={"x-request-id": "req-78"})
    assert answer.json()["code"] == "store_unavailable"
    service.end()
    lines = [json.loads(line) for line in service.log.read_text(encoding="utf-8").splitlines()]
    assert [(line["request_id"], line["run_id"]) for line in lines if line["logger"] == "db"] == [
        ("req-78", answer.json()["run_id"])
    ]


def test_nothing_from_outside_can_forge_a_line_of_the_log() -> None:
    name = "a\r\n2025-01-01 ERROR forged\x1b[31m\u2028"
    record = logging.LogRecord("x", logging.INFO, "f", 1, "name %s", (name,), None)
    assert len(OneLine("%(message)s").format(record).splitlines()) == 1
    assert "\x1b" not in OneLine("%(message)s").format(record)
    try:
        raise LookupError(name)
    except LookupError:
        record.exc_info = sys.exc_info()
    first, *stack = OneLine("%(message)s").format(record).split("\n")
    assert first.startswith("name a")
    assert all(line.startswith("| ") and line.isprintable() for line in stack)
    assert len(JsonLine().format(record).split("\n")) == 1
    assert json.loads(JsonLine().format(record))["message"].startswith("name a\r\n")


def test_a_log_that_somebody_has_set_up_is_left_alone() -> None:
    before = list(logging.getLogger().handlers)
    configure_logging("json")
    assert logging.getLogger().handlers == before


def test_the_classroom_log_shows_each_step_with_its_contents(
    service_for: MakeService, model: ScriptedModel, conversation_id: str
) -> None:
    model.asks_for("calculator", a=12, b=8, operation="multiply").then_says("96")
    service = service_for(LOG_FORMAT="classroom")
    service.chat(conversation_id, "12 * 8?")
    service.end()
    log = service.log.read_text(encoding="utf-8")
    shown = [line for line in log.splitlines() if line[:2] in ("当前", "模型", "工具")]
    assert shown[0] == "当前Step: 1"
    assert "模型选择工具: calculator" in shown
    assert "模型生成参数: {'a': 12, 'b': 8, 'operation': 'multiply'}" in shown
    assert "工具执行结果: 96" in shown
    assert shown[-3:] == ["当前Step: 2", "模型 content: 96", "模型 tool_calls: None"]


def test_no_other_origin_may_read_unless_it_was_named(client_for: MakeClient) -> None:
    origin = {"origin": "http://localhost:3000"}
    assert "access-control-allow-origin" not in client_for().get("/api/tools", headers=origin).headers
    named = client_for(cors_origins="http://localhost:3000")
    answer = named.get("/api/tools", headers=origin)
    assert answer.headers["access-control-allow-origin"] == "http://localhost:3000"
    preflight = origin | {"access-control-request-method": "POST", "access-control-request-headers": "content-type"}
    assert named.options("/chat", headers=preflight).status_code == 200
    assert named.options("/chat", headers=preflight | {"origin": "http://evil.example"}).status_code == 400


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/api/conversations", 200),
        ("GET", "/api/conversations/none", 404),
        ("GET", "/no/such/path", 404),
        ("HEAD", "/no/such/path", 404),
        ("GET", "/chat", 405),
        ("POST", "/openapi.json", 405),
        ("GET", "/v1/none", 404),
        ("PUT", "/v1/models", 405),
    ],
)
def test_an_answer_has_an_id_and_is_not_kept_by_caches_nor_guessed_at(
    client: TestClient, method: str, path: str, status: int
) -> None:
    answer = client.request(method, path, headers={"x-request-id": "edge-1"})
    assert (answer.status_code, answer.headers["x-request-id"]) == (status, "edge-1")
    assert (answer.headers["x-content-type-options"], answer.headers["cache-control"]) == ("nosniff", "no-store")
    others = [client.request(method, path).headers["x-request-id"] for _ in range(2)]
    assert [len(made) for made in others] == [32, 32] and others[0] != others[1]


def test_a_body_that_drips_is_given_up(client_for: MakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(problems, "BODY_TIMEOUT_S", 0.5)
    app = client_for().app
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        head = b"POST /chat HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        connection.sendall(head + b'Content-Length: 100\r\n\r\n{"m')
        assert connection.recv(65_536).startswith(b"HTTP/1.1 422")
    server.should_exit = True
    thread.join(10)


@pytest.mark.parametrize("path", ["/healthz", "/docs", "/openapi.json"])
def test_what_needs_no_database_answers_without_one(client_for: MakeClient, path: str) -> None:
    assert client_for(db_port=1).get(path).status_code == 200
