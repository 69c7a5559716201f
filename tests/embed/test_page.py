"""What docs/embedding.md shows is run as it stands there."""

import re

import pytest

from tests.conftest import ROOT, Store
from tests.embed.conftest import Host, MakeHost, bearer, message, serving
from tests.support.scripted_model import ScriptedModel

PAGE = (ROOT / "docs" / "embedding.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))


@pytest.fixture
def shop(host_for: MakeHost, model: ScriptedModel) -> Host:
    """A folder with the files of the page, and none of the checkout."""
    host = host_for(model, files=False)
    for name, text in FILES.items():
        (host.folder / name).write_text(text, encoding="utf-8")
    return host


def test_the_host_on_the_page_serves(shop: Host, model: ScriptedModel, store: Store, conversation_id: str) -> None:
    assert shop.python("make_tables.py") == "applied: nothing new\n"
    model.asks_for("in_stock", article="lamp").then_says("Three lamps.")
    with serving(shop) as client:
        nobody = client.post("/assistant/chat", json=message(conversation_id))
        assert (nobody.status_code, nobody.json()) == (401, {"detail": "sign in first"})
        answer = client.post("/assistant/chat", json=message(conversation_id), headers=bearer("token-of-alice"))
        assert (answer.json()["answer"], answer.json()["tool_calls"]) == ("Three lamps.", 1)
        assert "/assistant/chat" in client.get("/openapi.json").json()["paths"]
    assert store.messages(conversation_id, "alice") == [("user", "Hi"), ("assistant", "Three lamps.")]


def test_the_loop_on_the_page_runs(shop: Host, model: ScriptedModel) -> None:
    model.asks_for("in_stock", article="lamp").then_says("Three.")
    assert shop.python("ask.py") == "Three. completed\n"
    assert set(FILES) == {"main.py", "make_tables.py", "ask.py"}
