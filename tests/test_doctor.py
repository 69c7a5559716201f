"""The doctor, each layer broken for real: it names the layer and the way out, keeps secrets, and changes nothing."""

import contextlib
import datetime
import http.server
import ipaddress
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pymysql
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

import db
from config import Settings
from db import Database
from dev import configuration, doctor, mariadb
from dev.mariadb import PrivateServer
from migrate import migrate, migrations
from tests.conftest import Store, free_port
from tests.support.scripted_model import ScriptedModel

ROOT = Path(__file__).resolve().parent.parent
ORDER = "file import configuration network login server charset privileges schema model tools".split()
KEY, PASSWORD = "sk-never-to-be-shown", "pw-never-to-be-shown"


def clean_environment() -> dict[str, str]:
    """This process's environment without settings and without proxies."""
    kept = configuration.for_tests()
    return {name: value for name, value in kept.items() if not name.lower().endswith("_proxy")}


@dataclass
class Report:
    """What the doctor said with --json."""

    status: int
    told: dict[str, Any]

    def layer(self, name: str) -> dict[str, Any]:
        return next(layer for layer in self.told["layers"] if layer["layer"] == name)

    def text(self, name: str) -> str:
        layer = self.layer(name)
        return "\n".join([layer["found"], *layer["way_out"]])

    def assert_fails(self, name: str, *words: str) -> None:
        """The layer that fails is this one, and what is said there holds these words."""
        assert (self.told["failing"], self.status) == ([name], 1), self.told
        self.assert_says(name, "FAIL", *words)
        assert self.layer(name)["way_out"]

    def assert_warns(self, name: str, *words: str) -> None:
        assert (self.told["failing"], self.status) == ([], 0), self.told
        self.assert_says(name, "warn", *words)

    def assert_says(self, name: str, status: str, *words: str) -> None:
        assert self.layer(name)["status"] == status, self.layer(name)
        assert [word for word in words if word not in self.text(name)] == [], self.text(name)


Examine = Callable[..., Report]


