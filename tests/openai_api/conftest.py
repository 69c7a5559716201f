"""The `/v1` routes, asked by unmodified OpenAI clients over a real process, and what MySQL holds afterwards."""

import os
from collections.abc import Callable, Iterator

import pytest
from openai import OpenAI

from tests.conftest import SOON, Service, Store
from tests.support.openai_api import client_of
from tests.support.scripted_model import ScriptedModel


@pytest.fixture(scope="package")
def shared_model() -> Iterator[ScriptedModel]:
    with ScriptedModel() as scripted:
        yield scripted


@pytest.fixture
def model(shared_model: ScriptedModel) -> Iterator[ScriptedModel]:
    """The model of all services here, with an empty script for each test."""
    shared_model.reset()
    yield shared_model
    shared_model.finish()


@pytest.fixture(scope="package")
def start(
    store: Store, shared_model: ScriptedModel, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Service]]:
    """Starts a service for the tests of this folder."""
    services = []

    def make(**other: str) -> Service:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("DB_")}
        environment |= {name.upper(): str(value) for name, value in (SOON | store.settings).items()}
        environment |= {"API_KEY": "sk-test", "BASE_URL": shared_model.base_url, "DEFAULT_MODEL": "scripted"}
        log = tmp_path_factory.mktemp("service") / "log"
        services.append(Service(environment | {"ENV_FILE": ""} | other, log))
        return services[-1].start()

    yield make
    for service in services:
        service.close()


@pytest.fixture(scope="package")
def service(start: Callable[..., Service]) -> Service:
    return start()


@pytest.fixture
def api(service: Service, model: ScriptedModel) -> Iterator[OpenAI]:
    """The client as it is installed, for the service without keys."""
    with client_of(service) as client:
        yield client
