"""`dev owner`: all that one owner has goes to another, or stays together where the other has its name already."""

from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient

from dev import owners
from dev.common import DevError
from tests.conftest import MakeClient, Store, path_of
from tests.support.keyed import CONFLICT, is_replay, key_row, post, refused
from tests.support.runs import ALICE, BOB, KEPT, KEYS, bearer, record_of
from tests.support.scripted_model import ScriptedModel

OWNED = {
    "conversations": "owner",
    "messages": "owner",
    "idempotency_keys": "owner",
    "runs": "owner",
    "run_cancellations": "owner",
    "schema_notes": "author",
}
NOTE = (
    "INSERT INTO schema_notes (target, table_name, source, version, note, author) "
    "VALUES ('shop', 'orders', %s, 1, '订单', %s)"
)

Serve = Callable[..., TestClient]


@pytest.fixture
def kept_store(fragile_store: Store) -> Store:
    """A database that holds nothing."""
    for table in ("schema_notes", "run_cancellations", "runs", "idempotency_keys", "conversations"):
        fragile_store.rows(f"DELETE FROM {table}")
    return fragile_store


@pytest.fixture
def serve(client_for: MakeClient, kept_store: Store) -> Serve:
    """Makes the service that keeps runs: `serve()` without keys, `serve(KEYS)` with those of Alice and Bob."""
    return lambda keys={}: client_for(environ=KEPT | keys, **kept_store.settings)


