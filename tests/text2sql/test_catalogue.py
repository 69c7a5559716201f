"""The catalogue, by its command and its routes: versions of a structure, notes, drafts, and what the model is told."""

import contextlib
import json
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Barrier
from typing import Any

import psycopg
import pytest
from fastapi.testclient import TestClient

from access.keys import hash_of
from db import Database
from tests.conftest import ROOT, MakeClient, MakeSettings, Store
from tests.support.scripted_model import ScriptedModel
from tests.text2sql.conftest import PASSWORD, Library
from tests.text2sql.test_recovery import ask, observations
from text2sql import catalogue
from text2sql.__main__ import main
from text2sql.catalogue import Synced
from text2sql.database import SQLite, Target

TABLES = """
CREATE TABLE customers (id INT PRIMARY KEY, name VARCHAR(40) NOT NULL, phone VARCHAR(20));
CREATE TABLE orders (id INT PRIMARY KEY, customer_id INT, amount DECIMAL(10,2), FOREIGN KEY (customer_id) REFERENCES customers (id));
CREATE INDEX orders_by_amount ON orders (amount);
CREATE TABLE "优惠券" ("编号" INT PRIMARY KEY, "面额" INT);
CREATE TABLE wages (id INT PRIMARY KEY, wage INT);
CREATE VIEW big_orders AS SELECT id, amount FROM orders WHERE amount > 100;
INSERT INTO customers VALUES (1, 'SECRET-李雷', 'SECRET-phone')
"""  # noqa: E501
POLICY = """
[tables.customers]
hide = ["phone"]
[tables.orders]
note = "The operator's word."
[tables.big_orders]
[tables."优惠券"]
"""
NOTES = """
[tables.customers]
note = "客户，一行一人。"
[tables.customers.columns]
name = "客户姓名"
fax = "不存在的列"
[tables.orders]
note = "订单"
[tables."优惠券".columns]
"面额" = "单位为元"
[tables.suppliers]
note = "不存在的表"
"""


@dataclass
class Shop:
    """A database of one test. blind: the URL of an account that sees the tables and can read none of their rows."""

    dialect: str
    url: str
    blind: str
    execute: Callable[[str], None]
    policy: Path

    def change(self, *statements: str) -> None:
        for statement in statements:
            self.execute(statement.replace('"', "`") if self.dialect == "mysql" else statement)


@contextlib.contextmanager
def in_mysql(store: Store, name: str) -> Iterator[tuple[str, str, Callable[[str], None]]]:
    assert store.server
    place = f"{store.settings['db_host']}:{store.settings['db_port']}/{name}"
    with contextlib.closing(store.server.admin()) as admin, admin.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
        cursor.execute(f"USE {name}")
        for account, right in (("reads", "SELECT"), ("blind", "REFERENCES")):
            cursor.execute(f"CREATE USER '{account}{name}'@'%' IDENTIFIED BY '{PASSWORD}'")
            cursor.execute(f"GRANT {right} ON {name}.* TO '{account}{name}'@'%'")
        yield f"mysql://reads{name}:{PASSWORD}@{place}", f"mysql://blind{name}:{PASSWORD}@{place}", cursor.execute
        cursor.execute(f"DROP DATABASE {name}")
        cursor.execute(f"DROP USER 'reads{name}'@'%', 'blind{name}'@'%'")


@contextlib.contextmanager
def in_postgres(library: Library, name: str) -> Iterator[tuple[str, str, Callable[[str], None]]]:
    def at(url: str) -> str:
        return url.replace("+psycopg", "").replace("/library", f"/{name}")

    with psycopg.connect(library.admin, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}")
        with psycopg.connect(at(library.admin), autocommit=True) as inside:
            inside.execute("ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO reader")
            if not admin.execute("SELECT 1 FROM pg_roles WHERE rolname = 'blind'").fetchone():
                admin.execute(f"CREATE ROLE blind LOGIN PASSWORD '{PASSWORD}'")
            yield at(library.reader), at(library.reader).replace("reader:", "blind:"), inside.execute
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


@contextlib.contextmanager
def in_sqlite(file: Path) -> Iterator[tuple[str, str, Callable[[str], None]]]:
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as connection:
        yield f"sqlite:///{file}", f"sqlite:///{file}", connection.execute