@pytest.fixture
def examine(
    store: Store, model: ScriptedModel, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Examine:
    """Run the doctor where all is well, but for the variables given; None takes one away."""

    def run(*arguments: str, **other: str | None) -> Report:
        usual = {name.upper(): str(value) for name, value in store.settings.items()}
        usual |= {"BASE_URL": model.base_url, "API_KEY": KEY, "DEFAULT_MODEL": "scripted", "TOOLSETS": "calculator"}
        environ = {name: value for name, value in (clean_environment() | usual | other).items() if value is not None}
        for name in set(os.environ) - set(environ):
            monkeypatch.delenv(name)
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        status = doctor.main(["--json", *arguments])
        output = "".join(capsys.readouterr())
        for name in ("API_KEY", "DB_PASSWORD"):
            assert len(environ.get(name, "")) < 8 or environ[name] not in output
        return Report(status, json.loads(output))

    return run


@pytest.fixture(scope="module")
def execute(store: Store) -> Iterator[Callable[..., None]]:
    """Carries out statements as an administrator of the database server."""
    with contextlib.closing(store.server.admin() if store.server else store.connect()) as connection:

        def run(*statements: str) -> None:
            with connection.cursor() as cursor:
                for statement in statements:
                    try:
                        cursor.execute(statement)
                    except pymysql.err.OperationalError as error:
                        if error.args[0] not in (1044, 1227):
                            raise
                        pytest.skip("TEST_DATABASE_URL names an account that is no administrator")

        yield run


Account = Callable[..., dict[str, str]]


@pytest.fixture
def account(store: Store, execute: Callable[..., None]) -> Iterator[Account]:
    """Makes an account with grants, `account("SELECT ON {db}.*")`, and gives its settings."""
    names: list[str] = []

    def make(*grants: str, database: str | None = None) -> dict[str, str]:
        database = database or store.settings["db_name"]
        names.append(f"doctor_{len(names)}")
        execute(f"DROP USER IF EXISTS '{names[-1]}'@'%'", f"CREATE USER '{names[-1]}'@'%' IDENTIFIED BY '{PASSWORD}'")
        pattern = database.replace("_", r"\_")
        for grant in grants:
            execute(f"GRANT {grant.format(db=f'`{database}`', dbs=f'`{pattern}`')} TO '{names[-1]}'@'%'")
        return {"DB_USER": names[-1], "DB_PASSWORD": PASSWORD, "DB_NAME": database}

    yield make
    for name in names:
        execute(f"DROP USER '{name}'@'%'")


@pytest.fixture
def other_database(execute: Callable[..., None]) -> Iterator[str]:
    """A database without tables."""
    execute("DROP DATABASE IF EXISTS doctor_other", "CREATE DATABASE doctor_other CHARACTER SET utf8mb4")
    yield "doctor_other"
    execute("DROP DATABASE doctor_other")


# ---------------------------------------------------------------------------------------- all is well


def test_where_all_is_well_each_layer_has_a_line_and_nothing_has_changed(
    examine: Examine, store: Store, account: Account
) -> None:
    look = "CHECKSUM TABLE conversations, messages, schema_migrations"
    before = store.rows("SHOW TABLES"), store.rows(look)
    report = examine(**account("ALL ON {dbs}.*"))
    assert [(layer["layer"], layer["status"]) for layer in report.told["layers"]] == [(name, "ok") for name in ORDER]
    assert (report.status, report.told["ok"], report.told["failing"], report.told["not_looked_at"]) == (0, True, [], [])
    assert (store.rows("SHOW TABLES"), store.rows(look)) == before


def test_people_get_one_line_a_layer_and_a_verdict(
    examine: Examine, account: Account, capsys: pytest.CaptureFixture[str]
) -> None:
    examine(**account("ALL ON {dbs}.*"))  # leaves the environment as it made it
    assert doctor.main([]) == 0
    *lines, empty, verdict = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [["ok", name] for name in ORDER]
    assert (empty, verdict) == ("", "All is well.")


def test_the_verdict_names_the_layer_to_begin_with_and_what_was_not_looked_at(
    examine: Examine, capsys: pytest.CaptureFixture[str]
) -> None:
    examine(DB_PORT=str(free_port()), TOOLSETS="nix")
    assert doctor.main([]) == 1
    *_, unseen, verdict = capsys.readouterr().out.splitlines()
    assert unseen == "Not looked at: login, server, charset, privileges, schema."
    assert verdict == "Where it fails: network, tools. Begin with network."


def test_the_environment_is_left_as_it_was(examine: Examine) -> None:
    examine(TRACE_RETENTION_DAYS=None)
    assert "TRACE_RETENTION_DAYS" not in os.environ


# ---------------------------------------------------------------------------------------- file and import


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of this checkout to break."""
    folder = tmp_path / "checkout"
    ignored = shutil.ignore_patterns("__pycache__", "tests", "docs", ".*")
    shutil.copytree(ROOT, folder, ignore=ignored)
    return folder


def examine_copy(folder: Path, *, before: str = "pass", **environ: str) -> Report:
    """The doctor of a copy, in a process of its own; `before` is run in that process first."""
    code = f"import sys; {before}; from dev import doctor; sys.exit(doctor.main(['--json']))"
    environment = {**clean_environment(), **environ}
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert result.stderr == ""
    return Report(result.returncode, json.loads(result.stdout))


def test_a_module_with_a_hidden_ending_is_to_be_renamed(checkout: Path) -> None:
    (checkout / "tools.py").rename(checkout / "tools.py.txt")
    report = examine_copy(checkout)
    report.assert_fails("file", "not there: tools.py", "Rename tools.py.txt to tools.py.", "Install no package")
    assert report.told["not_looked_at"] == ORDER[1:]


def test_a_module_that_is_gone_is_to_be_restored(checkout: Path) -> None:
    (checkout / "memory.py").unlink()
    examine_copy(checkout).assert_fails("file", "not there: memory.py", "git checkout memory.py")


def test_a_folder_is_no_module(checkout: Path) -> None:
    (checkout / "memory.py").unlink()
    (checkout / "memory").mkdir()
    examine_copy(checkout).assert_fails("file", "not there: memory.py")


def test_a_file_that_hides_a_package_is_named(checkout: Path) -> None:
    (checkout / "openai.py").write_text("print('my first try')\n")
    examine_copy(checkout).assert_fails("file", "openai.py hides", "Rename")


def test_a_missing_schema_is_a_matter_of_files(checkout: Path) -> None:
    (checkout / "schema.sql").unlink()
    examine_copy(checkout).assert_fails("file", "schema.sql cannot be read", "git checkout schema.sql")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("# 设置\nDB_NAME=中文\n".encode("gbk"), "is not UTF-8, see line 1"),
        ("DB_NAME=x\n".encode("utf-16"), "is UTF-16"),
        (f"\ufeffAPI_KEY={KEY}\n".encode(), "byte order mark"),
    ],
)
def test_settings_in_another_encoding_are_a_matter_of_files(
    examine: Examine, tmp_path: Path, content: bytes, words: str
) -> None:
    (tmp_path / ".env").write_bytes(content)
    examine(ENV_FILE=str(tmp_path / ".env")).assert_fails("file", words, "UTF-8")


def test_settings_that_are_a_folder_or_are_not_there(examine: Examine, tmp_path: Path) -> None:
    examine(ENV_FILE=str(tmp_path)).assert_fails("file", "cannot be read (Is a directory)")
    examine(ENV_FILE=str(tmp_path / "x.env")).assert_fails("file", "ENV_FILE names", "not there")


def test_settings_with_a_hidden_ending_are_hinted_at(checkout: Path) -> None:
    (checkout / ".env.txt").write_text(f"API_KEY={KEY}\n")
    report = examine_copy(checkout, ENV_FILE=".env")
    report.assert_fails("file", "ENV_FILE names")
    report = examine_copy(checkout, before="import os; del os.environ['ENV_FILE']", DB_HOST="127.0.0.1", DB_PORT="1")
    report.assert_says("file", "warn", "but .env.txt", "rename .env.txt to .env")


def test_a_fault_of_syntax_is_told_with_its_line(checkout: Path) -> None:
    path = checkout / "memory.py"
    path.write_text(path.read_text("utf-8") + "\nx = [1，2]\n", "utf-8")
    line = path.read_text("utf-8").count("\n")
    examine_copy(checkout).assert_fails("import", f"memory.py, line {line}: invalid character '，'", "git diff")


def test_a_missing_package_is_told_with_the_way_to_get_it(checkout: Path) -> None:
    report = examine_copy(checkout, before="sys.modules['dotenv'] = None")
    report.assert_fails("import", "config needs the package dotenv", "requirements.txt")


def test_a_name_that_a_module_does_not_have_is_told_with_the_place(checkout: Path) -> None:
    (checkout / "text.py").write_text("")
    examine_copy(checkout).assert_fails("import", "ImportError: cannot import name", ".py, line ")


# ---------------------------------------------------------------------------------------- configuration


def test_each_bad_setting_is_named_with_where_it_comes_from(examine: Examine, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("MAX_STEPS=ten\n")
    report = examine(ENV_FILE=str(tmp_path / ".env"), DB_PORT="99999", API_KEY=f"{KEY} with spaces")
    report.assert_fails("configuration", "MAX_STEPS is 'ten'", "DB_PORT is '99999'", "API_KEY: ")
    report.assert_fails("configuration", f"MAX_STEPS (from {tmp_path}/.env)", "DB_PORT (from the environment)")
    assert KEY not in str(report.told)


def test_settings_of_the_parts_are_settings(examine: Examine) -> None:
    examine(API_KEYS_FILE="/nowhere").assert_fails("configuration", "API_KEYS_FILE (from the environment)")
    assert KEY not in str(examine(API_KEYS=f"me:{KEY}").told)


def test_where_each_setting_comes_from(examine: Examine, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(f"API_KEY={KEY}\nMAX_STEPS=7\n")
    report = examine(ENV_FILE=str(tmp_path / ".env"), API_KEY=None, MAX_STEPS="5", TOOLSETS=None)
    settings = report.layer("configuration")["settings"]
    assert settings["API_KEY"] == {"source": f"{tmp_path}/.env", "set": True}
    assert settings["MAX_STEPS"] == {"source": "environment", "value": 5}
    assert settings["TOOLSETS"] == {"source": "dev up", "value": ["calculator", "clock"]}
    assert settings["HISTORY_TURNS"] == {"source": "default", "value": 20}
    assert "value" not in settings["DB_PASSWORD"] and "value" not in settings["BASE_URL"]
    assert f"from {tmp_path}/.env: API_KEY" in report.text("configuration")


def test_settings_that_do_not_do_what_they_seem_to_are_warned_of(examine: Examine, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(f"API_KEY：{KEY}\nMAX_STEPS=3\nMAX_STEPS=4\nDEFAUT_MODEL=x\nHISTORY_TURNS=9\n")
    report = examine(ENV_FILE=str(tmp_path / ".env"), HISTORY_TURNS="")
    report.assert_warns(
        "configuration", "line 1 of ", "MAX_STEPS stands 2 times", "DEFAUT_MODEL", "DEFAULT_MODEL is meant"
    )
    report.assert_warns("configuration", "HISTORY_TURNS is empty in the environment", "Unset HISTORY_TURNS.")


def test_files_that_settings_name_have_to_be_there(examine: Examine) -> None:
    examine(SYSTEM_PROMPT_FILE="/nowhere").assert_fails("configuration", "SYSTEM_PROMPT_FILE cannot be read")
    examine(DB_SSL_CA="/nowhere").assert_fails("configuration", "DB_SSL_CA", "No such file")


# ---------------------------------------------------------------------------------------- network


def test_a_wrong_port(examine: Examine) -> None:
    port = str(free_port())
    report = examine(DB_PORT=port)
    report.assert_fails("network", f":{port}", "connection refused", "DB_PORT (from the environment)", "dev up")
    assert report.told["not_looked_at"] == ["login", "server", "charset", "privileges", "schema"]


def test_a_host_that_does_not_exist(examine: Examine) -> None:
    examine(DB_HOST="no-such-host.invalid").assert_fails("network", "no host of this name", "DB_HOST")


def test_a_host_that_does_not_answer(examine: Examine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(db, "CONNECT_TIMEOUT_S", 0.3)
    with socket.socket() as listener:  # whose queue is full: the packets of others are dropped
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        with contextlib.ExitStack() as stack:
            for _ in range(3):
                client = stack.enter_context(socket.socket())
                client.setblocking(False)
                client.connect_ex(("127.0.0.1", port))
            examine(DB_PORT=str(port)).assert_fails("network", "a timeout", "firewall")


def test_socket_files_that_are_missing_or_left_over(examine: Examine, tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    examine(DB_SOCKET=str(path)).assert_fails("network", "no such socket file", "DB_SOCKET (from the environment)")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    examine(DB_SOCKET=str(path)).assert_fails("network", "nothing listens", str(path))


def accepted(listener: socket.socket) -> Iterator[socket.socket]:
    """Who connects, until the listener is shut down."""
    with contextlib.suppress(OSError):
        while True:
            yield listener.accept()[0]


@contextlib.contextmanager
def server_that_says(first: bytes, *then: bytes, hang_up: bool = False) -> Iterator[int]:
    """A port where everybody is told `first` and, whenever they have said something, one more of `then`."""
    with socket.create_server(("127.0.0.1", 0)) as listener, contextlib.ExitStack() as stack:

        def serve() -> None:
            for client in accepted(listener):
                stack.enter_context(client)
                with contextlib.suppress(OSError):
                    client.sendall(first)
                    for answer in then:
                        client.recv(4096)
                        client.sendall(answer)
                    if hang_up:
                        client.recv(4096)
                        client.close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield int(listener.getsockname()[1])
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def test_what_answers_is_no_database(examine: Examine, monkeypatch: pytest.MonkeyPatch) -> None:
    with server_that_says(b"SSH-2.0-OpenSSH_9.2\r\n") as port:
        examine(DB_PORT=str(port)).assert_fails("network", "no MySQL", "DB_PORT")
    monkeypatch.setattr(db, "CONNECT_TIMEOUT_S", 0.3)
    with server_that_says(b"") as port:
        examine(DB_PORT=str(port)).assert_fails("network", "says nothing", "DB_PORT")


# ---------------------------------------------------------------------------------------- login and server


def test_a_wrong_password(examine: Examine) -> None:
    report = examine(DB_PASSWORD=PASSWORD)
    report.assert_fails("login", "error 1045", "DB_USER (from the environment), DB_PASSWORD (from the environment)")
    assert report.told["not_looked_at"] == ["server", "charset", "privileges", "schema"]


def test_a_database_that_is_missing_or_not_permitted(examine: Examine, account: Account) -> None:
    anything = account("ALL ON *.*", database="doctor_none")
    examine(**anything).assert_fails("login", "error 1049", "DB_NAME", "CREATE DATABASE `doctor_none`")
    nothing = account()
    examine(**nothing).assert_fails("login", "error 1044", "may not use", "GRANT SELECT, INSERT")


def test_tls_that_the_server_does_not_offer_is_told(examine: Examine, store: Store, certificate: Path) -> None:
    if store.server is None:
        pytest.skip("TEST_DATABASE_URL may name a server with TLS")
    examine(DB_SSL_CA=str(certificate)).assert_fails("login", "error 2026", "DB_SSL_CA")


# Protocol, version, thread; salt; what it can do, charset, state; and the rest of each.
GREETING = b"\n%b\0" + bytes(4) + b"12345678\0" + b"\x08\x82" + b"\x21\2\0"
GREETING += b"\x08\0" + b"\x15" + bytes(10) + b"123456789012\0" + b"mysql_native_password\0"


def packet(number: int, content: bytes) -> bytes:
    """As MySQL frames it; number: its place in the exchange."""
    return len(content).to_bytes(3, "little") + bytes([number]) + content


def test_a_server_that_is_too_old(examine: Examine) -> None:
    well = b"\0\0\0\2\0\0\0"
    exchange = packet(0, GREETING % b"5.7.44-log"), packet(2, well), packet(1, well)
    with server_that_says(*exchange) as port:
        report = examine(DB_PORT=str(port))
    report.assert_says("login", "ok")
    report.assert_fails("server", "5.7.44-log is too old", "MySQL 8.0")
    assert report.told["not_looked_at"] == ["charset", "privileges", "schema"]


def test_a_login_method_that_the_driver_does_not_know(examine: Examine) -> None:
    switch = b"\xfeauthentication_by_palm\0salt"
    with server_that_says(packet(0, GREETING % b"8.4.0"), packet(2, switch)) as port:
        examine(DB_PORT=str(port)).assert_fails("login", "error 2059", "ALTER USER", "caching_sha2_password")


def test_a_server_that_has_no_connection_left(examine: Examine) -> None:
    with server_that_says(packet(0, b"\xff\x10\4Too many connections")) as port:
        examine(DB_PORT=str(port)).assert_fails("login", "error 1040, Too many connections", "max_connections")


def test_a_password_that_has_expired(examine: Examine, account: Account, execute: Callable[..., None]) -> None:
    settings = account("ALL ON {dbs}.*")
    execute("ALTER USER 'doctor_0'@'%' PASSWORD EXPIRE")
    examine(**settings).assert_fails("login", "expired", "ALTER USER")


def test_more_connections_than_the_server_takes(examine: Examine) -> None:
    examine(DB_POOL_SIZE="1000").assert_warns("server", "DB_POOL_SIZE is 1000", "max_connections")


# ---------------------------------------------------------------------------------------- charset, privileges, schema


def test_a_latin1_database(
    examine: Examine, execute: Callable[..., None], account: Account, other_database: str
) -> None:
    execute(f"ALTER DATABASE {other_database} CHARACTER SET latin1")
    settings = account("ALL ON {dbs}.*", database=other_database)
    make_tables(settings, examine)
    report = examine(**settings)
    report.assert_warns("charset", "中文 😀 comes back whole", "is latin1", "ALTER DATABASE `doctor_other`")
    execute(
        f"ALTER TABLE {other_database}.messages MODIFY content MEDIUMTEXT CHARACTER SET latin1 NOT NULL",
    )
    examine(**settings).assert_fails("charset", "messages.content (latin1)", "CONVERT TO CHARACTER SET utf8mb4")


def make_tables(settings: dict[str, str], examine: Examine) -> None:
    """Our tables in another database of the same server."""
    empty = examine(**settings)
    empty.assert_fails("schema", f"no tables of ours in {settings['DB_NAME']}", "python3 -m dev migrate")
    given = {name: os.environ[name] for name in ("DB_HOST", "DB_PORT", "DB_USER", "DB_PASSWORD", "DB_NAME")}
    with contextlib.closing(Database(Settings.from_env(given))) as database:
        assert database.read("SHOW TABLES") == []  # the doctor has made none
        migrate(database)


def test_an_account_without_privileges_on_the_tables(examine: Examine, account: Account) -> None:
    report = examine(**account("SELECT, UPDATE ON {dbs}.*"))
    words = "INSERT on conversations, DELETE on conversations, INSERT on messages"
    report.assert_fails("privileges", words, "As an administrator: GRANT SELECT, INSERT")
    assert report.told["not_looked_at"] == ["schema"]


def test_an_account_that_reads_and_writes_is_enough_until_tables_change(
    examine: Examine, account: Account, other_database: str
) -> None:
    report = examine(**account("SELECT, INSERT, UPDATE, DELETE ON {db}.*"))
    assert report.status == 0
    report.assert_says("privileges", "ok", "may not change tables")
    report = examine(**account("SELECT, INSERT, UPDATE, DELETE ON {dbs}.*", database=other_database))
    report.assert_fails("schema", "no tables of ours", "with an account that may change tables")


def test_privileges_by_a_role(examine: Examine, account: Account, execute: Callable[..., None], store: Store) -> None:
    name = store.settings["db_name"].replace("_", r"\_")
    execute("DROP ROLE IF EXISTS doctor_role", "CREATE ROLE doctor_role", f"GRANT ALL ON `{name}`.* TO doctor_role")
    try:
        settings = account("SELECT ON {db}.messages")
        execute("GRANT doctor_role TO 'doctor_0'@'%'")
        mysql = store.server is None and "MariaDB" not in str(store.rows("SELECT VERSION()"))
        execute(f"SET DEFAULT ROLE doctor_role {'TO' if mysql else 'FOR'} 'doctor_0'@'%'")
        examine(**settings).assert_says("privileges", "ok", "may change tables")
    finally:
        execute("DROP ROLE doctor_role")


def test_an_account_that_may_do_anything_is_warned_of(examine: Examine, account: Account) -> None:
    examine(**account("ALL ON *.*")).assert_warns("privileges", "far more", "an account of its own", "CREATE USER")


def test_a_read_only_server(examine: Examine, account: Account, execute: Callable[..., None]) -> None:
    settings = account("ALL ON {dbs}.*")
    execute("SET GLOBAL read_only = 1")
    try:
        examine(**settings).assert_fails("privileges", "read-only", "takes writes")
    finally:
        execute("SET GLOBAL read_only = 0")


def test_tables_of_another_program(
    examine: Examine, execute: Callable[..., None], account: Account, other_database: str
) -> None:
    execute(f"CREATE TABLE {other_database}.messages (conversion_id VARCHAR(100), role VARCHAR(20), message TEXT)")
    report = examine(**account("ALL ON {dbs}.*", database=other_database))
    report.assert_fails("schema", "messages lacks conversation_id", "conversion_id", "another DB_NAME")


def test_tables_that_are_older_or_newer_than_the_checkout(
    examine: Examine, execute: Callable[..., None], account: Account, other_database: str
) -> None:
    settings = account("ALL ON {dbs}.*", database=other_database)
    make_tables(settings, examine)
    version, file = list(migrations().items())[-1]
    table = f"{other_database}.schema_migrations"
    execute(f"INSERT INTO {table} (version, applied_at) VALUES (9999, NOW(6))")
    examine(**settings).assert_warns("schema", "newer", "9999", "git pull")
    execute(f"ALTER TABLE {other_database}.conversations DROP COLUMN title")
    execute(f"DELETE FROM {table} WHERE version = 9999")
    execute(f"DROP TABLE {other_database}.idempotency_keys")
    words = "conversations lacks title", "no table idempotency_keys", "Somebody changed the tables"
    examine(**settings).assert_fails("schema", *words)
    execute(f"UPDATE {table} SET applied_at = NULL WHERE version = {version}")
    examine(**settings).assert_fails("schema", f"lack {file.name}", "python3 -m dev migrate")


def test_a_packet_that_cannot_hold_an_answer(examine: Examine, execute: Callable[..., None], store: Store) -> None:
    [(before,)] = store.rows("SELECT @@max_allowed_packet")
    execute("SET GLOBAL max_allowed_packet = 1048576")
    try:
        report = examine(MAX_ANSWER_CHARS="1000000")
    finally:
        execute(f"SET GLOBAL max_allowed_packet = {before}")
    report.assert_fails(
        "schema", "max_allowed_packet is 1048576", "4193536", "SET GLOBAL", "MAX_ANSWER_CHARS (from the"
    )


# ---------------------------------------------------------------------------------------- the private server


def test_the_private_server_is_used_when_no_other_is_configured(checkout: Path) -> None:
    server = PrivateServer(checkout / ".local" / "mariadb")
    if mariadb.find_program() is None:
        pytest.skip("no MariaDB is installed")
    report = examine_copy(checkout, DB_USER="me")
    report.assert_warns("network", "no database yet; `python3 -m dev up` makes", "Set DB_HOST or DB_SOCKET, too")
    assert report.told["not_looked_at"] == ["login", "server", "charset", "privileges", "schema"]
    report.assert_says("model", "ok", "the demo model")
    server.start()
    try:
        report = examine_copy(checkout)
        report.assert_says("network", "ok", "the checkout's private server")
        report.assert_says("privileges", "ok", "may change tables")
        report.assert_fails("schema", "no tables of ours", "`python3 -m dev up` does it, too")
        assert report.layer("configuration")["settings"]["DB_PASSWORD"]["source"] == "private server"
        assert server.environment()["DB_PASSWORD"] not in str(report.told)
        server.freeze()
        examine_copy(checkout).assert_fails("network", "says nothing", "python3 -m dev db stop", "server.log")
    finally:
        server.thaw()
        server.stop()
    examine_copy(checkout).assert_warns("network", "is not running", "dev up", "python3 -m dev db start")


# ---------------------------------------------------------------------------------------- model


class Vendor(http.server.ThreadingHTTPServer):
    """A model service that answers each method and path as it is told to, and everything else with 404."""

    daemon_threads = True

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, str]] = {}
        super().__init__(("127.0.0.1", 0), Answer)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A handshake that fails is no news."""


class Answer(http.server.BaseHTTPRequestHandler):
    server: Vendor

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("content-length") or 0))
        status, text = self.server.answers.get(f"{self.command} {self.path}", (404, "{}"))
        self.send_response(status)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    do_POST = do_GET

    def log_message(self, *args: object) -> None:
        """Nobody reads it."""


