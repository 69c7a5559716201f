"""`memory.py` on the real server: what is stored and read back, who wins, and what a turn costs in a long conversation.

Every test runs on the server that is here and, where Docker is, on the MySQL that most people have.
"""

import contextlib
import gc
import logging
import time
import uuid
import warnings
from collections.abc import Iterator

import pytest

from config import Settings
from db import Database
from dev.database import IMAGE, use_container
from dev.mariadb_program import NotInstalled
from tests.conftest import Store, make_tables, settings_of


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """No warnings of packages that are not ours, nor of what they leave behind."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable()  # a record that is kept for a report keeps its error, and that an open socket
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)
        for _ in range(5):  # one that is under way in another thread makes ours return at once
            gc.collect()
            time.sleep(0.01)


@pytest.fixture(scope="session")
def container_store() -> Iterator[Store]:
    """A store in Docker; skips where there is none."""
    running, chosen, why = contextlib.ExitStack(), None, ""
    with quietly():
        try:
            chosen = use_container(running)
        except NotInstalled as error:
            why = str(error)
    if chosen is None:
        pytest.skip(why)
    try:
        found = Store(settings_of(dict(chosen.settings)))
        make_tables(found)
        yield found
    finally:
        with quietly():
            running.close()


@pytest.fixture(scope="module", params=["here", IMAGE])
def store(request: pytest.FixtureRequest, store: Store) -> Store:
    """The server that is here, and the other one."""
    return store if request.param == "here" else request.getfixturevalue("container_store")


@pytest.fixture(scope="module")
def database(store: Store) -> Iterator[Database]:
    """The service's way to the store, used in the test's own thread."""
    with contextlib.closing(Database(Settings(**store.settings))) as database:
        yield database


@pytest.fixture
def owner() -> str:
    """An owner with nothing yet."""
    return f"owner-{uuid.uuid4()}"
