"""MCP both ways, with the official SDK on the other side: a real server over stdio and HTTP, a real client on /mcp."""

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from config import Settings
from errors import ConfigError
from main import build_runtime
from tests.conftest import ROOT, MakeService, Service, Store, free_port
from tests.support.scripted_model import ScriptedModel
from tests.support.waiting import LONG

pytest.importorskip("mcp", reason="the MCP SDK is not installed")

from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CallToolResult, TextContent

BOX = ROOT / "tests" / "support" / "mcp_box.py"
COMMAND = [sys.executable, str(BOX)]
ALLOWED = ["add", "fail", "slow", "much", "die", "about"]


def toml(*servers: dict[str, Any]) -> str:
    """The servers as TOML; JSON's strings, numbers and lists are TOML's too."""
    lines = []
    for server in servers:
        lines += ["[[server]]", *(f"{name} = {json.dumps(value)}" for name, value in server.items())]
    return "\n".join(lines) + "\n"


@pytest.fixture
def service_with(service_for: MakeService, tmp_path: Path) -> Any:
    """Starts the service with these MCP servers."""

    def make(*servers: dict[str, Any], **other: str) -> Service:
        file = tmp_path / "servers.toml"
        file.write_text(toml(*servers), encoding="utf-8")
        return service_for(TOOLSETS="calculator,mcp", MCP_SERVERS=str(file), **other)

    return make


def tools_of(service: Service) -> dict[str, dict[str, Any]]:
    return {tool["name"]: tool for tool in service.http.get("/api/tools").json()["data"]}


def wait_for_tool(service: Service, name: str) -> dict[str, dict[str, Any]]:
    """The tools, once this one is there."""
    end = time.monotonic() + LONG
    while name not in (tools := tools_of(service)):
        assert time.monotonic() < end, f"{sorted(tools)}; {service.log.read_text()[-2000:]}"
        time.sleep(0.05)
    return tools


def observed(service: Service, model: ScriptedModel, tool: str, **arguments: Any) -> str:
    """What the model is shown of one call, in a turn that is completed all the same."""
    model.asks_for(tool, **arguments).then_says("Done.")
    answer = service.chat("mcp", "Do it.")
    assert (answer.status_code, answer.json()["answer"]) == (200, "Done."), answer.text
    return str(model.requests[-1]["messages"][-1]["content"])


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


class HttpBox:
    """The server of the tests over HTTP, which can be ended and started again on its port."""

    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/mcp"
        self.start()

    def start(self) -> None:
        quiet = subprocess.DEVNULL
        self.process = subprocess.Popen([*COMMAND, str(self.port)], cwd=BOX.parent, stdout=quiet, stderr=quiet)
        for _ in range(1200):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            time.sleep(0.05)
        raise AssertionError("the MCP server did not start")

    def end(self) -> None:
        self.process.kill()
        self.process.wait(10)


@pytest.fixture
def http_box() -> Iterator[HttpBox]:
    box = HttpBox()
    yield box
    box.end()


# ---------------------------------------------------------------------------------------- their tools as ours


def test_tools_of_allowed_servers_join_ours_and_their_results_and_failures_are_observations(
    service_with: Any, model: ScriptedModel, http_box: HttpBox
) -> None:
    service = service_with(
        {"name": "box", "command": COMMAND, "tools": [*ALLOWED, "not_there"], "env.BOX": "1", "timeout_s": 1.5},
        {"name": "web", "url": http_box.url, "tools": ["add"]},
    )
    wait_for_tool(service, "web_add")
    tools = wait_for_tool(service, "box_add")
    assert set(tools) == {"calculator", "web_add", *(f"box_{name}" for name in ALLOWED)}  # secret is not allowed
    schema = tools["box_add"]["parameters"]
    assert schema["required"] == ["a"] and schema["properties"]["b"] == {"default": 1, "title": "B", "type": "integer"}
    assert tools["box_add"]["description"] == "Add two whole numbers."
    assert observed(service, model, "box_add", a=40, b=2) == "42"
    assert observed(service, model, "web_add", a=1) == "2"
    assert observed(service, model, "calculator", a=2, b=3, operation="add") == "5"
    assert "the box is closed" in observed(service, model, "box_fail")
    assert "integer" in observed(service, model, "box_add", a="many")
    assert 1_000 < len(observed(service, model, "box_much")) <= 21_000
    assert "took too long" in observed(service, model, "box_slow")
    environment = observed(service, model, "box_about").split()
    assert "BOX" in environment and not {"API_KEY", "DB_PASSWORD"} & set(environment)
    service.end()
    assert not is_running(int(environment[0]))
    assert "has no tool not_there" in service.log.read_text()


