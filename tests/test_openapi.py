"""The OpenAPI document is true: whatever a caller sends, no route fails, and each answer is one that is documented.

Schemathesis makes the requests from the document itself, good and bad ones, and follows links between them.
"""

import contextlib
import re
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.conftest import ROOT, MakeClient, MakeService, Service, Store
from tests.support.scripted_model import ScriptedModel

METHODS = {"get", "post", "put", "patch", "delete"}

# What the document cannot say: a cursor is one that a page gave, a name has no control characters, `1.0` is no whole
# number, an Idempotency-Key is used for one request only; a deleted conversation begins anew with its next message;
# `GET /api/runs/stream` reads `stream` as an id.
RULES = """
[checks.positive_data_acceptance]
enabled = false
[checks.use_after_free]
enabled = false
[[operations]]
include-path = "/api/runs/stream"
[operations.checks.unsupported_method]
enabled = false
"""


@pytest.fixture
def text2sql(tmp_path: Path) -> dict[str, str]:
    """What switches the toolset text2sql on, with a small database to ask."""
    file, policy = tmp_path / "shop.db", tmp_path / "policy.toml"
    with contextlib.closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, amount INTEGER)")
    policy.write_text("[tables.orders]\n", encoding="utf-8")
    return {"TOOLSETS": "text2sql", "TEXT2SQL_URL": f"sqlite:///{file}", "TEXT2SQL_POLICY": str(policy)}


@pytest.mark.parametrize("toolsets", [(), ("text2sql",)])
def test_every_route_says_what_it_answers_and_has_a_name_of_its_own(
    client_for: MakeClient, text2sql: dict[str, str], toolsets: tuple[str, ...]
) -> None:
    document = client_for(toolsets=toolsets, environ=text2sql).get("/openapi.json").json()
    operations = [
        (f"{method} {path}", operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if method in METHODS
    ]
    names = [operation["operationId"] for _, operation in operations]
    assert len(names) == len(set(names))
    for place, operation in operations:
        assert operation["description"] and operation["tags"], place
        told = set(operation["responses"])
        assert {"401", "403", "500"} <= told or {"4XX", "5XX"} <= told, place


def test_a_parameter_that_has_a_pattern_is_refused_in_words(client_for: MakeClient, text2sql: dict[str, str]) -> None:
    client = client_for(toolsets=("text2sql",), environ=text2sql)
    tried = set()
    for path, methods in client.get("/openapi.json").json()["paths"].items():
        for method, operation in methods.items():
            for parameter in operation.get("parameters", []):
                schema, name, place = parameter["schema"], parameter["name"], parameter["in"]
                if not any("pattern" in one for one in (schema, *schema.get("anyOf", []))):
                    continue
                url = re.sub(r"\{\w+\}", quote("? ?"), path)
                sent = {"query": {"params": {name: "? ?"}}, "header": {"headers": {name: "? ?"}}}.get(place, {})
                for language, expected in (("en", " expected"), ("zh", "应为")):
                    more = {"headers": {**sent.get("headers", {}), "accept-language": language}}
                    answer = client.request(method, url, **{**sent, **more})
                    assert answer.status_code in (400, 422), answer.text
                    if not path.startswith("/v1/"):
                        (told,) = [error for error in answer.json()["errors"] if error["field"] == name]
                        assert expected in told["detail"] and "pattern" not in told["detail"], (path, told)
                tried.add(name)
    assert tried == {"Idempotency-Key", "run_id", "stop_reason", "version"}


@pytest.mark.skipif(shutil.which("schemathesis", path=Path(sys.executable).parent) is None, reason="no schemathesis")
def test_no_request_is_answered_with_a_failure_or_as_is_not_documented(
    service_for: MakeService, fragile_store: Store, model: ScriptedModel, tmp_path: Path
) -> None:
    model.echoes()
    service = service_for(fragile_store, TRACE_RETENTION_DAYS="7")
    try_everything(service, tmp_path, "--max-examples", "8", "--max-time", "18")


@pytest.mark.skipif(shutil.which("schemathesis", path=Path(sys.executable).parent) is None, reason="no schemathesis")
def test_the_same_of_the_catalogue_of_text2sql(
    service_for: MakeService, model: ScriptedModel, text2sql: dict[str, str], tmp_path: Path
) -> None:
    model.echoes()
    service = service_for(**text2sql)
    sync = [sys.executable, "-m", "text2sql", "sync"]
    subprocess.run(sync, cwd=ROOT, env=service.environment, check=True, capture_output=True)
    only = ["--include-path-regex", "^/api/catalogue"]
    try_everything(service, tmp_path, *only, "--max-examples", "8", "--max-time", "8")


def try_everything(service: Service, folder: Path, *how: str) -> None:
    """Let schemathesis try a service; it should find nothing, and the service be well afterwards."""
    (folder / "rules.toml").write_text(RULES, encoding="utf-8")
    program = [str(Path(sys.executable).parent / "schemathesis"), "--config-file", "rules.toml", "run"]
    done = subprocess.run(
        [*program, f"{service.http.base_url}/openapi.json", *how, "--generation-deterministic", "--no-color"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )
    log = service.log.read_text(encoding="utf-8")
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-1000:] + log[-3000:]
    assert "a request failed" not in log
    assert service.http.get("/healthz").status_code == 200
