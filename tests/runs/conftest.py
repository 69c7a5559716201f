"""Stored runs: "how did it come to that?" has an answer for every run, for its owner, as long as it is kept."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from tests.conftest import MakeClient, Store
from tests.support.runs import ALICE, BOB, KEPT


@pytest.fixture
def kept(client_for: MakeClient) -> TestClient:
    """The service that keeps runs."""
    return client_for(environ=KEPT)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as threads:
        yield threads


@pytest.fixture
def counting(
    client_for: MakeClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: Store
) -> Iterator[TestClient]:
    """The service with an owner who has no runs yet, who may see the statistics, in a folder without files."""
    from access.keys import hash_of

    store.rows("DELETE FROM runs WHERE owner IN ('alice', 'bob')")
    keys = tmp_path / "keys.toml"
    keys.write_text(f'[[key]]\nname = "alice"\nhash = "{hash_of(ALICE)}"\nmay = ["statistics"]\n', encoding="utf-8")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    yield client_for(environ=KEPT | {"API_KEYS": f"bob:{BOB}", "API_KEYS_FILE": str(keys)})
