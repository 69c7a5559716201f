"""The wheel is one package: it takes no name from its host, and finds none of the host's by mistake."""

import ast
import json
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.conftest import ROOT
from tests.embed.conftest import MakeHost
from tests.support.scripted_model import ScriptedModel

FLAT = sorted(file.stem for file in ROOT.glob("*.py"))
HOSTS = ["config", "db", "agent", "memory", "errors", "tools"]

# Whose module each name is, after an import in one of both orders; as JSON.
WHOSE = """
import importlib, importlib.util, json, sys
for name in {order}:
    importlib.import_module(name)
print(json.dumps({{
    "found": {{name: getattr(importlib.util.find_spec(name), "origin", None) for name in {flat}}},
    "hosts": {{name: sys.modules[name].OWNED_BY for name in {hosts}}},
    "ours": {{name: module.__file__ for name, module in sys.modules.items() if name.split(".")[0] == "turnkeeper"}},
    "agrees": sys.modules["turnkeeper.agent"].run_agent is sys.modules["turnkeeper"].run_agent,
}}))
"""


def test_the_wheel_holds_one_package_with_its_data(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"turnkeeper"}
    data = {"schema.sql", "py.typed", *(f"migrations/{file.name}" for file in (ROOT / "migrations").glob("*.sql"))}
    assert {f"turnkeeper/{name}" for name in data} <= set(names)
    assert not [name for name in names if "__pycache__" in name or "/tests/" in name or "/dev/" in name]


def test_only_import_lines_are_changed_and_no_line_moves(installed: Path) -> None:
    for name in FLAT:
        here = (ROOT / f"{name}.py").read_text(encoding="utf-8").splitlines()
        there = (installed / "turnkeeper" / f"{name}.py").read_text(encoding="utf-8").splitlines()
        imports = {
            node.lineno
            for node in ast.walk(ast.parse("\n".join(here)))
            if isinstance(node, ast.Import | ast.ImportFrom)
        }
        assert len(here) == len(there)
        changed = {at for at, (ours, theirs) in enumerate(zip(here, there, strict=True), 1) if ours != theirs}
        assert changed <= imports, name


@pytest.mark.parametrize("turnkeeper_first", [True, False], ids=["turnkeeper first", "host first"])
def test_neither_takes_a_module_of_the_other_whichever_is_imported_first(
    host_for: MakeHost, model: ScriptedModel, installed: Path, turnkeeper_first: bool
) -> None:
    host = host_for(model)
    order = ["turnkeeper", *HOSTS] if turnkeeper_first else [*HOSTS, "turnkeeper"]
    seen = json.loads(host.python("-c", WHOSE.format(order=order, flat=FLAT, hosts=HOSTS)))
    assert set(seen["hosts"].values()) == {"host"}
    assert {name for name, file in seen["found"].items() if file} == {*HOSTS, "main"}  # those of the host, no other
    assert all(Path(file).is_relative_to(host.folder) for file in seen["found"].values() if file)
    assert all(Path(file).is_relative_to(installed) for file in seen["ours"].values())
    assert seen["agrees"] and "turnkeeper.db" in seen["ours"]


def test_importing_it_opens_nothing_logs_nothing_and_changes_nothing_of_the_process(
    host_for: MakeHost, model: ScriptedModel
) -> None:
    code = """
import gc, logging, signal, socket, sys, threading
socket.socket.connect = None
before = signal.getsignal(signal.SIGTERM)
import turnkeeper
turnkeeper.chat_router(turnkeeper.build_runtime(turnkeeper.Settings()))
assert logging.getLogger().handlers == [] and gc.get_freeze_count() == 0
assert threading.active_count() == 1 and signal.getsignal(signal.SIGTERM) == before
assert sorted(turnkeeper.__all__) == turnkeeper.__all__ and all(map(turnkeeper.__dict__.get, turnkeeper.__all__))
print("ok")
"""
    assert host_for(model, files=False).python("-c", code) == "ok\n"


LIBRARY = """
import asyncio, turnkeeper

class Parrot(turnkeeper.Model):
    "A model of the host's own: it looks once, then says what it saw."

    async def complete(self, transcript, tools, *, time_left_s, name=None, on_text=None):
        last = transcript[-1]
        if last["role"] == "tool":
            return turnkeeper.Reply(f"There are {last['content']}.")
        assert [tool["function"]["name"] for tool in tools] == ["in_stock"]
        return turnkeeper.Reply("", [turnkeeper.ToolCall("1", "in_stock", {"article": "lamp"})])

async def main():
    import tools
    registry = turnkeeper.ToolRegistry()
    registry.tool(tools.in_stock)
    model = Parrot(turnkeeper.Settings())
    return await turnkeeper.run_agent([], "How many lamps?", model, registry, turnkeeper.Budget(max_steps=3))

result = asyncio.run(main())
print(result.answer, result.stop_reason, result.budget.steps, result.budget.tool_calls)
"""


