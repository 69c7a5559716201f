"""What a result looks like: every odd type in a form that the model reads exactly."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.support.scripted_model import ScriptedModel
from tests.text2sql.conftest import AskLibrary, Library
from text2sql.database import MySQL, read_url
from text2sql.results import Table, number


def rows_of(library: Library, sql: str, **limits: Any) -> dict[str, Any]:
    """The result of a statement that the guard does not see."""
    table = library.target().run(sql, 5, limits.get("max_rows", 50), limits.get("max_bytes", 16_000))
    body: dict[str, Any] = json.loads(table.as_text())
    return body


def test_values_of_mysql_and_mariadb_are_exact(in_mysql: Library) -> None:
    for sql, shown in (
        ("CAST(0.1 AS DECIMAL(30,20))", "0.10000000000000000000"),
        ("CAST('100:01:02' AS TIME)", "100:01:02"),
        ("CAST('-00:30:00.5' AS TIME(1))", "-00:30:00.5"),
        ("CAST('2025-03-01 10:00:00.25' AS DATETIME(2))", "2025-03-01 10:00:00.25"),
        ("DATE('2025-03-01')", "2025-03-01"),
        ("9007199254740991", 9007199254740991),
        ("9007199254740993", "9007199254740993"),
        ("18446744073709551615", "18446744073709551615"),
        ("x'ff00'", "0xff00"),
        ("1.5e0", 1.5),
        ("NULL", None),
        ("'红楼梦 😀'", "红楼梦 😀"),
        ("JSON_OBJECT('b', 1)", '{"b": 1}'),
        ("ST_GeomFromText('POINT(1 2)')", "0x000000000101000000000000000000f03f0000000000000040"),
        ("TRUE", 1),
        ("'50%s'", "50%s"),
    ):
        assert rows_of(in_mysql, f"SELECT {sql} AS v")["rows"] == [[shown]], sql


def test_bits_and_dates_of_no_calendar_come_from_a_table_too(in_mysql: Library) -> None:
    server = MySQL(read_url(in_mysql.admin))
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_mode=''")
        cursor.execute("CREATE TABLE odd (b BIT(12), z DATE, p DATETIME, y YEAR, `desc` INT, s SET('a','b'))")
        cursor.execute("INSERT INTO odd VALUES (b'101000000001', '0000-00-00', '2025-00-10 00:00:00', 2025, 3, 'a,b')")
        try:
            body = rows_of(in_mysql, "SELECT * FROM odd")
            assert body["rows"] == [[2561, "0000-00-00", "2025-00-10 00:00:00", 2025, 3, "a,b"]]
            assert body["columns"] == ["b", "z", "p", "y", "desc", "s"]
        finally:
            cursor.execute("DROP TABLE odd")


def test_values_of_postgresql_are_exact(in_postgres: Library) -> None:
    for sql, shown in (
        ("0.1::numeric(30,20)", "0.10000000000000000000"),
        ("'NaN'::numeric", "NaN"),
        ("'infinity'::date", "infinity"),
        ("'2025-03-01 10:00:00+02'::timestamptz", "2025-03-01 08:00:00+00"),
        ("'100:01:02'::interval", "100:01:02"),
        ("'4713-01-01 BC'::date", "4713-01-01 BC"),
        ("9007199254740993", "9007199254740993"),
        ("'\\xff00'::bytea", "0xff00"),
        ("ARRAY[1,2]", "{1,2}"),
        ("int4range(1,3)", "[1,3)"),
        ("'{\"b\": 1}'::json", '{"b": 1}'),
        ("'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::uuid", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
        ("'10.0.0.1'::inet", "10.0.0.1"),
        ("true", True),
        ("'Infinity'::float8", "inf"),
        ("NULL", None),
        ("'50%s'", "50%s"),
    ):
        assert rows_of(in_postgres, f"SELECT {sql} AS v")["rows"] == [[shown]], sql


def test_values_of_sqlite_are_exact(in_sqlite: Library) -> None:
    for sql, shown in (
        ("9223372036854775807", "9223372036854775807"),
        ("x'ff00'", "0xff00"),
        ("1e999", "inf"),
        ("CAST(x'ff41' AS TEXT)", "\ufffdA"),
        ("'50%s'", "50%s"),
        ("NULL", None),
    ):
        assert rows_of(in_sqlite, f"SELECT {sql} AS v")["rows"] == [[shown]], sql


def test_columns_of_one_name_are_all_there(library: Library) -> None:
    body = rows_of(
        library, "SELECT 1 AS a, 2 AS a, m.id, b.id FROM members m JOIN books b ON b.id = m.id WHERE m.id = 1"
    )
    assert body == {"columns": ["a", "a", "id", "id"], "rows": [[1, 2, 1, 1]], "row_count": 1, "truncated": False}


def test_no_rows_are_a_result_too(library: Library) -> None:
    body = rows_of(library, "SELECT id FROM books WHERE id < 0")
    assert body == {"columns": ["id"], "rows": [], "row_count": 0, "truncated": False}


def test_what_is_cut_says_so(library: Library) -> None:
    body = rows_of(library, "SELECT id FROM books ORDER BY id", max_rows=2)
    assert (body["rows"], body["row_count"], body["truncated"]) == ([[1], [2]], 2, True)
    assert body["note"].startswith("truncated: only the first 2 rows")
    assert not rows_of(library, "SELECT id FROM books ORDER BY id", max_rows=3)["truncated"]
    many = " UNION ALL ".join(f"SELECT '{'x' * 900}{n}' AS t" for n in range(20))
    body = rows_of(library, many, max_bytes=5000)
    assert (body["row_count"], body["truncated"]) == (5, True)
    assert "rows fit" in body["note"]


def test_a_long_value_is_cut_and_says_how_long_it_is(library: Library) -> None:
    long = "printf('%.3000c', 'x')" if library.dialect == "sqlite" else "REPEAT('x', 3000)"
    body = rows_of(library, f"SELECT {long} AS t")
    assert body["rows"][0][0] == "x" * 2000 + "… (3000 characters)"
    assert body["truncated"] and "cut" in body["note"]


def test_a_million_rows_are_not_fetched(in_mysql: Library) -> None:
    digits = "(SELECT 0 AS d UNION SELECT 1 UNION SELECT 2 UNION SELECT 3 UNION SELECT 4 UNION SELECT 5)"
    taken = []

    class Counting(Table):
        def add(self, row: Any) -> bool:
            taken.append(row)
            return super().add(row)

    sql = "SELECT a.d FROM " + ", ".join(f"{digits} {name}" for name in "abcdefgh")
    target = in_mysql.target()
    with target.session(5) as connection:
        names, cells, rows = target.server.rows(connection, sql)
        table = Counting(names, cells, 3, 1000)
        for row in rows:
            if not table.add(row):
                break
    assert len(taken) == 4


def test_numbers_that_json_cannot_hold_become_text() -> None:
    assert [number(value) for value in (2**53 - 1, -(2**53), float("nan"), True)] == [
        2**53 - 1,
        str(-(2**53)),
        "nan",
        True,
    ]


def test_the_model_is_given_the_first_rows_and_told_of_the_others() -> None:
    table = Table(["n", "t"], [number, number], max_rows=120, max_bytes=64_000)
    while table.add([len(table.rows), "字" * 10]):
        pass
    whole, shown = json.loads(table.as_text()), json.loads(table.for_model(50, 8_000))
    assert (len(whole["rows"]), whole["row_count"]) == (120, 120)
    assert shown["rows"] == whole["rows"][:50] and shown["row_count"] == 120 and shown["truncated"]
    assert "the first 50 of 120 rows" in shown["note"] and "only the first 120 rows" in shown["note"]
    few = json.loads(table.for_model(50, 1_000))
    assert 0 < len(few["rows"]) < 50 and len(json.dumps(few["rows"], ensure_ascii=False).encode()) < 1_100
    assert table.for_model(120, 64_000) == table.as_text()
    wide = Table(["t"], [number], max_rows=5, max_bytes=64_000)
    wide.add(["字" * 900])
    assert wide.for_model(5, 1_000) == wide.as_text()  # one row at least


SQUARES = "SELECT a.id AS x, b.id AS y FROM loans a CROSS JOIN loans b CROSS JOIN books c ORDER BY x, y"  # 27 rows


@pytest.fixture
def few_rows(tmp_path: Path) -> str:
    """A policy that gives the model five rows."""
    (tmp_path / "policy.toml").write_text("model_rows = 5\n[tables.loans]\n[tables.books]\n", encoding="utf-8")
    return str(tmp_path / "policy.toml")


def test_the_record_of_a_run_holds_the_whole_result_and_the_model_and_the_trace_a_part(
    service_of: AskLibrary, library: Library, model: ScriptedModel, few_rows: str, conversation_id: str
) -> None:
    client = service_of(library, TEXT2SQL_POLICY=few_rows, TRACE_RETENTION_DAYS="7")
    model.asks_for("run_sql", sql=SQUARES).then_says("27.")
    question = {"conversation_id": conversation_id, "message": "How many?", "include_trace": True}
    body = client.post("/chat", json=question).json()
    given = next(message["content"] for message in model.requests[-1]["messages"] if message["role"] == "tool")
    assert len(json.loads(given)["rows"]) == 5 and json.loads(given)["row_count"] == 27
    (told,) = [event["details"] for event in body["trace"] if event["type"] == "tool_result"]
    assert told["text"] == given and "record" not in told
    stored = client.get(f"/api/runs/{body['run_id']}").json()
    (kept,) = [event["details"] for event in stored["events"] if event["type"] == "tool_result"]
    assert kept == told | {"record": kept["record"]}
    whole = json.loads(kept["record"])
    assert (len(whole["rows"]), whole["rows"][:5]) == (27, json.loads(given)["rows"])
    assert whole["truncated"] is False


def test_a_result_that_the_model_was_given_whole_is_recorded_once(
    service_of: AskLibrary, in_sqlite: Library, model: ScriptedModel
) -> None:
    client = service_of(in_sqlite, TRACE_RETENTION_DAYS="7")
    model.asks_for("run_sql", sql="SELECT id FROM books").then_says("3")
    body = client.post("/api/runs", json={"question": "How many?"}).json()
    stored = client.get(f"/api/runs/{body['run_id']}").json()
    assert stored["events"] == body["trace"]


def test_the_run_file_holds_the_whole_result_and_show_shows_it(
    in_sqlite: Library, model: ScriptedModel, few_rows: str, tmp_path: Path
) -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("DB_")}
    environ |= {"TEXT2SQL_URL": in_sqlite.reader, "TEXT2SQL_POLICY": few_rows, "TOOLSETS": "text2sql", "ENV_FILE": ""}
    environ |= {"API_KEY": "sk-test", "BASE_URL": model.base_url, "DEFAULT_MODEL": "scripted"}

    def run(*arguments: str) -> str:
        program = [sys.executable, str(ROOT / "main.py"), *arguments]
        return subprocess.run(program, env=environ, capture_output=True, encoding="utf-8", check=True).stdout

    model.asks_for("run_sql", sql=SQUARES).then_says("27.")
    file = str(tmp_path / "run.json")
    run("ask", "How many?", "--trace-file", file)
    events = json.loads(Path(file).read_text("utf-8"))["events"]
    (record,) = [event["details"]["record"] for event in events if event["type"] == "tool_result"]
    assert len(json.loads(record)["rows"]) == 27
    assert f"  the whole result: {record}" in run("show", file)