def test_a_server_that_dies_costs_its_call_and_is_connected_again(
    service_with: Any, model: ScriptedModel, http_box: HttpBox
) -> None:
    service = service_with(
        {"name": "box", "command": COMMAND, "tools": ALLOWED}, {"name": "web", "url": http_box.url, "tools": ["add"]}
    )
    wait_for_tool(service, "box_die")
    wait_for_tool(service, "web_add")
    before = observed(service, model, "box_about").split()[0]
    assert "cannot be reached" in observed(service, model, "box_die")
    assert observed(service, model, "box_about").split()[0] != before  # the next call waits for the new process
    http_box.end()
    assert "cannot be reached" in observed(service, model, "web_add", a=1)
    assert observed(service, model, "box_add", a=1) == "2"
    http_box.start()
    end = time.monotonic() + 15
    while observed(service, model, "web_add", a=1) != "2":
        assert time.monotonic() < end, service.log.read_text()[-2000:]
    assert "Traceback" not in service.log.read_text()


def test_servers_that_never_answer_keep_nobody_waiting(service_with: Any, model: ScriptedModel, tmp_path: Path) -> None:
    mute = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(60)"
    service = service_with(
        {"name": "mute", "command": [sys.executable, "-c", mute, str(tmp_path / "pid")], "tools": ["add"]},
        {"name": "nowhere", "url": f"http://127.0.0.1:{free_port()}/mcp", "tools": ["add"]},
        {"name": "missing", "command": ["no-such-program-anywhere"], "tools": ["add"]},
    )
    model.says("Hello.")
    assert service.chat("mcp-mute", "Hi").json()["answer"] == "Hello."
    assert set(tools_of(service)) == {"calculator"}
    assert service.http.get("/readyz").status_code == 200
    service.end()
    assert "Application shutdown complete" in service.log.read_text()
    assert not is_running(int((tmp_path / "pid").read_text()))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "MCP_SERVERS should name"),
        ("[[server", "cannot be read as TOML"),
        ("", "tables"),
        ('[other]\nx = "s3cret"', "tables"),
        (toml({"name": "a b", "command": ["x"], "tools": ["y"]}), "server 1: name"),
        (toml({"name": "a", "tools": ["y"], "headers": 's3cret"'}), "server 1: headers"),
        (toml({"name": "a", "tools": ["y"]}), "either a command or a url"),
        (toml({"name": "a", "tools": ["y"], "url": "s3cret://x"}), "url should be"),
        (toml({"name": "a", "tools": [], "command": ["x"]}), "server 1: tools"),
        (toml(*[{"name": "a", "command": ["x"], "tools": ["y"]}] * 2), "same name"),
    ],
    ids=str,
)
def test_a_wrong_configuration_is_named_and_repeated_nowhere(
    tmp_path: Path, content: str | None, expected: str
) -> None:
    environ = {"TOOLSETS": "mcp"}
    if content is not None:
        (tmp_path / "servers.toml").write_text(content, encoding="utf-8")
        environ["MCP_SERVERS"] = str(tmp_path / "servers.toml")
    with pytest.raises(ConfigError, match=expected) as caught:
        build_runtime(Settings.from_env(environ))
    assert "s3cret" not in str(caught.value)


def test_the_service_runs_without_the_sdk_and_says_what_is_missing_where_it_is_wanted(tmp_path: Path) -> None:
    (tmp_path / "servers.toml").write_text(toml({"name": "a", "command": ["x"], "tools": ["y"]}), encoding="utf-8")
    code = """
import importlib.util, sys
from errors import ConfigError
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "mcp" else find(name, *more)
sys.modules["mcp"] = None
import main
from config import Settings
main.create_app(Settings())
for environ in ({"MCP_SERVE": "true"}, {"TOOLSETS": "mcp", "MCP_SERVERS": sys.argv[1]}):
    try:
        main.create_app(Settings.from_env(environ))
    except ConfigError as error:
        print(error)
"""
    command = [sys.executable, "-c", code, str(tmp_path / "servers.toml")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.count("pip install 'mcp") == 2, done.stdout + done.stderr


# ---------------------------------------------------------------------------------------- ours for others

ALICE, BOB = "key-of-mcp-alice", "key-of-mcp-bob"


@contextlib.asynccontextmanager
async def connected(service: Service, key: str, mode: str = "auto") -> AsyncIterator[Client]:
    """The official client, with a key."""
    url = f"{service.http.base_url}/mcp".replace("//mcp", "/mcp")
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=30, trust_env=False) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode) as client,
    ):
        yield client


def text_of(result: CallToolResult) -> str:
    (block,) = result.content
    assert isinstance(block, TextContent)
    return block.text