def test_the_loop_is_a_library_call_with_the_hosts_own_tools_and_model(
    host_for: MakeHost, model: ScriptedModel
) -> None:
    assert host_for(model).python("-c", LIBRARY) == "There are 3. completed 2 1\n"


def test_the_loop_is_a_library_call_with_our_model_too(host_for: MakeHost, model: ScriptedModel) -> None:
    model.asks_for("in_stock", article="lamp").then_says("There are three.")
    code = LIBRARY.replace("Parrot(turnkeeper.Settings())", "turnkeeper.Model(turnkeeper.Settings.from_env())")
    code = code.replace("return await turnkeeper.run_agent", "result = await turnkeeper.run_agent")
    code = code.replace("max_steps=3))", "max_steps=3))\n    await model.close()\n    return result")
    assert host_for(model).python("-c", code) == "There are three. completed 2 1\n"


TYPED = """
import turnkeeper
from fastapi import FastAPI

settings = turnkeeper.Settings(max_steps=3)
runtime = turnkeeper.build_runtime(settings)


@runtime.tools.tool(parallel=True)
def in_stock(article: str, context: turnkeeper.RunContext) -> int:
    "How many of an article there are."
    return len(article)


async def user() -> str:
    return "me"


app = FastAPI()
app.include_router(turnkeeper.chat_router(runtime, caller=user), prefix="/assistant")


async def ask() -> str:
    result = await turnkeeper.run_agent([], "Hi", runtime.model, runtime.tools, turnkeeper.Budget())
    return result.answer or result.stop_reason
"""


def test_a_host_is_type_checked_against_it(host_for: MakeHost, model: ScriptedModel) -> None:
    host = host_for(model, files=False)
    (host.folder / "typed.py").write_text(TYPED, encoding="utf-8")
    (host.folder / "wrong.py").write_text(
        TYPED + "\nsettings.max_steps.upper()\nawaited: int = ask\n", encoding="utf-8"
    )
    # Half a minute of reading what no type of ours is made of.
    (host.folder / "mypy.ini").write_text("[mypy]\nstrict = true\n[mypy-openai.*,aiohttp.*]\nfollow_imports = skip\n")
    code = "from mypy import api; print(*api.run(['typed.py', 'wrong.py']))"
    found = host.python("-c", code)
    assert 'wrong.py:27: error: "int" has no attribute "upper"' in found, found
    assert "wrong.py:28: error: Incompatible types" in found and "Found 2 errors in 1 file (checked 2" in found, found


def names_needed(distribution: str, extras: tuple[str, ...] = ()) -> set[str]:
    """The distributions that come with one, itself included."""
    found, waiting = set(), [(distribution, extras)]
    while waiting:
        name, wanted = waiting.pop()
        found.add(canonicalize_name(name))
        for requirement in map(Requirement, metadata.requires(name) or []):
            applies = [requirement.marker is None or requirement.marker.evaluate({"extra": e}) for e in ("", *wanted)]
            if any(applies) and canonicalize_name(requirement.name) not in found:
                waiting.append((requirement.name, tuple(requirement.extras)))
    return found


def test_what_it_imports_comes_with_it(installed: Path) -> None:
    (about,) = metadata.distributions(name="turnkeeper", path=[str(installed)])
    declared = [Requirement(text) for text in about.requires or []]
    needed = [each for each in declared if each.marker is None]
    of_extras = {canonicalize_name(each.name) for each in declared if each.marker}
    with_it = {name for each in needed for name in names_needed(each.name, tuple(each.extras))}
    holders = metadata.packages_distributions()
    for file in (installed / "turnkeeper").rglob("*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for node in tree.body:  # what is imported within a function or a try may be missing
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            else:
                continue
            for name in {name.split(".")[0] for name in names} - {"turnkeeper"} - sys.stdlib_module_names:
                allowed = with_it | of_extras if file.parent.name in ("mcp_bridge", "text2sql") else with_it
                assert {canonicalize_name(holder) for holder in holders.get(name, [name])} & allowed, (file.name, name)
