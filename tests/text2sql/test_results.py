"""What a result looks like: every odd type in a form that the model reads exactly."""

import json
from typing import Any

from tests.text2sql.conftest import Library
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
