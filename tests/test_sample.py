"""The sample shop: loaded, asked and kept from being changed."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pymysql
import pytest
from fastapi.testclient import TestClient

from dev import configuration
from dev.shop import load
from dev.shop.rows import tables
from tests.conftest import ROOT, MakeClient, Store, free_port
from tests.test_demo_model import start
from text2sql.database import Target, read_url
from text2sql.policy import load_policy

PRIVATE = {"customers": {"phone", "id_card"}, "products": {"cost"}, "店员": {"月薪", "手机号"}}


@pytest.fixture(scope="module")
def url(store: Store) -> str:
    """The sample in the server of the tests, as it may be read."""
    if store.server is None:
        pytest.skip("the server of TEST_DATABASE_URL is not ours to load a sample into")
    return load.load(store.server)


@pytest.fixture
def asked(url: str, client_for: MakeClient) -> Iterator[TestClient]:
    """The service with the sample and the demo model."""
    process, port = start()
    environ = {"TEXT2SQL_URL": url, "TEXT2SQL_POLICY": str(load.POLICY)}
    demo = {"base_url": f"http://127.0.0.1:{port}/v1", "api_key": "demo", "default_model": "demo"}
    yield client_for(toolsets=("calculator", "text2sql"), environ=environ, **demo)
    process.terminate()
    process.communicate(timeout=10)


def ask(client: TestClient, conversation_id: str, message: str) -> dict[str, Any]:
    body = {"conversation_id": conversation_id, "message": message, "include_trace": True}
    answer = client.post("/chat", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def results(body: dict[str, Any]) -> list[dict[str, Any]]:
    return [event["details"] for event in body["trace"] if event["type"] == "tool_result"]


@contextlib.contextmanager
def session(url: str) -> Iterator[Any]:
    """What anybody can do with the account, without any barrier of ours."""
    parts = read_url(url)
    with pymysql.connect(
        host=parts.host or "", port=parts.port or 0, user=parts.username, password=str(parts.password or ""),
        database=parts.database, charset="utf8mb4", autocommit=True, ssl_disabled=True,
    ) as connection, connection.cursor() as cursor:  # fmt: skip
        yield cursor


def test_the_sample_has_its_rows_over_two_years_and_the_same_each_time(url: str) -> None:
    with session(url) as cursor:
        for table, rows in tables():
            cursor.execute(f"SELECT COUNT(*) FROM `{table}`")
            assert cursor.fetchall() == ((len(rows),),)
        cursor.execute("SELECT MIN(placed_at) < '2024-01-02', MAX(placed_at) > '2025-12-31' FROM orders")
        assert cursor.fetchall() == ((1, 1),)
    assert list(tables()) == list(tables())


def test_loading_twice_changes_nothing_and_mends_what_is_missing(url: str, store: Store) -> None:
    assert store.server
    with contextlib.closing(store.server.admin()) as admin, admin.cursor() as cursor:
        cursor.execute(f"UPDATE {load.DATABASE}.customers SET name = 'still here' WHERE id = 1")
        assert load.load(store.server) == url
        cursor.execute(f"SELECT name FROM {load.DATABASE}.customers WHERE id = 1")
        assert cursor.fetchall() == (("still here",),)
        cursor.execute(f"DROP TABLE {load.DATABASE}.`退货`")
        assert load.load(store.server) == url
        cursor.execute(f"SELECT name FROM {load.DATABASE}.customers WHERE id = 1")
        assert cursor.fetchall() != (("still here",),)


def test_the_account_that_asks_can_neither_create_nor_write_nor_delete(url: str, store: Store) -> None:
    assert Target(url).too_many_rights() == []
    with session(url) as cursor:
        for statement in (
            "CREATE TABLE t (a INT)",
            "CREATE TEMPORARY TABLE t (a INT)",
            "CREATE VIEW v AS SELECT 1",
            "CREATE DATABASE another",
            "CREATE USER somebody",
            "ALTER TABLE orders ADD COLUMN a INT",
            "DROP TABLE `退货`",
            "DROP DATABASE sample_shop",
            "TRUNCATE TABLE `退货`",
            "INSERT INTO categories VALUES (99, 'x', 'x')",
            "UPDATE products SET price = 0",
            "DELETE FROM `退货`",
            "REPLACE INTO categories VALUES (1, 'x', 'x')",
            "SELECT 1 INTO OUTFILE '/tmp/turnkeeper-sample'",
            "SELECT LOAD_FILE('/etc/passwd') INTO @x FROM mysql.user",
            f"SELECT * FROM {store.settings['db_name']}.messages",
            "GRANT SELECT ON sample_shop.* TO shop_reader@'127.0.0.1'",
        ):
            with pytest.raises(pymysql.err.MySQLError) as refused:
                cursor.execute(statement)
            assert refused.value.args[0] in (1044, 1045, 1142, 1227), (statement, refused.value.args)


def test_the_account_of_the_conversations_cannot_read_the_sample(url: str, store: Store) -> None:
    with pytest.raises(pymysql.err.MySQLError):
        store.rows(f"SELECT 1 FROM {load.DATABASE}.customers")


def test_the_policy_names_all_tables_and_no_private_column(url: str) -> None:
    columns = {table: tuple(c.name for c in infos) for table, infos in Target(url).columns().items()}
    policy = load_policy(str(load.POLICY)).with_catalogue(columns)
    assert set(policy.tables()) == set(columns) == {table for table, _ in tables()}
    hidden = {name: set(columns[name]) - set(policy.readable(name).visible or ()) for name in columns}
    assert {name: found for name, found in hidden.items() if found} == PRIVATE


@pytest.mark.parametrize(
    ("question", "sql"),
    [
        ("Which city has the most customers?", "SELECT city, COUNT(*) FROM customers GROUP BY city ORDER BY 2 DESC"),
        ("哪个城市的顾客最多？", "SELECT city, COUNT(*) FROM customers GROUP BY city ORDER BY 2 DESC"),
        ("退货最多的原因是什么？", "SELECT `原因`, COUNT(*) FROM `退货` GROUP BY `原因` ORDER BY 2 DESC"),
        (
            "What is the most common reason for returns?",
            "SELECT `原因`, COUNT(*) FROM `退货` GROUP BY 1 ORDER BY 2 DESC",
        ),
    ],
)
def test_the_demo_model_answers_from_the_rows(
    asked: TestClient, url: str, conversation_id: str, question: str, sql: str
) -> None:
    body = ask(asked, conversation_id, question)
    (result,) = results(body)
    assert (result["tool"], result["code"]) == ("run_sql", None)
    with session(url) as cursor:
        cursor.execute(sql)
        name, count = cursor.fetchall()[0]
    assert name in body["answer"] and str(count) in body["answer"]


def test_the_best_seller_is_that_of_the_period_asked_for(asked: TestClient, url: str, conversation_id: str) -> None:
    periods = {
        "2025年卖得最好的商品是哪一个？": "placed_at BETWEEN '2025-01-01' AND '2025-12-31 23:59:59'",
        "What was the best-selling product of 2024?": "placed_at BETWEEN '2024-01-01' AND '2024-12-31 23:59:59'",
        "上个月卖得最好的商品是哪一个？": "placed_at >= '2025-12-01'",
        "Which product is the best seller?": "1",
    }
    for question, condition in periods.items():
        with session(url) as cursor:
            cursor.execute(
                "SELECT title, SUM(quantity) FROM order_items JOIN orders o ON o.id = order_id JOIN products p "
                f"ON p.id = product_id WHERE status = 'paid' AND {condition} GROUP BY title ORDER BY 2 DESC LIMIT 1"
            )
            ((title, pieces),) = cursor.fetchall()
        answer = ask(asked, conversation_id, question)["answer"]
        assert title in answer and str(pieces) in answer, (question, answer)


def test_a_slip_is_corrected_before_the_eyes_of_the_reader(asked: TestClient, conversation_id: str) -> None:
    body = ask(asked, conversation_id, "哪家门店的销售额最高？")
    first, second = results(body)
    assert (first["code"], second["code"]) == ("column_not_allowed", None)
    assert "名称" in first["text"] and "店" in body["answer"]


def test_what_the_policy_hides_is_refused_and_said(asked: TestClient, conversation_id: str) -> None:
    body = ask(asked, conversation_id, "顾客的手机号是多少？")
    assert "查不到" in body["answer"] and "phone" in body["answer"]
    assert [result["code"] for result in results(body)] == ["column_not_allowed"]


def test_a_result_of_arithmetic_is_not_mixed_up_with_rows(asked: TestClient, conversation_id: str) -> None:
    ask(asked, conversation_id, "12 * 8")
    ask(asked, conversation_id, "哪个城市的顾客最多？")
    assert "96" in ask(asked, conversation_id, "刚才最终算出来是多少?")["answer"]


def test_without_the_tool_the_demo_model_says_how_to_get_it(client_for: MakeClient, conversation_id: str) -> None:
    process, port = start()
    client = client_for(base_url=f"http://127.0.0.1:{port}/v1", api_key="demo", default_model="demo")
    for question in ("哪个城市的顾客最多？", "Which city has the most customers?"):
        assert "python3 -m dev up --sample shop" in ask(client, conversation_id, question)["answer"]
    process.terminate()
    process.communicate(timeout=10)


def run_up(folder: Path, port: int, **environ: str) -> "subprocess.Popen[str]":
    """`dev up --sample shop` in a copy of the checkout, within the Python of the tests."""
    code = f"import sys; from dev import up; sys.exit(up.main('127.0.0.1', {port}, 'shop'))"
    environment = {**configuration.for_tests(), **environ}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen([sys.executable, "-c", code], cwd=folder, env=environment, **pipes)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout"
    shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns("__pycache__", "tests", "docs", ".*"))
    return folder


@pytest.mark.skipif(bool(os.environ.get("TEST_DATABASE_URL")), reason="it makes a private server")
def test_up_with_the_sample_answers_a_question_about_data(checkout: Path) -> None:
    port = free_port()
    process = run_up(checkout, port)
    try:
        assert process.stdout
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("Ctrl-C"):
                break
        assert "Which city has the most customers?" in "".join(lines), "".join(lines)
        body = {"conversation_id": "shop001", "message": "Which city has the most customers?"}
        answer = httpx2.post(f"http://127.0.0.1:{port}/chat", json=body, timeout=30).json()
        assert "上海 has the most customers" in answer["answer"]
        latest = f"http://127.0.0.1:{port}/api/catalogue/versions/latest"
        tables = {table["table"]: table for table in httpx2.get(latest, timeout=30).json()["tables"]}
        assert len(tables) == 8 and "商品类别" in tables["categories"]["note"]
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


@pytest.mark.skipif(bool(os.environ.get("TEST_DATABASE_URL")), reason="it makes a private server")
def test_another_program_runs_with_the_database_and_the_model_of_up(checkout: Path) -> None:
    def run(*command: str) -> "subprocess.CompletedProcess[str]":
        code = f"import sys; from dev import up; sys.exit(up.run({list(command)!r}))"
        environment = configuration.for_tests()
        return subprocess.run(
            [sys.executable, "-c", code], cwd=checkout, env=environment, capture_output=True, encoding="utf-8"
        )

    asked = run("python", "main.py", "ask", "请先计算12乘以8,再把结果除以4。", "--conversation", "agent001")
    assert (asked.returncode, "24" in asked.stdout) == (0, True), asked.stderr
    assert "24" in run("python", "main.py", "ask", "刚才最终算出来是多少?", "--conversation", "agent001").stdout
    assert run("python", "-c", "import sys; sys.exit(7)").returncode == 7
    missing = run("no-such-program")
    assert "no-such-program cannot be run" in missing.stderr


def test_up_with_the_sample_says_what_to_do_where_another_database_is_configured(checkout: Path) -> None:
    process = run_up(checkout, free_port(), DB_HOST="db.example")
    said, _ = process.communicate(timeout=60)
    assert process.returncode != 0
    for words in ("DB_HOST", "python -m dev.shop", "GRANT SELECT ON sample_shop.*", "policy.toml"):
        assert words in said


def test_the_sample_as_a_script_is_what_is_loaded(url: str, store: Store) -> None:
    script = subprocess.run([sys.executable, "-m", "dev.shop"], cwd=ROOT, capture_output=True, encoding="utf-8")
    statements = script.stdout.split(";\n")
    assert statements[0].startswith("CREATE DATABASE") and statements[3:-1] == list(load.statements())


def test_settings_of_the_user_stay(url: str, store: Store) -> None:
    from dev import sample
    from dev.database import Chosen

    chosen = Chosen("private", {}, store.server)
    found = sample.settings({}, "calculator,clock", chosen)
    assert found == {
        "TOOLSETS": "calculator,clock,text2sql", "TEXT2SQL_URL": url, "TEXT2SQL_POLICY": str(load.POLICY)
    }  # fmt: skip
    given = {"TOOLSETS": "text2sql", "TEXT2SQL_POLICY": "mine.toml"}
    assert sample.settings(given, "calculator,clock", chosen) == {"TEXT2SQL_URL": url}
    assert sample.settings({"TEXT2SQL_URL": "mysql://mine"}, "calculator,clock", chosen) == {}
