"""`/api/conversations…`, `/api/tools`, `/readyz`, `/docs`: what can be looked at, renamed and deleted."""

import http.client
import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote, urljoin

import pytest
from fastapi.testclient import TestClient

from tests.conftest import MakeClient, MakeService, Store, path_of
from tests.support.scripted_model import ScriptedModel


def say(client: TestClient, conversation_id: str, message: str = "Hi") -> None:
    answer = client.post("/chat", json={"conversation_id": conversation_id, "message": message})
    assert answer.status_code == 200, answer.text


STRANGE = [
    "a/b/messages",
    "../../etc/passwd",
    "..",
    "' OR '1'='1' --",
    "a\\%_'\"`;",
    "%2F",
    "%25",
    "x?y#z",
    'x"><img src=x onerror=alert(3)>',
    "会话 🙂 ½",
    "x" * 100,
    "字" * 100,
]


def test_any_name_that_can_be_sent_can_be_read_renamed_and_deleted_again(
    service_for: MakeService, store: Store, model: ScriptedModel
) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", service_for().port, timeout=10)

    def send(method: str, path: str, body: Any = None) -> Any:
        """Over a client that sends a path as it is."""
        connection.request(method, path, json.dumps(body) if body else None, {"content-type": "application/json"})
        return json.loads(connection.getresponse().read() or b"null")

    for name in STRANGE:
        path = "/api/conversations/" + quote(name, safe="").replace(".", "%2E")
        model.says("Hello.")
        assert send("POST", "/chat", {"conversation_id": name, "message": "Hi"})["turn"] == 1
        assert send("GET", path)["conversation_id"] == name
        shown = [(m["id"], m["role"], m["content"]) for m in send("GET", path + "/messages")["data"]]
        assert shown == [(1, "user", "Hi"), (2, "assistant", "Hello.")]
        assert send("PATCH", path, {"title": "新标题"})["title"] == "新标题"
        assert len(store.messages(name)) == 2
        assert send("DELETE", path) is None
        assert store.messages(name) == []
        assert send("GET", path)["code"] == "not_found"
    connection.close()


def test_names_are_compared_exactly(client: TestClient, store: Store, model: ScriptedModel) -> None:
    pairs = [("Room-1", "room-1"), ("é", "e"), ("😀", "😁"), ("é", "e\u0301"), ("ａ", "a"), ("ß", "ss")]
    for name in {name for pair in pairs for name in pair}:
        client.delete(path_of(name))
    for pair in pairs:
        for name in pair:
            if not store.messages(name):
                model.says(f"I am {name}.")
                say(client, name, f"Who is {name}?")
            assert store.messages(name) == [("user", f"Who is {name}?"), ("assistant", f"I am {name}.")]


def test_an_unknown_conversation_is_not_found_and_reading_it_creates_nothing(
    client: TestClient, store: Store, conversation_id: str
) -> None:
    for method, path in [("GET", ""), ("GET", "/messages"), ("PATCH", ""), ("DELETE", "")]:
        body = {"json": {"title": "x"}} if method == "PATCH" else {}
        answer = client.request(method, path_of(conversation_id) + path, **body)
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    assert store.rows("SELECT id FROM conversations WHERE conversation_id = %s", conversation_id) == []


def test_pages_of_messages_hold_each_message_once_while_the_conversation_goes_on(
    client: TestClient, model: ScriptedModel, conversation_id: str
) -> None:
    seen, after = [], None
    for turn in range(3):
        model.says(f"answer {turn}")
        say(client, conversation_id, f"question {turn}")
    for _ in range(3):
        query = {"limit": 2} | ({"after": after} if after else {})
        page = client.get(path_of(conversation_id) + "/messages", params=query).json()
        seen += [message["id"] for message in page["data"]]
        assert page["has_more"] is True
        after = page["next"]
        model.says("more")
        say(client, conversation_id, "more")
    page = client.get(path_of(conversation_id) + "/messages", params={"limit": 200, "after": after}).json()
    assert [*seen, *(message["id"] for message in page["data"])] == list(range(1, 13))
    assert (page["has_more"], page["next"]) == (False, None)


