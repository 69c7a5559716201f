"""`POST /chat`: what a caller gets, what MySQL holds afterwards, and what the model was sent."""

import contextlib
import json
import re
import select
import socket
from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.conftest import MakeClient, MakeService, Store, path_of
from tests.support.scripted_model import ScriptedModel

CALCULATION = "请使用计算器,先计算12乘以8,再把结果除以4。"
FOLLOW_UP = "刚才最终算出来是多少?"


def chat(client: TestClient, conversation_id: str, message: str, **more: Any) -> dict[str, Any]:
    answer = client.post("/chat", json={"conversation_id": conversation_id, "message": message, **more})
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def roles(request: dict[str, Any]) -> list[str]:
    return [message["role"] for message in request["messages"]]


def test_a_turn_stores_the_question_and_the_answer_and_nothing_else(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    model.asks_for("calculator", a=12, b=8, operation="multiply")
    model.then_asks_for("calculator", a=96, b=4, operation="divide").then_says("12×8=96，96÷4=24.0，结果是 24.0。")
    body = chat(client, conversation_id, CALCULATION)
    assert body["answer"] == "12×8=96，96÷4=24.0，结果是 24.0。"
    assert (body["status"], body["stop_reason"], body["turn"]) == ("completed", "completed", 1)
    assert (body["steps"], body["tool_calls"]) == (3, 2)
    assert body["usage"] == {"input_tokens": 30, "output_tokens": 15, "total_tokens": 45}
    assert store.messages(conversation_id) == [("user", CALCULATION), ("assistant", body["answer"])]
    observations = [message["content"] for message in model.requests[-1]["messages"] if message["role"] == "tool"]
    assert observations == ["96", "24.0"]


def test_the_answer_has_the_fields_of_the_contract_and_no_others(
    client: TestClient, model: ScriptedModel, conversation_id: str
) -> None:
    model.says("Hello.")
    body = chat(client, conversation_id, "Hi")
    names = "answer status stop_reason conversation_id turn run_id steps tool_calls usage duration_ms model_ms tool_ms"
    assert list(body) == names.split()


def test_a_follow_up_is_answered_from_what_mysql_holds(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    model.says("结果是 24.0。").then_says("刚才算出来的是 24.0。")
    chat(client, conversation_id, CALCULATION)
    body = chat(client, conversation_id, FOLLOW_UP)
    assert body["turn"] == 2
    assert roles(model.requests[1]) == ["system", "user", "assistant", "user"]
    assert [m["content"] for m in model.requests[1]["messages"][1:]] == [CALCULATION, "结果是 24.0。", FOLLOW_UP]
    assert len(store.messages(conversation_id)) == 4


def test_the_conversation_goes_on_after_the_service_was_killed_and_started_again(
    service_for: MakeService, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    model.says("结果是 24.0。").then_says("是 24.0。")
    service = service_for()
    assert service.chat(conversation_id, CALCULATION).status_code == 200
    service.end(kill=True)
    service.start()
    assert service.chat(conversation_id, FOLLOW_UP).json()["answer"] == "是 24.0。"
    assert len(store.messages(conversation_id)) == 4
    assert "结果是 24.0。" in json.dumps(model.requests[1], ensure_ascii=False)


def test_only_role_and_content_of_stored_messages_go_to_the_model(
    client: TestClient, model: ScriptedModel, conversation_id: str
) -> None:
    model.says("One.").then_says("Two.")
    chat(client, conversation_id, "first")
    chat(client, conversation_id, "second")
    assert all(set(message) == {"role", "content"} for message in model.requests[1]["messages"])


@pytest.mark.parametrize(
    ("message", "answer"),
    [
        ("👨‍👩‍👧‍👦 🇨🇳 𠮷 \u202eabc\u202c אב 🙂", "𠮷 ok 👨‍👩‍👧‍👦"),
        ("line\r\n\ttwo \\ % _ ' \" ` ; --", " leading and trailing \n"),
        ("字" * 31_999, "字" * 30_000),
        ("a\u2028b\u2029c\u0085d", "a\u2028b\x0cc"),
    ],
)
def test_texts_are_stored_exactly_as_they_were_sent(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, message: str, answer: str
) -> None:
    model.says(answer)
    assert chat(client, conversation_id, message)["answer"] == answer
    assert store.messages(conversation_id) == [("user", message), ("assistant", answer)]
    page = client.get(path_of(conversation_id) + "/messages").json()
    assert [m["content"] for m in page["data"]] == [message, answer]


LIMITS: list[tuple[dict[str, Any], Callable[[ScriptedModel], Any], str]] = [
    ({"max_steps": 1}, lambda m: m.asks_for("calculator", a=1, b=2, operation="add"), "max_steps"),
    ({"max_tool_calls": 0}, lambda m: m.asks_for("calculator", a=1, b=2, operation="add"), "tool_call_limit"),
    ({}, lambda m: m.says("half an ans", finish_reason="length"), "length"),
    ({}, lambda m: m.says("I may not", finish_reason="content_filter"), "content_filter"),
    ({}, lambda m: m.says("").then_says("   \n"), "empty_answer"),
]


@pytest.mark.parametrize(("limits", "script", "reason"), LIMITS, ids=[reason for _, _, reason in LIMITS])
def test_a_turn_that_stops_early_says_why_and_stores_nothing(
    client: TestClient,
    store: Store,
    model: ScriptedModel,
    conversation_id: str,
    limits: dict[str, Any],
    script: Callable[[ScriptedModel], Any],
    reason: str,
) -> None:
    script(model)
    body = chat(client, conversation_id, "Hi", **limits)
    assert (body["status"], body["stop_reason"]) == ("incomplete", reason)
    assert (body["answer"], body["turn"]) == (None, None)
    assert body["notice"]
    assert store.messages(conversation_id) == []
    assert client.get(path_of(conversation_id)).status_code == 404


def test_the_notice_of_an_early_stop_is_in_the_callers_language(
    client: TestClient, model: ScriptedModel, conversation_id: str
) -> None:
    model.says("half", finish_reason="length")
    request = {"conversation_id": conversation_id, "message": "你好"}
    answer = client.post("/chat", json=request, headers={"Accept-Language": "zh-CN,en;q=0.5"})
    assert "截断" in answer.json()["notice"]


def test_a_question_that_takes_longer_than_the_turn_may_ends_with_timeout(
    client_for: MakeClient, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    model.hangs()
    body = chat(client_for(turn_timeout_s=0.5), conversation_id, "Hi")
    assert (body["status"], body["stop_reason"], body["steps"]) == ("incomplete", "timeout", 1)
    assert store.messages(conversation_id) == []


def test_usage_is_what_the_service_counted_and_null_where_it_did_not(
    client: TestClient, model: ScriptedModel, conversation_id: str
) -> None:
    model.says("Hello.", usage=None)
    unknown = {"input_tokens": None, "output_tokens": None, "total_tokens": None}
    assert chat(client, conversation_id, "Hi")["usage"] == unknown
    odd = {"prompt_tokens": "10", "completion_tokens": -1, "total_tokens": True}
    model.says("Hello.", usage=odd)
    assert chat(client, conversation_id, "Hi")["usage"] == unknown


def test_a_caller_may_ask_for_less_and_for_another_model_but_not_for_more(
    client_for: MakeClient, model: ScriptedModel, conversation_id: str
) -> None:
    client = client_for(max_steps=2)
    model.asks_for("calculator", a=1, b=2, operation="add", **{}).then_asks_for("calculator", a=1, b=2, operation="add")
    body = chat(client, conversation_id, "Hi", max_steps=50, model="another")
    assert (body["stop_reason"], body["steps"], body["tool_calls"]) == ("max_steps", 2, 1)
    assert {request["model"] for request in model.requests} == {"another"}


def test_the_trace_tells_each_step_of_the_run(client: TestClient, model: ScriptedModel, conversation_id: str) -> None:
    model.asks_for("calculator", a=1, b=0, operation="divide").then_says("That has no result.")
    events = chat(client, conversation_id, "1 / 0?", include_trace=True)["trace"]
    told = [(event["type"], event["step"]) for event in events]
    assert told == [
        ("run_started", 0),
        ("model_request", 1),
        ("model_response", 1),
        ("tool_call", 1),
        ("tool_result", 1),
        ("model_request", 2),
        ("model_response", 2),
        ("run_stopped", 2),
    ]
    result = events[4]["details"]
    assert (result["tool"], result["ok"], result["code"]) == ("calculator", False, "division_by_zero")
    assert result["duration_ms"] >= 0
    stopped = events[-1]["details"]
    assert stopped["stop_reason"] == "completed"
    assert stopped["execution_budget"]["tool_calls"] == 1
    assert stopped["token_usage"]["rounds"] == stopped["token_usage"]["rounds_recorded"] == 2


def test_a_tool_may_end_the_run_at_a_call_before_it_is_counted_or_carried_out(
    client_for: MakeClient, model: ScriptedModel, conversation_id: str, store: Store
) -> None:
    client = client_for(toolsets=("tests.support.careful_tools",))
    model.asks_for("guess", number=1).then_asks_for_all(("guess", {"number": 1}), ("guess", {"number": 7}))
    body = chat(client, conversation_id, "Guess", include_trace=True)
    assert (body["stop_reason"], body["tool_calls"], body["notice"]) == (
        "asked_again",
        1,
        "The run ended: asked_again.",
    )
    end = body["trace"][-1]["details"]
    assert (end["blocked_call"]["arguments"], end["failure"]["code"]) == ({"number": 1}, "wrong_guess")
    assert end["blocked_call"]["call_id"] != end["failure"]["call_id"]
    assert store.messages(conversation_id) == []
    model.asks_for("guess", number=1).then_asks_for("guess", number=2).then_asks_for("guess", number=1)
    assert chat(client, conversation_id, "Guess")["stop_reason"] == "tool_call_limit"  # the budget comes first


# ---------------------------------------------------------------------------------------- refused requests

REFUSED: list[tuple[str, Any]] = [
    ("no message", {"conversation_id": "a"}),
    ("question instead of message", {"conversation_id": "a", "question": "Hi"}),
    ("an unknown field", {"conversation_id": "a", "message": "Hi", "stream": True}),
    ("null", {"conversation_id": "a", "message": None}),
    ("a number as message", {"conversation_id": "a", "message": 5}),
    ("an empty message", {"conversation_id": "a", "message": ""}),
    ("white space", {"conversation_id": "a", "message": " \n\t"}),
    ("ideographic and zero-width space", {"conversation_id": "a", "message": "\u3000\u200b\ufeff"}),
    ("NUL", {"conversation_id": "a", "message": "a\0b"}),
    ("a number as id", {"conversation_id": 12, "message": "Hi"}),
    ("an empty id", {"conversation_id": "", "message": "Hi"}),
    ("an id of 101 characters", {"conversation_id": "a" * 101, "message": "Hi"}),
    ("a space at the end of the id", {"conversation_id": "a ", "message": "Hi"}),
    ("a line break in the id", {"conversation_id": "a\r\nset-cookie: b", "message": "Hi"}),
    ("NUL in the id", {"conversation_id": "a\0b", "message": "Hi"}),
    ("no steps at all", {"conversation_id": "a", "message": "Hi", "max_steps": 0}),
    ("text as steps", {"conversation_id": "a", "message": "Hi", "max_steps": "3"}),
    ("one character too many", {"conversation_id": "a", "message": "字" * 32_001}),
    ("a list", ["message"]),
    ("text", "Hi"),
    ("nothing", None),
]


@pytest.mark.parametrize(("what", "body"), REFUSED, ids=[what for what, _ in REFUSED])
def test_a_request_of_another_shape_is_refused_before_anything_is_done(
    client: TestClient, model: ScriptedModel, what: str, body: Any
) -> None:
    answer = client.post("/chat", json=body)
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["code"] == "invalid_request"
    assert {"type", "title", "status", "detail", "errors"} <= set(problem)
    assert len(answer.content) < 2048
    assert not model.requests


RAW = [
    b"",
    b"   ",
    b'{"conversation_id":"a","message":"Hi",}',
    b'{"conversation_id":"a","message":"Hi"}{"message":"Ho"}',
    b'{"conversation_id":"a","message":"H',
    b'{"conversation_id":"a","message":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b'{"conversation_id":"a","message":' + b"9" * 5_000 + b"}",
    b'{"conversation_id":"a","message":"a\\ud83d b"}',
    b'{"conversation_id":"a","message":"\\ude42\\ud83d"}',
    b'{"conversation_id":"a\\ud83d","message":"Hi"}',
    b'{"conversation_id":"a","message":"\xff\xfe"}',
    b"message=Hi&conversation_id=a",
]


@pytest.mark.parametrize("body", RAW, ids=range(len(RAW)))
def test_a_body_that_is_not_json_is_refused(client: TestClient, body: bytes) -> None:
    answer = client.post("/chat", content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
    (error,) = answer.json()["errors"]
    assert error["field"] in ("body", "message", "conversation_id")
    assert error["detail"] in answer.json()["detail"]


def test_the_caller_of_the_old_name_is_told_the_new_one(client: TestClient) -> None:
    problem = client.post("/chat", json={"conversation_id": "a", "question": "Hi"}).json()
    assert {"field": "question", "detail": "it is named message"} in problem["errors"]


def test_a_body_larger_than_any_message_is_refused_without_being_read(client: TestClient) -> None:
    answer = client.post("/chat", json={"conversation_id": "a", "message": "x" * 10_000_000})
    assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")


def test_a_body_without_end_is_refused_while_it_arrives(service_for: MakeService) -> None:
    with socket.create_connection(("127.0.0.1", service_for().port), timeout=10) as connection:
        head = "POST /chat HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        connection.sendall(head.encode() + b"Transfer-Encoding: chunked\r\n\r\n")
        sent = 0
        with contextlib.suppress(OSError):  # the service need not read on once it has answered
            while sent < 20_000_000:
                connection.sendall(b"10000\r\n" + b" " * 65_536 + b"\r\n")
                sent += 65_536
                if select.select([connection], [], [], 0)[0]:
                    break
        assert connection.recv(65_536).startswith(b"HTTP/1.1 413")
        assert sent < 20_000_000


def test_json_is_read_as_json_whatever_the_content_type_says_and_utf_8_stays_utf_8(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    body = json.dumps({"conversation_id": conversation_id, "message": "退款政策"}, ensure_ascii=False).encode()
    model.says("好。").then_says("好。")
    for headers in ({"content-type": "application/json; charset=gbk"}, {"content-type": ""}):
        assert client.post("/chat", content=body, headers=headers).status_code == 200
    assert store.messages(conversation_id)[0] == ("user", "退款政策")


@pytest.mark.parametrize(
    ("wanted", "chinese"),
    [
        ("zh-CN,zh;q=0.9,en;q=0.8", True),
        ("fr, ZH-Hans ; Q=0.5 , en;q=0.4", True),
        ("zh;q=0.", False),
        ("en;q=0.9,zh;q=0.1", False),
        ("en;q=0.9, zh; q=0.1", False),
        ("en\t;\tq=0.9 ,zh ;q=0.1", False),
        ("zh;q=0, en;q=0.001", False),
        ("zha, fr", False),
    ],
)
def test_errors_are_told_in_the_language_that_the_caller_prefers(
    client: TestClient, wanted: str, chinese: bool
) -> None:
    wrong = {"conversation_id": "a", "message": ""}
    problem = client.post("/chat", json=wrong, headers={"accept-language": wanted}).json()
    assert problem["detail"].startswith("请求无效" if chinese else "The request cannot be used")
    assert problem["code"] == "invalid_request"


@pytest.mark.parametrize(("what", "body"), REFUSED, ids=[what for what, _ in REFUSED])
def test_a_caller_who_reads_chinese_is_told_in_chinese_alone_what_is_wrong(
    client: TestClient, what: str, body: Any
) -> None:
    problem = client.post("/chat", json=body, headers={"accept-language": "zh"}).json()
    told = "；".join(f"{error['field']}：{error['detail']}" for error in problem["errors"])
    assert problem["detail"] == f"请求无效：{told}"
    names = {"message", "JSON", "NUL", "application", "json"}
    for error in problem["errors"]:
        assert set(re.findall("[A-Za-z]+", error["detail"])) <= names, error


TOLD: list[tuple[bytes, str, str, str]] = [
    (b"", "body", "a JSON object is expected, with content type application/json", "应为 JSON 对象"),
    (b"{bad", "body", "this is not valid JSON, at character 2", "不是有效的 JSON（第 2 个字符处）"),
    ('{"message":"退款"}'.encode("gbk"), "body", "it is not UTF-8; JSON in UTF-8 is expected", "不是 UTF-8 编码"),
    (b"[" * 100_000, "body", "it is not JSON that can be read; it may be nested too deeply", "不是可读取的 JSON"),
    (b'{"conversation_id":"a","message":"a\\u0000"}', "message", "no NUL and no lone surrogates", "不能含有 NUL"),
    (b'{"conversation_id":"a","message":"a\\ud83d"}', "message", "it should be text without lone", "应为不含不成对"),
    (b'{"conversation_id":"a","message":"\\u200b\\u0007"}', "message", "something to read is needed", "需要可读的内容"),
    (
        b'{"conversation_id":"a","message":"Hi","max_steps":0}',
        "max_steps",
        "it should be greater than",
        "应大于或等于 1",
    ),
]


@pytest.mark.parametrize(("body", "field", "english", "chinese"), TOLD, ids=range(len(TOLD)))
def test_a_refusal_names_the_field_and_says_what_is_expected(
    client: TestClient, body: bytes, field: str, english: str, chinese: str
) -> None:
    for language, expected in (("en", english), ("zh", chinese)):
        headers = {"content-type": "application/json", "accept-language": language}
        (error,) = client.post("/chat", content=body, headers=headers).json()["errors"]
        assert error["field"] == field
        assert error["detail"].startswith(expected)


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_other_methods_and_paths_are_problems_too(client: TestClient, method: str) -> None:
    answer = client.request(method, "/chat")
    assert (answer.status_code, answer.json()["code"]) == (405, "method_not_allowed")
    assert answer.headers["allow"] == "POST"
    answer = client.request(method, "/no/such/path")
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    assert answer.headers["content-type"] == "application/problem+json"
