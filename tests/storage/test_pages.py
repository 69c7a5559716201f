"""Lists in pages, while others write."""

from collections.abc import Callable
from typing import Any

import pytest

import memory
from db import Database
from errors import NotFound
from memory import delete_conversation
from tests.support.storage import say


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
