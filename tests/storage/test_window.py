"""Only the newest whole turns are read, by key, however long the conversation."""

import contextlib
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from pymysql.cursors import DictCursor

import memory
from db import Database
from errors import NotFound, TurnConflict
from memory import delete_conversation, load_history, save_turn
from run import new_run_id
from tests.conftest import Store
from tests.support.storage import load, say, texts


def grow(store: Store, conversation_id: str, turns: int, text: str = "x") -> None:
    """A conversation of that length, made by hand."""
    rows = [(conversation_id, at, "user" if at % 2 else "assistant", f"{text} {at}") for at in range(1, 2 * turns + 1)]
    with contextlib.closing(store.connect()) as connection, connection.cursor() as cursor:
        connection.begin()
        cursor.execute("INSERT INTO conversations (conversation_id, turns) VALUES (%s, %s)", (conversation_id, turns))
        cursor.executemany("INSERT INTO messages (conversation_id, id, role, content) VALUES (%s, %s, %s, %s)", rows)
        connection.commit()


@pytest.mark.parametrize(("window", "given_turns"), [(0, []), (1, [5]), (3, [3, 4, 5]), (5, [1, 2, 3, 4, 5])])
def test_only_the_newest_whole_turns_are_given(
    database: Database, conversation_id: str, window: int, given_turns: list[int]
) -> None:
    for number in range(1, 6):
        say(database, conversation_id, f"Q{number}", f"A{number}")
    history = load_history(database, "", conversation_id, window, 1000)
    assert texts(history) == [f"{letter}{number}" for number in given_turns for letter in "QA"]
    assert (history.place.turn, history.left_out) == (6, 5 - len(given_turns))


def test_rows_that_were_added_by_hand_are_no_history_and_stand_in_the_way_of_the_next_turn(
    database: Database, store: Store, conversation_id: str
) -> None:
    say(database, conversation_id)
    by_hand = "INSERT INTO messages (conversation_id, id, role, content) VALUES (%s, 3, 'user', 'by hand')"
    store.rows(by_hand, conversation_id)
    history = load(database, conversation_id)
    assert (texts(history), history.place.turn, history.left_out) == (["Q", "A"], 2, 0)
    with pytest.raises(TurnConflict):
        say(database, conversation_id)
    assert len(store.messages(conversation_id)) == 3


