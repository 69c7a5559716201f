"""Refusals: the status and the code of each, what is tried again, and what is left of the turn."""

import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from fastapi.testclient import TestClient

from tests.conftest import Store
from tests.support.odd_replies import GOOD, HTML, asks, call
from tests.support.outcomes import KEY, LEAK, ONCE_MORE, answered, both_ways, failed, keeps_secrets, left_nothing
from tests.support.recording_tools import RUNS
from tests.support.scripted_model import Json, ScriptedModel
from tests.support.ways import ask

IN_AN_HOUR = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
LONG_AGO = "Wed, 21 Oct 2015 07:28:00 GMT"


def refusal(code: str | int | None = None, kind: str | None = "error") -> str:
    message = f"{LEAK}: the key {KEY} was used at http://vendor.example/v1"
    return json.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}})


REFUSALS: list[tuple[int, Json, str, int, str, str | None, int]] = [
    # status, headers, body -> status, code, Retry-After, number of requests
    (400, {}, refusal(), 502, "model_error", None, 1),
    (400, {}, refusal("model_not_found"), 400, "model_not_found", None, 1),
    (401, {}, refusal("invalid_api_key"), 500, "model_unauthorized", None, 1),
    (401, {"retry-after": "1"}, refusal(), 500, "model_unauthorized", None, 1),
    (402, {}, refusal(), 429, "model_rate_limited", "3600", 1),
    (403, {}, refusal(), 500, "model_unauthorized", None, 1),
    (404, {}, refusal("model_not_found"), 400, "model_not_found", None, 1),
    (404, {"content-type": "text/html"}, HTML, 400, "model_not_found", None, 1),
    (405, {}, "", 502, "model_error", None, 1),
    (408, {}, refusal(), 502, "model_error", None, ONCE_MORE),
    (409, {}, refusal(), 502, "model_error", None, ONCE_MORE),
    (413, {}, refusal(), 502, "model_error", None, 1),
    (415, {}, refusal(), 502, "model_error", None, 1),
    (422, {}, refusal(), 502, "model_error", None, 1),
    (429, {}, refusal(), 429, "model_rate_limited", "10", ONCE_MORE),
    (429, {"retry-after": "0"}, refusal(), 429, "model_rate_limited", "10", ONCE_MORE),
    (429, {"retry-after": "0.01"}, refusal(), 429, "model_rate_limited", "1", ONCE_MORE),
    (429, {"retry-after": "3600"}, refusal(), 429, "model_rate_limited", "3600", 1),
    (429, {"retry-after": IN_AN_HOUR}, refusal(), 429, "model_rate_limited", "about an hour", 1),
    (429, {"retry-after": "Fri, 31 Dec 9999 23:59:59 GMT"}, refusal(), 429, "model_rate_limited", "3600", 1),
    (429, {"retry-after": "999999"}, refusal(), 429, "model_rate_limited", "3600", 1),
    (503, {"retry-after": "Fri, 31 Dec 9999 23:59:59 GMT"}, refusal(), 503, "model_unavailable", "3600", 1),
    (429, {"retry-after": LONG_AGO}, refusal(), 429, "model_rate_limited", "10", ONCE_MORE),
    (429, {"retry-after": "soon"}, refusal(), 429, "model_rate_limited", "10", ONCE_MORE),
    (429, {"retry-after": "-5"}, refusal(), 429, "model_rate_limited", "10", ONCE_MORE),
    (429, {"retry-after": "9" * 400}, refusal(), 429, "model_rate_limited", "10", ONCE_MORE),
    (429, {"retry-after": "nan"}, refusal(), 429, "model_rate_limited", "10", ONCE_MORE),
    (429, {}, refusal("insufficient_quota"), 429, "model_rate_limited", "3600", 1),
    (429, {}, refusal(None, "insufficient_quota"), 429, "model_rate_limited", "3600", 1),
    (429, {}, refusal(429, "billing_not_active"), 429, "model_rate_limited", "3600", 1),
    (429, {"retry-after": "60"}, refusal("insufficient_quota"), 429, "model_rate_limited", "60", 1),
    (429, {"content-type": "text/html"}, HTML, 429, "model_rate_limited", "10", ONCE_MORE),
    (500, {}, refusal(), 502, "model_error", None, ONCE_MORE),
    (500, {"content-type": "text/html"}, HTML, 502, "model_error", None, ONCE_MORE),
    (500, {}, "", 502, "model_error", None, ONCE_MORE),
    (502, {}, "null", 502, "model_error", None, ONCE_MORE),
    (503, {}, refusal(), 503, "model_unavailable", "5", ONCE_MORE),
    (503, {"content-type": "text/html"}, HTML, 503, "model_unavailable", "5", ONCE_MORE),
    (503, {"retry-after": "3600"}, refusal(), 503, "model_unavailable", "3600", 1),
    (504, {}, refusal(), 502, "model_error", None, ONCE_MORE),
    (529, {}, refusal("overloaded_error"), 502, "model_error", None, ONCE_MORE),
]