@pytest.fixture(params=["mysql", "sqlite", "postgres"])
def shop(
    request: pytest.FixtureRequest, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Shop]:
    """A shop in each kind of database; the command finds it and the service's own database in the environment."""
    name = f"shop{uuid.uuid4().hex[:10]}"
    if request.param == "mysql":
        if not store.server:
            pytest.skip("the account of TEST_DATABASE_URL may not make databases and accounts")
        made = in_mysql(store, name)
    elif request.param == "postgres":
        made = in_postgres(request.getfixturevalue("in_postgres"), name)
    else:
        made = in_sqlite(tmp_path / "商店.db")
    with made as (url, blind, execute):
        found = Shop(request.param, url, blind, execute, tmp_path / "policy.toml")
        found.change(*TABLES.strip().split(";\n"))
        found.policy.write_text(POLICY, encoding="utf-8")
        monkeypatch.setenv("ENV_FILE", "")
        for key, value in store.settings.items():
            monkeypatch.setenv(key.upper(), str(value))
        monkeypatch.setenv("TEXT2SQL_URL", url)
        yield found


Sync = Callable[..., dict[str, Any]]


@pytest.fixture
def sync(shop: Shop, capsys: pytest.CaptureFixture[str]) -> Sync:
    """Runs the command; what it says as JSON."""

    def run(*arguments: str) -> dict[str, Any]:
        capsys.readouterr()
        assert main(["sync", "--json", *arguments]) == 0
        told: dict[str, Any] = json.loads(capsys.readouterr().out)
        return told

    return run


@pytest.fixture
def notes_file(tmp_path: Path) -> str:
    file = tmp_path / "说明.toml"
    file.write_text(NOTES, encoding="utf-8")
    return str(file)


MakeShop = Callable[..., TestClient]


@pytest.fixture
def service(shop: Shop, client_for: MakeClient) -> MakeShop:
    """The service that asks the shop: `service(API_KEYS=…)`."""

    def make(**environ: str) -> TestClient:
        given = {"TEXT2SQL_URL": shop.url, "TEXT2SQL_POLICY": str(shop.policy), **environ}
        return client_for(toolsets=("text2sql",), environ=given)

    return make


def table_of(client: TestClient, table: str, version: str = "latest", **more: Any) -> dict[str, Any]:
    """A table of a version, with its columns by name."""
    answer = client.get(f"/api/catalogue/versions/{version}", params={"table": table}, **more)
    assert answer.status_code == 200, answer.text
    (found,) = answer.json()["tables"]
    found["columns"] = {column.pop("name"): column for column in found["columns"]}
    return dict(found)


# ---------------------------------------------------------------------------------------- sync


def test_a_sync_stores_tables_columns_and_keys_and_the_next_one_only_what_changed(
    shop: Shop, sync: Sync, service: MakeShop, store: Store
) -> None:
    first = sync()
    assert (first["version"], first["stored"], first["tables"], first["columns"]) == (1, True, 5, 12)
    assert first["changes"]["added"] == ["big_orders", "customers", "orders", "wages", "优惠券"]
    again = sync()
    assert (again["version"], again["stored"]) == (1, False)
    assert again["changes"] == {"added": [], "removed": [], "changed": {}}
    client = service()
    orders = table_of(client, "orders")
    assert (orders["kind"], orders["primary_key"]) == ("table", ["id"])
    assert orders["foreign_keys"] == [{"columns": ["customer_id"], "table": "customers", "references": ["id"]}]
    assert {"name": "orders_by_amount", "columns": ["amount"], "unique": False} in orders["indexes"]
    assert "10,2" in orders["columns"]["amount"]["type"]
    assert table_of(client, "big_orders")["kind"] == "view"
    assert list(table_of(client, "优惠券")["columns"]) == ["编号", "面额"]
    assert table_of(client, "customers")["columns"]["name"]["nullable"] is False

    shop.change("DROP VIEW big_orders", 'ALTER TABLE "优惠券" ADD COLUMN "备注" VARCHAR(20)')
    shop.change("ALTER TABLE wages DROP COLUMN wage", "CREATE TABLE returns (id INT PRIMARY KEY)")
    changed = sync()
    assert (changed["version"], changed["changes"]["added"], changed["changes"]["removed"]) == (
        2,
        ["returns"],
        ["big_orders"],
    )
    assert changed["changes"]["changed"]["优惠券"]["columns_added"] == ["备注"]
    assert changed["changes"]["changed"]["wages"]["columns_removed"] == ["wage"]
    versions = client.get("/api/catalogue/versions").json()["data"]
    assert [version["version"] for version in versions] == [2, 1]
    assert table_of(client, "big_orders", "1")["columns"]
    told = client.get("/api/catalogue/versions/2/changes").json()
    assert {"version": 2, "since": 1, **changed["changes"]} == told
    whole = client.get("/api/catalogue/versions/latest/changes", params={"since": 0}).json()
    assert whole["added"] == ["customers", "orders", "returns", "wages", "优惠券"]
    kept = store.rows("SELECT target, structure FROM schema_snapshots WHERE target = %s", first["target"])
    assert len(kept) == 2
    assert "SECRET" not in str(kept) and PASSWORD not in str(kept) and "reader" not in str(kept)


