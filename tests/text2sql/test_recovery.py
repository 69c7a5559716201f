"""Through the front door: what the model is told of a statement that failed, and when the run ends."""

import json
import logging
from typing import Any

import pymysql
import pytest
from fastapi.testclient import TestClient

from errors import ConfigError
from tests.conftest import MakeClient, Store
from tests.support.scripted_model import ScriptedModel
from tests.support.waiting import until
from tests.text2sql.conftest import CASES, AskLibrary, Library
from text2sql.database import ColumnInfo
from text2sql.guard import Refused
from text2sql.policy import Policy, TableRule
from text2sql.recovery import of_error, of_refusal


def ask(client: TestClient, conversation_id: str, **more: Any) -> dict[str, Any]:
    body = {"conversation_id": conversation_id, "message": "How many books?", "include_trace": True, **more}
    answer = client.post("/chat", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def observations(model: ScriptedModel) -> list[str]:
    """What the model was shown of its calls."""
    return [message["content"] for message in model.requests[-1]["messages"] if message["role"] == "tool"]


def stopped(body: dict[str, Any]) -> dict[str, Any]:
    details: dict[str, Any] = body["trace"][-1]["details"]
    return details


def test_the_rows_come_back_in_their_own_characters(
    service_of: AskLibrary, library: Library, model: ScriptedModel, conversation_id: str, store: Store
) -> None:
    model.asks_for("list_tables").then_asks_for("describe_table", table="members")
    model.then_asks_for("run_sql", sql="SELECT name, town FROM members ORDER BY id").then_says("Two.")
    body = ask(service_of(library), conversation_id)
    tables, described, rows = observations(model)
    assert json.loads(tables)["tables"][1] == {"table": "books", "note": "One row for each title."}
    assert [column["name"] for column in json.loads(described)["columns"]] == ["id", "name", "town", "joined_at"]
    assert '["李雷","杭州"]' in rows
    assert (body["answer"], body["stop_reason"]) == ("Two.", "completed")
    assert store.messages(conversation_id) == [("user", "How many books?"), ("assistant", "Two.")]


def test_the_model_is_told_the_dialect_and_what_may_be_read(
    service_of: AskLibrary, library: Library, model: ScriptedModel, conversation_id: str
) -> None:
    client = service_of(library)

    def told() -> str:
        model.says("Hello.")
        ask(client, conversation_id)
        return str(model.requests[-1]["messages"][0]["content"])

    until(lambda: "members(id, name, town, joined_at), books(id, title, genre, price, pages)" in told())
    request = model.requests[-1]
    title = {"mysql": "MySQL", "postgres": "PostgreSQL", "sqlite": "SQLite"}[library.dialect]
    assert title in told() and "pin" not in told() and "wages" not in told()
    described = {tool["function"]["name"]: tool["function"] for tool in request["tools"]}
    assert title in described["run_sql"]["description"]
    assert list(described["run_sql"]["parameters"]["properties"]) == ["sql"]


def test_many_columns_are_not_told_beforehand_and_none_are_where_they_are_not_known(in_sqlite: Library) -> None:
    tools = in_sqlite.tools()
    assert "Readable tables: members, books, loans" in tools.prompt()
    tools.look_at_once()
    assert "members(id, name" in tools.prompt()
    many = tuple(f"a_column_with_a_long_name_{number}" for number in range(80))
    file = tools.policy.file
    wide = file.model_copy(update={"tables": {**file.tables, "books": TableRule(columns=many)}})
    tools.policy = Policy(wide)
    tools.target.columns()["books"] = [ColumnInfo(name, "INT", True) for name in many]
    assert "Readable tables: members, books, loans" in tools.prompt()


def test_a_wrong_name_is_corrected_within_the_budget(
    service_of: AskLibrary, library: Library, model: ScriptedModel, conversation_id: str
) -> None:
    model.asks_for("run_sql", sql="SELECT titel FROM books").then_asks_for("run_sql", sql="SELECT title FROM books")
    model.then_says("Three.")
    body = ask(service_of(library), conversation_id)
    first, second = observations(model)
    told = json.loads(first)
    assert (told["code"], "title" in told["hint"]) == ("column_not_allowed", True)
    assert told["recovery"]["correctable"] is True
    assert (told["recovery"]["action"], told["recovery"]["attempts_left"]) == ("correct_sql", 2)
    assert json.loads(second)["row_count"] == 3
    assert body["stop_reason"] == "completed"
    results = [event["details"] for event in body["trace"] if event["type"] == "tool_result"]
    assert json.loads(results[0]["text"])["recovery"]["correctable"] is True  # in the trace too
    assert [result["code"] for result in results] == ["column_not_allowed", None]


def test_what_the_server_refuses_is_told_with_a_hint(
    service_of: AskLibrary, in_mysql: Library, model: ScriptedModel, conversation_id: str
) -> None:
    model.asks_for("run_sql", sql="SELECT id FROM books b JOIN loans l ON l.book_id = b.id").then_says("Hm.")
    ask(service_of(in_mysql), conversation_id)
    (told,) = map(json.loads, observations(model))
    assert told["code"] == "ambiguous_column" and "alias" in told["hint"] and "'id'" in told["error"]


def test_a_pattern_that_is_wrong_can_be_corrected(
    service_of: AskLibrary, in_mysql: Library, model: ScriptedModel, conversation_id: str
) -> None:
    model.asks_for("run_sql", sql="SELECT title FROM books WHERE title REGEXP '['").then_says("Hm.")
    ask(service_of(in_mysql), conversation_id)
    (told,) = map(json.loads, observations(model))
    assert told["code"] == "bad_value" and told["recovery"]["correctable"] is True


def test_the_attempt_over_the_budget_ends_the_run_unexecuted(
    service_of: AskLibrary, in_sqlite: Library, model: ScriptedModel, conversation_id: str
) -> None:
    for number in range(4):
        model.asks_for("run_sql", sql=f"SELECT nothing_{number} FROM books")
    body = ask(service_of(in_sqlite), conversation_id)
    assert (body["stop_reason"], body["tool_calls"], body["answer"]) == ("sql_attempt_limit", 3, None)
    assert stopped(body)["blocked_call"]["arguments"] == {"sql": "SELECT nothing_3 FROM books"}
    assert stopped(body)["execution_budget"]["calls_of"] == {"run_sql": 3}
    last = json.loads(observations(model)[-1])
    assert last["recovery"] | {"advice": ""} == {
        "correctable": True, "action": "answer", "attempts_left": 0, "advice": ""
    }  # fmt: skip


def test_the_number_of_attempts_is_a_setting(
    service_of: AskLibrary, in_sqlite: Library, model: ScriptedModel, conversation_id: str
) -> None:
    model.asks_for("run_sql", sql="SELECT 1 AS a").then_asks_for("run_sql", sql="SELECT 2 AS a")
    body = ask(service_of(in_sqlite, MAX_SQL_ATTEMPTS="1"), conversation_id)
    assert (body["stop_reason"], body["tool_calls"]) == ("sql_attempt_limit", 1)


def test_the_same_failed_statement_again_ends_the_run_before_it_is_counted(
    service_of: AskLibrary, in_sqlite: Library, model: ScriptedModel, conversation_id: str, store: Store
) -> None:
    model.asks_for("run_sql", sql="SELECT titel FROM books").then_asks_for("run_sql", sql="SELECT titel FROM books")
    body = ask(service_of(in_sqlite), conversation_id)
    assert (body["stop_reason"], body["tool_calls"]) == ("repeated_failed_sql", 1)
    assert body["notice"] == "The model sent a query again that had failed already."
    end = stopped(body)
    assert end["blocked_call"]["arguments"] == {"sql": "SELECT titel FROM books"}
    assert end["blocked_call"]["call_id"] != end["failure"]["call_id"]
    assert end["failure"]["code"] == "column_not_allowed"
    assert store.messages(conversation_id) == []


def test_a_statement_that_differs_by_a_space_is_another_and_one_that_went_well_may_be_sent_again(
    service_of: AskLibrary, in_sqlite: Library, model: ScriptedModel, conversation_id: str
) -> None:
    client = service_of(in_sqlite)
    model.asks_for("run_sql", sql="SELECT titel FROM books").then_asks_for("run_sql", sql="SELECT  titel FROM books")
    model.then_says("No.")
    assert ask(client, conversation_id)["stop_reason"] == "completed"
    model.asks_for("run_sql", sql="SELECT 1 AS a").then_asks_for("run_sql", sql="SELECT 1 AS a").then_says("One.")
    assert ask(client, conversation_id)["stop_reason"] == "completed"
    model.asks_for("run_sql", sql="SELECT titel FROM books").then_says("No.")  # another run: not remembered
    assert ask(client, conversation_id)["stop_reason"] == "completed"


def test_the_budget_comes_before_the_repeat(
    service_of: AskLibrary, in_sqlite: Library, model: ScriptedModel, conversation_id: str
) -> None:
    model.asks_for("run_sql", sql="SELECT titel FROM books").then_asks_for("run_sql", sql="SELECT titel FROM books")
    assert ask(service_of(in_sqlite, MAX_SQL_ATTEMPTS="1"), conversation_id)["stop_reason"] == "sql_attempt_limit"


@pytest.mark.parametrize(
    ("sql", "code"),
    [("SELECT * FROM elsewhere.books", "database_scope"), ("SELECT title FROM books", "permission_denied")],
)
def test_what_no_correction_mends_ends_the_run(
    service_of: AskLibrary, in_mysql: Library, model: ScriptedModel, conversation_id: str, sql: str, code: str
) -> None:
    wrong = in_mysql.reader.replace("library-1@", "library-2@") if code == "permission_denied" else ""
    model.asks_for_all(("run_sql", {"sql": sql}), ("list_tables", {}))
    body = ask(service_of(in_mysql, wrong), conversation_id)
    assert (body["stop_reason"], body["answer"], body["tool_calls"]) == ("sql_recovery_stopped", None, 1)
    failure = stopped(body)["failure"]
    assert (failure["code"], failure["call_id"]) == (code, "call_1")
    assert "No correction is possible" in failure["explanation"] and "reader" not in failure["explanation"]


def test_a_statement_that_takes_too_long_can_be_corrected(
    service_of: AskLibrary, in_mysql: Library, model: ScriptedModel, conversation_id: str
) -> None:
    endless = "SELECT SUM(a.id + z.id) FROM " + ", ".join(f"loans {name}" for name in "abcdefghijklmnopqrstuvwxyz")
    model.asks_for("run_sql", sql=endless).then_says("Too much.")
    body = ask(service_of(in_mysql, turn_timeout_s=1.2), conversation_id)
    (told,) = map(json.loads, observations(model))
    assert (told["code"], told["recovery"]["correctable"]) == ("timeout", True)
    assert body["stop_reason"] == "completed"


def test_errors_are_told_apart_by_number_and_what_is_unknown_ends_the_run() -> None:
    class State(Exception):
        def __init__(self, state: str) -> None:
            self.sqlstate = state

    for number, code in ((1054, "unknown_column"), (1064, "syntax"), (1969, "timeout"), (3024, "timeout"), (1142, "permission_denied"), (1792, "read_only"), (1049, "database_scope"), (2013, "connection_failed"), (9999, "unclassified")):  # fmt: skip  # noqa: E501
        assert of_error(pymysql.err.OperationalError(number, "x"), "mysql", "").code == code
    for state, code in (("42703", "unknown_column"), ("42601", "syntax"), ("22012", "bad_value"), ("57014", "timeout"), ("42501", "permission_denied"), ("25006", "read_only"), ("3F000", "database_scope"), ("57P01", "connection_failed"), ("XX000", "unclassified")):  # fmt: skip  # noqa: E501
        failure = of_error(State(state), "postgres", "")
        assert failure.code == code
        assert failure.correctable == (code in ("unknown_column", "syntax", "bad_value", "timeout"))
    assert not of_error(ValueError("ours"), "sqlite", "").correctable
    assert not of_refusal(Refused("schema_not_allowed", "no")).correctable


def test_settings_that_are_missing_are_named(client_for: MakeClient, in_sqlite: Library) -> None:
    for environ, words in (
        ({}, "TEXT2SQL_URL is not set"),
        ({"TEXT2SQL_URL": in_sqlite.reader}, "TEXT2SQL_POLICY is not set"),
        ({"TEXT2SQL_URL": in_sqlite.reader, "TEXT2SQL_POLICY": "/none.toml"}, "cannot be read"),
        ({"TEXT2SQL_URL": "x", "TEXT2SQL_POLICY": str(CASES / "policy.toml")}, "TEXT2SQL_URL should be"),
    ):
        with pytest.raises(ConfigError, match=words):
            client_for(toolsets=("text2sql",), environ=environ)


def test_an_account_that_may_write_is_warned_of_when_the_service_starts_and_served(
    service_of: AskLibrary, in_mysql: Library, model: ScriptedModel, conversation_id: str, caplog: Any
) -> None:
    with caplog.at_level(logging.WARNING):
        client = service_of(in_mysql, in_mysql.admin)
        until(lambda: "give it SELECT only" in caplog.text)
    model.asks_for("run_sql", sql="SELECT COUNT(*) AS n FROM books").then_says("3")
    ask(client, conversation_id)
    assert "give it SELECT only" in caplog.text and "reader-of-the-library" not in caplog.text
    assert '"rows":[[3]]' in observations(model)[0]


def test_a_question_by_itself_has_four_rounds_eight_tool_calls_and_three_attempts(
    service_of: AskLibrary, in_sqlite: Library, model: ScriptedModel
) -> None:
    client = service_of(in_sqlite, TRACE_RETENTION_DAYS="7")
    model.asks_for_all(*[("run_sql", {"sql": f"SELECT {number} AS n"}) for number in range(4)])
    body = client.post("/api/runs", json={"question": "How many books?"}).json()
    assert (body["stop_reason"], body["tool_calls"]) == ("sql_attempt_limit", 3)
    record = client.get(f"/api/runs/{body['run_id']}").json()
    assert record["execution_budget"] == stopped(body)["execution_budget"] == {
        "max_steps": 4, "steps": 1, "max_tool_calls": 8, "tool_calls": 3,
        "max_calls_of": {"run_sql": 3}, "calls_of": {"run_sql": 3},
    }  # fmt: skip
    assert stopped(body)["blocked_call"]["arguments"] == {"sql": "SELECT 3 AS n"}
    model.asks_for_all(*[("list_tables", {})] * 9)
    body = client.post("/api/runs", json={"question": "Which tables?"}).json()
    assert (body["stop_reason"], body["tool_calls"]) == ("tool_call_limit", 8)
    for _ in range(4):
        model.asks_for("list_tables")
    body = client.post("/api/runs", json={"question": "Which tables?"}).json()
    assert (body["stop_reason"], body["steps"], body["tool_calls"]) == ("max_steps", 4, 3)


def test_a_caller_may_lower_the_attempts_and_not_raise_them(
    service_of: AskLibrary, in_sqlite: Library, model: ScriptedModel, client_for: MakeClient
) -> None:
    client = service_of(in_sqlite, MAX_SQL_ATTEMPTS="2")
    for asked, made in ((0, 0), (1, 1), (5, 2), (None, 2)):
        for number in range(made + 1):
            model.asks_for("run_sql", sql=f"SELECT {number} AS n")
        body = client.post("/api/runs", json={"question": "How many?", "max_sql_attempts": asked}).json()
        assert (body["stop_reason"], body["tool_calls"]) == ("sql_attempt_limit", made)
        assert ("run_sql" in str(model.requests[-made - 1]["tools"])) == bool(made)
    refused = client_for().post("/api/runs", json={"question": "How many?", "max_sql_attempts": 1})
    assert refused.status_code == 422 and "max_sql_attempts" in refused.text


def test_a_failed_attempt_says_how_many_are_left_of_those_asked_for(
    service_of: AskLibrary, in_sqlite: Library, model: ScriptedModel
) -> None:
    model.asks_for("run_sql", sql="SELECT titel FROM books").then_says("No.")
    client = service_of(in_sqlite)
    client.post("/api/runs", json={"question": "How many?", "max_sql_attempts": 2})
    assert json.loads(observations(model)[0])["recovery"]["attempts_left"] == 1
