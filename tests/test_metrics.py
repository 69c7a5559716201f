"""`/metrics`: what Prometheus is told after turns of each kind, read with its own parser."""

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from access.keys import hash_of
from errors import StopRun, ToolError
from runtime import Runtime
from tests.conftest import ROOT, MakeClient, Store, path_of
from tests.support.scripted_model import ScriptedModel
from tests.support.ways import WAYS, ask

THIS = "tests.test_metrics"
SECRET = "chosen-by-a-caller"
OPERATOR, ALICE = "key-of-the-operator-1", "key-of-alice-123456"


def odd(code: str, ends: bool = False) -> str:
    """A tool whose codes and stop reasons are whatever it was told."""
    raise StopRun(code, "over") if ends else ToolError("no", code)


def register(runtime: Runtime) -> None:
    """The toolset of this file."""
    runtime.tools.tool(odd)


class Figures:
    """What a scrape said: `figures("turns_total", stop_reason="completed")`; 0 where there is no such series."""

    def __init__(self, client: TestClient, **headers: str) -> None:
        answer = client.get("/metrics", headers=headers)
        assert answer.status_code == 200, answer.text
        self.text = answer.text
        self.families = list(parse_text(answer.text))
        samples = [sample for family in self.families for sample in family.samples]
        self.values = {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples}

    def __call__(self, name: str, **labels: str) -> float:
        return self.values.get((f"turnkeeper_{name}", frozenset(labels.items())), 0)

    def labels(self, name: str, label: str) -> set[str]:
        """The values a label has, of series that are not 0."""
        named = [
            (dict(labels), value) for (found, labels), value in self.values.items() if found == f"turnkeeper_{name}"
        ]
        return {labels[label] for labels, value in named if value}


def wait_for(client: TestClient, condition: Callable[[Figures], bool]) -> Figures:
    """The first scrape of which it is true, within some seconds."""
    for _ in range(1500):
        if condition(figures := Figures(client)):
            return figures
        time.sleep(0.02)
    raise AssertionError(f"waited in vain:\n{figures.text}")


@contextlib.contextmanager
def asked_meanwhile(client: TestClient, *questions: tuple[str, str]) -> Iterator[None]:
    """These (way, conversation) are being answered while the block runs, and have ended after it."""
    with ThreadPoolExecutor(len(questions) or 1) as pool:
        futures = [pool.submit(ask, client, way, conversation) for way, conversation in questions]
        yield
        for future in futures:
            future.result(20)


@pytest.mark.parametrize("way", WAYS)
def test_a_turn_is_counted_with_its_model_tools_and_tokens(
    client: TestClient, model: ScriptedModel, conversation_id: str, way: str
) -> None:
    model.asks_for(
        "calculator",
        a=12,
        b=8,
        operation="multiply",
    ).then_asks_for_all(
        ("calculator", {"a": 1, "b": 0, "operation": "divide"}), ("calculator", {"a": 1, "b": 2, "operation": "add"})
    )
    model.then_says("96").says("no usage", usage=None)
    ask(client, way, conversation_id)
    ask(client, way, conversation_id)
    figures = Figures(client)
    assert figures.labels("turns_total", "stop_reason") == {"completed"}
    assert figures("turns_total", stop_reason="completed") == 2
    assert figures("model_seconds_count") == 4
    assert 0 < figures("model_seconds_sum") < 20
    assert figures("tool_seconds_count", tool="calculator") == 3
    assert (figures("tokens_total", kind="input"), figures("tokens_total", kind="output")) == (30, 15)
    assert figures("tool_failures_total", code="division_by_zero") == 1
    assert figures.labels("turn_errors_total", "code") == set()


