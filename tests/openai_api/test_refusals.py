"""What is refused, in OpenAI's shape, naming the parameter."""

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.conftest import MakeClient
from tests.support.openai_api import CHAT_TOOL, HI, RESPONSES_TOOL, WEATHER, refused
from tests.support.scripted_model import ScriptedModel

IMAGE = {"type": "image_url", "image_url": {"url": "http://x/y.png"}}

CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}

CLASH = {"type": "function", "function": {"name": "calculator"}}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"n": 2}, "n"),
        ({"logprobs": True}, "logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice"),
        ({"functions": [WEATHER]}, "functions"),
        ({"function_call": {"name": "weather"}}, "function_call"),
        ({"audio": {"voice": "x", "format": "wav"}}, "audio"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"stop": ["\n"]}, "stop"),
        ({"logit_bias": {"50256": -100}}, "logit_bias"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0].content[0].type"),
        ({"messages": [*HI, {"role": "tool", "tool_call_id": "c1", "content": "x"}]}, "messages[1].tool_call_id"),
        ({"messages": [*HI, {"role": "assistant", "tool_calls": [CALL]}]}, "messages[1].tool_calls[0]"),
        ({"messages": [*HI, {"role": "function", "name": "x", "content": "x"}]}, "messages[1].role"),
        ({"messages": [{"role": "system", "content": "x"}]}, "messages"),
        ({"messages": [{"role": "user", "content": " \n"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [7]}, "messages[0]"),
        ({"messages": None}, "messages"),
        ({"model": 7}, "model"),
        ({"stream": "yes"}, "stream"),
        ({"tools": [CLASH]}, "tools[0].function.name"),
        ({"tools": [CHAT_TOOL, CHAT_TOOL]}, "tools[1].function.name"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type"),
        (
            {"tools": [{"type": "function", "function": {"name": "x", "parameters": []}}]},
            "tools[0].function.parameters",
        ),
    ],
)
def test_a_completion_that_is_not_supported_names_the_parameter(
    refusing: TestClient, body: dict[str, Any], param: str
) -> None:
    refused(refusing, "/v1/chat/completions", {"model": "scripted", "messages": HI, **body}, param)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"background": True}, "background"),
        ({"prompt": {"id": "x"}}, "prompt"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"top_logprobs": 1}, "top_logprobs"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {}}}}, "text.format"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "name": "calculator"}]}, "tools[0].name"),
        ({"tools": [RESPONSES_TOOL], "conversation": "a"}, "tools"),
        ({"tools": [RESPONSES_TOOL], "store": True}, "store"),
        ({"store": False, "conversation": "a"}, "store"),
        ({"conversation": "a", "input": [*HI, *HI]}, "input"),
        ({"conversation": " a"}, "conversation"),
        ({"conversation": {"name": "a"}}, "conversation"),
        ({"conversation": ["a"]}, "conversation"),
        ({"input": ["Hi"]}, "input"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, "input[0].call_id"),
        ({"input": []}, "input"),
        ({"input": ""}, "input"),
        ({"input": "x" * 32_001}, "input"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"metadata": {str(n): "x" for n in range(17)}}, "metadata"),
    ],
)
def test_a_response_that_is_not_supported_names_the_parameter(
    refusing: TestClient, body: dict[str, Any], param: str
) -> None:
    refused(refusing, "/v1/responses", {"input": "Hi", **body}, param)


@pytest.fixture
def refusing(client_for: MakeClient) -> TestClient:
    """The service in this process: what is refused needs no other."""
    return client_for()


def test_in_a_stored_conversation_only_a_message_of_the_user_is_answered(refusing: TestClient) -> None:
    path, headers = "/v1/chat/completions", {"X-Conversation-Id": "a"}
    refused(refusing, path, {"messages": HI, "tools": [CHAT_TOOL]}, "tools", headers)
    refused(refusing, path, {"messages": [*HI, {"role": "assistant", "content": "x"}]}, "messages", headers)
    long = [*HI, {"role": "user", "content": "x" * 32_001}, {"role": "system", "content": "x"}]
    refused(refusing, path, {"messages": long}, "messages[1].content", headers)
    for name in ("", "%20a", "%FF", "a%00", "x" * 101, "ä".encode()):
        refused(refusing, path, {"messages": HI}, "X-Conversation-Id", {"X-Conversation-Id": name})
    both = {"input": "Hi", "conversation": "b"}
    refused(refusing, "/v1/responses", both, "X-Conversation-Id", headers)
    refused(refusing, path, {"messages": HI}, "Idempotency-Key", {**headers, "Idempotency-Key": "a b"})


def test_a_parameter_of_another_type_is_told_in_chinese_to_those_who_ask_for_it(refusing: TestClient) -> None:
    body = {"messages": [], "model": 7}
    answer = refusing.post("/v1/chat/completions", json=body, headers={"accept-language": "zh"})
    assert answer.json()["error"]["message"] == "请求无效：messages：至少需要 1 项；model：应为字符串"


