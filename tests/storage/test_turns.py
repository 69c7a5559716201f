"""Turns are loaded and saved, and of two writers one wins."""

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pymysql
import pytest

import memory
from config import Settings
from db import Database
from errors import NotFound, TurnConflict
from memory import History, Message, Place, delete_conversation, save_turn
from run import new_run_id
from tests.conftest import Store
from tests.support.storage import load, say, texts


def test_an_unknown_conversation_is_an_empty_one_and_loading_it_creates_nothing(
    database: Database, store: Store, conversation_id: str
) -> None:
    before = store.rows("SELECT COUNT(*) FROM conversations")
    assert load(database, conversation_id) == History([], Place("", conversation_id, None, 1), left_out=0)
    assert store.rows("SELECT COUNT(*) FROM conversations") == before
    with pytest.raises(NotFound):
        memory.get_conversation(database, "", conversation_id)


def test_each_turn_is_two_rows_and_ids_count_on_from_one(
    database: Database, store: Store, conversation_id: str
) -> None:
    for number in (1, 2, 3):
        place = load(database, conversation_id).place
        assert place.turn == number
        save_turn(database, place, f"Q{number}", f"A{number}", f"run-{number}")
    rows = store.rows(
        "SELECT id, role, content, run_id, owner FROM messages WHERE conversation_id = %s ORDER BY id", conversation_id
    )
    assert rows == [
        (1, "user", "Q1", "run-1", ""),
        (2, "assistant", "A1", "run-1", ""),
        (3, "user", "Q2", "run-2", ""),
        (4, "assistant", "A2", "run-2", ""),
        (5, "user", "Q3", "run-3", ""),
        (6, "assistant", "A3", "run-3", ""),
    ]
    assert store.rows("SELECT turns, title FROM conversations WHERE conversation_id = %s", conversation_id) == [
        (3, "Q1")
    ]


def test_what_was_saved_is_loaded_oldest_first(database: Database, conversation_id: str) -> None:
    for number in (1, 2):
        say(database, conversation_id, f"Q{number}", f"A{number}")
    assert load(database, conversation_id).messages == [
        Message("user", "Q1"),
        Message("assistant", "A1"),
        Message("user", "Q2"),
        Message("assistant", "A2"),
    ]


def test_times_are_aware_in_utc_and_to_the_microsecond(database: Database, conversation_id: str) -> None:
    began = datetime.now(UTC) - timedelta(seconds=5)  # the server's clock may be another
    say(database, conversation_id)
    first = memory.get_conversation(database, "", conversation_id)
    say(database, conversation_id)
    second = memory.get_conversation(database, "", conversation_id)
    page, _ = memory.list_messages(database, "", conversation_id, 10, 0)
    times = [first["created_at"], second["updated_at"], *(row["created_at"] for row in page)]
    assert all(time.utcoffset() == timedelta(0) for time in times)
    assert began < first["created_at"] == second["created_at"] < second["updated_at"] < began + timedelta(minutes=5)
    assert any(time.microsecond % 1000 for time in times)


def test_a_turn_that_cannot_be_stored_whole_is_not_stored_at_all(
    database: Database, store: Store, conversation_id: str
) -> None:
    with pytest.raises(pymysql.err.DataError):  # the conversation's row is written by then
        save_turn(database, load(database, conversation_id).place, "Q1", "A1", "r" * 37)
    assert load(database, conversation_id).place.key is None
    say(database, conversation_id)
    with pytest.raises(pymysql.err.DataError):
        save_turn(database, load(database, conversation_id).place, "Q2", "A2", "r" * 37)
    assert load(database, conversation_id).place.turn == 2
    assert store.messages(conversation_id) == [("user", "Q"), ("assistant", "A")]
    say(database, conversation_id, "Q2", "A2")  # the same connection goes on
    assert len(store.messages(conversation_id)) == 4


