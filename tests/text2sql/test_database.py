"""Behind the guard: with the guard switched off, the session and the account still keep a statement from doing harm."""

import contextlib
import logging
import sqlite3
from pathlib import Path

import pytest

from errors import ConfigError
from tests.support.waiting import until
from tests.text2sql.conftest import Library
from text2sql.database import MySQL, Target, read_url

ENDLESS = {
    "mysql": "SELECT SUM(a.id + z.id) FROM " + ", ".join(f"books {name}" for name in "abcdefghijklmnopqrstuvwxyz"),
    "postgres": "SELECT count(*) FROM generate_series(1, 100000000000)",
    "sqlite": "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT sum(n) FROM r",
}
RUNNING = {
    "mysql": "SELECT COUNT(*) FROM information_schema.processlist WHERE user = 't2s_reader' AND command = 'Query'",
    "postgres": "SELECT count(*) FROM pg_stat_activity WHERE usename = 'reader' AND state = 'active'",
}


def running(library: Library) -> int:
    found = library.target(library.admin).run(RUNNING[library.dialect], 5, 5, 1000).rows[0][0]
    return int(found)


def test_the_server_ends_a_statement_at_its_limit(library: Library) -> None:
    with pytest.raises(Exception, match="(?i)max_statement_time|execution time|timeout|interrupt"):
        library.target().run(ENDLESS[library.dialect], 0.4, 5, 1000)
    if library.dialect in RUNNING:
        until(lambda: not running(library))


def test_a_statement_that_its_server_does_not_end_is_killed(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("text2sql.database.GRACE_S", -29.5)  # the server would wait for 30 s
    with pytest.raises(Exception, match="(?i)interrupt|cancel"):
        library.target().run(ENDLESS[library.dialect], 30, 5, 1000)
    monkeypatch.undo()
    if library.dialect in RUNNING:
        until(lambda: not running(library))


def test_nothing_can_be_written_even_by_an_account_that_may(library: Library) -> None:
    target = library.target(library.admin)
    for sql in ("DELETE FROM books", "INSERT INTO wages VALUES (9, 'x', 1)", "UPDATE wages SET wage = 0"):
        with pytest.raises(Exception, match="(?i)read.?only|not authorized"):
            target.run(sql, 5, 5, 1000)
    assert target.run("SELECT COUNT(*) FROM books", 5, 5, 1000).rows == [[3]]


def test_an_account_that_may_read_can_write_no_file_and_make_no_table(library: Library, tmp_path: Path) -> None:
    if library.dialect == "sqlite":
        bad = [f"ATTACH DATABASE '{tmp_path}/x.db' AS x", "CREATE TABLE x (a INT)", "PRAGMA query_only=OFF"]
    elif library.dialect == "mysql":
        bad = ["SELECT 1 INTO OUTFILE '/tmp/t2s_out.txt'", "CREATE TABLE x (a INT)", "DROP TABLE books"]
    else:
        bad = ["COPY books TO '/tmp/t2s_out.txt'", "CREATE TABLE x (a INT)", "DROP TABLE books"]
    for sql in bad:
        with pytest.raises(Exception, match="(?i)denied|authorized|permission|read.?only|privilege|must be owner"):
            library.target().run(sql, 5, 5, 1000)
    assert not Path("/tmp/t2s_out.txt").exists()


def test_nothing_of_a_session_is_left_for_the_next(in_mysql: Library) -> None:
    target = in_mysql.target()
    target.run("SELECT GET_LOCK('t2s', 1), @x := 5", 5, 5, 1000)
    # The server ends a session that was left a moment after it was left.
    until(lambda: target.run("SELECT IS_FREE_LOCK('t2s')", 5, 5, 1000).rows == [[1]])
    assert target.run("SELECT @x", 5, 5, 1000).rows == [[None]]


def test_settings_of_the_server_do_not_change_how_texts_are_read(in_mysql: Library) -> None:
    with contextlib.closing(MySQL(read_url(in_mysql.admin)).connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT @@GLOBAL.sql_mode")
        (before,) = cursor.fetchone()
        cursor.execute("SET GLOBAL sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT'")
        try:
            assert in_mysql.target().run("SELECT 'a\\'b', \"x\"", 5, 5, 1000).rows == [["a'b", "x"]]
        finally:
            cursor.execute("SET GLOBAL sql_mode = %s", (before,))


def test_a_text_of_many_rows_has_an_end(in_mysql: Library) -> None:
    with contextlib.closing(MySQL(read_url(in_mysql.admin)).connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT @@GLOBAL.group_concat_max_len")
        (before,) = cursor.fetchone()
        cursor.execute("SET GLOBAL group_concat_max_len = 100000000")
        try:
            assert in_mysql.target().run("SELECT @@group_concat_max_len", 5, 5, 1000).rows == [[1_000_000]]
        finally:
            cursor.execute("SET GLOBAL group_concat_max_len = %s", (before,))


def test_a_text_that_sqlite_makes_in_our_process_has_an_end(tmp_path: Path) -> None:
    columns = ", ".join(f"c{at}" for at in range(400))
    with contextlib.closing(sqlite3.connect(tmp_path / "wide.db")) as connection:
        connection.execute(f"CREATE TABLE wide ({columns})")
    target = Target(f"sqlite:///{tmp_path / 'wide.db'}")
    assert len(target.columns()["wide"]) == 400
    for sql in ("SELECT hex(zeroblob(4000000))", f"SELECT {columns} FROM wide", "SELECT 'x' LIKE hex(zeroblob(600))"):
        with pytest.raises(sqlite3.Error, match="too (big|many|complex)"):
            target.run(sql, 5, 5, 1000)


def test_an_account_with_too_many_rights_is_named_and_logged_once(
    library: Library, caplog: pytest.LogCaptureFixture
) -> None:
    if library.dialect == "sqlite":
        assert library.target().too_many_rights() == []
        return
    with caplog.at_level(logging.WARNING):
        assert library.target().too_many_rights() == []
        assert not caplog.records
        admin = library.target(library.admin)
        assert admin.too_many_rights() and admin.too_many_rights()
    assert len(caplog.records) == 1
    assert "give it SELECT only" in caplog.text


@pytest.mark.parametrize("url", ["", "nonsense", "oracle://a@b/c", "mysql://u:SECRET@127.0.0.1"])
def test_a_url_that_cannot_be_used_is_refused_and_never_shown(url: str) -> None:
    with pytest.raises(ConfigError, match="TEXT2SQL_URL") as refused:
        Target(url)
    assert "SECRET" not in str(refused.value)
