"""Whatever a model sends: nothing half-understood is carried out, nothing cut is stored, every error has a name.

Each kind is sent to both ways into a turn. After every turn that failed there is nothing of it in MySQL, and the next
one of the same conversation works. The tests of a file, many and short, share one service and one model.
"""

import logging
from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

import model as model_module
from config import Settings
from main import create_app
from tests.conftest import SOON, Store
from tests.support.outcomes import KEY
from tests.support.recording_tools import RUNS
from tests.support.scripted_model import Json, ScriptedModel


@pytest.fixture(scope="module")
def shared_model() -> Iterator[ScriptedModel]:
    with ScriptedModel() as scripted:
        yield scripted


@pytest.fixture(scope="module")
def shared_client(store: Store, shared_model: ScriptedModel) -> Iterator[TestClient]:
    more: Json = {"api_key": KEY, "base_url": shared_model.base_url, "default_model": "scripted"}
    given: Json = {**SOON, **store.settings, **more, "toolsets": ("tests.support.recording_tools",)}
    app = create_app(Settings(**given))
    with TestClient(app, base_url="http://127.0.0.1", client=("127.0.0.1", 50000)) as client:
        yield client


@pytest.fixture
def model(shared_model: ScriptedModel) -> Iterator[ScriptedModel]:
    """One model for all tests here: what the script left over from one is a failure of that one."""
    shared_model.reset()
    RUNS.clear()
    yield shared_model
    shared_model.finish()


@pytest.fixture
def client(shared_client: TestClient) -> TestClient:
    return shared_client


@pytest.fixture(autouse=True)
def quick_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_module, "FIRST_PAUSE_S", 0.001)


@pytest.fixture(autouse=True)
def our_log(caplog: pytest.LogCaptureFixture) -> None:
    """Our own loggers tell all they ever tell."""
    for name in ("agent", "model", "turn", "tools", "main", "problems"):
        caplog.set_level(logging.INFO, logger=name)