@pytest.fixture
def vendor() -> Iterator[Vendor]:
    with Vendor() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for 127.0.0.1 that nobody trusts, with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1))
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    made = builder.add_extension(x509.SubjectAlternativeName([address]), critical=False).sign(key, hashes.SHA256())
    path = tmp_path_factory.mktemp("tls") / "certificate.pem"
    pem = serialization.Encoding.PEM
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    path.write_bytes(made.public_bytes(pem) + key.private_bytes(pem, *plain))
    return path


def test_no_key(examine: Examine) -> None:
    examine(API_KEY=None).assert_fails("model", "API_KEY not set", ".env")
    examine(API_KEY=None, DEFAULT_MODEL="").assert_fails("model", "API_KEY and DEFAULT_MODEL not set")


def test_without_a_url_and_a_key_it_is_the_demo_model(examine: Examine) -> None:
    report = examine(API_KEY=None, BASE_URL=None)
    assert report.status == 0
    report.assert_says("model", "ok", "demo")
    proxy = {"HTTP_PROXY": "http://proxy.invalid:3128"}
    examine(API_KEY=None, BASE_URL=None, **proxy).assert_warns("model", "HTTP_PROXY", "NO_PROXY=127.0.0.1")


def test_the_model_refuses_the_connection(examine: Examine) -> None:
    url = f"http://127.0.0.1:{free_port()}/v1"
    examine(BASE_URL=url).assert_fails("model", url, "connection refused", "BASE_URL (from the environment)")


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (401, "the key is refused (401)"),
        (403, "the key is refused (403)"),
        (402, "wants to be paid"),
        (429, "too many requests"),
        (503, "in trouble (503)"),
        (418, "refused (418)"),
    ],
)
def test_the_model_refuses_the_request(examine: Examine, vendor: Vendor, status: int, words: str) -> None:
    vendor.answers["GET /v1/models"] = (status, json.dumps({"error": {"message": f"bad key {KEY}"}}))
    report = examine(BASE_URL=f"http://127.0.0.1:{vendor.server_port}/v1")
    report.assert_fails("model", words)
    assert ("API_KEY (from the environment)" in report.text("model")) == (status in (401, 403))