@pytest.fixture
def offering(service_for: MakeService) -> Service:
    return service_for(MCP_SERVE="true", API_KEYS=f"mcp-alice:{ALICE},mcp-bob:{BOB}", MAX_MESSAGE_CHARS="100")


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_our_tools_and_chat_are_offered_to_callers_with_a_key_and_each_has_its_own(
    offering: Service, model: ScriptedModel, store: Store, mode: str, conversation_id: str
) -> None:
    model.says("Hello Alice.").says("Hello Bob.").says("Yes, Alice.")

    async def talk() -> None:
        async with connected(offering, ALICE, mode) as alice, connected(offering, BOB, mode) as bob:
            tools = {tool.name: tool for tool in (await alice.list_tools()).tools}
            assert set(tools) == {"chat", "calculator"}
            assert tools["chat"].input_schema["required"] == ["conversation_id", "message"]
            figures = {"a": 6, "b": 7, "operation": "multiply"}
            assert text_of(await alice.call_tool("calculator", figures)) in ("42", "42.0")
            said = {"conversation_id": conversation_id, "message": "Hi"}
            first, other, second = [await each.call_tool("chat", said) for each in (alice, bob, alice)]
            assert [text_of(first), text_of(other), text_of(second)] == ["Hello Alice.", "Hello Bob.", "Yes, Alice."]
            assert (second.structured_content["turn"], other.structured_content["turn"]) == (2, 1)

    asyncio.run(talk())
    assert store.messages(conversation_id, "mcp-alice")[1::2] == [
        ("assistant", "Hello Alice."),
        ("assistant", "Yes, Alice."),
    ]
    assert store.messages(conversation_id, "mcp-bob") == [("user", "Hi"), ("assistant", "Hello Bob.")]


def test_what_goes_wrong_is_told_in_the_result(offering: Service, model: ScriptedModel, conversation_id: str) -> None:
    model.fails(401)

    async def talk() -> None:
        async with connected(offering, ALICE) as alice:

            async def failure(tool: str, **arguments: Any) -> str:
                result = await alice.call_tool(tool, arguments)
                assert result.is_error
                return text_of(result)

            assert "zero" in await failure("calculator", a=1, b=0, operation="divide")
            assert "a: " in await failure("calculator", a="x", b=0, operation="divide")
            assert "no tool named 'nothing'" in await failure("nothing")
            assert "message" in await failure("chat", conversation_id=conversation_id)
            assert "at most 100" in await failure("chat", conversation_id=conversation_id, message="x" * 101)
            refused = await alice.call_tool("chat", {"conversation_id": conversation_id, "message": "Hi"})
            assert refused.is_error and refused.structured_content["code"] == "model_unauthorized"

    asyncio.run(talk())
    assert "Traceback" not in offering.log.read_text()


def test_it_is_for_the_callers_of_the_other_routes_only(offering: Service, service_for: MakeService) -> None:
    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    accept = {"accept": "application/json, text/event-stream"}
    nobody = offering.http.post("/mcp", json=ping, headers=accept)
    assert (nobody.status_code, nobody.json()["code"]) == (401, "unauthorized")
    assert offering.http.post("/mcp", json=ping, headers=accept | {"authorization": f"Bearer {BOB}"}).status_code == 200
    large = offering.http.post("/mcp", content=b" " * 100_000, headers=accept | {"authorization": f"Bearer {BOB}"})
    assert large.status_code == 413
    assert offering.http.get("/mcp").json()["code"] == "method_not_allowed"
    open_to_this_machine = service_for(MCP_SERVE="true")
    assert open_to_this_machine.http.post("/mcp", json=ping, headers=accept).status_code == 200
    for headers in ({"host": "evil.example"}, {"origin": "https://evil.example"}, {"x-forwarded-for": "127.0.0.1"}):
        assert open_to_this_machine.http.post("/mcp", json=ping, headers=accept | headers).status_code == 403


def test_a_caller_that_leaves_does_not_end_the_turn(
    offering: Service, model: ScriptedModel, store: Store, conversation_id: str
) -> None:
    model.says("Late.", delay_s=1)
    arguments = {"conversation_id": conversation_id, "message": "Hi"}
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "chat", "arguments": arguments}}
    headers = {"accept": "application/json, text/event-stream", "authorization": f"Bearer {ALICE}"}
    with pytest.raises(httpx2.ReadTimeout):
        offering.http.post("/mcp", json=call, headers=headers, timeout=0.4)
    end = time.monotonic() + LONG
    while not (stored := store.messages(conversation_id, "mcp-alice")):
        assert time.monotonic() < end
        time.sleep(0.05)
    assert stored == [("user", "Hi"), ("assistant", "Late.")]


def test_it_is_off_unless_it_is_switched_on(service_for: MakeService) -> None:
    answer = service_for().http.post("/mcp", json={})
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