@both_ways
@pytest.mark.parametrize("row", REFUSALS, ids=[f"{row[0]}-{n}" for n, row in enumerate(REFUSALS)])
def test_a_refusal_has_its_status_its_code_and_its_number_of_requests(
    client: TestClient,
    store: Store,
    model: ScriptedModel,
    conversation_id: str,
    way: str,
    row: tuple[int, Json, str, int, str, str | None, int],
    caplog: pytest.LogCaptureFixture,
) -> None:
    given, headers, body, status, code, retry_after, requests = row
    for _ in range(requests):
        model.raw(body, given, headers=headers)
    outcome = ask(client, way, conversation_id)
    failed(outcome, status, code)
    assert len(model.requests) == requests
    if way == "/chat" and retry_after == "about an hour":
        assert 3500 < int(outcome.headers["retry-after"]) <= 3600
    elif way == "/chat":
        assert outcome.headers.get("retry-after") == retry_after
    keeps_secrets(outcome.text + caplog.text, model)
    left_nothing(client, store, model, conversation_id)


@both_ways
@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 529])
def test_what_may_pass_is_tried_again(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, way: str, status: int
) -> None:
    model.fails(status).fails(status).says("Hello.")
    answered(ask(client, way, conversation_id), store, conversation_id, "Hello.")


@both_ways
def test_retry_after_is_waited_for(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, way: str
) -> None:
    model.fails(429, headers={"retry-after": "1"}).says("Hello.")
    outcome = ask(client, way, conversation_id)
    answered(outcome, store, conversation_id, "Hello.")
    assert outcome.body["model_ms"] >= 1000


@both_ways
def test_a_try_again_after_a_tool_does_not_run_the_tool_again(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, way: str
) -> None:
    asks(model, call("note", GOOD))
    model.fails(500).says("Done.")
    answered(ask(client, way, conversation_id), store, conversation_id, "Done.")
    assert len(RUNS) == 1


@both_ways
def test_an_error_after_a_tool_leaves_nothing_of_the_turn(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, way: str
) -> None:
    asks(model, call("note", GOOD))
    model.fails(400)
    failed(ask(client, way, conversation_id), 502, "model_error")
    assert len(RUNS) == 1
    left_nothing(client, store, model, conversation_id)


def test_what_an_attempt_that_broke_had_held_back_is_not_in_the_next_ones_text(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    for beginning in (" ", "<", "<think>Aha", "{", "``", "[", "</"):
        store.rows("DELETE FROM conversations WHERE conversation_id = %s", conversation_id)
        model.events([{"choices": [{"index": 0, "delta": {"content": beginning}}]}], done=False)
        model.says("Hello, you there.")
        outcome = ask(client, "/chat/stream", conversation_id)
        answered(outcome, store, conversation_id, "Hello, you there.")
        assert outcome.deltas() == "Hello, you there."
