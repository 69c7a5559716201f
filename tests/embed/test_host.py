"""The service within another backend: its routes, errors, callers, lifespan and log, beside the host's own."""

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
import pytest

from tests.conftest import Store
from tests.embed.conftest import Host, MakeHost, bearer, message, serving
from tests.support.scripted_model import ScriptedModel

ALICE, BOB = bearer("host-alice"), bearer("host-bob")
HOSTS = ["host"] * 6
LARGE = b"[" * 1_000_000


@pytest.fixture(scope="module")
def echo() -> Iterator[ScriptedModel]:
    """A model that answers every message with its text."""
    with ScriptedModel() as model:
        model.echoes()
        yield model
        model.finish()


@pytest.fixture(scope="module")
def host_folder(host_for: MakeHost, echo: ScriptedModel) -> Host:
    return host_for(echo)


@pytest.fixture(scope="module")
def host(host_folder: Host) -> Iterator[httpx2.Client]:
    """The host as a process; two assistants, at /assistant and /second."""
    with serving(host_folder) as client:
        yield client


def seen_by(host: httpx2.Client) -> list[str]:
    """The errors that the host's own handlers were given so far."""
    return list(host.get("/chat").json()["seen"])


def test_a_message_is_answered_below_the_prefix_and_belongs_to_whom_the_host_says(
    host: httpx2.Client, store: Store, conversation_id: str
) -> None:
    for headers, owner in ((ALICE, "host-alice"), (BOB, "host-bob")):
        answer = host.post("/assistant/chat", json=message(conversation_id, owner), headers=headers)
        assert (answer.status_code, answer.json()["answer"], answer.json()["turn"]) == (200, f"echo: {owner}", 1)
        assert store.messages(conversation_id, owner) == [("user", owner), ("assistant", f"echo: {owner}")]
    path = f"/assistant/api/conversations/{quote(conversation_id, safe='')}"
    assert host.get(path, headers=ALICE).json()["turns"] == 1
    assert host.delete(path, headers=ALICE).status_code == 204
    assert [host.get(path, headers=headers).status_code for headers in (ALICE, BOB)] == [404, 200]
    assert host.get("/chat").json()["owned_by"] == HOSTS


def test_a_stream_and_an_id_with_a_slash_work_below_the_prefix(host: httpx2.Client) -> None:
    name = f"a/b {uuid.uuid4()}"
    answer = host.post("/assistant/chat/stream", json=message(name), headers=ALICE)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.text.count("event: result\n") == 1 and "event: error" not in answer.text
    path = f"/assistant/api/conversations/{quote(name, safe='')}/messages"
    assert [row["content"] for row in host.get(path, headers=ALICE).json()["data"]] == ["Hi", "echo: Hi"]


def test_two_services_in_one_host_have_their_own_settings(host: httpx2.Client, echo: ScriptedModel) -> None:
    prompts = []
    for prefix in ("/assistant", "/second"):
        assert host.post(f"{prefix}/chat", json=message(str(uuid.uuid4())), headers=ALICE).json()["answer"]
        prompts.append(echo.requests[-1]["messages"][0]["content"])
    assert prompts == ["You are the first.", "You are the second."]
    too_long = message("a", "eleven char")
    assert host.post("/second/chat", json=too_long, headers=ALICE).status_code == 422
    assert host.post("/assistant/chat", json=too_long, headers=ALICE).status_code == 200
    tools = [host.get(f"{prefix}/api/tools", headers=ALICE).json()["data"] for prefix in ("/assistant", "/second")]
    assert [[tool["name"] for tool in each] for each in tools] == [
        ["calculator", "in_stock"],
        ["current_time", "in_stock"],
    ]


def problem_of(answer: httpx2.Response) -> tuple[int, str, str]:
    return answer.status_code, answer.headers["content-type"], answer.json()["code"]


@pytest.mark.parametrize(
    ("method", "path", "body", "expected"),
    [
        ("POST", "/chat", {"question": "Hi"}, (422, "invalid_request")),
        ("POST", "/chat", "no JSON", (422, "invalid_request")),
        ("POST", "/chat", b"\xff\xfe{", (422, "invalid_request")),
        ("POST", "/chat", LARGE, (413, "body_too_large")),
        ("POST", "/chat/stream", {"conversation_id": "", "message": ""}, (422, "invalid_request")),
        ("GET", "/chat", None, (405, "method_not_allowed")),
        ("PUT", "/api/conversations/a", None, (405, "method_not_allowed")),
        ("GET", "/api/conversations/none", None, (404, "not_found")),
        ("GET", "/api/conversations?limit=0", None, (422, "invalid_request")),
        ("GET", "/api/conversations?after=x", None, (422, "invalid_request")),
    ],
    ids=lambda value: "large" if value is LARGE else str(value),
)
def test_errors_are_those_of_the_service_and_the_host_sees_none(
    host: httpx2.Client, method: str, path: str, body: Any, expected: tuple[int, str]
) -> None:
    before = seen_by(host)
    content = {"content": body} if isinstance(body, bytes | str) else {"json": body} if body else {}
    headers = ALICE | {"content-type": "application/json"}
    answer = host.request(method, f"/assistant{path}", headers=headers, **content)
    status, code = expected
    assert problem_of(answer) == (status, "application/problem+json", code), answer.text
    assert seen_by(host) == before


def test_what_a_path_takes_is_said_with_405(host: httpx2.Client) -> None:
    assert host.get("/assistant/chat", headers=ALICE).headers["allow"] == "POST"
    assert host.put("/second/api/conversations/a", headers=ALICE).headers["allow"] == "DELETE, GET, PATCH"


