"""What the tests stand on: a real database server of their own, a scripted model over real HTTP, the service itself.

`client` is the service in this process, behind the test client; `service` is a process of its own, for what only a
real process can show. Both go in by the front door.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import httpx2
import pymysql
import pytest
from fastapi.testclient import TestClient

from config import Settings
from db import Database
from dev.mariadb import PrivateServer
from dev.ports import lasting_port
from main import create_app
from migrate import migrate
from tests.support.scripted_model import ScriptedModel

ROOT = Path(__file__).resolve().parent.parent
ALL = bool(os.environ.get("TURNKEEPER_TEST_ALL"))
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as in a shell's background: what we start must hear Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)
SOON = {"turn_timeout_s": 20.0, "model_timeout_s": 5.0, "tool_timeout_s": 2.0}  # nothing hangs for long

DatabaseSettings = dict[str, Any]  # the db_… fields of Settings


@dataclass
class Store:
    """A database server for tests. server: None where it is not ours to stop and kill."""

    settings: DatabaseSettings
    server: PrivateServer | None = None
    opened: list[Any] = field(default_factory=list)

    def connect(self, **more: Any) -> "pymysql.Connection[Any]":
        """A connection beside the service's own."""
        given = self.settings
        connection = pymysql.connect(
            host=given["db_host"],
            port=given["db_port"],
            user=given["db_user"],
            password=given["db_password"],
            database=given["db_name"],
            autocommit=True,
            charset="utf8mb4",
            ssl_disabled=True,  # saves 20 ms for each connection
            **more,
        )
        self.opened.append(connection)
        return connection

    def rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """What a statement gives, over a connection of its own."""
        with contextlib.closing(self.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(statement, values or None)
            return list(cursor.fetchall())

    def messages(self, conversation_id: str, owner: str = "") -> list[tuple[str, str]]:
        """(role, content) of a conversation, as the course's statement reads them."""
        rows = self.rows(
            "SELECT role, content FROM messages WHERE conversation_id = %s AND owner = %s ORDER BY id ASC",
            conversation_id,
            owner,
        )
        return [(role, content) for role, content in rows]


def settings_of(environment: dict[str, str]) -> DatabaseSettings:
    """`DB_…` variables as fields of Settings."""
    given: DatabaseSettings = {name.lower(): value for name, value in environment.items()}
    return given | {"db_port": int(given["db_port"])}


def private_store(folder: Path, *options: str) -> Store:
    """A private server, started, with our tables."""
    server = PrivateServer(folder, options=options)
    server.start()
    store = Store(settings_of(server.environment()), server)
    try:
        make_tables(store)
    except BaseException:
        server.stop()
        raise
    return store


def make_tables(store: Store) -> None:
    database = Database(Settings(**store.settings))
    try:
        migrate(database)
    finally:
        database.close()


def given_store(url: str) -> Store:
    """The server that TEST_DATABASE_URL names: mysql://user:password@host:port/database; the database is emptied."""
    parts = urlsplit(url)
    store = Store(
        {
            "db_host": parts.hostname,
            "db_port": parts.port or 3306,
            "db_user": unquote(parts.username or "root"),
            "db_password": unquote(parts.password or ""),
            "db_name": parts.path.lstrip("/") or "turnkeeper_test",
        }
    )
    tables = "schema_notes schema_snapshots run_cancellations run_records runs idempotency_keys messages conversations"
    for table in [*tables.split(), "schema_migrations"]:
        store.rows(f"DROP TABLE IF EXISTS {table}")
    make_tables(store)
    return store


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """The database of the tests that do not harm it."""
    if url := os.environ.get("TEST_DATABASE_URL"):
        yield given_store(url)
        return
    store = private_store(tmp_path_factory.mktemp("db"))
    yield store
    assert store.server
    store.server.stop()


@pytest.fixture(scope="module")
def fragile_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A private server for tests that kill, freeze and fill it; every module has its own."""
    store = private_store(tmp_path_factory.mktemp("fragile"))
    yield store
    assert store.server
    store.server.thaw()
    store.server.stop()


@pytest.fixture
def conversation_id() -> str:
    """A conversation that nobody has used."""
    return f"会话-{uuid.uuid4()}"


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    """The model; at the end it must have been asked what the script says, no more and no less, and nothing illegal."""
    with ScriptedModel() as scripted:
        yield scripted
        scripted.finish()


MakeSettings = Callable[..., Settings]


@pytest.fixture
def settings_for(store: Store, model: ScriptedModel) -> MakeSettings:
    """Makes settings for this test's database and model, with what a test wants otherwise."""

    def make(**other: Any) -> Settings:
        usual = SOON | store.settings | {"api_key": "sk-test", "base_url": model.base_url, "default_model": "scripted"}
        return Settings(**usual | other)

    return make


MakeClient = Callable[..., TestClient]


@pytest.fixture
def client_for(settings_for: MakeSettings) -> Iterator[MakeClient]:
    """Makes the service with other settings: `client_for(max_steps=3)`. A caller on this machine."""
    with contextlib.ExitStack() as stack:

        def make(**other: Any) -> TestClient:
            app = create_app(settings_for(**other))
            return stack.enter_context(TestClient(app, base_url="http://127.0.0.1", client=("127.0.0.1", 50000)))

        yield make


@pytest.fixture
def client(client_for: MakeClient) -> TestClient:
    """The service as it is by default."""
    return client_for()


def path_of(conversation_id: str) -> str:
    """The path of a conversation."""
    return f"/api/conversations/{quote(conversation_id, safe='')}"


def free_port() -> int:
    """A port that no outgoing connection of another test takes before it is listened on."""
    return lasting_port()


class Service:
    """The service as a process of its own, under uvicorn."""

    def __init__(self, environment: dict[str, str], log: Path) -> None:
        self.port, self.log, self.environment = free_port(), log, environment
        self.process: subprocess.Popen[bytes] | None = None
        self.http = httpx2.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=60, trust_env=False)

    def start(self) -> "Service":
        """Start and wait until it answers."""
        command = [sys.executable, "-m", "uvicorn", "main:app", "--port", str(self.port), "--no-access-log"]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(command, cwd=ROOT, env=self.environment, stdout=log, stderr=log)
        for _ in range(1200):
            with contextlib.suppress(httpx2.TransportError):
                if self.http.get("/healthz").status_code == 200:
                    return self
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        raise AssertionError(f"the service did not start: {self.log.read_text(errors='replace')[-2000:]}")

    def end(self, kill: bool = False) -> int:
        """Stop, or kill, and wait; the exit status."""
        assert self.process
        self.process.kill() if kill else self.process.terminate()
        return self.process.wait(30)

    def chat(self, conversation_id: str, message: str, **more: Any) -> httpx2.Response:
        """One message to a conversation."""
        return self.http.post("/chat", json={"conversation_id": conversation_id, "message": message, **more})

    def close(self) -> None:
        if self.process and self.process.poll() is None:
            self.end(kill=True)
        self.http.close()


MakeService = Callable[..., Service]


@pytest.fixture
def service_for(store: Store, model: ScriptedModel, tmp_path: Path) -> Iterator[MakeService]:
    """Starts the service as a process: `service_for(MAX_STEPS="3")`; another database by `store=`."""
    services: list[Service] = []

    def make(store: Store = store, **other: str) -> Service:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("DB_")}
        environment |= {name.upper(): str(value) for name, value in (SOON | store.settings).items()}
        environment |= {"API_KEY": "sk-test", "BASE_URL": model.base_url, "DEFAULT_MODEL": "scripted", "ENV_FILE": ""}
        services.append(Service(environment | other, tmp_path / f"service-{len(services)}.log"))
        return services[-1].start()

    yield make
    for service in services:
        service.close()


@pytest.fixture
def beside() -> Iterator[Callable[..., "Future[Any]"]]:
    """Does something beside the test: `beside(function, *arguments).result(LONG)`."""
    with ThreadPoolExecutor(60) as threads:
        yield threads.submit