def test_pages_of_conversations_survive_what_is_added_and_deleted_between_them(
    client: TestClient, model: ScriptedModel, conversation_id: str
) -> None:
    names = [f"{conversation_id[:60]}-{n}" for n in range(6)]
    for name in names:
        model.says("Hello.")
        say(client, name)
    first = client.get("/api/conversations", params={"limit": 2}).json()
    assert [c["conversation_id"] for c in first["data"]] == [names[5], names[4]]
    model.says("Hello.")
    say(client, f"{conversation_id}-new")
    client.delete(path_of(names[4]))
    client.delete(path_of(names[3]))
    second = client.get("/api/conversations", params={"limit": 2, "after": first["next"]}).json()
    assert [c["conversation_id"] for c in second["data"]] == [names[2], names[1]]


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=201", "limit=x", "limit=%5C", "after=%25", "after=c1", "after=bTE"]
)
def test_a_page_that_cannot_be_is_refused(client: TestClient, query: str) -> None:
    answer = client.get(f"/api/conversations?{query}")
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")


@pytest.mark.parametrize("title", ["", " ", "x" * 201, 5, "a\0"])
def test_a_title_that_cannot_be_shown_is_refused(client: TestClient, conversation_id: str, title: object) -> None:
    assert client.patch(path_of(conversation_id), json={"title": title}).status_code == 422
    assert client.patch(path_of(conversation_id), json={"name": "x"}).status_code == 422


def test_the_first_question_is_the_title_and_no_emoji_is_cut_in_two(
    client: TestClient, model: ScriptedModel, conversation_id: str
) -> None:
    model.says("Hello.")
    family = "👨‍👩‍👧‍👦"
    say(client, conversation_id, "\n" + family * 50 + "\nmore")
    title = client.get(path_of(conversation_id)).json()["title"]
    assert title.endswith("…")
    assert title.removesuffix("…").replace(family, "") == ""
    assert client.patch(path_of(conversation_id), json={"title": None}).json()["title"] is None


def test_a_deleted_conversation_begins_anew(client: TestClient, model: ScriptedModel, conversation_id: str) -> None:
    model.says("One.").then_says("Two.")
    say(client, conversation_id, "first")
    assert client.delete(path_of(conversation_id)).status_code == 204
    say(client, conversation_id, "second")
    assert [m["content"] for m in model.requests[1]["messages"][1:]] == ["second"]
    assert client.get(path_of(conversation_id)).json()["turns"] == 1


