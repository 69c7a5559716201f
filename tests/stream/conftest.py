"""`POST /chat/stream`: the turn as it happens, byte by byte, whatever the model streams and whoever leaves."""

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

import model as model_module
from config import Settings
from main import create_app
from tests.conftest import SOON, Service, Store
from tests.support.recording_tools import RUNS
from tests.support.scripted_model import ScriptedModel
from tests.support.stream import Json

TOOLS = "tests.support.recording_tools"


@pytest.fixture(scope="package")
def shared_model() -> Iterator[ScriptedModel]:
    with ScriptedModel() as scripted:
        yield scripted


@pytest.fixture
def model(shared_model: ScriptedModel) -> Iterator[ScriptedModel]:
    """One model for all tests here, as the service of them all knows only one address."""
    shared_model.reset()
    RUNS.clear()
    yield shared_model
    shared_model.finish()


@pytest.fixture(scope="package")
def shared_service(
    store: Store, shared_model: ScriptedModel, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    environment = {name.upper(): str(value) for name, value in (SOON | store.settings).items()}
    environment |= {"API_KEY": "sk-test", "BASE_URL": shared_model.base_url, "DEFAULT_MODEL": "scripted"}
    log = tmp_path_factory.mktemp("stream") / "service.log"
    service = Service(environment | {"ENV_FILE": "", "TOOLSETS": TOOLS}, log)
    yield service.start()
    service.close()


@pytest.fixture
def service(shared_service: Service, model: ScriptedModel) -> Service:
    """The service as a process of its own."""
    return shared_service


@pytest.fixture(scope="package")
def shared_client(store: Store, shared_model: ScriptedModel) -> Iterator[TestClient]:
    more: Json = {"api_key": "sk-test", "base_url": shared_model.base_url, "default_model": "scripted"}
    given: Json = {**SOON, **store.settings, **more, "toolsets": (TOOLS,)}
    app = create_app(Settings(**given))
    with TestClient(app, base_url="http://127.0.0.1", client=("127.0.0.1", 50000)) as client:
        yield client


@pytest.fixture
def client(shared_client: TestClient, monkeypatch: pytest.MonkeyPatch) -> TestClient:
    """The service in this process, where the way that the bytes take to the caller does not matter."""
    monkeypatch.setattr(model_module, "FIRST_PAUSE_S", 0.001)
    return shared_client
