"""The house: which module may know of which, how long a function may be, what every column says of itself."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CORE = {file.stem for file in ROOT.glob("*.py")}

MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "idempotency": {"db", "errors"},
    "text": set(),
    "logs": set(),
    "config": {"errors"},
    "run": set(),
    "workers": {"errors"},
    "db": {"config", "errors"},
    "migrate": {"db", "errors"},
    "memory": {"db", "errors", "text"},
    "tools": {"errors", "run", "text", "workers"},
    "reply": {"run", "text", "tools"},
    "model": {"config", "errors", "reply"},
    "agent": {"errors", "model", "reply", "run", "tools"},
    "turn": {"agent", "config", "db", "errors", "idempotency", "logs", "memory", "model", "run", "tools"},
    "stream": {"errors", "run", "turn"},
    "runtime": {"config", "db", "errors", "idempotency", "memory", "migrate", "model", "tools", "turn"},
    "shapes": {"errors", "run", "turn"},
    "problems": {"errors", "logs"},
    "main": {"config", "errors", "idempotency", "logs", "memory", "problems", "runtime", "shapes", "stream", "turn"},
}


def imported(file: Path) -> set[str]:
    """The top-level names that a file imports, deferred imports included."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {name.name.split(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add((node.module or "").split(".")[0])
    return found


@pytest.mark.parametrize("module", sorted(CORE))
def test_imports_flow_one_way(module: str) -> None:
    assert imported(ROOT / f"{module}.py") & CORE <= MAY_IMPORT[module]


def test_nothing_imports_main_and_nothing_of_the_service_imports_dev_or_tests() -> None:
    for module in CORE:
        assert not imported(ROOT / f"{module}.py") & {"main", "dev", "tests"}, module


def test_no_module_takes_the_name_of_one_of_pythons_own() -> None:
    assert not CORE & set(sys.stdlib_module_names)


def test_the_agent_knows_no_http_and_no_sql() -> None:
    for module in ("agent", "tools", "run"):
        assert not imported(ROOT / f"{module}.py") & {"fastapi", "starlette", "pymysql", "db", "memory"}, module


def test_no_agent_framework_is_in_the_requirements() -> None:
    named = (ROOT / "requirements.txt").read_text(encoding="utf-8").lower()
    assert not [word for word in ("langchain", "langgraph", "llama", "autogen", "crewai", "agno") if word in named]


def functions() -> list[tuple[str, int]]:
    """Every function of ours with its length in lines."""
    found = []
    for file in [*ROOT.glob("*.py"), *(ROOT / "dev").rglob("*.py")]:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found.append((f"{file.name}:{node.lineno} {node.name}", (node.end_lineno or 0) - node.lineno + 1))
    return found


def test_no_function_is_longer_than_a_screen() -> None:
    assert [name for name, lines in functions() if lines > 60] == []


def test_every_column_says_what_it_holds() -> None:
    for line in (ROOT / "schema.sql").read_text(encoding="utf-8").splitlines():
        if line.startswith("  ") and line.split()[0].islower():
            assert " COMMENT '" in line, line


def test_every_package_is_pinned_exactly() -> None:
    for line in (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines():
        assert not line or line.startswith("#") or "==" in line.split(";")[0], line


def test_importing_the_service_opens_nothing_and_needs_no_setting() -> None:
    import subprocess

    code = "import socket, sys; socket.socket.connect = None; import main; assert 'app' not in vars(main); print('ok')"
    environment = {"PATH": "/usr/bin:/bin", "DB_PORT": "not a port"}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.stdout == "ok\n", done.stderr
