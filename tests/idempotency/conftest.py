"""`Idempotency-Key`: whatever happens to a request, sent again it is answered again and not done again.

Where a lease or a key has to grow old, its row is edited: the server's clock is the judge, and it is read from there.
"""

import uuid
from collections.abc import Iterator

import pytest

from dev.proxy import CuttableProxy
from tests.conftest import Store
from tests.support.gate import Gate


@pytest.fixture
def key() -> str:
    """A key that nobody has used."""
    return str(uuid.uuid4())


@pytest.fixture
def proxy(store: Store) -> Iterator[CuttableProxy]:
    """The way from the service to the database, to be cut."""
    with CuttableProxy(store.settings["db_host"], store.settings["db_port"]) as proxy:
        yield proxy


@pytest.fixture
def gates() -> Iterator[list[Gate]]:
    """Two gates, open at the end whatever happened."""
    gates = [Gate(), Gate()]
    yield gates
    for gate in gates:
        gate.open()