@pytest.fixture
def dev_owner(
    kept_store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """`python3 -m dev owner` on that database, two rows at a time; what it says."""
    monkeypatch.setattr(owners, "BATCH", 2)
    monkeypatch.setenv("ENV_FILE", "")
    for name in ("API_KEYS", "API_KEYS_FILE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in kept_store.settings.items():
        monkeypatch.setenv(name.upper(), str(value))

    def command(*arguments: str) -> str:
        capsys.readouterr()
        assert owners.owner(list(arguments)) == 0
        return capsys.readouterr().err

    return command


def ask(client: TestClient, name: str, message: str = "Hi", key: str = "", of: str = "", way: str = "/chat") -> Any:
    body = {"conversation_id": name, "message": message}
    headers = bearer(of) if of else {}
    return client.post(way, json=body, headers=headers | ({"Idempotency-Key": key} if key else {}))


def owned(store: Store, owner: str) -> dict[str, int]:
    """How many rows of each table are an owner's."""
    return {
        table: int(store.rows(f"SELECT COUNT(*) FROM {table} WHERE {column} = %s", owner)[0][0])
        for table, column in OWNED.items()
    }


NOTHING = dict.fromkeys(OWNED, 0)


def test_everything_that_was_stored_without_keys_is_handed_to_an_owner_once_keys_arrive(
    serve: Serve, kept_store: Store, model: ScriptedModel, dev_owner: Callable[..., str]
) -> None:
    model.echoes()
    client = serve()
    names = [f"会话-{number}" for number in range(5)]
    first = {name: ask(client, name, key=f"key-of-{names.index(name)}") for name in names}
    ask(client, "deleted", key="key-of-deleted")
    assert client.delete(path_of("deleted")).status_code == 204
    alone = [client.post("/api/runs", json={"question": "Hi"}).json()["run_id"] for _ in range(3)]
    assert client.post(f"/api/runs/{alone[0]}/cancel").status_code == 202
    kept_store.rows(NOTE, "human", "")
    kept_store.rows(NOTE, "packaged", "")

    told = dev_owner("alice")

    assert "5 conversations, 8 runs, 6 idempotency keys, 1 cancellation, 1 note." in told
    assert "Left" not in told
    assert owned(kept_store, "") == NOTHING | {"schema_notes": 1}  # the packaged one, which nobody here wrote
    keyed = serve(KEYS)
    for name in names:
        assert kept_store.messages(name, "alice") == [("user", "Hi"), ("assistant", "echo: Hi")]
        again = ask(keyed, name, key=f"key-of-{names.index(name)}", of=ALICE)
        assert is_replay(again)
        assert again.content == first[name].content
    for run_id in [*alone, *(answer.json()["run_id"] for answer in first.values())]:
        assert record_of(keyed, run_id, ALICE)["run_id"] == run_id
        assert keyed.get(f"/api/runs/{run_id}", headers=bearer(BOB)).status_code == 404
    assert refused(ask(keyed, "deleted", key="key-of-deleted", of=ALICE)) == CONFLICT
    for name in names:
        assert keyed.delete(path_of(name), headers=bearer(ALICE)).status_code == 204
    assert kept_store.rows("SELECT COUNT(*) FROM runs JOIN run_records USING (id)") == [(3,)]
    assert kept_store.rows("SELECT COUNT(*) FROM run_records") == [(3,)]
    assert kept_store.rows("SELECT answer FROM idempotency_keys WHERE answer IS NOT NULL") == []


def test_what_the_new_owner_has_a_name_for_stays_together_and_is_told_of(
    serve: Serve, kept_store: Store, model: ScriptedModel, dev_owner: Callable[..., str]
) -> None:
    model.echoes()
    client, keyed = serve(), serve(KEYS)
    for name in ("taken", "free-1", "free-2", "free-3"):
        ask(client, name, key=f"key-of-{name}")
    ask(keyed, "taken", "of Alice", of=ALICE)
    ask(keyed, "other", "of Alice", key="key-of-free-1", of=ALICE)

    told = dev_owner("alice")

    assert "to 'alice': 3 conversations, 3 runs, 2 idempotency keys." in told
    assert "the same names already: 1 conversation, 1 run, 2 idempotency keys." in told
    assert kept_store.messages("taken") == [("user", "Hi"), ("assistant", "echo: Hi")]
    assert kept_store.messages("taken", "alice")[0] == ("user", "of Alice")
    assert kept_store.rows("SELECT conversation_id FROM runs WHERE owner = ''") == [("taken",)]
    assert is_replay(ask(client, "taken", key="key-of-taken"))
    row = key_row(kept_store, "key-of-free-1", "alice")
    assert row
    assert row.conversation_id == "other"
    again = dev_owner("alice")
    assert "nothing." in again
    assert "1 conversation, 1 run, 2 idempotency keys" in again
    kept_store.rows("DELETE FROM conversations WHERE owner = 'alice' AND conversation_id = 'taken'")
    assert "1 conversation, 1 run, 1 idempotency key." in dev_owner("alice")


def test_what_was_left_behind_when_only_conversations_were_moved_follows_them(
    serve: Serve, kept_store: Store, model: ScriptedModel, dev_owner: Callable[..., str]
) -> None:
    model.echoes()
    client = serve()
    answers = [ask(client, name, key=f"key-of-{name}") for name in ("a", "b", "c")]
    kept_store.rows("UPDATE conversations SET owner = 'alice'")
    assert "3 runs, 3 idempotency keys." in dev_owner("alice")
    assert owned(kept_store, "") == NOTHING
    keyed = serve(KEYS)
    for name, answer in zip("abc", answers, strict=True):
        assert record_of(keyed, answer.json()["run_id"], ALICE)["conversation_id"] == name
        assert is_replay(ask(keyed, name, key=f"key-of-{name}", of=ALICE))


def test_what_went_to_a_wrong_name_goes_on_to_the_right_one_or_back(
    serve: Serve, kept_store: Store, model: ScriptedModel, dev_owner: Callable[..., str]
) -> None:
    model.echoes()
    client = serve()
    first = ask(client, "会话", key="one")
    client.post("/api/runs", json={"question": "Hi"})
    kept_store.rows(NOTE, "human", "")
    before = owned(kept_store, "")
    for arguments in (["alcie"], ["desk/用户 1", "--from", "alcie"], ["--from", "desk/用户 1", "alice"]):
        dev_owner(*arguments)
        assert owned(kept_store, "") == NOTHING
    assert owned(kept_store, "alice") == before
    dev_owner("--from", "alice", "")
    assert owned(kept_store, "") == before
    assert owned(kept_store, "alice") == NOTHING
    again = post(client, "/chat", {"conversation_id": "会话", "message": "Hi"}, "one")
    assert is_replay(again)
    assert again.content == first.content


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["alice"], ""),
        (["alcie"], "no key is named 'alcie'"),
        (["alcie/u1"], "no key is named 'alcie'"),
        (["alice/u1"], "no key named 'alice' may act for users"),
        (["--from", "alice", ""], "callers with keys do not see"),
    ],
)
def test_a_name_that_no_key_has_is_doubted_and_obeyed(
    dev_owner: Callable[..., str],
    kept_store: Store,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    said: str,
) -> None:
    monkeypatch.setenv("API_KEYS", f"alice:{ALICE}")
    kept_store.rows("INSERT INTO conversations (owner, conversation_id, turns) VALUES ('', 'a', 0), ('alice', 'b', 0)")
    told = dev_owner(*arguments)
    assert "1 conversation." in told
    assert said in told
    assert ("Note:" in told) == bool(said)
    assert ALICE not in told


def test_without_keys_no_name_is_doubted_and_keys_that_cannot_be_read_are_told_of(
    dev_owner: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "Note:" not in dev_owner("alice")
    monkeypatch.setenv("API_KEYS_FILE", "/nowhere/keys.toml")
    assert "API_KEYS_FILE cannot be read" in dev_owner("alice")


def test_a_database_without_tables_is_told_of_with_what_to_do(dev_owner: Callable[..., str], kept_store: Store) -> None:
    kept_store.rows("RENAME TABLE schema_notes TO set_aside")
    try:
        with pytest.raises(DevError, match="dev migrate"):
            dev_owner("alice")
    finally:
        kept_store.rows("RENAME TABLE set_aside TO schema_notes")