@pytest.mark.parametrize(
    ("user", "status", "body", "seen"),
    [
        ("", 401, {"host": "sign in first"}, "NotSignedIn"),
        ("banned", 403, {"host": "403: the host bans you"}, "HTTPException"),
    ],
    ids=["its own exception", "HTTPException"],
)
def test_whom_the_host_turns_away_the_host_answers(
    host: httpx2.Client, user: str, status: int, body: dict[str, str], seen: str
) -> None:
    before = seen_by(host)
    answer = host.post("/assistant/chat", json=message("a"), headers=bearer(user) if user else {})
    assert (answer.status_code, answer.json()) == (status, body)
    assert seen_by(host) == [*before, seen]


def test_a_defect_in_the_hosts_dependency_is_a_problem_and_logged(host: httpx2.Client, host_folder: Host) -> None:
    before = seen_by(host)
    answer = host.get("/assistant/api/tools", headers=bearer("broken"))
    assert problem_of(answer) == (500, "application/problem+json", "internal_error")
    assert "session store" not in answer.text and "session store is down" in log_of(host_folder)
    assert seen_by(host) == before


def test_paths_that_are_not_ours_are_the_hosts_to_answer(host: httpx2.Client) -> None:
    answer = host.get("/assistant/nothing")
    assert (answer.status_code, answer.json()) == (404, {"host": "404: Not Found"})


def test_our_routes_stand_in_the_hosts_document_each_with_a_name_of_its_own(host: httpx2.Client) -> None:
    document = host.get("/openapi.json").json()
    assert {"/chat", "/assistant/chat", "/assistant/chat/stream", "/second/chat"} <= set(document["paths"])
    names = [
        operation["operationId"]
        for path in document["paths"].values()
        for method, operation in path.items()
        if method in ("get", "post", "patch", "put", "delete")
    ]
    assert len(names) == len(set(names)) > 20
    assert {"assistant_chat", "second_chat", "assistant_messages"} <= set(names)
    assert "swagger" in host.get("/docs").text


def test_our_work_begins_with_the_hosts_lifespan(host: httpx2.Client) -> None:
    started = host.get("/chat").json()["started"]
    assert sorted(started) == ["You are the first.", "You are the second.", "the host"]


def log_of(host: Host) -> str:
    return (host.folder / "host.log").read_text(encoding="utf-8")


def test_the_host_keeps_its_log(host: httpx2.Client, host_folder: Host, conversation_id: str) -> None:
    host.post("/assistant/chat", json=message(conversation_id), headers=ALICE)
    ours = [line for line in log_of(host_folder).splitlines() if "turnkeeper" in line]
    assert ours and all(line.startswith("HOST|") for line in ours if "|" in line)
    assert any(line.startswith("HOST|INFO|turnkeeper.turn|ended completed") for line in ours), ours


def test_several_workers_serve_one_database(host_for: MakeHost, echo: ScriptedModel, store: Store) -> None:
    host, name = host_for(echo), str(uuid.uuid4())
    pids: set[int] = set()
    with serving(host, workers=2) as client:
        for number in range(60):
            with httpx2.Client(base_url=client.base_url, trust_env=False, timeout=30) as other:  # a connection each
                pids.add(other.get("/chat").json()["pid"])
                answer = other.post("/assistant/chat", json=message(name, str(number)), headers=ALICE)
            assert (answer.status_code, answer.json()["turn"]) == (200, number + 1)
            if len(pids) == 2 and number >= 9:
                break
    assert len(pids) == 2
    stored = store.messages(name, "host-alice")
    expected = [[("user", str(at)), ("assistant", f"echo: {at}")] for at in range(number + 1)]
    assert stored == [row for pair in expected for row in pair]


# Runs the host's application twice in one process, as a host's tests do; what is open is counted outside.
CLOSED = """
import json, os, sys
from fastapi.testclient import TestClient
import main

def connections():
    return sum(os.readlink(f"/proc/self/fd/{fd}").startswith("socket:") for fd in os.listdir("/proc/self/fd")
               if os.path.lexists(f"/proc/self/fd/{fd}"))

counts = [connections()]
for number in range(2):
    with TestClient(main.app) as client:
        body = {"conversation_id": sys.argv[1], "message": "Hi"}
        answer = client.post("/assistant/chat", json=body, headers={"authorization": "Bearer host-alice"})
        assert answer.json()["turn"] == number + 1, answer.text
        counts.append(connections())
    counts.append(connections())
print(json.dumps(counts))
"""


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts what is open under /proc")
def test_closing_the_host_closes_our_connections_and_it_can_be_started_again(
    host_for: MakeHost, echo: ScriptedModel, conversation_id: str
) -> None:
    before, during, after, again, at_last = json.loads(host_for(echo).python("-c", CLOSED, conversation_id))
    assert before == after == at_last == 0
    assert during >= 2 and again >= 2  # database and model


def test_the_service_alone_runs_from_the_wheel_too(
    host_for: MakeHost, echo: ScriptedModel, conversation_id: str
) -> None:
    host = host_for(echo, files=False)
    with serving(host, "turnkeeper.main:app") as client:
        assert client.get("/readyz").json() == {"status": "ready"}
        assert client.post("/chat", json=message(conversation_id)).json()["turn"] == 1
        assert client.get("/nothing").json()["code"] == "not_found"
        assert {"/chat", "/api/runs"} <= set(client.get("/openapi.json").json()["paths"])
