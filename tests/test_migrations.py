"""The tables are made and brought up to date: whoever starts it, however often, and wherever it is broken off."""

import contextlib
import logging
import os
import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pymysql
import pytest
from pymysql.constants import CLIENT

import migrate
from config import Settings
from db import Database, check_version
from dev import sql_shell
from dev.proxy import CuttableProxy, Fault
from errors import ConfigError, StoreUnavailable
from tests.conftest import ROOT, MakeClient, Store
from tests.support.scripted_model import ScriptedModel

NEWEST = max(migrate.migrations())


@contextlib.contextmanager
def new_database(server: Store) -> Iterator[Store]:
    """An empty database of its own, for a while."""
    name = f"m{uuid.uuid4().hex[:12]}"
    assert server.server
    with contextlib.closing(server.server.admin()) as admin, admin.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
        cursor.execute(f"GRANT ALL ON {name}.* TO turnkeeper@'127.0.0.1'")
        yield Store(server.settings | {"db_name": name}, server.server)
        cursor.execute(f"DROP DATABASE {name}")


@pytest.fixture
def empty(fragile_store: Store) -> Iterator[Store]:
    """A database without any table."""
    with new_database(fragile_store) as store:
        yield store


@pytest.fixture
def store(empty: Store) -> Store:
    """The database of `client_for` is the empty one."""
    return empty


def bring_up_to_date(store: Store, **other: Any) -> list[int]:
    """What `dev migrate` does; the versions applied."""
    with contextlib.closing(Database(Settings(**store.settings | other))) as database:
        return migrate.migrate(database)


def version(store: Store) -> int:
    with contextlib.closing(Database(Settings(**store.settings))) as database:
        return migrate.schema_version(database)