def test_a_pooled_connection_keeps_no_old_snapshot(database: Database, store: Store, conversation_id: str) -> None:
    say(database, conversation_id)
    load(database, conversation_id)
    with contextlib.closing(Database(Settings(**store.settings))) as other:
        say(other, conversation_id, "Q2", "A2")
    assert texts(load(database, conversation_id)) == ["Q", "A", "Q2", "A2"]


def test_a_connection_that_was_left_in_the_middle_of_a_statement_is_not_used_again(database: Database) -> None:
    with pytest.raises(ZeroDivisionError), database.cursor() as cursor:
        left = cursor.connection
        left._execute_command(3, "SELECT 'the answer to somebody else'")  # type: ignore[attr-defined]
        1 / 0  # noqa: B018
    assert not left.open
    assert database.read("SELECT 'ours'") == [("ours",)]


def test_a_stale_place_is_a_conflict_and_stores_nothing(database: Database, store: Store, conversation_id: str) -> None:
    first = say(database, conversation_id, "Q1", "A1")
    second = say(database, conversation_id, "Q2", "A2")
    for stale in (first, second):
        with pytest.raises(TurnConflict):
            save_turn(database, stale, "late", "late", new_run_id())
    ahead = Place("", conversation_id, second.key, 4)
    with pytest.raises(TurnConflict):
        save_turn(database, ahead, "early", "early", new_run_id())
    assert [content for _, content in store.messages(conversation_id)] == ["Q1", "A1", "Q2", "A2"]
    assert load(database, conversation_id).place.turn == 3


def test_of_two_writers_of_the_same_texts_exactly_one_wins_every_round(
    database: Database, store: Store, conversation_id: str
) -> None:
    both_ready, rounds = threading.Barrier(2, timeout=30), 40
    winners: list[str] = []

    def write(place: Place) -> str | None:
        run_id = new_run_id()
        both_ready.wait()
        try:
            save_turn(database, place, "the same question", "the same answer", run_id)
        except TurnConflict:
            return None
        return run_id

    with ThreadPoolExecutor(2) as threads:
        for turn in range(1, rounds + 1):
            place = load(database, conversation_id).place
            assert place.turn == turn
            won = [run_id for run_id in threads.map(write, [place, place]) if run_id]
            assert len(won) == 1
            winners += won * 2
    rows = store.rows("SELECT id, run_id FROM messages WHERE conversation_id = %s ORDER BY id", conversation_id)
    assert rows == list(enumerate(winners, 1))


def test_a_save_after_a_delete_is_a_conflict_and_revives_nothing(
    database: Database, store: Store, conversation_id: str
) -> None:
    say(database, conversation_id)
    place = load(database, conversation_id).place
    delete_conversation(database, "", conversation_id)
    with pytest.raises(TurnConflict):
        save_turn(database, place, "late", "late", new_run_id())
    assert load(database, conversation_id).place.key is None
    assert store.messages(conversation_id) == []


@pytest.mark.parametrize("turns_of_the_successor", [1, 2, 3])
def test_a_save_after_a_delete_and_a_new_beginning_leaves_the_successor_alone(
    database: Database, store: Store, conversation_id: str, turns_of_the_successor: int
) -> None:
    for _ in range(2):
        say(database, conversation_id, "old", "old")
    place = load(database, conversation_id).place
    delete_conversation(database, "", conversation_id)
    for _ in range(turns_of_the_successor):
        say(database, conversation_id, "new", "new")
    with pytest.raises(TurnConflict):
        save_turn(database, place, "old", "old", new_run_id())
    assert {content for _, content in store.messages(conversation_id)} == {"new"}
    assert load(database, conversation_id).place.turn == turns_of_the_successor + 1


def test_the_number_of_a_conversation_is_never_used_again(database: Database, conversation_id: str) -> None:
    keys = []
    for _ in range(3):
        say(database, conversation_id)
        keys.append(load(database, conversation_id).place.key)
        delete_conversation(database, "", conversation_id)
    assert len(set(keys)) == 3