def test_a_url_that_lacks_its_end_or_has_too_much_of_it(examine: Examine, vendor: Vendor) -> None:
    url = f"http://127.0.0.1:{vendor.server_port}"
    examine(BASE_URL=f"{url}/v2").assert_fails("model", "404", "usually ends with /v1")
    vendor.answers["GET /v1/models"] = (200, json.dumps({"data": [{"id": "scripted"}]}))
    examine(BASE_URL=url).assert_fails("model", "404", "lacks /v1", f"{url}/v1", "BASE_URL (from the environment)")
    report = examine(BASE_URL=f"{url}/v1/chat/completions")
    report.assert_fails("model", "404", "end before /chat/completions")
    vendor.answers["GET /models"] = (200, "<html>Welcome</html>")
    examine(BASE_URL=url).assert_fails("model", "no list of models", "/v1")


def test_a_service_without_a_list_of_models(examine: Examine, vendor: Vendor) -> None:
    url = f"http://127.0.0.1:{vendor.server_port}/v1"
    vendor.answers["POST /v1/chat/completions"] = (400, "{}")
    examine(BASE_URL=url).assert_warns("model", "no list of models", "--ask")


def test_a_model_that_is_not_on_the_list(examine: Examine) -> None:
    examine(DEFAULT_MODEL="scriptd").assert_warns("model", "scriptd is not on its list", "Near it: scripted", "--ask")


