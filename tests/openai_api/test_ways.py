"""All ways of the wire format together."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.conftest import MakeClient, Service, Store
from tests.support.openai_api import HI, client_of, complete, joined, named, transcript
from tests.support.scripted_model import ScriptedModel

ALICE, BOB = "key-of-alice-123456", "key-of-bob-1234567"


@pytest.fixture(scope="module")
def keyed_service(start: Callable[..., Service]) -> Service:
    return start(API_KEYS=f"alice:{ALICE},bob:{BOB}")


def test_one_conversation_by_every_way_of_asking_has_one_history(
    service: Service, api: OpenAI, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    headers = named(conversation_id)
    ways: list[Callable[[str], Any]] = [
        lambda text: service.chat(conversation_id, text),
        lambda text: service.http.post("/chat/stream", json={"conversation_id": conversation_id, "message": text}),
        lambda text: complete(api, [{"role": "user", "content": text}], extra_headers=headers),
        lambda text: joined(complete(api, [{"role": "user", "content": text}], extra_headers=headers, stream=True)),
        lambda text: api.responses.create(input=text, conversation=conversation_id),
        lambda text: list(api.responses.create(input=text, conversation=conversation_id, stream=True)),
        lambda text: api.responses.create(input=text, extra_headers=headers),
        lambda text: service.chat(conversation_id, text),
    ]
    said: list[tuple[str, str]] = []
    for at, ask in enumerate(ways):
        model.says(f"Answer {at}.")
        ask(f"Question {at}.")
        said.append(("user", f"Question {at}."))
        assert transcript(model) == said
        said.append(("assistant", f"Answer {at}."))
        assert store.messages(conversation_id) == said
    assert store.rows("SELECT turns FROM conversations WHERE conversation_id = %s", conversation_id) == [(len(ways),)]


def test_requests_with_the_same_key_are_answered_again_and_not_done_again(
    service: Service, api: OpenAI, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    model.says("Once.").then_says("Response.").then_says("New.").then_says("Next.")
    key = {"Idempotency-Key": f"k-{conversation_id[3:]}"}
    headers = named(conversation_id, **key)
    first = complete(api, extra_headers=headers)
    assert complete(api, [*HI, {"role": "assistant", "content": "x"}, *HI], extra_headers=headers) == first
    text, last = joined(complete(api, extra_headers=headers, stream=True))
    assert (text, last.id, last.created) == ("Once.", first.id, first.created)
    for other in (
        lambda: complete(api, [{"role": "user", "content": "other"}], extra_headers=headers),
        lambda: api.responses.create(input="Hi", conversation=conversation_id, extra_headers=key),
    ):
        with pytest.raises(openai.UnprocessableEntityError) as mismatch:
            other()
        assert mismatch.value.code == "idempotency_mismatch"
    body = {"conversation_id": conversation_id, "message": "Hi"}
    assert service.http.post("/chat", json=body, headers=key).status_code == 422
    assert store.messages(conversation_id) == [("user", "Hi"), ("assistant", "Once.")]

    key = {"Idempotency-Key": f"r-{conversation_id[3:]}"}
    response = api.responses.create(input="Hi", conversation=conversation_id, extra_headers=key)
    events = list(api.responses.create(input="Hi", conversation=conversation_id, extra_headers=key, stream=True))
    assert events[-1].response == response and events[-2].item.content[0].text == "Response."
    key = {"Idempotency-Key": f"n-{conversation_id[3:]}"}
    fresh = [api.responses.create(input="Hi", extra_headers=key) for _ in range(2)]
    assert fresh[0] == fresh[1]
    key = {"Idempotency-Key": f"p-{conversation_id[3:]}"}
    following = [
        api.responses.create(input="on", previous_response_id=fresh[0].id, extra_headers=key) for _ in range(2)
    ]
    assert following[0] == following[1]
    assert len(store.messages(fresh[0].conversation.id)) == 4


def test_a_second_answer_to_the_same_response_is_a_conflict_even_at_the_same_moment(
    api: OpenAI, store: Store, model: ScriptedModel
) -> None:
    model.says("One.")
    first = api.responses.create(input="first")
    model.says("Two.", delay_s=0.3)

    def follow(_: int) -> str:
        try:
            return str(api.responses.create(input="second", previous_response_id=first.id).output_text)
        except openai.ConflictError as error:
            return str(error.code)

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(follow, range(2))) == ["Two.", "turn_conflict"]
    assert len(store.messages(first.conversation.id)) == 4


def test_another_owner_finds_nothing_and_a_wrong_key_nothing_at_all(
    keyed_service: Service, store: Store, model: ScriptedModel, conversation_id: str
) -> None:
    model.says("Alice's.").then_says("Bob's.").then_says("Response.")
    alice, bob = client_of(keyed_service, ALICE), client_of(keyed_service, BOB)
    complete(alice, extra_headers=named(conversation_id))
    complete(bob, extra_headers=named(conversation_id))
    assert transcript(model) == [("user", "Hi")]
    assert store.messages(conversation_id, "alice")[1] == ("assistant", "Alice's.")
    assert store.messages(conversation_id, "bob")[1] == ("assistant", "Bob's.")
    response = alice.responses.create(input="Hi")
    for ask in (
        lambda: bob.responses.retrieve(response.id),
        lambda: bob.responses.delete(response.id),
        lambda: bob.conversations.retrieve(response.conversation.id),
        lambda: bob.conversations.delete(response.conversation.id),
        lambda: bob.conversations.update(response.conversation.id, metadata={}),
        lambda: bob.conversations.items.list(response.conversation.id),
    ):
        with pytest.raises(openai.NotFoundError):
            ask()
    with pytest.raises(openai.BadRequestError):
        bob.responses.create(input="on", previous_response_id=response.id)
    nobody = client_of(keyed_service, "key-of-nobody-12345")
    for ask in (nobody.models.list, lambda: complete(nobody), lambda: nobody.responses.create(input="Hi")):
        with pytest.raises(openai.AuthenticationError) as unknown:
            ask()
        assert (unknown.value.code, unknown.value.type) == ("unauthorized", "authentication_error")


def test_too_many_requests_are_told_when_to_come_again(client_for: MakeClient) -> None:
    client = client_for(environ={"API_KEYS": f"alice:{ALICE}", "API_RATE": "1/minute"})
    first, second = (client.get("/v1/models", headers={"authorization": f"Bearer {ALICE}"}) for _ in range(2))
    assert (first.status_code, second.status_code) == (200, 429)
    assert second.json()["error"]["code"] == "rate_limited" and int(second.headers["retry-after"]) >= 1


def test_without_keys_only_callers_on_this_machine_are_served(client_for: MakeClient) -> None:
    answer = client_for().get("/v1/models", headers={"host": "agent.example.com"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")


def test_a_model_that_is_out_is_an_ordinary_error_for_a_stream_too(api: OpenAI, model: ScriptedModel) -> None:
    for stream in (False, True):
        model.fails(401)
        with pytest.raises(openai.InternalServerError) as error:
            complete(api, stream=stream)
        assert (error.value.status_code, error.value.code) == (500, "model_unauthorized")
        model.fails(404)
        with pytest.raises(openai.BadRequestError) as missing:
            api.responses.create(model="none", input="Hi", stream=stream)
        assert missing.value.code == "model_not_found"