ENDS: list[tuple[str, Callable[[ScriptedModel], Any], dict[str, Any], str, str | None]] = [
    ("max_steps", lambda m: m.asks_for("calculator", a=1, b=2, operation="add"), {"max_steps": 1}, "max_steps", None),
    ("no calls", lambda m: m.asks_for("odd", code="x"), {"max_tool_calls": 0}, "tool_call_limit", None),
    ("cut", lambda m: m.says("half", finish_reason="length"), {}, "length", None),
    ("empty", lambda m: m.says("").says(""), {}, "empty_answer", None),
    ("a tool ends it", lambda m: m.asks_for("odd", code="sql_stopped", ends=True), {}, "sql_stopped", None),
    ("a refused key", lambda m: m.fails(401), {}, "error", "model_unauthorized"),
    ("no such model", lambda m: m.fails(404), {"model": SECRET}, "error", "model_not_found"),
    ("a broken reply", lambda m: m.raw("{", forever=True), {}, "error", "model_error"),
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("what", "script", "more", "reason", "code"), ENDS, ids=[what for what, *_ in ENDS])
def test_every_end_is_counted_once_by_its_stop_reason_and_its_code(
    client_for: MakeClient,
    model: ScriptedModel,
    conversation_id: str,
    way: str,
    what: str,
    script: Callable[[ScriptedModel], Any],
    more: dict[str, Any],
    reason: str,
    code: str | None,
) -> None:
    client = client_for(toolsets=f"calculator,{THIS}")
    script(model)
    ask(client, way, conversation_id, **more)
    figures = Figures(client)
    assert {reason: figures("turns_total", stop_reason=reason)} == {reason: 1}
    assert figures.labels("turns_total", "stop_reason") == {reason}
    assert figures.labels("turn_errors_total", "code") == ({code} if code else set())


def test_a_turn_that_never_came_to_its_model_is_counted_too(client_for: MakeClient, conversation_id: str) -> None:
    client = client_for(db_port=1)
    for way in WAYS:
        assert ask(client, way, conversation_id).status == 503
    figures = Figures(client)
    assert figures("turns_total", stop_reason="error") == 2
    assert figures("turn_errors_total", code="store_unavailable") == 2
    assert figures("model_seconds_count") == 0


def test_a_turn_that_may_not_begin_is_an_error_and_no_turn(
    client_for: MakeClient, model: ScriptedModel, conversation_id: str
) -> None:
    model.says("slow", delay_s=1)
    client = client_for(max_in_flight=1)
    with asked_meanwhile(client, ("/chat", conversation_id)):
        wait_for(client, lambda figures: figures("turns_in_flight") == 1)
        assert ask(client, "/chat", conversation_id).status == 503
    figures = Figures(client)
    assert figures("turns_in_flight") == 0
    assert figures("turn_errors_total", code="overloaded") == 1
    assert figures("turns_total", stop_reason="completed") == 1
    assert figures("turns_total", stop_reason="error") == 0


def test_a_turn_whose_conversation_is_deleted_meanwhile_is_counted_as_a_conflict(
    client: TestClient, model: ScriptedModel, conversation_id: str
) -> None:
    model.says("One.").says("Two.", delay_s=0.5)
    ask(client, "/chat", conversation_id)
    with asked_meanwhile(client, ("/chat", conversation_id)):
        model.wait_for_requests(2)
        client.delete(path_of(conversation_id))
    figures = Figures(client)
    assert figures("turn_errors_total", code="turn_conflict") == 1
    assert (figures("turns_total", stop_reason="completed"), figures("turns_total", stop_reason="error")) == (1, 1)


def test_an_answer_that_is_given_again_is_no_turn(
    client: TestClient, model: ScriptedModel, conversation_id: str
) -> None:
    model.says("Once.")
    for _ in range(2):
        assert ask(client, "/chat", conversation_id, headers={"idempotency-key": conversation_id[-36:]}).status == 200
    assert Figures(client)("turns_total", stop_reason="completed") == 1