def tables(store: Store) -> dict[str, str]:
    """Every table as the server describes it, without what counts rows."""
    found = {}
    with contextlib.closing(store.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SHOW TABLES")
        for (name,) in cursor.fetchall():
            cursor.execute(f"SHOW CREATE TABLE {name}")
            found[str(name)] = re.sub(r" AUTO_INCREMENT=\d+", "", cursor.fetchone()[1])
    return found


def things(store: Store) -> list[tuple[Any, ...]]:
    """The rows of the tests' own table, where it is."""
    return store.rows("SELECT * FROM thing") if store.rows("SHOW TABLES LIKE 'thing'") else []


def history(store: Store) -> list[tuple[int, int]]:
    """Which migrations the database has had: (version, whether it is done)."""
    return store.rows("SELECT version, applied_at IS NOT NULL FROM schema_migrations ORDER BY version")


def begin_with_the_first_migration(store: Store) -> None:
    """Make `store` a database in which the first migration is under way, so that it will have all of them."""
    assert "CREATE TABLE IF NOT EXISTS schema_migrations" in (first := migrate.statements_of(ROOT / "schema.sql")[0])
    store.rows(first)
    store.rows("INSERT INTO schema_migrations (version) VALUES (1)")


# ---------------------------------------------------------------------------------------- schema.sql and migrations


def test_an_empty_database_gets_all_tables_at_once_and_nothing_the_second_time(empty: Store) -> None:
    assert version(empty) == 0
    assert bring_up_to_date(empty) == list(migrate.migrations())
    made = tables(empty)
    assert {"conversations", "messages", "schema_migrations"} <= set(made)
    assert version(empty) == NEWEST
    assert bring_up_to_date(empty) == []
    assert tables(empty) == made
    assert history(empty) == [(number, 1) for number in migrate.migrations()]


def test_schema_sql_makes_the_same_tables_as_all_migrations_one_after_the_other(
    fragile_store: Store, empty: Store
) -> None:
    bring_up_to_date(empty)
    with new_database(fragile_store) as migrated:
        begin_with_the_first_migration(migrated)
        assert bring_up_to_date(migrated) == list(migrate.migrations())
        assert tables(migrated) == tables(empty)
        assert history(migrated) == history(empty)
        assert version(migrated) == version(empty) == NEWEST


def plain_client(store: Store) -> None:
    """One statement after the other, as the shell of `dev` cuts them."""
    with contextlib.closing(store.connect()) as connection, connection.cursor() as cursor:
        for statement in sql_shell.statements(iter((ROOT / "schema.sql").read_text("utf-8").splitlines(keepends=True))):
            cursor.execute(statement)


def whole_script(store: Store) -> None:
    """All of it in one packet."""
    with contextlib.closing(store.connect(client_flag=CLIENT.MULTI_STATEMENTS)) as connection:
        with connection.cursor() as cursor:
            cursor.execute((ROOT / "schema.sql").read_text("utf-8"))
            while cursor.nextset():
                pass


def command_line(store: Store) -> None:
    """As its own first lines say."""
    program = shutil.which("mariadb") or shutil.which("mysql")
    if program is None:
        pytest.skip("neither mariadb nor mysql, the client, is installed")
    given = store.settings
    command = [program, "--no-defaults", "--protocol=TCP", "--host=127.0.0.1", f"--port={given['db_port']}"]
    command += [f"--user={given['db_user']}", "--default-character-set=utf8mb4", given["db_name"]]
    environment = os.environ | {"MYSQL_PWD": given["db_password"]}
    with open(ROOT / "schema.sql", "rb") as script:
        done = subprocess.run(command, stdin=script, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("run", [plain_client, whole_script, command_line])
def test_schema_sql_can_be_run_by_hand_and_run_again_without_any_change(
    empty: Store, run: Callable[[Store], None]
) -> None:
    run(empty)
    made, recorded = tables(empty), empty.rows("SELECT * FROM schema_migrations ORDER BY version")
    empty.rows("INSERT INTO conversations (conversation_id, turns) VALUES ('kept', 0)")
    run(empty)
    assert tables(empty) == made
    assert empty.rows("SELECT * FROM schema_migrations ORDER BY version") == recorded
    assert empty.rows("SELECT conversation_id FROM conversations") == [("kept",)]
    assert version(empty) == NEWEST
    assert bring_up_to_date(empty) == []
    assert tables(empty) == made


def test_what_schema_sql_left_unfinished_is_finished(fragile_store: Store, empty: Store) -> None:
    bring_up_to_date(empty)
    statements = migrate.statements_of(ROOT / "schema.sql")
    for done in range(1, len(statements)):
        with new_database(fragile_store) as store:
            for statement in statements[:done]:
                store.rows(statement)
            assert bring_up_to_date(store) == list(migrate.migrations())
            assert tables(store) == tables(empty)


def test_every_statement_of_ours_is_found_whole() -> None:
    for file in [ROOT / "schema.sql", *migrate.migrations().values()]:
        for statement in migrate.statements_of(file):
            assert statement.split()[0] in ("CREATE", "ALTER", "DROP", "INSERT", "UPDATE", "DELETE"), file.name
            assert not statement.endswith(";")
            assert statement.count("(") == statement.count(")")


# ---------------------------------------------------------------------------------------- migrations of the tests' own

FILES = {
    "schema.sql": """-- As our own begins.
CREATE TABLE IF NOT EXISTS schema_migrations (
  version INT NOT NULL PRIMARY KEY,
  checksum CHAR(64) NULL,
  statements INT NOT NULL DEFAULT 0,
  applied_at DATETIME(6) NULL
) ENGINE=InnoDB;

INSERT INTO schema_migrations (version, applied_at)
SELECT version, NOW(6) FROM (SELECT 1 AS version) AS embodied WHERE NOT EXISTS (SELECT 1 FROM schema_migrations);
""",
    "migrations/0001_first.sql": "-- In schema.sql already.\nCREATE TABLE never (id INT NOT NULL);\n",
    "migrations/0002_second.sql": """-- Changes of every kind that may be broken off; a text; with a semicolon
CREATE TABLE thing (id INT NOT NULL PRIMARY KEY, name VARCHAR(10) NOT NULL, old INT NULL, KEY thing_old (old),
  CONSTRAINT thing_is_old CHECK (old > 0));
INSERT INTO thing (id, name) VALUES (1, 'a;b') ON DUPLICATE KEY UPDATE id = id;
ALTER TABLE thing ADD COLUMN size INT NULL;
ALTER TABLE thing ADD KEY thing_size (size), ADD UNIQUE KEY thing_name (name);
ALTER TABLE thing ADD CONSTRAINT thing_has_size CHECK (size >= 0);
UPDATE thing SET size = 3 WHERE size IS NULL;
""",
    "migrations/0003_third.sql": """
ALTER TABLE thing DROP CONSTRAINT thing_is_old;
ALTER TABLE thing DROP KEY thing_old;
ALTER TABLE thing DROP COLUMN old;
ALTER TABLE thing MODIFY name VARCHAR(50) NOT NULL;
CREATE TABLE part (id INT NOT NULL, thing INT NOT NULL, PRIMARY KEY (id),
  CONSTRAINT part_of_thing FOREIGN KEY (thing) REFERENCES thing (id));
CREATE INDEX part_in_order ON part (thing, id);
CREATE TABLE gone (id INT NOT NULL);
DROP TABLE gone;
ALTER TABLE part DROP FOREIGN KEY part_of_thing;
""",
    "migrations/0010_tenth.sql": "CREATE TABLE last (id INT NOT NULL);\nALTER TABLE last ADD COLUMN x INT NULL;\n",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Another schema.sql and other migrations than ours."""
    (tmp_path / "migrations").mkdir()
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.setattr(migrate, "HERE", tmp_path)
    return tmp_path


@pytest.fixture
def older(empty: Store, folder: Path) -> Store:
    """A database that has had the first of the tests' own migrations."""
    assert bring_up_to_date(empty) == [1]
    return empty


def test_an_older_database_gets_what_it_lacks_and_no_more(older: Store) -> None:
    assert version(older) == 1
    assert bring_up_to_date(older) == [2, 3, 10]
    assert version(older) == 10
    assert older.rows("SELECT id, name, size FROM thing") == [(1, "a;b", 3)]
    assert set(tables(older)) == {"schema_migrations", "thing", "part", "last"}
    older.rows("UPDATE thing SET size = NULL")
    assert bring_up_to_date(older) == []
    assert older.rows("SELECT size FROM thing") == [(None,)]


def test_a_new_file_is_applied_and_the_old_ones_are_left_alone(older: Store, folder: Path) -> None:
    bring_up_to_date(older)
    (folder / "migrations" / "0011_next.sql").write_text("INSERT INTO last (id) VALUES (7);\n", encoding="utf-8")
    assert bring_up_to_date(older) == [11]
    assert older.rows("SELECT id FROM last") == [(7,)]


def test_a_file_that_was_changed_after_it_was_applied_is_refused_by_name_and_nothing_is_done(
    older: Store, folder: Path
) -> None:
    bring_up_to_date(older)
    made = tables(older)
    changed, text = folder / "migrations" / "0002_second.sql", FILES["migrations/0002_second.sql"]
    changed.write_text(text + "ALTER TABLE thing ADD COLUMN more INT NULL;\n", encoding="utf-8")
    (folder / "migrations" / "0011_next.sql").write_text("CREATE TABLE next (id INT NOT NULL);\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="0002_second.sql was changed after it was applied"):
        bring_up_to_date(older)
    assert tables(older) == made
    changed.write_text(text, encoding="utf-8")
    assert bring_up_to_date(older) == [11]


def test_a_migration_that_fails_is_told_and_goes_on_where_it_failed(older: Store, folder: Path) -> None:
    wrong = "CREATE TABLE next (id INT NOT NULL);\nINSERT INTO next VALUES (1);\nALTER TABLE next ADD KEY next_x (x);\n"
    (folder / "migrations" / "0011_next.sql").write_text(wrong, encoding="utf-8")
    for _ in range(2):  # at the second try as well
        with pytest.raises(pymysql.err.MySQLError) as failed:
            bring_up_to_date(older)
        assert failed.value.args[0] == 1072  # the column does not exist
        assert version(older) == 10
        assert history(older)[-1] == (11, 0)
    older.rows("ALTER TABLE next ADD COLUMN x INT NULL")
    assert bring_up_to_date(older) == [11]
    assert older.rows("SELECT id FROM next") == [(1,)]  # what was done and counted is not done again


class CuttingAt(CuttableProxy):
    """Cuts the connection at the n-th thing that the client says, the login included."""

    def __init__(self, port: int, number: int, seen: bool) -> None:
        self.left, self.seen = number, seen
        super().__init__("127.0.0.1", port)

    def match(self, seen: bytes, new: int) -> Fault | None:
        self.left -= 1
        return Fault("cut_reply" if self.seen else "cut_before", b"any") if self.left == 0 else None


def broken_off(store: Store, cut_at: int, seen: bool) -> bool:
    """Bring `store` up to date over a connection that is cut; False if it was done by then."""
    with CuttingAt(store.settings["db_port"], cut_at, seen) as proxy:
        try:
            bring_up_to_date(store, db_port=proxy.port)
        except pymysql.err.MySQLError:
            assert proxy.cuts == 1
            return True
    return False


def moments(server: Store, seen: bool, before: Callable[[Store], Any], whole: Store) -> int:
    """Break it off at every moment, each time in a new database, and run it again; how many moments there were."""
    cut_at, going = 0, True
    while going:
        cut_at += 1
        with new_database(server) as store:
            before(store)
            going = broken_off(store, cut_at, seen)
            bring_up_to_date(store)
            assert (tables(store), history(store)) == (tables(whole), history(whole)), f"cut at {cut_at}"
            assert things(store) == things(whole)
            assert bring_up_to_date(store) == []
    return cut_at


SEEN = pytest.mark.parametrize("seen", [False, True], ids=["before the server saw it", "after the server did it"])


@SEEN
def test_an_empty_database_is_complete_after_the_run_that_follows_a_broken_one(
    fragile_store: Store, empty: Store, seen: bool
) -> None:
    bring_up_to_date(empty)
    statements = len(migrate.statements_of(ROOT / "schema.sql"))
    assert moments(fragile_store, seen, lambda _: None, empty) > statements


@SEEN
def test_an_older_database_is_complete_after_the_run_that_follows_a_broken_one(
    fragile_store: Store, older: Store, seen: bool
) -> None:
    bring_up_to_date(older)
    statements = sum(len(migrate.statements_of(file)) for file in migrate.migrations().values())
    assert moments(fragile_store, seen, bring_up_to_date, older) > 2 * statements  # each with its count


def test_eight_programs_that_start_together_do_everything_once(older: Store, folder: Path) -> None:
    """Each migration adds a row: of two that applied it there would be two rows."""
    older.rows("CREATE TABLE done (version INT NOT NULL)")
    for number in (2, 3, 10):
        file = next((folder / "migrations").glob(f"{number:04}_*"))
        file.write_text(f"{file.read_text('utf-8')}INSERT INTO done VALUES ({number});\n", encoding="utf-8")
    together = Barrier(8, timeout=30)

    def start(_: int) -> list[int]:
        together.wait()
        return bring_up_to_date(older)

    with ThreadPoolExecutor(8) as threads:
        applied = list(threads.map(start, range(8)))
    assert sorted(applied) == [[]] * 7 + [[2, 3, 10]]
    assert older.rows("SELECT version FROM done ORDER BY version") == [(2,), (3,), (10,)]


def test_eight_processes_that_start_together_on_an_empty_database_all_succeed(
    fragile_store: Store, empty: Store
) -> None:
    code = (
        "from config import Settings; from db import Database; from migrate import migrate; "
        "print(migrate(Database(Settings.from_env())))"
    )
    given = {name.upper(): str(value) for name, value in empty.settings.items()}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DB_")} | given
    environment["ENV_FILE"] = ""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for _ in range(8)
    ]
    said = sorted(process.communicate(timeout=60)[0].strip() for process in started)
    assert [process.returncode for process in started] == [0] * 8
    assert said == sorted(["[]"] * 7 + [str(list(migrate.migrations()))])
    with new_database(fragile_store) as alone:
        bring_up_to_date(alone)
        assert (tables(empty), history(empty)) == (tables(alone), history(alone))


# ---------------------------------------------------------------------------------------- what the service says


def test_without_tables_the_service_says_what_to_run_and_asks_no_model(
    client_for: MakeClient, empty: Store, model: ScriptedModel
) -> None:
    client = client_for()
    for _ in range(2):
        answer = client.get("/readyz")
        assert answer.status_code == 503
        assert answer.headers["retry-after"]
        assert [error["field"] for error in answer.json()["errors"]] == ["schema"]
        assert "python3 -m dev migrate" in answer.json()["detail"]
        refused = client.post("/chat", json={"conversation_id": "a", "message": "Hi"})
        assert (refused.status_code, refused.json()["code"]) == (503, "store_unavailable")
        assert "Table" not in refused.text
        begin_with_the_first_migration(empty) if not tables(empty) else None
    assert version(empty) == 0  # what is under way does not count
    assert model.requests == []
    bring_up_to_date(empty)
    assert client.get("/readyz").json() == {"status": "ready"}
    model.says("Hello.")
    assert client.post("/chat", json={"conversation_id": "a", "message": "Hi"}).status_code == 200


NEW_ENOUGH = [
    "8.0.36",
    "8.0.36-0ubuntu0.22.04.1",
    "8.0.35-27",
    "8.4.3",
    "9.7.4",
    "10.0.1",
    "8.0.11-TiDB-v7.5.0",
    "5.5.5-10.6.12-MariaDB-0ubuntu0.22.04.1",
    "5.5.5-10.11.19-MariaDB-0+deb12u1",
    "10.6.21-MariaDB-ubu2004-log",
    "11.4.2-MariaDB-ubu2404",
    "12.0.2-MariaDB-log",
]
TOO_OLD = [
    ("5.7.44-log", "MySQL 5.7.44-log; Turnkeeper needs MySQL 8.0"),
    ("5.6.51", "MySQL 5.6.51; Turnkeeper needs MySQL 8.0"),
    ("5.7.mysql_aurora.2.11.4", "MySQL 5.7.mysql_aurora.2.11.4; Turnkeeper needs MySQL 8.0"),
    ("5.5.5-10.5.23-MariaDB-0+deb11u1", "MariaDB 10.5.23-MariaDB-0+deb11u1; Turnkeeper needs MariaDB 10.6"),
    ("10.3.39-MariaDB-0ubuntu0.20.04.2", "MariaDB 10.3.39-MariaDB-0ubuntu0.20.04.2; Turnkeeper needs MariaDB 10.6"),
    ("5.5.68-MariaDB", "MariaDB 5.5.68-MariaDB; Turnkeeper needs MariaDB 10.6"),
    ("", "Turnkeeper needs MySQL 8.0"),
    ("something else", "Turnkeeper needs MySQL 8.0"),
]


@pytest.mark.parametrize("reported", NEW_ENOUGH)
def test_a_server_that_is_new_enough_is_taken(reported: str, caplog: pytest.LogCaptureFixture) -> None:
    check_version(reported)
    assert caplog.records == []


@pytest.mark.parametrize(("reported", "said"), TOO_OLD)
def test_a_server_that_is_too_old_is_named_in_the_log_with_what_is_needed(
    reported: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(StoreUnavailable):
        check_version(reported)
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert said in caplog.text
    assert "or later" in caplog.text


def test_the_callers_of_a_service_with_a_server_too_old_are_told_that_the_store_is_unavailable(
    client_for: MakeClient, model: ScriptedModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pymysql.connections.Connection, "get_server_info", lambda _: "5.7.44-log")
    answer = client_for().post("/chat", json={"conversation_id": "a", "message": "Hi"})
    assert (answer.status_code, answer.json()["code"]) == (503, "store_unavailable")
    assert "5.7" not in answer.text
    assert "the database server is MySQL 5.7.44-log; Turnkeeper needs MySQL 8.0 or later" in caplog.text
    assert model.requests == []
