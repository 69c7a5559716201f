"""What becomes of a turn when the database, the way to it, or the service fails: stored whole and once, or not at all.

The server is theirs alone, to be killed, frozen and filled; faults on the way to it are a proxy's.
"""

from collections.abc import Iterator

import pytest

import db
from dev.mariadb import PrivateServer
from tests.conftest import Store
from tests.support.faults import Proxy


@pytest.fixture(scope="module")
def store(fragile_store: Store) -> Store:
    """The store of every fixture here is the one that may be harmed."""
    return fragile_store


@pytest.fixture
def server(store: Store) -> Iterator[PrivateServer]:
    """The server, healed afterwards."""
    assert store.server
    yield store.server
    store.server.start()  # thaws it, too


@pytest.fixture
def proxy(server: PrivateServer) -> Iterator[Proxy]:
    """The way from the service to the database, to be cut."""
    with Proxy(server.port) as proxy:
        yield proxy


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where giving up is not what is tested, it need not take five seconds."""
    monkeypatch.setattr(db, "RETRY_S", 1.0)