def test_items_are_not_written_one_by_one(refusing: TestClient) -> None:
    item = {"items": [{"role": "user", "content": "Hi"}]}
    for method, path, body, param in [
        ("POST", "/v1/conversations", item, "items"),
        ("POST", "/v1/conversations", {"metadata": {"a": 1}}, "metadata.a"),
        ("POST", "/v1/conversations", {"metadata": {"a": "\ud800"}}, "metadata.a"),
        ("POST", "/v1/conversations/a", {}, "metadata"),
        ("POST", "/v1/conversations/a/items", item, "items"),
        ("DELETE", "/v1/conversations/a/items/msg_1", None, "item_id"),
        ("GET", "/v1/conversations/a/items?limit=0", None, "limit"),
        ("GET", "/v1/conversations/a/items?order=up", None, "order"),
        ("GET", "/v1/conversations/%20a", None, "conversation_id"),
        ("GET", "/v1/responses/resp_1?stream=true", None, "stream"),
    ]:
        answer = refusing.request(method, path, content=json.dumps(body) if body is not None else None)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), (path, answer.text)


def test_what_is_not_there_is_said_in_openais_shape(refusing: TestClient) -> None:
    for method, path, status in [
        ("GET", "/v1/none", 404),
        ("GET", "/v1/models/a%0Ab", 404),
        ("POST", "/v1/a%0A/b%0D%0A", 404),
        ("POST", "/v1/embeddings", 404),
        ("PUT", "/v1/models", 405),
        ("GET", "/v1/chat/completions", 405),
        ("POST", "/v1/responses/resp_1", 405),
        ("BREW", "/v1/models", 405),
        ("GET", "/v1/conversations/none", 404),
        ("GET", "/v1/conversations/none/items", 404),
        ("GET", "/v1/conversations/none/items/msg_1", 404),
        ("DELETE", "/v1/conversations/none", 404),
        ("GET", "/v1/models/", 404),
    ]:
        answer = refusing.request(method, path)
        assert answer.status_code == status, path
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
        assert status == 404 or answer.headers["allow"]
    answer = refusing.post("/v1/responses", content=b" " * (9 * 1024 * 1024))
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")


ODD: list[Any] = [None, True, 0, -1, 1e308, "", "x", "\x00", "\ud800", [], [[]], [None], {}, {"type": None}, {"id": 1}]


def odd_messages() -> list[dict[str, Any]]:
    roles = "user", "tool", "system", "x"
    bodies: list[dict[str, Any]] = [{"messages": [{"role": role, "content": odd}]} for role in roles for odd in ODD]
    bodies += [{"messages": [*HI, {"role": "assistant", "tool_calls": odd}, *HI]} for odd in ODD]
    return bodies + [{"messages": HI, "tools": [{"type": "function", "function": odd}]} for odd in ODD]


def odd_items() -> list[dict[str, Any]]:
    kinds = "message", "function_call", "function_call_output", "x"
    fields = "role", "content", "call_id", "arguments", "output"
    call: dict[str, Any] = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    bodies = [{"input": [{"type": kind, field: odd}]} for kind in kinds for field in fields for odd in ODD]
    return bodies + [{"input": [*HI, {**call, field: odd}]} for field in call for odd in ODD]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/conversations"])
def test_no_odd_body_is_a_defect(client_for: MakeClient, model: ScriptedModel, path: str) -> None:
    """Whatever stands in a field, the answer is one of success or of refusal."""
    model.says("Fine.", forever=True)
    client = client_for()
    names = (
        "messages model stream stream_options tools tool_choice parallel_tool_calls n stop response_format temperature",
        "input model instructions conversation previous_response_id store stream metadata tools tool_choice "
        "parallel_tool_calls max_tool_calls include text background",
        "metadata items",
    )
    whole, fields, bodies = {
        "/v1/chat/completions": ({"messages": HI}, names[0], odd_messages()),
        "/v1/responses": ({"input": "Hi", "store": False}, names[1], odd_items()),
        "/v1/conversations": ({"metadata": {"a": "b"}}, names[2], []),
    }[path]
    bodies += [{**whole, name: odd} for name in fields.split() for odd in ODD]
    texts = [json.dumps(body).encode() for body in bodies]
    texts += [b"", b"{", b"nul", b"\xff", b'"x"', b"[" * 100_000, b'{"messages": [{"role": "user", "content": NaN}]}']
    texts += [b'{"input": ' + b'[{"a":' * 3_000 + b"1" + b"}]" * 3_000 + b"}"]
    for text in texts:
        answer = client.post(path, content=text)
        assert answer.status_code in (200, 400), (text[:200], answer.text)
        if answer.status_code == 400:
            assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
