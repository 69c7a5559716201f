"""The layer `network`: addresses that lead to no database, and the private server where none is configured."""

import contextlib
import socket
from pathlib import Path

import pytest

import db
from dev import mariadb_program
from dev.mariadb import PrivateServer
from tests.conftest import free_port
from tests.support.examination import Examine, examine_copy
from tests.support.talking_server import server_that_says


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


def test_what_answers_is_no_database(examine: Examine, monkeypatch: pytest.MonkeyPatch) -> None:
    with server_that_says(b"SSH-2.0-OpenSSH_9.2\r\n") as port:
        examine(DB_PORT=str(port)).assert_fails("network", "no MySQL", "DB_PORT")
    monkeypatch.setattr(db, "CONNECT_TIMEOUT_S", 0.3)
    with server_that_says(b"") as port:
        examine(DB_PORT=str(port)).assert_fails("network", "says nothing", "DB_PORT")


def test_the_private_server_is_used_when_no_other_is_configured(checkout: Path) -> None:
    server = PrivateServer(checkout / ".local" / "mariadb")
    if mariadb_program.find_program() is None:
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
