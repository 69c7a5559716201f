"""`memory.py` on the real server: what is stored and read back, who wins, and what a turn costs in a long conversation.

Every test runs on the server that is here and, where Docker is, on the MySQL that most people have.
"""

import contextlib
import gc
import logging
import threading
import time
import unicodedata
import uuid
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from typing import Any

import pymysql
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pymysql.cursors import DictCursor

import memory
from config import Settings
from db import Database
from dev.database import IMAGE, use_container
from dev.mariadb_program import NotInstalled
from errors import NotFound, TurnConflict
from memory import History, Message, Place, delete_conversation, fit, load_history, save_turn
from run import new_run_id
from shapes import conversation_name
from tests.conftest import Store, make_tables, settings_of
from text import TITLE_CHARS, title_of, whole_characters

EVERYTHING = 1000, 1_000_000  # a window that leaves nothing out


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """No warnings of packages that are not ours, nor of what they leave behind."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable()  # a record that is kept for a report keeps its error, and that an open socket
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)
        for _ in range(5):  # one that is under way in another thread makes ours return at once
            gc.collect()
            time.sleep(0.01)


@contextlib.contextmanager
def container_store() -> Iterator[Store]:
    """A store in Docker; skips where there is none."""
    running, chosen, why = contextlib.ExitStack(), None, ""
    with quietly():
        try:
            chosen = use_container(running)
        except NotInstalled as error:
            why = str(error)
    if chosen is None:
        pytest.skip(why)
    try:
        found = Store(settings_of(dict(chosen.settings)))
        make_tables(found)
        yield found
    finally:
        with quietly():
            running.close()


@pytest.fixture(scope="module", params=["here", IMAGE])
def store(request: pytest.FixtureRequest, store: Store) -> Iterator[Store]:
    """The server that is here, and the other one."""
    if request.param == "here":
        yield store
        return
    with container_store() as other:
        yield other


@pytest.fixture(scope="module")
def database(store: Store) -> Iterator[Database]:
    """The service's way to the store, used in the test's own thread."""
    with contextlib.closing(Database(Settings(**store.settings))) as database:
        yield database


@pytest.fixture
def owner() -> str:
    """An owner with nothing yet."""
    return f"owner-{uuid.uuid4()}"


def load(database: Database, conversation_id: str, owner: str = "") -> History:
    return load_history(database, owner, conversation_id, *EVERYTHING)


def say(database: Database, conversation_id: str, question: str = "Q", answer: str = "A", owner: str = "") -> Place:
    """One more turn; where it went."""
    place = load(database, conversation_id, owner).place
    save_turn(database, place, question, answer, new_run_id())
    return place


def texts(history: History) -> list[str]:
    return [message.content for message in history.messages]


def grow(store: Store, conversation_id: str, turns: int, text: str = "x") -> None:
    """A conversation of that length, made by hand."""
    rows = [(conversation_id, at, "user" if at % 2 else "assistant", f"{text} {at}") for at in range(1, 2 * turns + 1)]
    with contextlib.closing(store.connect()) as connection, connection.cursor() as cursor:
        connection.begin()
        cursor.execute("INSERT INTO conversations (conversation_id, turns) VALUES (%s, %s)", (conversation_id, turns))
        cursor.executemany("INSERT INTO messages (conversation_id, id, role, content) VALUES (%s, %s, %s, %s)", rows)
        connection.commit()


# ---------------------------------------------------------------------------------------- load and save


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


# ---------------------------------------------------------------------------------------- who wins


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


# ---------------------------------------------------------------------------------------- the window


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


# ---------------------------------------------------------------------------------------- by key


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


# ---------------------------------------------------------------------------------------- ids and texts

ALIKE = [
    ("Room-1", "room-1"),
    ("café", "cafe"),
    ("é", "e"),
    ("\u00e9", "e\u0301"),
    ("😀", "😁"),
    ("straße", "strasse"),
    ("ß", "ss"),
    ("1", "１"),
    ("a", "a\u200b"),
    ("İ", "i"),
    ("か", "カ"),
    ("a", "a\u3000b"),
    ("%", "abc"),
    ("a_c", "abc"),
    ("a\\", "a"),
    ("0", "x"),
    ("1", "01"),
    ("1", "1.0"),
    ("null", "NULL"),
]


@pytest.mark.parametrize(("one", "other"), ALIKE)
def test_ids_that_only_look_alike_are_different_conversations(
    database: Database, store: Store, owner: str, one: str, other: str
) -> None:
    say(database, one, "of one", "of one", owner)
    assert load(database, other, owner).place.key is None
    say(database, other, "of the other", "of the other", owner)
    assert set(texts(load(database, one, owner))) == {"of one"}
    assert set(texts(load(database, other, owner))) == {"of the other"}
    delete_conversation(database, owner, other)
    assert store.messages(one, owner) == [("user", "of one"), ("assistant", "of one")]


@pytest.mark.parametrize(("one", "other"), ALIKE)
def test_owners_that_only_look_alike_are_different_owners(
    database: Database, conversation_id: str, one: str, other: str
) -> None:
    say(database, conversation_id, "of one", "of one", one)
    with pytest.raises(NotFound):
        memory.list_messages(database, other, conversation_id, 10, 0)
    with pytest.raises(NotFound):
        memory.rename_conversation(database, other, conversation_id, "mine now")
    with pytest.raises(NotFound):
        delete_conversation(database, other, conversation_id)
    say(database, conversation_id, "of the other", "of the other", other)
    assert set(texts(load(database, conversation_id, one))) == {"of one"}
    listed, _ = memory.list_conversations(database, other, 200, None)
    assert [row["title"] for row in listed if row["conversation_id"] == conversation_id] == ["of the other"]


@pytest.mark.parametrize(
    "name",
    ["'; DROP TABLE messages; -- ", "' OR '1'='1", "%s", "%(a)s", "%", '"', "\\", "a\\'b", "`", "../x", "a/b", "{}"],
)
def test_an_id_is_only_text_whatever_it_says(database: Database, store: Store, owner: str, name: str) -> None:
    name = name.strip()
    say(database, name, name, name, owner)
    assert texts(load(database, name, owner)) == [name, name]
    assert memory.rename_conversation(database, owner, name, name)["title"] == name
    assert store.rows("SELECT conversation_id FROM conversations WHERE owner = %s", owner) == [(name,)]
    delete_conversation(database, owner, name)
    assert load(database, name, owner).place.key is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \t\r\n ",
        "\0 and \x1a and \x08",
        "back\\slash \\' \\\" \\n %s %d %% %(x)s",
        "👨‍👩‍👧‍👦 🇨🇳 𠮷 \u202eabc\u202c אב",
        "\ufeff\u2028\u2029\u0085\uffff\U0010ffff",
        "é e\u0301 Å Å",
        "trailing space ",
        "字" * 200_000,
    ],
    ids=["empty", "blank", "control", "escapes", "emoji", "odd", "forms", "space", "long"],
)
def test_a_text_comes_back_exactly_as_it_went_in(
    database: Database, store: Store, conversation_id: str, text: str
) -> None:
    say(database, conversation_id, text, text + "!")
    assert texts(load(database, conversation_id)) == [text, text + "!"]
    page, _ = memory.list_messages(database, "", conversation_id, 10, 0)
    assert [row["content"] for row in page] == [text, text + "!"]
    assert store.messages(conversation_id) == [("user", text), ("assistant", text + "!")]


# ---------------------------------------------------------------------------------------- what the tables refuse


@pytest.mark.parametrize(
    ("number", "role"),
    [(3, "assistant"), (4, "user"), (3, "system"), (4, "tool"), (3, "User"), (3, ""), (4, "function")],
)
def test_the_tables_refuse_a_role_that_is_not_in_turn(
    database: Database, store: Store, conversation_id: str, number: int, role: str
) -> None:
    say(database, conversation_id)
    with pytest.raises(pymysql.err.MySQLError) as refused:
        store.rows(
            "INSERT INTO messages (conversation_id, id, role, content) VALUES (%s, %s, %s, 'x')",
            conversation_id,
            number,
            role,
        )
    assert refused.value.args[0] in (4025, 3819)  # a CHECK that is violated, on MariaDB and on MySQL
    assert len(store.messages(conversation_id)) == 2


def test_the_tables_refuse_a_message_without_a_conversation_and_a_second_one_of_the_same_number(
    database: Database, store: Store, conversation_id: str
) -> None:
    insert = "INSERT INTO messages (conversation_id, owner, id, role, content) VALUES (%s, %s, 1, 'user', 'x')"
    for owner in ("", "somebody else"):
        with pytest.raises(pymysql.err.IntegrityError) as refused:
            store.rows(insert, conversation_id, owner)
        assert refused.value.args[0] == 1452
        say(database, conversation_id)  # which only helps its own owner
    with pytest.raises(pymysql.err.IntegrityError) as refused:
        store.rows(insert, conversation_id, "")
    assert refused.value.args[0] == 1062


def test_the_messages_go_with_their_conversation_and_no_others_do(
    database: Database, store: Store, conversation_id: str
) -> None:
    for owner in ("", "ada", "bob"):
        say(database, conversation_id, f"of {owner}", "A", owner)
    delete_conversation(database, "ada", conversation_id)
    left = store.rows("SELECT owner, id FROM messages WHERE conversation_id = %s ORDER BY owner, id", conversation_id)
    assert left == [("", 1), ("", 2), ("bob", 1), ("bob", 2)]
    with pytest.raises(NotFound):
        delete_conversation(database, "ada", conversation_id)


def test_every_table_and_every_column_says_what_it_is_for(store: Store) -> None:
    tables = store.rows(
        "SELECT table_name, table_comment FROM information_schema.tables WHERE table_schema = DATABASE()"
    )
    columns = store.rows(
        "SELECT table_name, column_name, column_comment FROM information_schema.columns WHERE table_schema = DATABASE()"
    )
    assert {"conversations", "messages", "schema_migrations"} <= {name for name, _ in tables}
    assert [row for row in [*tables, *columns] if not row[-1].strip()] == []


# ---------------------------------------------------------------------------------------- pages


def all_pages(page: Callable[[int | None], tuple[list[dict[str, Any]], int | None]]) -> list[list[dict[str, Any]]]:
    pages, mark = [], None
    for _ in range(50):
        rows, mark = page(mark)
        pages.append(rows)
        if mark is None:
            return pages
    raise AssertionError("pages without end")


def test_pages_of_conversations_hold_each_one_once_newest_first(database: Database, owner: str) -> None:
    names = [f"c{number}" for number in range(7)]
    for name in names:
        say(database, name, owner=owner)
    say(database, "c0", owner=owner)  # a new turn changes no order
    for limit in (1, 3, 7, 200):
        pages = all_pages(lambda mark, limit=limit: memory.list_conversations(database, owner, limit, mark))
        assert [row["conversation_id"] for page in pages for row in page] == names[::-1]
        assert all(0 < len(page) <= limit for page in pages)
    assert memory.list_conversations(database, f"not {owner}", 50, None) == ([], None)


def test_conversations_that_come_and_go_between_pages_move_no_others(database: Database, owner: str) -> None:
    for number in range(9):
        say(database, f"c{number}", owner=owner)
    first, mark = memory.list_conversations(database, owner, 3, None)
    say(database, "new", owner=owner)  # before what was shown
    delete_conversation(database, owner, "c6")  # the last that was shown: where the next page begins
    delete_conversation(database, owner, "c8")
    delete_conversation(database, owner, "c4")  # not shown yet
    say(database, "c1", owner=owner)
    second, mark = memory.list_conversations(database, owner, 3, mark)
    third, end = memory.list_conversations(database, owner, 3, mark)
    shown = [[row["conversation_id"] for row in page] for page in (first, second, third)]
    assert shown == [["c8", "c7", "c6"], ["c5", "c3", "c2"], ["c1", "c0"]]
    assert end is None


def test_messages_that_come_between_pages_come_at_the_end(database: Database, conversation_id: str) -> None:
    for _ in range(3):
        say(database, conversation_id)
    first, mark = memory.list_messages(database, "", conversation_id, 4, 0)
    say(database, conversation_id)
    assert mark is not None
    second, end = memory.list_messages(database, "", conversation_id, 4, mark)
    assert [row["id"] for row in first + second] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [row["role"] for row in first + second] == ["user", "assistant"] * 4
    assert end is None
    assert memory.list_messages(database, "", conversation_id, 4, 8) == ([], None)
    delete_conversation(database, "", conversation_id)
    with pytest.raises(NotFound):
        memory.list_messages(database, "", conversation_id, 4, mark)


def test_a_title_is_the_beginning_of_the_first_question_until_it_is_changed(
    database: Database, conversation_id: str
) -> None:
    say(database, conversation_id, "\n  What is 2 + 3?\nPlease.", "5")
    say(database, conversation_id, "Another question", "yes")
    assert memory.get_conversation(database, "", conversation_id)["title"] == "What is 2 + 3?"
    renamed = memory.rename_conversation(database, "", conversation_id, "算术 🙂")
    assert renamed["title"] == "算术 🙂"
    assert renamed == memory.get_conversation(database, "", conversation_id)
    say(database, conversation_id, "A third", "yes")
    assert memory.get_conversation(database, "", conversation_id)["title"] == "算术 🙂"
    assert memory.rename_conversation(database, "", conversation_id, None)["title"] is None


# ---------------------------------------------------------------------------------------- sessions of our own

HOSTILE = {
    "sql_mode": "''",
    "time_zone": "'+09:30'",
    "character_set_server": "latin1",
    "collation_server": "latin1_swedish_ci",
    "wait_timeout": "3",
    "innodb_lock_wait_timeout": "1000",
    "lock_wait_timeout": "1000",
    "init_connect": "'SET autocommit = 0, NAMES latin1'",
    "completion_type": "1",
    "foreign_key_checks": "0",
    "sql_select_limit": "1",
}


@pytest.fixture
def hostile_store(fragile_store: Store) -> Iterator[Store]:
    """A server whose defaults are not what anybody would want."""
    assert fragile_store.server
    with contextlib.closing(fragile_store.server.admin()) as admin, admin.cursor() as cursor:
        usual = {}
        for name, value in HOSTILE.items():
            cursor.execute(f"SELECT @@GLOBAL.{name}")
            usual[name] = cursor.fetchone()[0]
            cursor.execute(f"SET GLOBAL {name} = {value}")
        cursor.execute("SET GLOBAL TRANSACTION ISOLATION LEVEL SERIALIZABLE, READ ONLY")
        yield fragile_store
        cursor.execute("SET GLOBAL TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ WRITE")
        for name, value in usual.items():
            cursor.execute(f"SET GLOBAL {name} = %s", (value,))


def test_the_session_is_ours_whatever_the_servers_defaults_are(hostile_store: Store) -> None:
    names = (
        "time_zone",
        "tx_isolation",
        "transaction_isolation",
        "tx_read_only",
        "transaction_read_only",
        "autocommit",
        "character_set_client",
        "character_set_results",
        "character_set_connection",
        "collation_connection",
        "innodb_lock_wait_timeout",
        "foreign_key_checks",
        "completion_type",
    )
    with contextlib.closing(Database(Settings(**hostile_store.settings))) as database:
        rows = database.read(f"SHOW SESSION VARIABLES WHERE Variable_name IN {names}")
        found = dict(rows)
        modes = str(database.read("SELECT @@sql_mode")[0][0]).split(",")
        wait, lock_wait = database.read("SELECT @@wait_timeout, @@lock_wait_timeout")[0]
    # MySQL and MariaDB name these two differently, some versions both ways.
    assert {found.pop(name, None) for name in ("tx_isolation", "transaction_isolation")} - {None} == {"READ-COMMITTED"}
    assert {found.pop(name, None) for name in ("tx_read_only", "transaction_read_only")} - {None} == {"OFF"}
    assert found == {
        "time_zone": "+00:00",
        "autocommit": "ON",
        "character_set_client": "utf8mb4",
        "character_set_results": "utf8mb4",
        "character_set_connection": "utf8mb4",
        "collation_connection": "utf8mb4_bin",
        "innodb_lock_wait_timeout": "3",
        "foreign_key_checks": "ON",
        "completion_type": "NO_CHAIN",
    }
    assert {"STRICT_ALL_TABLES", "NO_ZERO_DATE"} <= set(modes)
    assert wait >= 300
    assert lock_wait <= 10


def test_turns_are_kept_and_deleted_right_whatever_the_servers_defaults_are(
    hostile_store: Store, conversation_id: str
) -> None:
    with contextlib.closing(Database(Settings(**hostile_store.settings))) as database:
        for number in (1, 2):
            say(database, conversation_id, f"😀 {number}", "𠮷")
        assert texts(load(database, conversation_id)) == ["😀 1", "𠮷", "😀 2", "𠮷"]
        created = memory.get_conversation(database, "", conversation_id)["created_at"]
        assert abs(created - datetime.now(UTC)) < timedelta(minutes=5)
        with pytest.raises(pymysql.err.DataError):
            save_turn(database, load(database, conversation_id).place, "Q", "A", "r" * 37)
        delete_conversation(database, "", conversation_id)
        assert count_messages(hostile_store, conversation_id) == 0  # seen by others at once, so it is committed
        say(database, conversation_id, "new", "new")
        assert count_messages(hostile_store, conversation_id) == 2


def count_messages(store: Store, conversation_id: str) -> int:
    """As root, who is spared `init_connect`."""
    assert store.server
    with contextlib.closing(store.server.admin()) as admin, admin.cursor() as cursor:
        admin.select_db(store.settings["db_name"])
        cursor.execute("SELECT COUNT(*) FROM messages WHERE conversation_id = %s", (conversation_id,))
        return int(cursor.fetchone()[0])


# ---------------------------------------------------------------------------------------- properties

bounded = settings(deadline=None, max_examples=60, database=None)
with_database = settings(deadline=None, max_examples=20, database=None)

# What is one character to people, though it is several to Python.
SEQUENCES = [
    "👨‍👩‍👧‍👦",
    "🇨🇳",
    "🇩🇪",
    "👍🏽",
    "❤️‍🔥",
    "1️⃣",
    "🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",
    "e\u0301",
    "a\u0323\u0302",
    "\u0e01\u0e34",
    "\u1112\u1161\u11ab",
    "𠮷",
    "字",
    "x",
    " ",
]
pieces = st.lists(st.sampled_from(SEQUENCES), max_size=40)
anything = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


@bounded
@given(pieces)
@example(SEQUENCES)
def test_a_text_is_cut_at_the_last_place_that_splits_no_sequence(pieces: list[str]) -> None:
    text, borders = "".join(pieces), [0, *accumulate(map(len, pieces))]
    for at in range(len(text) + 2):
        last = max(border for border in borders if border <= at)
        end = whole_characters(text, at)
        assert end == last or (last == 0 and end == at), f"{text[:end]!r} is cut within a sequence"


@bounded
@given(pieces)
@example([*SEQUENCES, *SEQUENCES[:6]])
@example(["x"] * 50 + SEQUENCES[6:7] * 3)
def test_a_title_ends_with_a_whole_character_and_is_short(pieces: list[str]) -> None:
    line, title = "".join(pieces).strip(), title_of("".join(pieces))
    assert len(title) <= TITLE_CHARS + 1
    if title != line:
        beginnings = {"".join(pieces[:at]).strip() for at in range(len(pieces))}
        assert title.endswith("…")
        assert title[:-1] in beginnings


@bounded
@given(st.text(max_size=200))
@example("\n\n")
@example("\u200d" * 200)
def test_any_question_has_a_title_that_fits_its_column(question: str) -> None:
    assert len(title_of(question)) <= 200


@bounded
@given(st.text(max_size=200), st.integers(0, 250))
def test_cutting_any_text_gives_a_beginning_of_it_and_goes_on(text: str, at: int) -> None:
    end = whole_characters(text, at)
    assert 0 <= end <= min(at, len(text))
    assert end > 0 or at == 0 or not text


stored_turns = st.lists(st.tuples(anything, anything), max_size=6)


@bounded
@given(stored_turns, st.lists(st.integers(1, 40), min_size=12, max_size=12), st.integers(100, 900))
def test_the_history_is_the_newest_whole_turns_that_fit_and_no_fewer(
    turns: list[tuple[str, str]], factors: list[int], room: int
) -> None:
    turns = [(q * factors[2 * at], a * factors[2 * at + 1]) for at, (q, a) in enumerate(turns)]
    newest_first: list[Any] = []
    for question, answer in reversed(turns):
        newest_first += [("assistant", answer[:room], len(answer)), ("user", question[:room], len(question))]
    kept = fit(newest_first, room)
    assert [message.role for message in kept] == ["user", "assistant"] * (len(kept) // 2)
    assert sum(len(message.content) for message in kept) <= room
    assert bool(kept) == bool(turns)
    stored = [text for turn in turns for text in turn]
    if [message.content for message in kept] == stored[len(stored) - len(kept) :]:
        older = turns[: len(turns) - len(kept) // 2]
        size = sum(len(message.content) for message in kept)
        assert not older or size + sum(map(len, older[-1])) > room
        return
    assert len(kept) == 2  # only the newest turn is ever cut, and only when it is too large alone
    assert sum(map(len, turns[-1])) > room
    for message, whole in zip(kept, turns[-1], strict=True):
        beginning, mark, rest = message.content.rpartition("\n[… cut: ")
        assert message.content == whole or (
            whole.startswith(beginning) and mark and rest == f"{len(whole) - len(beginning)} more characters]"
        )


def is_a_name(text: str) -> bool:
    with contextlib.suppress(ValueError):
        return 1 <= len(text) <= 100 and conversation_name(text) == text
    return False


names = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=100).filter(is_a_name)


@with_database
@given(names, st.sampled_from([str.upper, str.lower, str.swapcase, str.title]), st.sampled_from(["NFC", "NFD", "NFKC"]))
@example("a" * 100, str.upper, "NFC")
@example("😀" * 100, str.upper, "NFC")
def test_any_name_is_a_conversation_of_its_own(
    database: Database, name: str, fold: Callable[[str], str], form: Any
) -> None:
    owner = f"owner-{uuid.uuid4()}"
    others = {fold(name), unicodedata.normalize(form, name), name + "\u00a0x", name[:-1] + "%", name[::-1]}
    distinct = [name, *sorted(other for other in others - {name} if is_a_name(other))]
    for text in distinct:
        say(database, text, text, text, owner)
    for text in distinct:
        assert texts(load(database, text, owner)) == [text, text]
    listed, _ = memory.list_conversations(database, owner, 50, None)
    assert [row["conversation_id"] for row in listed] == distinct[::-1]


@with_database
@given(st.text(max_size=300), anything)
def test_any_text_comes_back_as_it_went_in(database: Database, question: str, answer: str) -> None:
    name = str(uuid.uuid4())
    say(database, name, question, answer)
    assert texts(load(database, name)) == [question, answer]
