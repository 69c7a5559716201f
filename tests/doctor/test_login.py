"""The layers `login` and `server`: who is not let in and why, and servers that are too old or too small."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Store
from tests.support.examination import PASSWORD, Account, Examine
from tests.support.talking_server import server_that_says


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
