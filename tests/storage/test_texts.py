"""Ids and texts come back as they were given, and the tables refuse what is none."""

import pymysql
import pytest

import memory
from db import Database
from errors import NotFound
from memory import delete_conversation
from tests.conftest import Store
from tests.support.storage import load, say, texts

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