def test_asking_the_model(examine: Examine, model: ScriptedModel, vendor: Vendor) -> None:
    model.says("OK")
    report = examine("--ask")
    assert report.status == 0
    report.assert_says("model", "ok", "scripted at", "answers")
    assert model.requests[0]["max_tokens"] == 1
    model.fails(400, "use max_completion_tokens").says("OK")
    assert examine("--ask").status == 0
    model.fails(404, "no such model")
    examine("--ask", DEFAULT_MODEL="scriptd").assert_fails("model", "has no model scriptd", "Near it: scripted")
    vendor.answers["POST /v1/chat/completions"] = (401, "{}")
    examine("--ask", BASE_URL=f"http://127.0.0.1:{vendor.server_port}/v1").assert_fails("model", "(401)", "API_KEY")
    vendor.answers["POST /v1/chat/completions"] = (200, "[]")
    examine("--ask", BASE_URL=f"http://127.0.0.1:{vendor.server_port}/v1").assert_fails("model", "not as a chat model")


def test_a_model_that_does_not_answer_or_hangs_up(examine: Examine) -> None:
    with server_that_says(b"") as port:
        examine(BASE_URL=f"http://127.0.0.1:{port}/v1", MODEL_TIMEOUT_S="0.3").assert_fails("model", "a timeout")
    with server_that_says(b"", hang_up=True) as port:
        report = examine(BASE_URL=f"http://127.0.0.1:{port}/v1")
        report.assert_fails("model", "https:// where BASE_URL says http://")
        report = examine(BASE_URL=f"https://127.0.0.1:{port}/v1")
        report.assert_fails("model", "VPN", "proxy")


