"""Connections that break, hang, never end or speak no HTTP."""

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator

import pytest
from fastapi.testclient import TestClient

import model as model_module
from tests.conftest import MakeClient, Store, free_port
from tests.support.odd_replies import WHOLE
from tests.support.outcomes import KEY, ONCE_MORE, answered, both_ways, failed, keeps_secrets, left_nothing, stopped
from tests.support.scripted_model import ScriptedModel
from tests.support.ways import ask


@both_ways
@pytest.mark.parametrize("cut", [0, 1, 40])
def test_a_body_that_was_cut_is_asked_for_again_and_then_an_error(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, way: str, cut: int
) -> None:
    model.cuts_after(cut, json.dumps(WHOLE)).says("Hello.")
    answered(ask(client, way, conversation_id), store, conversation_id, "Hello.")
    for _ in range(ONCE_MORE):
        model.cuts_after(cut, json.dumps(WHOLE))
    assert ask(client, way, conversation_id).status in (502, 503)
    left_nothing(client, store, model, conversation_id, before=2)


@both_ways
def test_a_connection_that_is_reset_is_tried_again_and_then_an_error(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, way: str
) -> None:
    model.resets().says("Hello.")
    answered(ask(client, way, conversation_id), store, conversation_id, "Hello.")
    for _ in range(ONCE_MORE):
        model.resets()
    outcome = ask(client, way, conversation_id)
    failed(outcome, 503, "model_unavailable")
    left_nothing(client, store, model, conversation_id, before=2)


@both_ways
def test_a_service_that_nobody_answers_for_is_unavailable(
    client_for: MakeClient,
    store: Store,
    model: ScriptedModel,
    conversation_id: str,
    way: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    port = free_port()
    outcome = ask(client_for(api_key=KEY, base_url=f"http://127.0.0.1:{port}/v1"), way, conversation_id)
    failed(outcome, 503, "model_unavailable")
    if way == "/chat":
        assert outcome.headers["retry-after"] == "5"
    keeps_secrets(outcome.text + caplog.text, model)
    assert str(port) not in outcome.text + caplog.text
    assert store.messages(conversation_id) == []


@both_ways
@pytest.mark.parametrize("drips", [False, True])
def test_a_request_that_takes_longer_than_it_may_is_a_timeout_and_is_not_made_again(
    client_for: MakeClient, store: Store, model: ScriptedModel, conversation_id: str, way: str, drips: bool
) -> None:
    client = client_for(model_timeout_s=0.4)
    model.drips(json.dumps(WHOLE), bytes_per_s=20) if drips else model.hangs()
    failed(ask(client, way, conversation_id), 504, "model_timeout")
    model.wait_until(lambda: model.closed_early == 1)  # the service is not kept busy for nobody
    assert len(model.requests) == 1
    left_nothing(client, store, model, conversation_id)


@both_ways
@pytest.mark.parametrize("drips", [False, True])
def test_a_turn_that_takes_longer_than_it_may_ends_and_says_so(
    client_for: MakeClient, store: Store, model: ScriptedModel, conversation_id: str, way: str, drips: bool
) -> None:
    client = client_for(turn_timeout_s=0.4)
    model.drips(json.dumps(WHOLE), bytes_per_s=20) if drips else model.hangs()
    stopped(ask(client, way, conversation_id), "timeout")
    left_nothing(client_for(), store, model, conversation_id)


def endless(head: str, piece: bytes) -> Callable[[socket.socket], None]:
    """Answers with a body that never ends."""

    def answer(connection: socket.socket) -> None:
        connection.sendall(f"HTTP/1.1 {head}\r\ntransfer-encoding: chunked\r\n\r\n".encode())
        while True:
            connection.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))

    return answer


@contextlib.contextmanager
def raw_service(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """A service that does with each connection what `answer` says. Gives its address."""

    def serve(connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            connection.recv(1_000_000)
            answer(connection)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=serve, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(5)


DELTA = json.dumps({"choices": [{"index": 0, "delta": {"content": "word "}}]}).encode()
ENDLESS: list[tuple[str, str, bytes, set[str]]] = [
    ("JSON", "200 OK\r\ncontent-type: application/json", b" " * 10_000, {"model_error"}),
    ("a line", "200 OK\r\ncontent-type: text/event-stream", b"data: " + b"x" * 10_000, {"model_error"}),
    ("deltas", "200 OK\r\ncontent-type: text/event-stream", b"data: " + DELTA + b"\n\n", {"length"}),
    ("comments", "200 OK\r\ncontent-type: text/event-stream", b": still here\n\n" * 100, {"model_error"}),
    ("an error page", "500 Oh\r\ncontent-type: text/html", b" " * 1_000, {"model_error"}),
    ("a refusal", "401 No\r\ncontent-type: application/json", b" " * 1_000, {"model_unauthorized"}),
]


@both_ways
@pytest.mark.parametrize(("head", "piece", "ends"), [row[1:] for row in ENDLESS], ids=[row[0] for row in ENDLESS])
def test_a_body_without_end_is_given_up(
    client_for: MakeClient,
    store: Store,
    conversation_id: str,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
    head: str,
    piece: bytes,
    ends: set[str],
) -> None:
    monkeypatch.setattr(model_module, "MAX_REPLY_BYTES", 1_000_000)
    with raw_service(endless(head, piece)) as address:
        client = client_for(base_url=address, max_answer_chars=2_000, model_timeout_s=1.0)
        outcome = ask(client, way, conversation_id)
        assert {outcome.body.get("code"), outcome.body.get("stop_reason")} & ends, outcome.text[-500:]
    assert store.messages(conversation_id) == []


BABBLE = [b"", b"\r\n\r\n", b"hello\r\n", b"HTTP/1.1 abc\r\n\r\n", b"HTTP/1.1 200 OK\r\n", b"\x16\x03\x01" * 50]
BABBLE += [b"HTTP/1.1 200 OK\r\ncontent-length: -5\r\n\r\n{}", b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000 + b"\r\n\r\n"]
BABBLE += [b"HTTP/1.1 302 Found\r\nlocation: /v1/chat/completions\r\ncontent-length: 0\r\n\r\n"]
BABBLE += [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n"]
BABBLE += [b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 5\r\n\r\nhello"]
BABBLE += [b"HTTP/1.1 204 No Content\r\n\r\n", b"HTTP/1.1 304 Not Modified\r\n\r\n", b"HTTP/1.1 600 What\r\n\r\n"]


@both_ways
@pytest.mark.parametrize("answer", BABBLE, ids=range(len(BABBLE)))
def test_what_is_no_http_at_all_is_an_error_with_a_name(
    client_for: MakeClient,
    store: Store,
    model: ScriptedModel,
    conversation_id: str,
    way: str,
    answer: bytes,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with raw_service(lambda connection: connection.sendall(answer)) as address:
        outcome = ask(client_for(base_url=address, api_key=KEY, model_timeout_s=1.0), way, conversation_id)
    assert outcome.status in (502, 503, 504)
    assert outcome.body["code"] in ("model_error", "model_unavailable", "model_timeout")
    keeps_secrets(outcome.text + caplog.text, model)
    assert address not in outcome.text + caplog.text
    assert store.messages(conversation_id) == []