def test_database_threads_at_work_and_work_that_waits_are_told(
    client_for: MakeClient, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    client = client_for(db_pool_size=1)
    model.says("One.").says("Two.").says("Three.")
    ask(client, "/chat", conversation_id)
    idle = wait_for(client, lambda figures: figures("database_threads_busy") == 0)
    assert (idle("database_pool_size"), idle("database_waiting")) == (1, 0)
    with contextlib.closing(store.connect()) as other, other.cursor() as cursor:
        other.begin()
        cursor.execute("SELECT * FROM conversations WHERE conversation_id = %s FOR UPDATE", (conversation_id,))
        with asked_meanwhile(client, ("/chat", conversation_id), ("/chat", f"{conversation_id}-b")):
            wait_for(client, lambda figures: (figures("database_threads_busy"), figures("database_waiting")) == (1, 1))
            other.rollback()
    assert Figures(client)("turns_total", stop_reason="completed") == 3


def test_nothing_that_a_caller_or_a_model_chooses_becomes_a_label(
    client_for: MakeClient, model: ScriptedModel, conversation_id: str
) -> None:
    client = client_for(toolsets=f"calculator,{THIS}", max_tool_calls=200)
    codes = [f"{SECRET} {n}" for n in range(3)] + ["Upper", "x" * 41, "", "known"] + [f"code_{n}" for n in range(100)]
    model.asks_for(SECRET, a=1).then_asks_for_all(*(("odd", {"code": code}) for code in codes)).then_says("Done.")
    model.asks_for("odd", code=f"{SECRET} ends", ends=True).fails(404)
    for more in ({}, {}, {"model": SECRET}):
        ask(client, "/chat", conversation_id, SECRET, **more)
    figures = Figures(client)
    assert SECRET not in figures.text
    assert conversation_id not in figures.text
    assert figures.labels("tool_seconds_count", "tool") == {"other", "odd"}
    assert figures.labels("turns_total", "stop_reason") == {"completed", "other", "error"}
    codes_told = figures.labels("tool_failures_total", "code")
    assert {"unknown_tool", "known", "other"} <= codes_told
    assert len(codes_told) <= 65


def test_two_applications_in_one_process_count_apart(
    client_for: MakeClient, model: ScriptedModel, conversation_id: str
) -> None:
    one, two = client_for(), client_for()
    model.says("Hello.")
    ask(one, "/chat", conversation_id)
    assert [Figures(client)("turns_total", stop_reason="completed") for client in (one, two)] == [1, 0]


def test_every_kind_of_end_is_there_from_the_start(client: TestClient) -> None:
    names = {dict(labels)["stop_reason"] for name, labels in Figures(client).values if name == "turnkeeper_turns_total"}
    assert {"completed", "error", "timeout", "max_steps", "cancelled"} <= names


def test_the_document_names_all_figures_and_no_others(client: TestClient) -> None:
    text = (ROOT / "docs" / "telemetry.md").read_text("utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| `turnkeeper_")]
    named = {name.removesuffix("_total") for row in rows for name in re.findall(r"turnkeeper_\w+", row.split("|")[1])}
    assert {family.name.removesuffix("_created") for family in Figures(client).families} == named


def test_openmetrics_is_spoken_to_those_who_ask_for_it(client: TestClient) -> None:
    plain = client.get("/metrics")
    assert plain.headers["content-type"].startswith("text/plain; version=")
    answer = client.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    families = parse_openmetrics(answer.text)  # type: ignore[no-untyped-call]
    assert "turnkeeper_turns" in {family.name for family in families}
    assert answer.headers["cache-control"] == "no-store"


def test_with_keys_only_those_that_may_see_statistics_are_told(client_for: MakeClient, tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(f'[[key]]\nname = "operator"\nhash = "{hash_of(OPERATOR)}"\nmay = ["statistics"]\n', "utf-8")
    client = client_for(environ={"API_KEYS": f"alice:{ALICE}", "API_KEYS_FILE": str(file)})
    assert client.get("/metrics").status_code == 401
    answer = client.get("/metrics", headers={"authorization": f"Bearer {ALICE}"})
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    assert "turnkeeper" not in answer.json()["detail"]
    assert Figures(client, authorization=f"Bearer {OPERATOR}")("database_pool_size") == 10


def test_without_keys_only_this_machine_is_told(client: TestClient) -> None:
    elsewhere = TestClient(client.app, base_url="http://127.0.0.1", client=("203.0.113.9", 1))
    assert elsewhere.get("/metrics").status_code == 403