def test_turns_that_do_not_fit_are_left_out_whole_and_so_is_what_came_before_them(
    database: Database, conversation_id: str
) -> None:
    for size in (10, 400, 100, 50):
        say(database, conversation_id, "q" * (size // 2), "a" * (size // 2))
    for room, turns in ((550, 3), (549, 2), (150, 2), (149, 1)):
        history = load_history(database, "", conversation_id, 20, room)
        assert (len(history.messages), history.left_out) == (2 * turns, 4 - turns)
        assert sum(map(len, texts(history))) <= room


@pytest.mark.parametrize(("question", "answer"), [(5_000, 7_000), (20, 7_000), (5_000, 20)])
def test_the_newest_turn_is_given_cut_with_a_mark_when_it_alone_is_too_large(
    database: Database, store: Store, conversation_id: str, question: int, answer: int
) -> None:
    say(database, conversation_id, "old", "old")
    say(database, conversation_id, "问" * question, "答" * answer)
    history = load_history(database, "", conversation_id, 20, 1000)
    assert [message.role for message in history.messages] == ["user", "assistant"]
    assert (history.left_out, history.place.turn) == (1, 3)
    assert 900 < sum(map(len, texts(history))) <= 1000
    for text, whole in zip(texts(history), ("问" * question, "答" * answer), strict=True):
        kept = text.partition("\n")[0]
        assert whole.startswith(kept)
        assert text == whole or text == f"{kept}\n[… cut: {len(whole) - len(kept)} more characters]"
    assert [len(content) for _, content in store.messages(conversation_id)] == [3, 3, question, answer]


def test_a_message_of_megabytes_is_not_read_whole_for_a_small_window(
    database: Database, store: Store, conversation_id: str
) -> None:
    say(database, conversation_id, "q", "字" * 500_000)
    with database.cursor() as cursor:
        before = bytes_sent(cursor)
        load_history(database, "", conversation_id, 20, 1000)
        assert bytes_sent(cursor) - before < 10_000


def bytes_sent(cursor: Any) -> int:
    cursor.execute("SHOW SESSION STATUS LIKE 'Bytes_sent'")
    return int(cursor.fetchone()[1])


@pytest.fixture(scope="module")
def long_conversation(store: Store) -> str:
    """A conversation of 4,000 messages among shorter ones."""
    name = f"long-{uuid.uuid4()}"
    grow(store, name, 2_000)
    for number in range(30):
        grow(store, f"{name}-{number}", 20)
    return name


@pytest.mark.parametrize("analysed", [False, True], ids=["as it is", "analysed"])
def test_the_tail_of_a_long_conversation_is_found_by_key(store: Store, long_conversation: str, analysed: bool) -> None:
    if analysed:
        store.rows("ANALYZE TABLE conversations, messages")
    with contextlib.closing(store.connect(cursorclass=DictCursor)) as connection, connection.cursor() as cursor:
        cursor.execute("EXPLAIN FORMAT=TRADITIONAL " + memory.LOAD, (60_000, 20, long_conversation, ""))
        plan = list(cursor.fetchall())
    assert [(step["table"], step["type"]) for step in plan] == [("c", "const"), ("m", "range")]
    assert (plan[0]["key"], plan[1]["key"]) == ("conversations_name", "PRIMARY")
    assert int(plan[1]["rows"]) <= 80  # MariaDB gives text
    assert not any(word in (step["Extra"] or "") for step in plan for word in ("temporary", "filesort"))


def rows_read(database: Database, work: Callable[[], object]) -> int:
    """How many rows the server touches for `work`, which uses this thread's connection."""
    with database.cursor() as cursor:

        def count() -> int:
            cursor.execute("SHOW SESSION STATUS LIKE 'Handler_read%'")
            return sum(int(value) for _, value in cursor.fetchall())

        first = count()
        own = count() - first  # of the counting itself
        before = count()
        work()
        return count() - before - own


def test_no_more_rows_are_read_than_the_window_holds_however_long_the_conversation(
    database: Database, long_conversation: str
) -> None:
    for window in (0, 1, 20):
        counts = {
            rows_read(database, lambda name=name, window=window: load_history(database, "", name, window, 60_000))
            for name in (long_conversation, f"{long_conversation}-7")
        }
        assert len(counts) == 1
        assert 2 * window < counts.pop() <= 2 * window + 5


def test_a_turn_is_stored_without_reading_the_conversation(database: Database, long_conversation: str) -> None:
    place = load(database, long_conversation).place
    assert rows_read(database, lambda: save_turn(database, place, "Q", "A", new_run_id())) <= 6


def test_a_page_of_messages_is_read_by_key(database: Database, long_conversation: str) -> None:
    def work() -> None:
        memory.list_messages(database, "", long_conversation, 50, 3_000)

    assert rows_read(database, work) <= 55


def test_the_statement_of_the_course_works_as_written_and_by_key(
    database: Database, store: Store, conversation_id: str
) -> None:
    with contextlib.suppress(NotFound):
        delete_conversation(database, "", "agent001")
    say(database, conversation_id, "another", "conversation")
    say(database, "agent001", "12乘以8?", "96")
    say(database, "agent001", "再除以4?", "24.0")
    statement = "SELECT role, content FROM messages WHERE conversation_id = 'agent001' ORDER BY id ASC;"
    assert store.rows(statement) == [
        ("user", "12乘以8?"),
        ("assistant", "96"),
        ("user", "再除以4?"),
        ("assistant", "24.0"),
    ]
    with contextlib.closing(store.connect(cursorclass=DictCursor)) as connection, connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN FORMAT=TRADITIONAL {statement}")
        assert [(step["type"], step["key"]) for step in cursor.fetchall()] == [("ref", "PRIMARY")]