def test_a_host_of_the_model_that_does_not_exist(examine: Examine) -> None:
    examine(BASE_URL="http://no-such-host.invalid/v1").assert_fails("model", "no host of this name", "BASE_URL")


def test_tls_that_cannot_be_trusted_or_is_not_there(
    examine: Examine, vendor: Vendor, certificate: Path, model: ScriptedModel
) -> None:
    report = examine(BASE_URL=model.base_url.replace("http:", "https:"))
    report.assert_fails("model", "no TLS is spoken there", "http://")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    vendor.socket = context.wrap_socket(vendor.socket, server_side=True)
    vendor.answers["GET /v1/models"] = (200, json.dumps({"data": [{"id": "scripted"}]}))
    url = f"https://127.0.0.1:{vendor.server_port}/v1"
    report = examine(BASE_URL=url)
    report.assert_fails("model", "the certificate is not trusted", "SSL_CERT_FILE", "Do not switch off the check")
    assert examine(BASE_URL=url, SSL_CERT_FILE=str(certificate)).status == 0
    examine(BASE_URL=url, SSL_CERT_FILE="/nowhere").assert_fails("model", "SSL_CERT_FILE")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the client, where a proxy has a password
@pytest.mark.parametrize("in_file", [False, True])
def test_a_proxy_that_interferes_is_named_without_its_password(examine: Examine, tmp_path: Path, in_file: bool) -> None:
    proxy = f"http://me:{PASSWORD}@127.0.0.1:{free_port()}"
    (tmp_path / ".env").write_text(f"HTTP_PROXY={proxy}\n")
    report = examine(ENV_FILE=str(tmp_path / ".env")) if in_file else examine(HTTP_PROXY=proxy)
    report.assert_fails("model", "connection refused", "HTTP_PROXY", "NO_PROXY=127.0.0.1")
    assert PASSWORD not in str(report.told)
    assert examine(HTTP_PROXY=proxy, NO_PROXY="127.0.0.1").status == 0


