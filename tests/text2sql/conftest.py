"""The library that Text2SQL is tried on: in MySQL or MariaDB and SQLite always, in PostgreSQL where it is installed."""

import contextlib
import os
import re
import shutil
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from typing import Any

import pymysql
import pytest
from fastapi.testclient import TestClient

from tests.conftest import MakeClient, Store, free_port
from text2sql.database import Target
from text2sql.policy import Policy, load_policy
from text2sql.toolset import SqlTools

CASES = Path(__file__).parent / "cases"
PASSWORD = "reader-of-the-library-1"
DATABASE = "t2s_library"


@dataclass
class Library:
    """One database with the library. admin: may do everything; reader: may read."""

    dialect: str
    admin: str
    reader: str

    def target(self, url: str = "") -> Target:
        return Target(url or self.reader)

    def tools(self, url: str = "", **limits: Any) -> SqlTools:
        """The tools as the service has them; `limits` of the policy otherwise."""
        policy = load_policy(str(CASES / "policy.toml"))
        policy = Policy(policy.file.model_copy(update=limits))
        return SqlTools(self.target(url), policy, 3)


def statements(dialect: str) -> list[str]:
    """The statements that make the library, for one kind of server."""
    text = (CASES / "library.sql").read_text(encoding="utf-8")
    text = re.sub(r"^-- The.*\n", "", text)
    if dialect == "mysql":
        text = text.replace('"', "`")
    return [statement for statement in text.split(";\n") if statement.strip()]


@pytest.fixture(scope="session")
def in_mysql(store: Store) -> Library:
    """In the server of the tests; a database and accounts of its own."""
    given = store.settings
    admin = store.server.admin() if store.server else store.connect()
    with contextlib.closing(admin) as connection, connection.cursor() as cursor:
        try:
            cursor.execute("CREATE USER IF NOT EXISTS 't2s_reader'@'%'")
        except pymysql.err.OperationalError:
            pytest.skip("the account of TEST_DATABASE_URL may not make databases and accounts")
        cursor.execute(f"DROP DATABASE IF EXISTS {DATABASE}")
        cursor.execute(f"CREATE DATABASE {DATABASE} CHARACTER SET utf8mb4")
        cursor.execute(f"USE {DATABASE}")
        for statement in statements("mysql"):
            cursor.execute(statement)
        for name, rights in (("t2s_reader", f"SELECT ON {DATABASE}.*"), ("t2s_admin", "ALL PRIVILEGES ON *.*")):
            cursor.execute(f"SELECT user FROM mysql.user WHERE user = '{name}'")
            if cursor.fetchall():
                cursor.execute(f"DROP USER '{name}'@'%'")
            cursor.execute(f"CREATE USER '{name}'@'%' IDENTIFIED BY '{PASSWORD}'")
            cursor.execute(f"GRANT {rights} TO '{name}'@'%'")
    place = f"{given['db_host']}:{given['db_port']}/{DATABASE}"
    return Library("mysql", f"mysql+pymysql://t2s_admin:{PASSWORD}@{place}", f"mysql://t2s_reader:{PASSWORD}@{place}")


@pytest.fixture(scope="session")
def in_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Library:
    file = tmp_path_factory.mktemp("sqlite") / "library.db"
    with contextlib.closing(sqlite3.connect(file)) as connection:
        for statement in statements("sqlite"):
            connection.execute(statement)
        connection.commit()
    return Library("sqlite", f"sqlite:///{file}", f"sqlite:///{file}")


class PrivatePostgres:
    """A server of our own below a folder; as another user where we are root."""

    def __init__(self, folder: Path) -> None:
        found = [
            *sorted(glob("/usr/lib/postgresql/*/bin"), reverse=True),
            *os.environ.get("PATH", "").split(os.pathsep),
        ]
        self.bin = {name: shutil.which(name, path=os.pathsep.join(found)) for name in ("initdb", "postgres", "psql")}
        self.folder, self.port = folder, free_port()
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> bool:
        """False where PostgreSQL is not installed."""
        if not all(self.bin.values()):
            return False
        as_user: dict[str, Any] = {}
        if os.getuid() == 0:
            shutil.chown(self.folder, "postgres", "postgres")
            as_user = {"user": "postgres", "group": "postgres"}
        data, initdb, postgres = self.folder / "data", str(self.bin["initdb"]), str(self.bin["postgres"])
        made = [initdb, "-D", str(data), "-U", "admin", "-A", "trust", "-E", "UTF8", "--no-locale", "-N"]
        subprocess.run(made, check=True, capture_output=True, cwd=self.folder, **as_user)
        options = ["-c", "listen_addresses=127.0.0.1", "-c", "fsync=off"]
        command = [postgres, "-D", str(data), "-p", str(self.port), "-k", str(self.folder), *options]
        with open(self.folder / "postgres.log", "wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder, **as_user)
        for _ in range(300):
            if self.psql("SELECT 1", "postgres").returncode == 0:
                return True
            time.sleep(0.1)
        raise AssertionError("the private PostgreSQL does not answer")

    def psql(self, sql: str, database: str = "library") -> "subprocess.CompletedProcess[str]":
        given = ["-h", "127.0.0.1", "-p", str(self.port), "-U", "admin", "-d", database, "-X", "-q", "-A", "-t"]
        command = [str(self.bin["psql"]), *given, "-v", "ON_ERROR_STOP=1"]
        return subprocess.run(command, input=sql, capture_output=True, text=True)

    def stop(self) -> None:
        if self.process:
            self.process.terminate()
            self.process.wait(20)


@pytest.fixture(scope="session")
def in_postgres() -> Iterator[Library]:
    # Not below pytest's own folder, which only its user may enter: the server runs as another one.
    with tempfile.TemporaryDirectory(prefix="postgres-") as folder:
        yield from library_in_postgres(PrivatePostgres(Path(folder)))


def library_in_postgres(server: PrivatePostgres) -> Iterator[Library]:
    if not server.start():
        pytest.skip("PostgreSQL's server is not installed here (Debian: postgresql)")
    try:
        assert server.psql("CREATE DATABASE library", "postgres").returncode == 0
        reader = f"CREATE ROLE reader LOGIN PASSWORD '{PASSWORD}'; GRANT USAGE ON SCHEMA public TO reader;"
        rights = "GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader;"
        done = server.psql(";\n".join(statements("postgres")) + ";\n" + reader + rights)
        assert done.returncode == 0, done.stderr
        place = f"127.0.0.1:{server.port}/library"
        yield Library("postgres", f"postgresql://admin@{place}", f"postgresql+psycopg://reader:{PASSWORD}@{place}")
    finally:
        server.stop()


@pytest.fixture(params=["mysql", "sqlite", "postgres"])
def library(request: pytest.FixtureRequest) -> Library:
    """The library in each kind of database, one after the other."""
    found: Library = request.getfixturevalue(f"in_{request.param}")
    return found


AskLibrary = Callable[..., TestClient]


@pytest.fixture
def service_of(client_for: MakeClient) -> AskLibrary:
    """The service with the tools of a library: `service_of(library, max_steps=3, MAX_SQL_ATTEMPTS="2")`."""

    def make(library: Library, url: str = "", **other: Any) -> TestClient:
        environ = {"TEXT2SQL_URL": url or library.reader, "TEXT2SQL_POLICY": str(CASES / "policy.toml")}
        environ |= {name: other.pop(name) for name in list(other) if name.isupper()}
        return client_for(toolsets=("calculator", "text2sql"), environ=environ, **other)

    return make
