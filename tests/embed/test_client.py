"""docs/client.py, against a real service."""

import importlib.util
import uuid
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import httpx2
import pytest

from tests.conftest import ROOT, MakeService, Service, Store
from tests.support.scripted_model import ScriptedModel

KEY = "a-key-for-the-client"


@pytest.fixture(scope="module")
def page() -> ModuleType:
    spec = importlib.util.spec_from_file_location("turnkeeper_client", ROOT / "docs" / "client.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def service(service_for: MakeService) -> Service:
    return service_for(API_KEYS=f"client:{KEY}")


@pytest.fixture
def client(page: ModuleType, service: Service) -> Iterator[Any]:
    with page.Turnkeeper(str(service.http.base_url), KEY, pause_s=0.01) as client:
        yield client


class LosesAnswers(httpx2.HTTPTransport):
    """The request arrives, its answer does not, for the first few."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.left = count

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        answer = super().handle_request(request)
        if self.left:
            self.left -= 1
            answer.read()
            answer.close()
            raise httpx2.ReadError("the answer was lost", request=request)
        return answer


def test_a_conversation_from_its_first_message_to_its_end(
    client: Any, page: ModuleType, model: ScriptedModel, store: Store
) -> None:
    name = f"../ä {uuid.uuid4()}"
    model.asks_for("calculator", a=12, b=8, operation="multiply").then_says("96").says("Yes.")
    answer = client.chat(name, "What is 12 * 8?")
    assert (answer["answer"], answer["turn"], answer["tool_calls"]) == ("96", 1, 1)
    assert client.chat(name, "Sure?", max_steps=1)["turn"] == 2
    assert [row["content"] for row in client.messages(name)] == ["What is 12 * 8?", "96", "Sure?", "Yes."]
    assert store.messages(name, "client")[0] == ("user", "What is 12 * 8?")
    assert client.rename(name, "Sums")["title"] == "Sums"
    assert ("Sums", name) in [(row["title"], row["conversation_id"]) for row in client.conversations()]
    client.delete(name)
    with pytest.raises(page.Problem) as caught:
        client.delete(name)
    assert (caught.value.status, caught.value.code) == (404, "not_found")


def test_a_stream_gives_the_text_and_then_the_result(client: Any, model: ScriptedModel, conversation_id: str) -> None:
    text = "Line\nline\u2028line\u0085 and \r\n an end."
    model.says(text)
    events = list(client.stream(conversation_id, "Tell me."))
    assert events[0].name == "started" and events[-1].name == "result"
    assert events[-1].data["answer"] == text
    steps = events[-1].data["steps"]
    said = [event.data["text"] for event in events if event.name == "delta" and event.data["step"] == steps]
    assert "".join(said) == text


def test_a_stream_that_fails_or_cannot_begin_is_a_problem(
    client: Any, page: ModuleType, model: ScriptedModel, conversation_id: str
) -> None:
    with pytest.raises(page.Problem, match="invalid_request"):
        next(client.stream("", "Hi"))
    model.fails(401)
    with pytest.raises(page.Problem, match="model_unauthorized"):
        list(client.stream(conversation_id, "Hi"))


def test_a_lost_answer_is_asked_for_again_and_nothing_is_done_twice(
    client: Any, service: Service, model: ScriptedModel, store: Store, conversation_id: str
) -> None:
    client.http = httpx2.Client(base_url=client.http.base_url, headers=client.http.headers, transport=LosesAnswers(2))
    model.says("Once.")
    assert client.chat(conversation_id, "Hi")["answer"] == "Once."
    assert len(model.requests) == 1
    assert store.messages(conversation_id, "client") == [("user", "Hi"), ("assistant", "Once.")]


def test_a_failure_that_passes_is_tried_again_and_a_mistake_is_not(
    client: Any, page: ModuleType, model: ScriptedModel, conversation_id: str
) -> None:
    model.raw("no JSON").says("Better.")
    assert client.chat(conversation_id, "Hi")["answer"] == "Better."
    for wrong in ({"conversation_id": conversation_id, "message": ""}, {"conversation_id": "", "message": "Hi"}):
        with pytest.raises(page.Problem) as caught:
            client.chat(**wrong)
        assert caught.value.code == "invalid_request"
    with page.Turnkeeper(str(client.http.base_url), "wrong-key-of-mine") as stranger, pytest.raises(page.Problem) as no:
        list(stranger.conversations())
    assert no.value.code == "unauthorized"
    with page.Turnkeeper("http://127.0.0.1:9", tries=2, pause_s=0.01) as nobody, pytest.raises(httpx2.ConnectError):
        nobody.chat("a", "Hi")