def test_rows_that_somebody_else_adds_are_seen_at_once(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    model.says("Hello.")
    say(client, conversation_id)
    for _ in range(12):
        client.get(path_of(conversation_id) + "/messages")
    rows = [(conversation_id, 3, "user", "added"), (conversation_id, 4, "assistant", "by someone else")]
    for row in rows:
        store.rows("INSERT INTO messages (conversation_id, id, role, content) VALUES (%s, %s, %s, %s)", *row)
    for _ in range(12):
        data = client.get(path_of(conversation_id) + "/messages").json()["data"]
        assert [m["content"] for m in data[2:]] == ["added", "by someone else"]


def test_the_tools_are_shown_with_their_schemas(client_for: MakeClient) -> None:
    tools = client_for(toolsets=("calculator", "clock")).get("/api/tools").json()["data"]
    assert [tool["name"] for tool in tools] == ["calculator", "current_time"]
    assert tools[0]["parameters"]["required"] == ["a", "b", "operation"]
    assert tools[0]["parameters"]["properties"]["operation"]["enum"] == ["add", "subtract", "multiply", "divide"]


def test_readyz_names_a_prompt_that_has_gone(client_for: MakeClient, tmp_path: Path) -> None:
    file = tmp_path / "prompt.md"
    file.write_text("Be brief.", encoding="utf-8")
    client = client_for(system_prompt_file=str(file))
    assert client.get("/readyz").status_code == 200
    file.unlink()
    answer = client.get("/readyz")
    assert (answer.status_code, [error["field"] for error in answer.json()["errors"]]) == (503, ["prompt"])


def test_readyz_names_what_is_missing_and_healthz_asks_nobody(client_for: MakeClient) -> None:
    assert client_for().get("/readyz").json() == {"status": "ready"}
    without_key = client_for(api_key="")
    answer = without_key.get("/readyz")
    assert answer.status_code == 503
    assert "API_KEY" in answer.json()["detail"]
    elsewhere = client_for(db_port=1)
    assert [error["field"] for error in elsewhere.get("/readyz").json()["errors"]] == ["database"]
    assert elsewhere.get("/healthz").json() == {"status": "ok"}


def test_what_is_missing_and_what_is_not_there_is_told_in_chinese_too(client_for: MakeClient) -> None:
    chinese = {"accept-language": "zh"}
    problem = client_for(api_key="", default_model="").get("/readyz", headers=chinese).json()
    assert problem["detail"] == "尚未就绪：model：API_KEY 和 DEFAULT_MODEL 未设置。"
    assert problem["errors"] == [{"field": "model", "detail": "API_KEY 和 DEFAULT_MODEL 未设置"}]
    (error,) = client_for(db_port=1).get("/readyz", headers=chinese).json()["errors"]
    assert error["detail"] == "MySQL 没有响应或拒绝登录；请查看日志和 `python3 -m dev doctor`"
    client = client_for()
    for path, thing in (("/api/conversations/none", "会话"), (f"/api/runs/{'0' * 36}", "运行记录"), ("/none", "路径")):
        assert client.get(path, headers=chinese).json()["detail"] == f"此处没有该资源（{thing}）。"


def test_a_cursor_that_is_none_of_ours_is_named_as_the_field(client: TestClient) -> None:
    for path in ("/api/conversations?after=zz", "/api/runs?after=1"):
        problem = client.get(path).json()
        assert problem["detail"] == "The request cannot be used: after: it should be the `next` of the page before"
        assert problem["errors"] == [{"field": "after", "detail": "it should be the `next` of the page before"}]
        assert client.get(path, headers={"accept-language": "zh"}).json()["errors"] == [
            {"field": "after", "detail": "应为上一页的 `next`"}
        ]


def test_a_question_without_a_key_for_the_model_is_told_what_the_operator_has_to_do(
    client_for: MakeClient, conversation_id: str
) -> None:
    answer = client_for(api_key="").post("/chat", json={"conversation_id": conversation_id, "message": "Hi"})
    assert (answer.status_code, answer.json()["code"]) == (500, "model_unauthorized")
    assert "API_KEY" in answer.json()["detail"]


def test_the_documentation_loads_nothing_from_another_host(client: TestClient) -> None:
    page = client.get("/docs")
    assert page.status_code == 200
    assets = re.findall(r"""(?:src|href)=["']([^"']+)""", page.text)
    assert len(assets) >= 3
    for asset in assets:
        assert urljoin("http://127.0.0.1/docs", asset).startswith("http://127.0.0.1/"), asset
        assert client.get(asset).status_code == 200
    assert not re.findall(r"https?://(?!127\.0\.0\.1)[^\"']+", page.text)
    document = client.get("/openapi.json").json()
    assert {"/chat", "/chat/stream", "/api/conversations", "/api/tools", "/healthz", "/readyz"} <= set(
        document["paths"]
    )


def test_every_error_of_a_route_is_in_the_openapi_document(client: TestClient) -> None:
    answers = client.get("/openapi.json").json()["paths"]["/chat"]["post"]["responses"]
    assert {"200", "400", "403", "409", "413", "422", "429", "500", "502", "503", "504"} <= set(answers)
    assert "application/problem+json" in answers["422"]["content"]


def test_an_id_in_a_path_follows_the_rules_of_an_id_in_a_body(client: TestClient) -> None:
    for name in ("a\nb", " a", "x" * 101, "\0"):
        answer = client.get(f"/api/conversations/{quote(name, safe='')}")
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
