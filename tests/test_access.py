"""Keys, owners and limits: what a second caller with a valid key can see, guess, slow down or break. Nothing."""

import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from access.keys import Keys, hash_of, new_key
from dev import owners
from dev.common import DevError
from errors import ConfigError
from tests.conftest import MakeClient, MakeService, Store, path_of
from tests.support.scripted_model import ScriptedModel

ALICE, BOB, DESK = "key-of-alice-123456", "key-of-bob-1234567", "key-of-the-desk-12345"


def bearer(key: str, **more: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"} | {name.replace("_", "-"): value for name, value in more.items()}


@pytest.fixture
def keyed(client_for: MakeClient, tmp_path: Path) -> TestClient:
    """The service with three keys; the desk's may act for users."""
    file = tmp_path / "keys.toml"
    file.write_text(f'[[key]]\nname = "desk"\nhash = "{hash_of(DESK)}"\nmay = ["users"]\n', encoding="utf-8")
    environ = {"API_KEYS": f"alice:{ALICE},bob:{BOB}", "API_KEYS_FILE": str(file)}
    return client_for(environ=environ)


def say(client: TestClient, headers: dict[str, str], conversation_id: str, message: str = "Hi") -> int:
    answer = client.post("/chat", json={"conversation_id": conversation_id, "message": message}, headers=headers)
    return answer.status_code


def test_a_request_without_one_of_our_keys_is_unauthorized_on_every_path_with_data(keyed: TestClient) -> None:
    wrong = [
        {},
        bearer("key-of-nobody-123456"),
        bearer(""),
        {"authorization": ALICE},
        {"authorization": f"Basic {ALICE}"},
    ]
    for headers in [*wrong, bearer(ALICE + "x"), bearer(hash_of(ALICE))]:
        for path in ("/api/conversations", "/api/tools", "/api/conversations/a", "/api/conversations/a/messages"):
            answer = keyed.get(path, headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")
            assert answer.headers["www-authenticate"] == "Bearer"
        assert say(keyed, headers, "a") == 401


def test_probes_need_no_key(keyed: TestClient) -> None:
    assert keyed.get("/healthz").status_code == 200
    assert keyed.get("/readyz").status_code == 200


def test_with_keys_callers_on_other_machines_are_served(keyed: TestClient) -> None:
    with TestClient(keyed.app, base_url="https://agent.example.com", client=("203.0.113.9", 1)) as elsewhere:
        assert elsewhere.get("/api/tools", headers=bearer(ALICE)).status_code == 200


def test_another_owners_conversation_is_as_if_it_were_not_there(
    keyed: TestClient, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    model.says("Plum is safe.")
    assert say(keyed, bearer(ALICE), conversation_id, "secret plum") == 200
    for method, path in [("GET", ""), ("GET", "/messages"), ("PATCH", ""), ("DELETE", "")]:
        body = {"json": {"title": "mine"}} if method == "PATCH" else {}
        theirs = keyed.request(method, path_of(conversation_id) + path, headers=bearer(BOB), **body)
        nobodys = keyed.request(method, path_of("none") + path, headers=bearer(BOB), **body)
        assert (theirs.status_code, theirs.text) == (nobodys.status_code, nobodys.text)
        assert theirs.status_code == 404
    shown = keyed.get("/api/conversations", params={"limit": 200}, headers=bearer(BOB)).json()["data"]
    assert conversation_id not in [conversation["conversation_id"] for conversation in shown]
    assert store.messages(conversation_id, "alice") == [("user", "secret plum"), ("assistant", "Plum is safe.")]


def test_two_owners_may_have_conversations_of_the_same_name(
    keyed: TestClient, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    model.says("Hello Alice.").then_says("Hello Bob.").then_says("Again.")
    assert say(keyed, bearer(ALICE), conversation_id, "I am Alice") == 200
    assert say(keyed, bearer(BOB), conversation_id, "I am Bob") == 200
    assert say(keyed, bearer(BOB), conversation_id, "And I?") == 200
    assert "Alice" not in str(model.requests[2])
    assert keyed.delete(path_of(conversation_id), headers=bearer(BOB)).status_code == 204
    assert len(store.messages(conversation_id, "alice")) == 2
    assert store.messages(conversation_id, "bob") == []


def test_a_key_that_may_acts_for_the_users_it_names_and_no_other_does(
    keyed: TestClient, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    model.says("Hello.").then_says("Hello.")
    assert say(keyed, bearer(DESK, x_user_id="u1"), conversation_id) == 200
    assert say(keyed, bearer(DESK, x_user_id="%E5%B0%8F%E6%98%8E"), conversation_id) == 200
    owners = store.rows("SELECT owner FROM conversations WHERE conversation_id = %s ORDER BY id", conversation_id)
    assert owners == [("desk/u1",), ("desk/小明",)]
    assert keyed.get(path_of(conversation_id), headers=bearer(DESK)).status_code == 404
    answer = keyed.get("/api/conversations", headers=bearer(ALICE, x_user_id="u1"))
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")


@pytest.mark.parametrize("user", ["", " u", "a\tb", "x" * 100, "小明", "é", "%ff", "a%0Ab", "%20u"])
def test_a_user_whose_name_cannot_be_an_owner_is_refused(keyed: TestClient, user: str) -> None:
    headers = {name: value.encode() for name, value in bearer(DESK, x_user_id=user).items()}
    answer = keyed.get("/api/conversations", headers=headers)
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "X-User-Id")
    assert "percent-encoded UTF-8" in answer.json()["detail"]
    (error,) = keyed.get("/api/conversations", headers=headers | {"accept-language": b"zh"}).json()["errors"]
    assert error["detail"].startswith("应为可打印的名称")


def test_the_page_of_the_interface_can_send_a_key_where_one_is_needed(
    keyed: TestClient, client_for: MakeClient
) -> None:
    document = keyed.get("/openapi.json").json()
    assert document["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
    assert document["paths"]["/chat"]["post"]["security"] == [{"key": []}]
    assert document["paths"]["/api/runs"]["get"]["security"] == [{"key": []}]
    assert "security" not in document["paths"]["/healthz"]["get"]
    assert "securitySchemes" not in client_for().get("/openapi.json").json()["components"]


@pytest.mark.parametrize(
    "keys",
    [
        "alice",
        "alice:short",
        f"a/b:{ALICE}",
        f":{ALICE}",
        "alice:with space 123456",
        f"alice:{ALICE},bob:{ALICE}",
        ",",
        f"{'x' * 41}:{ALICE}",
    ],
)
def test_keys_that_cannot_be_are_refused_without_being_shown(keys: str) -> None:
    with pytest.raises(ConfigError) as raised:
        Keys.read(keys, "")
    assert "123456" not in str(raised.value)


@pytest.mark.parametrize(
    "text",
    [
        "not toml at all [",
        "key = 5",
        '[[key]]\nname = "a/b"\nhash = "sha256:' + "0" * 64 + '"',
        '[[key]]\nname = "a"\nhash = "' + "0" * 64 + '"',
        '[[key]]\nname = "a"\nkey = "plain-key-123456"',
        '[[key]]\nname = "a"\nhash = "sha256:' + "0" * 64 + '"\nmay = ["everything"]',
    ],
)
def test_a_keys_file_that_cannot_be_is_refused_by_entry(tmp_path: Path, text: str) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match="API_KEYS_FILE"):
        Keys.read("", str(file))


def test_a_key_is_rotated_by_listing_two(client_for: MakeClient) -> None:
    client = client_for(environ={"API_KEYS": f"alice:{ALICE},alice:{BOB}"})
    for key in (ALICE, BOB):
        assert client.get("/api/tools", headers=bearer(key)).status_code == 200


def test_only_the_hash_of_a_key_is_kept() -> None:
    keys = Keys.read(f"alice:{ALICE}", "")
    assert keys is not None
    found = keys.find(ALICE)
    assert found is not None
    assert found.hash == "sha256:" + hashlib.sha256(ALICE.encode()).hexdigest()
    assert ALICE not in repr(vars(keys))
    assert len({new_key() for _ in range(100)}) == 100


def test_one_owner_who_asks_too_often_waits_and_the_others_do_not(client_for: MakeClient) -> None:
    client = client_for(environ={"API_KEYS": f"alice:{ALICE},bob:{BOB}", "API_RATE": "5/minute"})
    statuses = [client.get("/api/tools", headers=bearer(ALICE)).status_code for _ in range(8)]
    assert statuses == [200] * 5 + [429] * 3
    answer = client.get("/api/tools", headers=bearer(ALICE))
    assert answer.json()["code"] == "rate_limited"
    assert 1 <= int(answer.headers["retry-after"]) <= 120
    assert client.get("/api/tools", headers=bearer(BOB)).status_code == 200


def test_one_owner_has_only_so_many_turns_at_once_also_when_it_does_not_wait_for_the_answers(
    service_for: MakeService, model: ScriptedModel, conversation_id: str
) -> None:
    model.echoes(delay_s=1.5)
    service = service_for(API_KEYS=f"alice:{ALICE},bob:{BOB}", API_IN_FLIGHT="2")

    def post(number: int, key: str) -> int:
        body = {"conversation_id": f"{conversation_id}-{number}", "message": "Hi"}
        return service.http.post("/chat", json=body, headers=bearer(key)).status_code

    with ThreadPoolExecutor(6) as pool:
        statuses = list(pool.map(lambda number: post(number, ALICE), range(4)))
        assert sorted(statuses) == [200, 200, 429, 429]
        assert pool.submit(post, 9, BOB).result() == 200


def test_a_bad_rate_is_named(client_for: MakeClient) -> None:
    with pytest.raises(ConfigError, match="API_RATE"):
        client_for(environ={"API_KEYS": f"alice:{ALICE}", "API_RATE": "often"})


@pytest.mark.parametrize("command", [owners.key, owners.owner])
@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["a b"], [""], ["a", "--from"], ["a", "--from", "a"]])
def test_what_is_no_name_makes_no_key_and_hands_nothing_over(
    command: Callable[[list[str]], int], arguments: list[str]
) -> None:
    with pytest.raises(DevError, match="usage"):
        command(arguments)