def test_keys_of_several_columns_and_indexes_of_expressions_are_kept(shop: Shop, sync: Sync, service: MakeShop) -> None:
    short = shop.dialect != "mysql"  # MySQL wants the columns named
    shop.change("CREATE TABLE parts (a INT NOT NULL, b INT NOT NULL, PRIMARY KEY (b, a))")
    shop.change(
        "CREATE TABLE uses (id INT PRIMARY KEY, x INT, y INT, UNIQUE (y, x), "
        f"FOREIGN KEY (y, x) REFERENCES parts {'' if short else '(b, a)'})"
    )
    if short:
        shop.change("CREATE INDEX sums ON uses ((x + y))")
    sync()
    client = service()
    assert table_of(client, "parts")["primary_key"] == ["b", "a"]
    uses = table_of(client, "uses")
    assert uses["foreign_keys"] == [{"columns": ["y", "x"], "table": "parts", "references": ["b", "a"]}]
    assert (["y", "x"], True) in [(index["columns"], index["unique"]) for index in uses["indexes"]]
    sums = [index["columns"] for index in uses["indexes"] if index["name"] == "sums"]
    assert sums == ([["(expression)"]] if short else [])


@pytest.mark.parametrize(
    ("url", "schema", "name"),
    [
        ("mariadb://a:SECRET@db/shop?ssl_key=SECRET", None, "mysql://db:3306/shop"),
        ("mysql+pymysql://b@db:3306/shop", None, "mysql://db:3306/shop"),
        ("mysql://a@/shop?unix_socket=/run/db.sock", None, "mysql:///run/db.sock/shop"),
        ("postgresql://a:SECRET@db/商店", None, "postgres://db:5432/商店/public"),
        ("postgresql://a:SECRET@db/shop", "north", "postgres://db:5432/shop/north"),
        ("sqlite:////data/../data/shop.db", None, "sqlite:////data/shop.db"),
    ],
)
def test_a_database_is_known_by_where_it_is_and_not_by_who_reads_it(url: str, schema: str | None, name: str) -> None:
    assert Target(url, schema).name == name


def test_a_name_that_is_too_long_is_cut_and_stays_its_own() -> None:
    names = [Target(f"sqlite:////{'很长' * 300}{end}.db").name for end in "ab"]
    assert len(set(names)) == 2 and {len(name) for name in names} == {255}


