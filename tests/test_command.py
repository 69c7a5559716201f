"""`python main.py ask` and `show`: what is printed where, the exit status, what is left behind.

`run` is a process, as a shell starts it; `run_here` is the same in this process, quicker, where that shows as much.
"""

import contextlib
import json
import logging
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from main import build_runtime
from runs.command import command
from tests.conftest import ROOT, SOON, Store
from tests.support.scripted_model import ScriptedModel

KEPT = {"TRACE_RETENTION_DAYS": "7"}
SUM = {"a": 12, "b": 8, "operation": "multiply"}
NO_DATABASE = {"DB_HOST": "127.0.0.1", "DB_PORT": "1"}  # nobody listens there

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def environment(store: Store, model: ScriptedModel) -> dict[str, str]:
    """What the command line runs with."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DB_", "LC_", "LANG"))}
    kept |= {name.upper(): str(value) for name, value in (SOON | store.settings).items()}
    model_settings = {"API_KEY": "sk-test", "BASE_URL": model.base_url, "DEFAULT_MODEL": "scripted", "ENV_FILE": ""}
    return kept | model_settings | {"LANG": "C.UTF-8", "PYTHONUTF8": "1"}


@pytest.fixture
def run(environment: dict[str, str], tmp_path: Path) -> Run:
    """Runs `python main.py …` in a folder of its own: `run("ask", "Hi", MAX_STEPS="3")`."""

    def go(*arguments: str | Path, **other: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, str(ROOT / "main.py"), *map(str, arguments)]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment | other, capture_output=True, encoding="utf-8", timeout=60
        )
        assert "Traceback" not in done.stdout + done.stderr
        return done

    return go


@pytest.fixture
def run_here(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Run]:
    """The same within this process."""
    level = logging.getLogger().level
    monkeypatch.chdir(tmp_path)

    def go(*arguments: str | Path, **other: str) -> "subprocess.CompletedProcess[str]":
        for name, value in (environment | other).items():
            monkeypatch.setenv(name, value)
        capsys.readouterr()
        try:
            status = command([*map(str, arguments)], build_runtime)
        except SystemExit as ended:  # of argparse
            status = int(ended.code or 0)
        printed = capsys.readouterr()
        assert "Traceback" not in printed.out + printed.err
        return subprocess.CompletedProcess([], status, printed.out, printed.err)

    yield go
    logging.getLogger().setLevel(level)


def controls(text: str) -> set[str]:
    return {character for character in text if ord(character) < 32 or 127 <= ord(character) < 160} - {"\n"}


# ---------------------------------------------------------------------------------------- ask


def test_one_question_is_answered_without_any_database(run: Run, model: ScriptedModel) -> None:
    model.asks_for("calculator", **SUM).then_says("12 × 8 = 96，算完了。\n第二行")
    done = run("ask", "12乘8?", **NO_DATABASE)
    assert (done.returncode, done.stdout) == (0, "12 × 8 = 96，算完了。\n第二行\n")
    lines = done.stderr.splitlines()
    assert lines[0] == "step 1: the model is asked"
    assert lines[1] == '  calls calculator {"a": 12, "b": 8, "operation": "multiply"}'
    assert lines[2].startswith("  calculator returned in ") and lines[2].endswith(" ms: 96")
    assert lines[3:] == ["step 2: the model is asked"]
    assert len(model.requests) == 2


def test_a_question_in_a_conversation_is_a_turn_of_it(
    run_here: Run, model: ScriptedModel, store: Store, conversation_id: str
) -> None:
    model.says("一。").then_says("二。")
    assert run_here("ask", "first", "--conversation", conversation_id).returncode == 0
    assert run_here("ask", "second", "--conversation", conversation_id).stdout == "二。\n"
    assert store.messages(conversation_id) == [
        ("user", "first"), ("assistant", "一。"), ("user", "second"), ("assistant", "二。")
    ]  # fmt: skip
    assert "一。" in str(model.requests[1])


def test_json_is_the_body_that_http_callers_get(run_here: Run, model: ScriptedModel) -> None:
    model.says("Hello.")
    done = run_here("ask", "Hi", "--json", "--model", "another")
    body = json.loads(done.stdout)
    names = "answer status stop_reason conversation_id turn run_id steps tool_calls usage duration_ms model_ms tool_ms"
    assert list(body) == names.split()
    assert (body["answer"], body["status"], body["conversation_id"]) == ("Hello.", "completed", None)
    assert model.requests[0]["model"] == "another"


def test_a_run_that_stops_early_exits_with_2_and_says_why(run: Run, model: ScriptedModel, tmp_path: Path) -> None:
    for _ in range(4):
        model.asks_for("calculator", **SUM)
    done = run("ask", "Q", "--trace-file", "trace.json")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1] == "The question needed more steps than are permitted."
    assert json.loads((tmp_path / "trace.json").read_text("utf-8"))["execution_budget"]["steps"] == 4


def test_the_notice_is_in_the_language_of_the_terminal(run_here: Run, model: ScriptedModel) -> None:
    model.asks_for("calculator", **SUM)
    done = run_here("ask", "Q", "--max-tool-calls", "0", "--json", LANG="zh_CN.UTF-8")
    assert (done.returncode, json.loads(done.stdout)["stop_reason"]) == (2, "tool_call_limit")
    assert "工具调用次数" in done.stderr


def test_the_limits_are_four_rounds_and_eight_tool_calls(run_here: Run, model: ScriptedModel) -> None:
    model.asks_for_all(*[("calculator", SUM)] * 9)
    body = json.loads(run_here("ask", "Q", "--json").stdout)
    assert (body["stop_reason"], body["tool_calls"]) == ("tool_call_limit", 8)
    model.asks_for("calculator", **SUM)
    body = json.loads(run_here("ask", "Q", "--json", "--max-steps", "1").stdout)
    assert (body["stop_reason"], body["steps"]) == ("max_steps", 1)


def test_an_error_exits_with_1_after_the_trace_is_written(run: Run, model: ScriptedModel, tmp_path: Path) -> None:
    model.asks_for("calculator", **SUM).fails(401, "Incorrect API key provided: sk-test")
    done = run("ask", "Q", "--trace-file", "new/folder/trace.json", **NO_DATABASE)
    assert (done.returncode, done.stdout) == (1, "")
    trace = json.loads((tmp_path / "new/folder/trace.json").read_text("utf-8"))
    assert (trace["stop_reason"], trace["error_code"]) == ("error", "model_unauthorized")
    assert [event["type"] for event in trace["events"]][-2:] == ["model_error", "run_stopped"]
    last = done.stderr.splitlines()[-1]
    assert last.startswith("Error model_unauthorized: ") and last.endswith(f"(run {trace['run_id']})")
    assert "sk-test" not in done.stderr + json.dumps(trace)
    assert [file.name for file in (tmp_path / "new/folder").iterdir()] == ["trace.json"]


@pytest.mark.parametrize(
    ("arguments", "other", "said"),
    [
        (["ask"], {}, "required: question"),
        (["ask", " "], {}, "question: "),
        (["ask", "Q", "--conversation", " a"], {}, "conversation_id: no space at either end"),
        (["ask", "Q", "--max-steps", "0"], {}, "max_steps: "),
        (["ask", "Q", "--max-steps", "many"], {}, "invalid int value"),
        (["ask", "x" * 50], {"MAX_MESSAGE_CHARS": "49"}, "question: it has 50 characters; at most 49 are taken"),
        (["ask", "Q"], {"MAX_STEPS": "ten"}, "MAX_STEPS is 'ten'"),
        (["ask", "Q", "--conversation", "a"], NO_DATABASE, "Error store_unavailable: "),
        (["ask", "Q", "--trace-file", "/dev/null/trace.json"], {}, "Error: "),
        (["ask", "Q", "--trace-file", "."], {}, "is a folder; name a file in it"),
        (["dance"], {}, "invalid choice"),
        (["show"], {}, "required: RUN|FILE"),
        (["show", "none.json"], {}, "none.json cannot be read: No such file"),
        (["show", "."], {}, "Give the id of a stored run, or a run file"),
        (["show", "a\0b"], {}, "Give the id of a stored run"),
        (["show", "0198aaaa-0000-7000-8000-000000000000"], {}, "not_found"),
        (["show", "0198aaaa-0000-7000-8000-000000000000"], NO_DATABASE, "Error store_unavailable: "),
    ],
)
def test_what_cannot_be_done_is_said_and_exits_with_1(
    run_here: Run, model: ScriptedModel, arguments: list[str], other: dict[str, str], said: str
) -> None:
    done = run_here(*arguments, **other)
    assert (done.returncode, done.stdout) == (1, "")
    assert said in done.stderr
    assert model.requests == []


def test_a_missing_model_setting_is_said(run_here: Run) -> None:
    done = run_here("ask", "Q", API_KEY="")
    assert done.returncode == 1
    assert "API_KEY" in done.stderr


def test_without_a_command_the_help_is_printed(run: Run) -> None:
    done = run(COLUMNS="200")
    assert (done.returncode, done.stderr) == (0, "")
    assert "ask" in done.stdout and "show" in done.stdout and "uvicorn main:app" in done.stdout


def test_the_log_is_printed_where_it_is_wanted(run: Run, model: ScriptedModel) -> None:
    model.says("Hello.")
    done = run("ask", "Hi", "--verbose")
    assert " INFO turn [" in done.stderr
    assert done.stdout == "Hello.\n"


def test_nothing_that_is_printed_into_a_pipe_holds_a_control_character(
    run: Run, model: ScriptedModel, tmp_path: Path
) -> None:
    evil = "a\x1b[2J\x07b\x9b31m\rc"
    model.asks_for_all(("calculator", {"a": evil}), (evil, {})).then_says(evil)
    done = run("ask", evil, "--trace-file", "trace.json")
    shown = run("show", "trace.json")
    assert "a\\x1b[2J\\x07b\\x9b31mc" in done.stdout and "a\\x1b[2J" in shown.stdout
    assert controls(done.stdout + done.stderr + shown.stdout + shown.stderr) == set()


def test_a_terminal_or_pipe_that_knows_only_ascii_is_no_error(run: Run, model: ScriptedModel) -> None:
    model.says("完成。")
    done = run("ask", "Hi", PYTHONIOENCODING="ascii", PYTHONUTF8="0", LANG="C", PYTHONCOERCECLOCALE="0")
    assert (done.returncode, done.stdout) == (0, "\\u5b8c\\u6210\\u3002\n")


def test_a_stored_run_does_not_need_its_database_to_answer(run_here: Run, model: ScriptedModel) -> None:
    model.says("Answered.")
    done = run_here("ask", "Hi", **KEPT, **NO_DATABASE)
    assert (done.returncode, done.stdout) == (0, "Answered.\n")


@contextlib.contextmanager
def started(arguments: list[str], environment: dict[str, str], folder: Path) -> Iterator["subprocess.Popen[str]"]:
    """The command while it runs."""
    command = [sys.executable, str(ROOT / "main.py"), *arguments]
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.skipif(os.name == "nt", reason="signals are otherwise there")
def test_ctrl_c_cancels_the_run_cleanly(
    environment: dict[str, str],
    model: ScriptedModel,
    store: Store,
    conversation_id: str,
    tmp_path: Path,
) -> None:
    model.asks_for("calculator", **SUM).hangs()
    arguments = ["ask", "Q", "--conversation", conversation_id, "--trace-file", "trace.json"]
    with started(arguments, environment | KEPT | {"MODEL_TIMEOUT_S": "30", "TURN_TIMEOUT_S": "60"}, tmp_path) as asking:
        model.wait_for_requests(2, 20)
        asking.send_signal(signal.SIGINT)
        out, err = asking.communicate(timeout=25)  # the model would hang for 30 s
    assert (asking.returncode, out) == (130, "")
    assert "Traceback" not in err
    assert err.splitlines()[-1] == "Interrupted: the run was cancelled."
    assert store.messages(conversation_id) == []
    trace = json.loads((tmp_path / "trace.json").read_text("utf-8"))
    assert (trace["stop_reason"], trace["error_code"]) == ("cancelled", None)
    assert trace["tools"] == {"calculator": {"succeeded": 1, "failed": 0}}
    assert store.rows("SELECT stop_reason FROM runs WHERE run_id = %s", trace["run_id"]) == [("cancelled",)]


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo terminals there")
def test_on_a_terminal_the_text_is_shown_as_it_is_written_and_once(
    environment: dict[str, str], model: ScriptedModel, tmp_path: Path
) -> None:
    import pty

    model.asks_for_all(("calculator", SUM), content="I will calculate.").then_says("九十六 is it", gap_s=0.3)
    leader, follower = pty.openpty()
    command = [sys.executable, str(ROOT / "main.py"), "ask", "Q"]
    seen: list[tuple[float, bytes]] = []
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment | NO_DATABASE, stdout=follower, stderr=follower, start_new_session=True
    ) as process:
        os.close(follower)
        with contextlib.suppress(OSError):  # the end of a terminal
            while piece := os.read(leader, 1000):
                seen.append((time.monotonic(), piece))
        os.close(leader)
    assert process.returncode == 0
    text = b"".join(piece for _, piece in seen).decode().replace("\r\n", "\n")
    assert text.splitlines()[0:2] == ["step 1: the model is asked", "I will calculate."]
    assert text.endswith("step 2: the model is asked\n九十六 is it\n")
    assert text.count("is it") == 1
    assert controls(text) == set()
    last = [at for at, piece in seen if "step" not in piece.decode(errors="replace")]
    assert last[-1] - last[-3] > 0.2  # in pieces, as they came


def test_a_reader_that_leaves_is_no_error_to_tell_of(
    environment: dict[str, str], model: ScriptedModel, tmp_path: Path
) -> None:
    file = tmp_path / "run.json"
    events = [{"type": "model_response", "details": {"text": "x\n" * 50_000}}] * 5
    file.write_text(json.dumps({"events": events}))
    with started(["show", str(file)], environment, tmp_path) as showing:
        assert showing.stdout and showing.stderr
        showing.stdout.readline()
        showing.stdout.close()
        assert showing.stderr.read() == ""
        showing.wait(20)


# ---------------------------------------------------------------------------------------- show


def test_a_stored_run_is_shown_so_that_people_can_read_it(
    run_here: Run, model: ScriptedModel, store: Store, conversation_id: str
) -> None:
    model.says("好。").then_asks_for_all(("calculator", SUM), ("nothing", {})).then_says("结果是 96。\n第二行。")
    run_here("ask", "你好", "--conversation", conversation_id, **KEPT)
    asked = run_here("ask", "12乘以8?", "--conversation", conversation_id, "--json", **KEPT)
    run_id = json.loads(asked.stdout)["run_id"]
    done = run_here("show", run_id)
    assert (done.returncode, done.stderr) == (0, "")
    for line in (
        f"run {run_id}",
        "model: scripted (real)",
        f"conversation: {conversation_id}, turn 2",
        "history: messages 1 to 2",
        "question: 12乘以8?",
        "round 1",
        '  calls calculator: {"a": 12, "b": 8, "operation": "multiply"}',
        "round 2",
        "    结果是 96。",
        "ended: completed",
        "steps: 2 of at most 4",
        "tool calls: 2 of at most 8",
        "tokens: 20 in, 10 out, 30 in all, recorded of 2 of 2 rounds",
        "  第二行。",
    ):
        assert line in done.stdout.splitlines(), line
    assert "nothing failed (unknown_tool) in " in done.stdout
    raw = json.loads(run_here("show", run_id, "--json").stdout)
    assert raw["answer"] == "结果是 96。\n第二行。"
    assert store.rows("SELECT COUNT(*) FROM runs WHERE run_id = %s", run_id) == [(1,)]


def test_a_run_that_ended_before_anything_happened_is_shown_from_its_file(run: Run, tmp_path: Path) -> None:
    asked = run("ask", "Q", "--conversation", "a", "--trace-file", "run.json", **NO_DATABASE)
    assert asked.returncode == 1 and "the database" in asked.stderr and "dev with" in asked.stderr
    assert json.loads((tmp_path / "run.json").read_text("utf-8"))["events"] == []
    shown = run("show", "run.json")
    assert (shown.returncode, "store_unavailable" in shown.stdout) == (0, True), shown.stderr


def test_without_a_model_the_settings_that_are_missing_are_named(run: Run) -> None:
    asked = run("ask", "Q", API_KEY="", DEFAULT_MODEL="")
    assert asked.returncode == 1 and "API_KEY, DEFAULT_MODEL not set" in asked.stderr


def test_a_run_is_exported_to_a_file_and_shown_from_it_the_same(
    run_here: Run, model: ScriptedModel, conversation_id: str, tmp_path: Path
) -> None:
    model.asks_for("calculator", **SUM).then_says("96")
    run_id = json.loads(run_here("ask", "12 * 8?", "--json", **KEPT).stdout)["run_id"]
    assert run_here("show", run_id, "--trace-file", "run.json").stdout == ""
    assert run_here("show", "run.json", **NO_DATABASE).stdout == run_here("show", run_id).stdout
    assert json.loads((tmp_path / "run.json").read_text("utf-8"))["run_id"] == run_id


OLD: list[tuple[dict[str, Any], list[str]]] = [
    ({"events": [{"type": "run_started"}]}, ["run not recorded", "ended: not recorded", "tokens: not recorded"]),
    (
        {
            "question": "交通机构",
            "events": [
                {"type": "model_response", "step": 1, "details": {"text": "我查一下"}},
                {"type": "tool_result", "step": 1, "details": {"tool": "run_sql", "ok": True, "text": "3 rows"}},
                {"type": "run_stopped", "details": {"stop_reason": "completed", "tool_duration_ms": 12}},
            ],
        },
        ["question: 交通机构", "  says: 我查一下", "  run_sql returned in not recorded: 3 rows", "ended: completed"],
    ),
    (
        {
            "events": [{"type": "model_response", "details": {"usage": {"input_tokens": 3}, "duration_ms": "fast"}}],
            "token_usage": {"rounds_recorded": 1, "total_tokens": 10**400},
            "execution_budget": {"max_steps": "four"},
        },
        ["  the model replied in not recorded, tokens: 3 in", "steps: not recorded of at most not recorded"],
    ),
]


@pytest.mark.parametrize(("record", "lines"), OLD)
def test_an_older_file_is_shown_with_what_it_has(
    run_here: Run, tmp_path: Path, record: dict[str, Any], lines: list[str]
) -> None:
    (tmp_path / "old.json").write_text(json.dumps(record), encoding="utf-8-sig")
    done = run_here("show", "old.json", **NO_DATABASE)
    assert done.returncode == 0
    for line in lines:
        assert line in done.stdout.splitlines(), line
    assert json.loads(run_here("show", "old.json", "--json").stdout) == record


@pytest.mark.parametrize("content", [b"", b"{}", b"[" * 100_000, b"\xff", b'{"events": [{"type": "x"}]}'])
def test_a_file_that_holds_no_run_is_refused(run_here: Run, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "other.json").write_bytes(content)
    done = run_here("show", "other.json")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("Error: other.json ")


# ---------------------------------------------------------------------------------------- limits that toolsets bring


@pytest.fixture
def shelves(tmp_path: Path) -> dict[str, str]:
    """The settings with which Text2SQL asks a small file of SQLite."""
    file, policy = tmp_path / "shelves.db", tmp_path / "policy.toml"
    with contextlib.closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE books (id INT, title TEXT)")
        connection.execute("INSERT INTO books VALUES (1, '红楼梦')")
        connection.commit()
    policy.write_text("[tables.books]\n", encoding="utf-8")
    return {
        "TOOLSETS": "calculator,text2sql", "TEXT2SQL_URL": f"sqlite:///{file}", "TEXT2SQL_POLICY": str(policy)
    }  # fmt: skip


def ask_shelves(model: ScriptedModel, times: int) -> None:
    for number in range(times):
        model.asks_for("run_sql", sql=f"SELECT {number} AS n FROM books")


def test_three_attempts_at_sql_are_made_unless_it_is_said_otherwise(
    run_here: Run, model: ScriptedModel, shelves: dict[str, str], tmp_path: Path
) -> None:
    model.asks_for_all(*[("run_sql", {"sql": f"SELECT {number} AS n FROM books"}) for number in range(4)])
    done = run_here("ask", "How many?", "--trace-file", "run.json", **shelves)
    assert done.returncode == 2
    record = json.loads((tmp_path / "run.json").read_text("utf-8"))
    assert record["stop_reason"] == "sql_attempt_limit"
    assert record["execution_budget"] == {
        "max_steps": 4, "steps": 1, "max_tool_calls": 8, "tool_calls": 3,
        "max_calls_of": {"run_sql": 3}, "calls_of": {"run_sql": 3},
    }  # fmt: skip
    assert record["events"][-1]["details"]["blocked_call"]["arguments"] == {"sql": "SELECT 3 AS n FROM books"}
    shown = run_here("show", "run.json").stdout
    assert "run_sql: 3 of at most 3" in shown and "not carried out: run_sql" in shown


@pytest.mark.parametrize("attempts", [0, 1, 5])
def test_attempts_at_sql_are_limited_on_the_command_line(
    run_here: Run, model: ScriptedModel, shelves: dict[str, str], attempts: int
) -> None:
    ask_shelves(model, attempts + 1)
    limit = ("--max-sql-attempts", str(attempts), "--max-steps", "9")
    done = run_here("ask", "How many?", *limit, "--json", **shelves)
    assert done.returncode == 2
    body = json.loads(done.stdout)
    assert (body["stop_reason"], body["tool_calls"], body["answer"]) == ("sql_attempt_limit", attempts, None)
    offered = [tool["function"]["name"] for tool in model.requests[0]["tools"]]
    assert ("run_sql" in offered) == bool(attempts)


def test_a_budget_that_is_used_up_still_lets_the_model_answer(
    run_here: Run, model: ScriptedModel, shelves: dict[str, str]
) -> None:
    ask_shelves(model, 1)
    model.says("一本。")
    done = run_here("ask", "How many?", "--max-sql-attempts", "1", **shelves)
    assert (done.returncode, done.stdout) == (0, "一本。\n")


def test_a_limit_of_a_toolset_that_is_off_is_refused(run_here: Run, shelves: dict[str, str]) -> None:
    done = run_here("ask", "Hi", "--max-sql-attempts", "2", TOOLSETS="calculator")
    assert done.returncode == 1
    assert "--max-sql-attempts limits run_sql of the toolset text2sql, which is off" in done.stderr
    done = run_here("ask", "Hi", "--max-sql-attempts", "-2", **shelves)
    assert done.returncode == 1 and "MAX_SQL_ATTEMPTS is '-2'" in done.stderr
