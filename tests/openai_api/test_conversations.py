"""/v1/conversations."""

from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from openai import OpenAI

from tests.conftest import MakeClient, Service, Store, path_of
from tests.support.scripted_model import ScriptedModel


def test_a_conversation_is_made_empty_described_filled_and_removed(
    service: Service, api: OpenAI, store: Store, model: ScriptedModel
) -> None:
    made = api.conversations.create(metadata={"topic": "水"})
    assert made.metadata == {"topic": "水"}
    assert api.conversations.items.list(made.id).data == []
    shown = service.http.get(path_of(made.id)).json()
    assert (shown["turns"], shown["title"]) == (0, None)
    model.says("One.").then_says("Two.")
    assert service.chat(made.id, "What is plum?").json()["turn"] == 1
    assert service.http.get(path_of(made.id)).json()["title"] == "What is plum?"
    api.responses.create(input="second", conversation=made.id)
    assert api.conversations.update(made.id, metadata={"topic": "plum"}).metadata == {"topic": "plum"}
    assert api.conversations.retrieve(made.id).metadata == {"topic": "plum"}
    assert store.rows("SELECT metadata FROM conversations WHERE conversation_id = %s", made.id) == [
        ('{"topic": "plum"}',)
    ]
    said = ["What is plum?", "One.", "second", "Two."]
    items = list(api.conversations.items.list(made.id, limit=3, order="asc"))
    assert [(item.role, item.content[0].text) for item in items] == list(
        zip(["user", "assistant"] * 2, said, strict=True)
    )
    assert [item.content[0].text for item in api.conversations.items.list(made.id, limit=1)] == said[::-1]
    assert api.conversations.items.retrieve(items[2].id, conversation_id=made.id).content[0].text == "second"
    assert api.conversations.delete(made.id).deleted is True
    assert store.messages(made.id) == []
    with pytest.raises(openai.NotFoundError):
        api.conversations.retrieve(made.id)


def test_two_first_turns_of_an_empty_conversation_do_not_mix(
    client_for: MakeClient, service: Service, api: OpenAI, store: Store, model: ScriptedModel
) -> None:
    made = api.conversations.create()
    model.says("Answer.", delay_s=0.5).then_says("Answer.", delay_s=0.5)
    body = {"conversation_id": made.id, "message": "Hi"}
    with ThreadPoolExecutor(2) as pool:  # in two processes: neither waits for the other
        answers = list(pool.map(lambda one: one.post("/chat", json=body).status_code, (service.http, client_for())))
    assert sorted(answers) == [200, 409]
    assert store.messages(made.id) == [("user", "Hi"), ("assistant", "Answer.")]