def test_proxies_of_other_kinds(examine: Examine) -> None:
    report = examine(ALL_PROXY=f"socks5://127.0.0.1:{free_port()}")
    report.assert_fails("model", "ALL_PROXY", "socks is not spoken")
    report = examine(HTTP_PROXY=f"carrier-pigeon://me:{PASSWORD}@127.0.0.1")
    report.assert_fails("model", "a proxy variable cannot be used", "HTTP_PROXY")
    assert PASSWORD not in str(report.told)


# ---------------------------------------------------------------------------------------- tools


def test_toolsets_that_are_not_there_or_cannot_be_used(
    examine: Examine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mend = "TOOLSETS (from the environment) takes calculator, clock"
    examine(TOOLSETS="calculator,clok").assert_fails("tools", "TOOLSETS names 'clok'", mend)
    examine(TOOLSETS="json").assert_fails("tools", "needs a function register", mend)
    examine(TOOLSETS="calculator,calculator").assert_fails("tools", "two tools named calculator", mend)
    (tmp_path / "doctors_toolset.py").write_text("def register(runtime):\n    raise RuntimeError('not today')\n")
    monkeypatch.syspath_prepend(tmp_path)
    examine(TOOLSETS="doctors_toolset").assert_fails("tools", "RuntimeError: not today", mend)


def test_tools_that_are_registered_and_forbidden(examine: Examine) -> None:
    report = examine(MAX_TOOL_CALLS="0", TOOLSETS="calculator,clock")
    report.assert_warns("tools", "calculator, current_time from calculator, clock", "MAX_TOOL_CALLS=0 forbids")


# ---------------------------------------------------------------------------------------- text2sql

POLICY = """
[tables.conversations]
hide = ["metadata"]
[tables.messages]
columns = ["conversation_id", "role", "content"]
"""


@pytest.fixture
def to_ask(tmp_path: Path, store: Store, account: Account) -> Callable[..., dict[str, str]]:
    """The settings of Text2SQL for an account with grants and a policy; other parts of the URL by name."""

    def make(*grants: str, policy: str = POLICY, **other: object) -> dict[str, str]:
        made = account(*grants)
        (tmp_path / "policy.toml").write_text(policy, encoding="utf-8")
        given = {"user": made["DB_USER"], "password": PASSWORD, "port": store.settings["db_port"]}
        given |= {"host": store.settings["db_host"], "database": made["DB_NAME"]} | other
        url = "mysql://{user}:{password}@{host}:{port}/{database}".format_map(given)
        return {"TOOLSETS": "text2sql", "TEXT2SQL_URL": url, "TEXT2SQL_POLICY": str(tmp_path / "policy.toml")}

    return make


ToAsk = Callable[..., dict[str, str]]


def test_a_database_that_may_only_be_read_is_well_and_no_password_is_shown(examine: Examine, to_ask: ToAsk) -> None:
    report = examine(**to_ask("SELECT ON {dbs}.*"))
    layer = report.layer("text2sql")
    assert layer["status"] == "ok" and "2 readable tables" in layer["found"] and "as doctor_0" in layer["found"]
    assert PASSWORD not in json.dumps(report.told)


def test_without_the_toolset_there_is_no_line_on_it(examine: Examine) -> None:
    assert "text2sql" not in [layer["layer"] for layer in examine().told["layers"]]


def test_an_account_that_may_write_is_told_of_with_the_way_out(examine: Examine, to_ask: ToAsk) -> None:
    report = examine(**to_ask("SELECT, INSERT, DROP ON {dbs}.*"))
    report.assert_warns("text2sql", "DROP, INSERT", "GRANT SELECT ON `")
    assert "dangerous" not in report.text("text2sql")
    report = examine(**to_ask("SELECT ON {dbs}.*", "FILE ON *.*"))
    report.assert_warns("text2sql", "FILE is dangerous")
    report = examine(**to_ask("ALL PRIVILEGES ON *.*"))
    report.assert_warns("text2sql", "FILE, SUPER", "dangerous", "put it into TEXT2SQL_URL")


def test_a_database_that_cannot_be_asked_is_told_apart(examine: Examine, to_ask: ToAsk) -> None:
    well = "SELECT ON {dbs}.*"
    for other, *words in (
        (
            {"port": free_port()},
            "connection_failed",
            "Start it, or mend the place in TEXT2SQL_URL (from the environment)",
        ),
        ({"password": "another-password-1"}, "permission_denied", "Mend user and password"),
        ({"database": "nowhere"}, "nowhere", "TEXT2SQL_URL"),
    ):
        report = examine(**to_ask(well, **other))
        report.assert_fails("text2sql", *words, "--sample shop")
        assert PASSWORD not in json.dumps(report.told) and "another-password-1" not in json.dumps(report.told)


def test_a_policy_that_does_not_fit_is_told_of(examine: Examine, to_ask: ToAsk) -> None:
    well = "SELECT ON {dbs}.*"
    report = examine(**to_ask(well, policy=POLICY + '[tables."订单"]\n'))
    report.assert_warns("text2sql", "not there: 订单", "python -m text2sql policy")
    report = examine(**to_ask(well, policy='[tables.conversations]\nhide = ["metadta"]\n'))
    report.assert_warns("text2sql", "conversations has no metadta (nothing is hidden by such a name)", "policy.toml")
    report = examine(**to_ask(well, policy="[tables.nothing]\n"))
    report.assert_fails("text2sql", "none of the 1 tables", "is for another database")
    report = examine(**to_ask(well, policy="nonsense"))
    report.assert_fails("tools", "cannot be read as TOML")
    assert report.told["not_looked_at"] == ["text2sql"]


def test_a_file_of_sqlite_is_asked_too(examine: Examine, to_ask: ToAsk, tmp_path: Path) -> None:
    settings = to_ask("SELECT ON {dbs}.*") | {"TEXT2SQL_URL": f"sqlite:///{tmp_path}/none.db"}
    examine(**settings).assert_fails("text2sql", "none.db", "unable to open", "TEXT2SQL_URL")
