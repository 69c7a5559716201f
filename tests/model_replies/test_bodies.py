"""Bodies under status 200 that are no reply, or are one in disguise."""

import gzip
import json
import zlib
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.conftest import Store
from tests.support.odd_replies import HTML, WHOLE
from tests.support.outcomes import KEY, LEAK, ONCE_MORE, answered, both_ways, failed, keeps_secrets, left_nothing
from tests.support.scripted_model import Json, ScriptedModel
from tests.support.ways import ask

Body = Json | list[Any] | str | int | None

NO_REPLY: list[tuple[str, Any]] = [
    ("choices empty", {"choices": []}),
    ("choices null", {"choices": None}),
    ("choices absent", {"id": "x"}),
    ("choices an object", {"choices": {"index": 0, "message": {"content": "x"}}}),
    ("choices of nothing", {"choices": [None]}),
    ("choices of lists", {"choices": [[]]}),
    ("an error without a code", {"error": {"message": LEAK}}),
    ("an error with a word for a code", {"error": {"message": LEAK, "code": "server_error"}}),
    ("an error with a strange code", {"error": {"message": LEAK, "code": 12345}}),
    ("an error as text", {"error": LEAK}),
    ("an error of code 500", {"error": {"message": LEAK, "code": 500}, "choices": None}),
    ("an error beside an answer", {"error": {"message": LEAK}, "choices": [{"message": {"content": "x"}}]}),
    ("an empty object", {}),
    ("a list", []),
    ("text", "OK"),
    ("a number", 5),
    ("null", None),
]


@both_ways
@pytest.mark.parametrize("body", [body for _, body in NO_REPLY], ids=[name for name, _ in NO_REPLY])
def test_a_body_under_200_that_is_no_reply_is_asked_for_again_and_then_an_error(
    client: TestClient,
    store: Store,
    model: ScriptedModel,
    conversation_id: str,
    way: str,
    body: Body,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def bad() -> None:
        if way == "/chat/stream":
            model.events([json.dumps(body)])
        else:
            model.raw(json.dumps(body))

    bad()
    model.says("Hello.")
    answered(ask(client, way, conversation_id), store, conversation_id, "Hello.")
    for _ in range(ONCE_MORE):
        bad()
    outcome = ask(client, way, conversation_id)
    failed(outcome, 502, "model_error")
    keeps_secrets(outcome.text + caplog.text, model)
    left_nothing(client, store, model, conversation_id, before=2)


@both_ways
@pytest.mark.parametrize("message", [None, "Hello.", [], 5])
def test_a_choice_without_a_message_is_asked_for_again(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, way: str, message: Any
) -> None:
    model.replies({"choices": [{"index": 0, "finish_reason": "stop", "message": message}]}).says("Hello.")
    answered(ask(client, way, conversation_id), store, conversation_id, "Hello.")


INSIDE: list[tuple[Any, int, str, int]] = [
    ({"code": 429}, 429, "model_rate_limited", ONCE_MORE),
    ({"code": "429", "message": LEAK}, 429, "model_rate_limited", ONCE_MORE),
    ({"status": 503}, 503, "model_unavailable", ONCE_MORE),
    ({"code": 502}, 502, "model_error", ONCE_MORE),
    ({"code": 401, "message": f"{LEAK} {KEY}"}, 500, "model_unauthorized", 1),
    ({"code": 404}, 400, "model_not_found", 1),
    ({"code": 400}, 502, "model_error", 1),
    ({"code": "model_not_found"}, 400, "model_not_found", 1),
    ({"code": "insufficient_quota"}, 429, "model_rate_limited", 1),
    ({"code": "context_length_exceeded", "message": LEAK}, 502, "model_error", 1),
    ({"code": 400, "message": "maximum context length is 4096 tokens"}, 502, "model_error", 1),
]


@both_ways
@pytest.mark.parametrize(("error", "status", "code", "requests"), INSIDE, ids=range(len(INSIDE)))
def test_an_error_under_200_counts_as_the_status_that_it_names(
    client: TestClient,
    store: Store,
    model: ScriptedModel,
    conversation_id: str,
    way: str,
    error: Any,
    status: int,
    code: str,
    requests: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for _ in range(requests):
        model.replies({"error": error})
    outcome = ask(client, way, conversation_id)
    failed(outcome, status, code)
    keeps_secrets(outcome.text + caplog.text, model)
    left_nothing(client, store, model, conversation_id)


NO_JSON: list[tuple[str, bytes | str, str]] = [
    ("HTML", HTML, "text/html; charset=utf-8"),
    ("HTML called JSON", HTML, "application/json"),
    ("HTML called a stream", HTML, "text/event-stream"),
    ("nothing", "", "application/json"),
    ("nothing called text", "", "text/plain"),
    ("nothing called a stream", "", "text/event-stream"),
    ("white space", " \n", "application/json"),
    ("text", f"OK {LEAK}", "text/plain"),
    ("half an object", '{"id": "x"', "application/json"),
    ("a Python literal", "{'id': 'x'}", "application/json"),
    ("other bytes than UTF-8", b'{"choices": [{"message": {"content": "\xff\xfe"}}]}', "application/json"),
    ("Chinese in GBK", '{"choices": [{"message": {"content": "你好"}}]}'.encode("gbk"), "application/json"),
    ("100,000 brackets", "[" * 100_000, "application/json"),
    ("a number of 5,000 digits", '{"choices": ' + "9" * 5_000 + "}", "application/json"),
    ("a stream of no JSON", f"data: {LEAK}\n\ndata: [DONE]\n\n", "text/event-stream"),
    ("a stream of brackets", f"data: {'[' * 100_000}\n\n", "text/event-stream"),
    ("a stream of comments", ": a\n\n: b\n\n", "text/event-stream"),
    ("only the end of a stream", "data: [DONE]\n\n", "text/event-stream"),
    ("no content type", "hello", ""),
]


@both_ways
@pytest.mark.parametrize(("body", "kind"), [row[1:] for row in NO_JSON], ids=[row[0] for row in NO_JSON])
def test_a_body_under_200_that_is_no_json_is_an_error_with_a_name(
    client: TestClient,
    store: Store,
    model: ScriptedModel,
    conversation_id: str,
    way: str,
    body: bytes | str,
    kind: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for _ in range(ONCE_MORE):
        model.raw(body, content_type=kind)
    outcome = ask(client, way, conversation_id)
    failed(outcome, 502, "model_error")
    keeps_secrets(outcome.text + caplog.text, model)
    left_nothing(client, store, model, conversation_id)


@both_ways
@pytest.mark.parametrize("how", ["gzip", "deflate"])
def test_a_reply_may_be_compressed(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, way: str, how: str
) -> None:
    packed = gzip.compress(json.dumps(WHOLE).encode()) if how == "gzip" else zlib.compress(json.dumps(WHOLE).encode())
    model.raw(packed, headers={"content-encoding": how})
    answered(ask(client, way, conversation_id), store, conversation_id, "Hello.")


@both_ways
@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "text/plain", ""])
def test_a_whole_reply_is_read_whatever_its_content_type_and_whatever_was_asked_for(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, way: str, kind: str
) -> None:
    body = {"choices": [{"message": {"role": "assistant", "content": "你好。"}, "finish_reason": "stop"}]}
    model.raw("\ufeff" + json.dumps(body, ensure_ascii=False) + "\n", content_type=kind)
    answered(ask(client, way, conversation_id), store, conversation_id, "你好。")