def test_a_changed_type_or_comment_is_told_in_words(shop: Shop, sync: Sync, capsys: pytest.CaptureFixture[str]) -> None:
    sync()
    if shop.dialect == "sqlite":
        shop.change("DROP VIEW big_orders", "DROP TABLE wages", "CREATE TABLE wages (id INT PRIMARY KEY, wage BIGINT)")
    elif shop.dialect == "mysql":
        shop.change("ALTER TABLE wages MODIFY wage BIGINT COMMENT '月薪'", "ALTER TABLE wages COMMENT '工资'")
    else:
        shop.change("ALTER TABLE wages ALTER COLUMN wage TYPE BIGINT", "COMMENT ON TABLE wages IS '工资'")
        shop.change("COMMENT ON COLUMN wages.wage IS '月薪'")
    assert main(["sync"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "version 2 stored" in lines[0] and "~ table wages" in lines
    assert any(line.startswith("    ~ column wage, type: ") and "igint" in line.lower() for line in lines)
    if shop.dialect != "sqlite":
        assert '    ~ column wage, comment: "" -> "月薪"' in lines and '    ~ comment: "" -> "工资"' in lines


def test_row_estimates_are_the_servers_own_and_make_no_new_version(shop: Shop, sync: Sync, service: MakeShop) -> None:
    sync()
    rows = ", ".join(f"({number}, 'x', 'y')" for number in range(2, 501))
    shop.change(f"INSERT INTO customers VALUES {rows}")
    shop.change("ANALYZE TABLE customers" if shop.dialect == "mysql" else "ANALYZE")
    assert sync()["stored"] is False
    assert 300 < table_of(service(), "customers")["rows"] < 700


def test_many_syncs_at_once_store_one_version(shop: Shop, store: Store, settings_for: MakeSettings) -> None:
    together = Barrier(6)

    def run(_: int) -> Synced:
        with contextlib.closing(Database(settings_for())) as database:
            together.wait()
            return database.call(catalogue.sync, Target(shop.url), {("orders", ""): "订单"})

    for version in (1, 2):
        with ThreadPoolExecutor(6) as threads:
            told = list(threads.map(run, range(6)))
        assert [one.version for one in told] == [version] * 6
        assert sum(one.stored for one in told) == 1
        assert sum(one.notes_stored for one in told) == (1 if version == 1 else 0)
        shop.change(f"ALTER TABLE wages ADD COLUMN bonus_{version} INT")
    kept = store.rows("SELECT version FROM schema_snapshots WHERE target = %s", told[0].target)
    assert sorted(kept) == [(1,), (2,)]


def test_the_command_is_a_program_of_its_own(shop: Shop) -> None:
    command = [sys.executable, "-m", "text2sql", "sync"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, encoding="utf-8")
    assert (done.returncode, done.stderr) == (0, "")
    assert "version 1 stored (5 tables, 12 columns)" in done.stdout and "+ table 优惠券" in done.stdout


def test_no_business_row_is_read_by_a_sync_or_a_draft(
    shop: Shop,
    sync: Sync,
    service: MakeShop,
    model: ScriptedModel,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    statements: list[str] = []
    log = "SET GLOBAL log_output = 'TABLE', GLOBAL general_log = "
    if shop.dialect == "sqlite":
        opened = SQLite.open

        def watched(self: SQLite, limit_s: float) -> Any:
            connection = opened(self, limit_s)
            # What SQLite does itself for a pragma comes after two dashes.
            connection.set_trace_callback(lambda text: text.startswith("--") or statements.append(text))
            return connection

        monkeypatch.setattr(SQLite, "open", watched)
    else:  # an account that cannot read a row
        monkeypatch.setenv("TEXT2SQL_URL", shop.blind)
        with pytest.raises(Exception, match="(?i)denied"):
            Target(shop.blind).run("SELECT * FROM customers", 5, 5, 1000)
    if shop.dialect == "mysql":
        shop.change("TRUNCATE mysql.general_log", f"{log}ON")
    try:
        assert sync()["tables"] == 5
        model.says("客户表。")
        answer = service().post("/api/catalogue/tables/customers/draft")
        assert answer.status_code == 200, answer.text
    finally:
        if shop.dialect == "mysql":
            shop.change(f"{log}OFF")
    if shop.dialect == "mysql":
        with contextlib.closing(store.server.admin()) as admin, admin.cursor() as cursor:  # type: ignore[union-attr]
            cursor.execute(
                "SELECT CONVERT(argument USING utf8mb4) FROM mysql.general_log WHERE user_host LIKE 'blind%'"
            )
            statements = [text for (text,) in cursor.fetchall()]
    if shop.dialect != "postgres":
        assert any("information_schema" in text or "sqlite_master" in text for text in statements)
    for text in statements:
        assert not [table for table in ("customers", "orders", "wages", "优惠券") if table in text], text
    assert "SECRET" not in json.dumps(model.requests, ensure_ascii=False)


def test_a_sync_that_cannot_be_carried_out_says_why_and_exits_with_2(
    shop: Shop, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(words: str, *arguments: str, **environ: str) -> None:
        with monkeypatch.context() as other:
            for name, value in environ.items():
                other.setenv(name, value)
            assert main(["sync", *arguments]) == 2
        said = capsys.readouterr()
        assert words in said.err and PASSWORD not in said.err and "Traceback" not in said.err and not said.out

    bad = tmp_path / "bad.json"
    bad.write_text('{"tables": {"orders": {"note": " ", "colums": {}}}}', encoding="utf-8")
    fails("cannot be read as JSON or TOML", "--notes", str(tmp_path / "none.json"))
    fails("tables.orders.note: ", "--notes", str(bad))
    fails("tables.orders.colums: ", "--notes", str(bad))
    fails("TEXT2SQL_URL is not set", TEXT2SQL_URL="")
    fails("cannot be used", DB_PASSWORD="wrong")
    fails("cannot be read", TEXT2SQL_URL=shop.url.replace("/shop", "/none").replace("商店", "none"))
    empty = tmp_path / "empty.db"
    sqlite3.connect(empty).close()
    empty.touch()
    fails("sees no table", TEXT2SQL_URL=f"sqlite:///{empty}")


# ---------------------------------------------------------------------------------------- notes


def test_packaged_notes_are_stored_and_what_they_name_in_vain_is_told(
    shop: Shop, sync: Sync, service: MakeShop, notes_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    told = sync("--notes", notes_file)
    assert (told["notes_stored"], told["notes_taken_back"]) == (4, 0)
    assert told["unknown"] == [["customers", "fax"], ["suppliers", ""]]
    assert main(["sync", "--notes", notes_file]) == 0
    said = capsys.readouterr()
    assert "column customers.fax" in said.err and "table suppliers" in said.err
    assert "notes:" not in said.out  # nothing new in them
    client = service()
    customers = table_of(client, "customers")
    assert (customers["note"], customers["note_source"]) == ("客户，一行一人。", "packaged")
    assert customers["columns"]["name"]["note"] == "客户姓名"
    assert (table_of(client, "orders")["note_source"], table_of(client, "orders")["note"]) == (
        "policy",
        "The operator's word.",
    )
    Path(notes_file).write_text('[tables.customers]\nnote = "客户。"\n', encoding="utf-8")
    told = sync("--notes", notes_file)
    assert (told["notes_stored"], told["notes_taken_back"]) == (1, 3)
    assert table_of(client, "customers")["columns"]["name"]["note"] is None
    history = client.get("/api/catalogue/notes", params={"history": True, "table": "customers"}).json()["data"]
    assert [(note["column"], note["version"], note["note"]) for note in history] == [
        ("name", 2, None),
        (None, 2, "客户。"),
        ("name", 1, "客户姓名"),
        (None, 1, "客户，一行一人。"),
    ]


def test_a_persons_note_wins_over_the_packaged_one_and_outlives_a_sync(
    shop: Shop, sync: Sync, service: MakeShop, notes_file: str
) -> None:
    sync("--notes", notes_file)
    client = service()
    path = "/api/catalogue/tables/customers/columns/name/note"
    stored = client.put(path, json={"note": "姓名，先姓后名"}).json()
    assert (stored["source"], stored["version"], stored["note"]) == ("human", 1, "姓名，先姓后名")
    assert client.put(path, json={"note": "姓名，先姓后名"}).json()["version"] == 1
    assert client.put(path, json={"note": "全名"}).json()["version"] == 2
    sync("--notes", notes_file)
    column = table_of(client, "customers")["columns"]["name"]
    assert (column["note"], column["note_source"]) == ("全名", "human")
    assert client.delete(path).status_code == 204
    column = table_of(client, "customers")["columns"]["name"]
    assert (column["note"], column["note_source"]) == ("客户姓名", "packaged")
    assert client.delete(path).status_code == 404
    assert client.put(path, json={"note": "又一次"}).json()["version"] == 4
    pages: list[dict[str, Any]] = []
    asked: dict[str, Any] = {"history": True, "limit": 3}
    while asked:
        page = client.get("/api/catalogue/notes", params=asked).json()
        pages += page["data"]
        asked = {**asked, "after": page["next"]} if page["has_more"] else {}
    humans = [(note["version"], note["note"]) for note in pages if note["source"] == "human"]
    assert humans == [(4, "又一次"), (3, None), (2, "全名"), (1, "姓名，先姓后名")]
    holding = client.get("/api/catalogue/notes", params={"table": "customers"}).json()["data"]
    assert {(note["column"], note["source"]) for note in holding} == {
        ("name", "human"),
        ("name", "packaged"),
        (None, "packaged"),
    }


def test_notes_are_about_what_is_there_and_are_text(shop: Shop, sync: Sync, service: MakeShop) -> None:
    client = service()
    assert client.get("/api/catalogue/versions/latest").status_code == 404
    assert client.get("/api/catalogue/versions").json()["data"] == []
    assert client.put("/api/catalogue/tables/orders/note", json={"note": "x"}).status_code == 404
    assert client.post("/api/catalogue/tables/orders/draft").status_code == 404
    sync()
    assert client.get("/api/catalogue/versions/7").status_code == 404
    for path in ("tables/nothing/note", "tables/orders/columns/nothing/note", "tables/%00/note"):
        assert client.put(f"/api/catalogue/{path}", json={"note": "x"}).status_code == 404
    for body in ({"note": " "}, {"note": "x" * 2001}, {"note": None}, {}, {"note": "x", "table": "y"}):
        answer = client.put("/api/catalogue/tables/orders/note", json=body)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")


def test_the_model_is_told_the_persons_note_else_the_policys_else_the_packaged_else_the_comment(
    shop: Shop,
    sync: Sync,
    service: MakeShop,
    notes_file: str,
    model: ScriptedModel,
    conversation_id: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if shop.dialect == "mysql":
        shop.change("ALTER TABLE `优惠券` COMMENT '券', MODIFY `编号` INT COMMENT '券号'")
    elif shop.dialect == "postgres":
        shop.change("COMMENT ON TABLE \"优惠券\" IS '券'", 'COMMENT ON COLUMN "优惠券"."编号" IS \'券号\'')
    monkeypatch.setattr("text2sql.toolset.NOTES_S", 0.0)  # the sync is another process
    client = service()

    def told() -> tuple[dict[str, str | None], dict[str, Any]]:
        model.asks_for("list_tables").then_asks_for("describe_table", table="优惠券").then_says("好。")
        ask(client, conversation_id)
        tables, described = observations(model)[-2:]
        return {one["table"]: one.get("note") for one in json.loads(tables)["tables"]}, json.loads(described)

    commented = shop.dialect != "sqlite"
    before = {"customers": None, "orders": "The operator's word.", "big_orders": None}
    tables, described = told()
    assert tables == {**before, "优惠券": "券" if commented else None}
    assert described["columns"][0].get("comment") == ("券号" if commented else None)
    sync("--notes", notes_file)
    tables, described = told()
    assert tables == {**before, "customers": "客户，一行一人。", "优惠券": "券" if commented else None}
    assert (described["columns"][1]["note"], "comment" in described["columns"][1]) == ("单位为元", False)
    for table in ("orders", "优惠券"):
        client.put(f"/api/catalogue/tables/{table}/note", json={"note": f"人写的：{table}"})
    tables, described = told()
    assert (tables["orders"], tables["优惠券"]) == ("人写的：orders", "人写的：优惠券")
    assert described["note"] == "人写的：优惠券"


def test_a_turn_that_does_not_look_at_tables_reads_no_notes(
    shop: Shop, sync: Sync, service: MakeShop, model: ScriptedModel, conversation_id: str, monkeypatch: Any
) -> None:
    sync()
    client = service()
    read: list[str] = []
    statement = "SELECT id, table_name"
    before = Database.read

    def watched(self: Database, sql: str, values: tuple[Any, ...] = ()) -> Any:
        read.append(sql)
        return before(self, sql, values)

    monkeypatch.setattr(Database, "read", watched)
    model.asks_for("run_sql", sql="SELECT COUNT(*) AS n FROM customers").then_says("1")
    ask(client, conversation_id)
    assert not [sql for sql in read if sql.startswith(statement)]
    model.asks_for_all(("list_tables", {}), ("describe_table", {"table": "orders"})).then_says("好。")
    ask(client, conversation_id)
    assert len([sql for sql in read if sql.startswith(statement)]) == 1


# ---------------------------------------------------------------------------------------- who sees and edits


def test_without_the_right_to_edit_only_what_the_policy_permits_is_shown_and_nothing_changed(
    shop: Shop, sync: Sync, service: MakeShop, notes_file: str, tmp_path: Path
) -> None:
    sync("--notes", notes_file)
    keys = tmp_path / "keys.toml"
    keys.write_text(
        f'[[key]]\nname = "reads"\nhash = "{hash_of("key-of-reads")}"\n'
        f'[[key]]\nname = "edits"\nhash = "{hash_of("key-of-edits")}"\nmay = ["edit"]\n',
        encoding="utf-8",
    )
    client = service(API_KEYS_FILE=str(keys))
    reads, edits = ({"headers": {"Authorization": f"Bearer key-of-{name}"}} for name in ("reads", "edits"))
    for place in ("tables/wages/note", "tables/customers/columns/phone/note"):
        assert client.put(f"/api/catalogue/{place}", json={"note": "机密"}, **edits).json()["author"] == "edits"
    shop.change("ALTER TABLE wages ADD COLUMN bonus INT", "ALTER TABLE customers ADD COLUMN city VARCHAR(20)")
    shop.change("CREATE INDEX by_phone ON customers (name, phone)")
    sync("--notes", notes_file)

    for path in ("versions/latest", "versions/latest/changes", "versions/1/changes", "notes"):
        seen = client.get(f"/api/catalogue/{path}", **reads)
        assert seen.status_code == 200
        assert not [word for word in ("wages", "phone", "机密", "bonus", "edits") if word in seen.text], path
        assert "wages" in client.get(f"/api/catalogue/{path}", **edits).text
    assert list(table_of(client, "customers", **reads)["columns"]) == ["id", "name", "city"]
    assert client.get("/api/catalogue/versions/latest/changes", **reads).json()["changed"]["customers"] == {
        "columns_added": ["city"], "columns_removed": [], "columns_changed": {}, "properties": {}
    }  # fmt: skip
    refused = [
        client.put("/api/catalogue/tables/orders/note", json={"note": "x"}, **reads),
        client.delete("/api/catalogue/tables/orders/note", **reads),
        client.post("/api/catalogue/tables/orders/draft", **reads),
        client.get("/api/catalogue/notes?history=true", **reads),
    ]
    assert [(answer.status_code, answer.json()["code"]) for answer in refused] == [(403, "forbidden")] * 4
    assert client.get("/api/catalogue/versions").status_code == 401


# ---------------------------------------------------------------------------------------- drafts


def test_a_draft_comes_from_the_structure_that_the_policy_permits_and_is_not_saved(
    shop: Shop, sync: Sync, service: MakeShop, notes_file: str, model: ScriptedModel, store: Store
) -> None:
    target = sync("--notes", notes_file)["target"]
    before = store.rows("SELECT COUNT(*) FROM schema_notes WHERE target = %s", target)
    client = service()
    model.says(" 每行是一位客户。\n")
    answer = client.post("/api/catalogue/tables/customers/draft", headers={"Accept-Language": "zh-CN"})
    assert answer.json() == {"table": "customers", "draft": "每行是一位客户。", "model": "scripted"}
    (request,) = model.requests
    system, user = (message["content"] for message in request["messages"])
    assert "in Chinese" in system and "客户姓名" in user and "VARCHAR(40)".lower()[:3] in user.lower()
    assert "phone" not in user and "wages" not in user and "SECRET" not in user
    assert "tools" not in request
    assert store.rows("SELECT COUNT(*) FROM schema_notes WHERE target = %s", target) == before
    assert client.post("/api/catalogue/tables/wages/draft").status_code == 404


def test_a_draft_that_the_model_does_not_give_is_a_problem_of_the_model(
    shop: Shop, sync: Sync, service: MakeShop, model: ScriptedModel
) -> None:
    sync()
    client = service()
    model.says("一半", finish_reason="length")
    answer = client.post("/api/catalogue/tables/orders/draft")
    assert (answer.status_code, answer.json()["code"]) == (502, "model_error")
