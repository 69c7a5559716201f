"""Conversations and messages: history in, turn out. The only code that touches the two tables.

Plain functions that block; they run in a database thread (`await database.run(load_history, …)`). The conversation's
row is the judge of everything: a turn is stored by moving its `turns` on by one, and whoever finds it moved, or gone,
has lost.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import pymysql
from pymysql.cursors import Cursor

from db import Database, error_number
from errors import NotFound, TurnConflict
from text import title_of, whole_characters

Also = Callable[[Cursor], None]
Forget = Callable[[Cursor, str, str], None]  # cursor, owner, conversation_id

CUT = "\n[… cut: {left} more characters]"
DUPLICATE = 1062


@dataclass(frozen=True)
class Message:
    """One stored row, or what the model is given of it."""

    role: Literal["user", "assistant"]
    content: str

    def as_dict(self) -> dict[str, Any]:
        """In the wire format of the model. Only role and content ever leave the database for the model."""
        return {"role": self.role, "content": self.content}


@dataclass(frozen=True)
class Place:
    """Where the next turn of a conversation goes. key: `conversations.id`, None where there is no such row yet."""

    owner: str
    conversation_id: str
    key: int | None
    turn: int

    def rows(self, question: str, answer: str, run_id: str) -> list[tuple[Any, ...]]:
        """The two messages of the turn as rows of `messages`."""
        at = (self.conversation_id, self.owner)
        return [
            (*at, 2 * self.turn - 1, "user", question, run_id),
            (*at, 2 * self.turn, "assistant", answer, run_id),
        ]


@dataclass(frozen=True)
class History:
    """The newest whole turns, oldest first, and the place after them. left_out: turns stored but not given."""

    messages: list[Message]
    place: Place
    left_out: int = 0


# ---------------------------------------------------------------------------------------- load

# `conversations` is found by its unique key, so `turns` is a constant by the time `messages` is read: one range of the
# primary key, however long the conversation. LEFT bounds what a row of the tail can weigh. We sort the few rows
# ourselves: an ORDER BY across the join makes the server copy them into a temporary table.
LOAD = """
SELECT c.id, c.turns, m.id, m.role, LEFT(m.content, %s), CHAR_LENGTH(m.content)
FROM conversations AS c
LEFT JOIN messages AS m
  ON m.conversation_id = c.conversation_id AND m.owner = c.owner
  AND m.id > 2 * c.turns - 2 * %s AND m.id <= 2 * c.turns
WHERE c.conversation_id = %s AND c.owner = %s
"""


def load_history(database: Database, owner: str, conversation_id: str, max_turns: int, max_chars: int) -> History:
    """The tail of a conversation, in one statement. An unknown conversation is an empty one; nothing is created.

    max_turns, max_chars: the window. The newest turn is always given, cut with a mark if it alone is larger.
    """
    rows = database.read(LOAD, (max_chars, max_turns, conversation_id, owner))
    if not rows:
        return History([], Place(owner, conversation_id, None, 1))
    key, turns = rows[0][:2]
    stored = sorted((row[2:] for row in rows if row[2] is not None), reverse=True)
    newest_first = [(role, text, length) for _, role, text, length in stored]
    messages = fit(newest_first, max_chars)
    place = Place(owner, conversation_id, key, turns + 1)
    return History(messages, place, left_out=turns - len(messages) // 2)


def fit(newest_first: list[tuple[Literal["user", "assistant"], str, int]], max_chars: int) -> list[Message]:
    """Whole turns from the newest back, as long as they fit into `max_chars`; oldest first.

    newest_first: (role, text, length in characters); text may be shorter than length already.
    """
    kept: list[Message] = []
    left = max_chars
    for (second, answer, answer_length), (first, question, question_length) in zip(
        newest_first[::2], newest_first[1::2], strict=False
    ):
        if (first, second) != ("user", "assistant"):
            break  # somebody changed the table by hand; what is whole is used
        if answer_length + question_length > left:
            if not kept:  # the newest turn alone is too large: half the room for each, more where the other is short
                room = max(max_chars // 2, max_chars - answer_length)
                question = cut(question, question_length, room)
                answer = cut(answer, answer_length, max_chars - min(question_length, room))
                kept = [Message("assistant", answer), Message("user", question)]
            break
        left -= answer_length + question_length
        kept += [Message("assistant", answer), Message("user", question)]
    return kept[::-1]


def cut(text: str, length: int, room: int) -> str:
    """`text` within `room` characters, with a mark that says how much is missing. length: of the whole text."""
    if length <= room:
        return text
    kept = text[: whole_characters(text, max(room - len(CUT) - 10, 1))]
    return kept + CUT.format(left=length - len(kept))


# ---------------------------------------------------------------------------------------- save

INSERT_CONVERSATION = "INSERT INTO conversations (owner, conversation_id, turns, title) VALUES (%s, %s, 1, %s)"
ADVANCE_CONVERSATION = (
    "UPDATE conversations SET turns = %s, updated_at = CURRENT_TIMESTAMP(6) WHERE id = %s AND turns = %s"
)
# A conversation that was made before anything was said has no title yet.
FIRST_TITLE = "UPDATE conversations SET title = %s WHERE id = %s AND title IS NULL"
INSERT_MESSAGES = (
    "INSERT INTO messages (conversation_id, owner, id, role, content, run_id) "
    "VALUES (%s, %s, %s, %s, %s, %s), (%s, %s, %s, %s, %s, %s)"
)
WHOSE_TURN = "SELECT run_id FROM messages WHERE conversation_id = %s AND owner = %s AND id = %s"


def save_turn(
    database: Database, place: Place, question: str, answer: str, run_id: str, also: Sequence[Also] = ()
) -> None:
    """Store the two messages of a turn at `place`, both or neither; returns only when they are safe on disk.

    also: what the same transaction has to do besides. Tried again for some seconds after a deadlock, a lock wait or a
    lost connection. Raises TurnConflict when the place is taken or gone, StoreUnavailable when nobody can say.
    """

    def save(commit_lost: bool) -> None:
        if commit_lost and stored_by(database, place) == run_id:
            return
        try:
            write_turn(database, place, question, answer, run_id, also)
        except TurnConflict:
            # A COMMIT whose reply was lost may still have been on its way when we looked.
            if not commit_lost or stored_by(database, place) != run_id:
                raise

    database.again(save)


def write_turn(
    database: Database, place: Place, question: str, answer: str, run_id: str, also: Sequence[Also] = ()
) -> None:
    """One try: the conversation's row first, always, for it is the lock and the only judge; then the messages."""
    with database.transaction() as cursor:
        if place.key is None:
            take(cursor, INSERT_CONVERSATION, (place.owner, place.conversation_id, title_of(question)))
        elif not cursor.execute(ADVANCE_CONVERSATION, (place.turn, place.key, place.turn - 1)):
            raise TurnConflict
        elif place.turn == 1:
            cursor.execute(FIRST_TITLE, (title_of(question), place.key))
        first, second = place.rows(question, answer, run_id)
        take(cursor, INSERT_MESSAGES, first + second)
        for more in also:
            more(cursor)


def take(cursor: Cursor, insert: str, row: tuple[Any, ...]) -> None:
    """Insert at a place that should be free. Raises TurnConflict where a row stands there, even one made by hand."""
    try:
        cursor.execute(insert, row)
    except pymysql.err.IntegrityError as error:
        if error_number(error) == DUPLICATE:
            raise TurnConflict from error
        raise


def stored_by(database: Database, place: Place) -> str | None:
    """The run that stored the turn at `place`, if one did."""
    rows = database.read(WHOSE_TURN, (place.conversation_id, place.owner, 2 * place.turn))
    return rows[0][0] if rows else None


# ---------------------------------------------------------------------------------------- look, change, delete

CONVERSATION = "SELECT id, conversation_id, title, turns, metadata, created_at, updated_at FROM conversations"
MESSAGE = "SELECT id, role, content, run_id, created_at FROM messages"


def as_time(stored: datetime) -> datetime:
    """The server gives times without a zone; they are UTC."""
    return stored.replace(tzinfo=UTC)


def conversation(row: tuple[Any, ...]) -> dict[str, Any]:
    """A row of `conversations` as callers see it."""
    _, conversation_id, title, turns, metadata, created_at, updated_at = row
    return {
        "conversation_id": conversation_id,
        "title": title,
        "turns": turns,
        "metadata": metadata,
        "created_at": as_time(created_at),
        "updated_at": as_time(updated_at),
    }


def list_conversations(
    database: Database, owner: str, limit: int, before: int | None
) -> tuple[list[dict[str, Any]], int | None]:
    """The owner's conversations, newest first: a page and the mark of the next, None at the end.

    before: the mark of the page before. It is the id of a row: conversations that come or go change no other page.
    """
    before = before if before is not None else 1 << 62
    rows = database.read(
        CONVERSATION + " WHERE owner = %s AND id < %s ORDER BY id DESC LIMIT %s", (owner, before, limit + 1)
    )
    return [conversation(row) for row in rows[:limit]], rows[limit - 1][0] if len(rows) > limit else None


def get_conversation(database: Database, owner: str, conversation_id: str) -> dict[str, Any]:
    """One conversation. Raises NotFound."""
    rows = database.read(CONVERSATION + " WHERE conversation_id = %s AND owner = %s", (conversation_id, owner))
    if not rows:
        raise NotFound(what="conversation")
    return conversation(rows[0])


def message(row: tuple[Any, ...]) -> dict[str, Any]:
    """A row of `messages` as callers see it."""
    return dict(zip(("id", "role", "content", "run_id", "created_at"), (*row[:4], as_time(row[4])), strict=True))


def list_messages(
    database: Database, owner: str, conversation_id: str, limit: int, after: int, newest_first: bool = False
) -> tuple[list[dict[str, Any]], int | None]:
    """Messages in order, from the one after `after`: a page and the mark of the next. Raises NotFound."""
    beyond = "id < %s ORDER BY id DESC" if newest_first else "id > %s ORDER BY id"
    rows = database.read(
        f"{MESSAGE} WHERE conversation_id = %s AND owner = %s AND {beyond} LIMIT %s",
        (conversation_id, owner, after, limit + 1),
    )
    if not rows:
        get_conversation(database, owner, conversation_id)
    return [message(row) for row in rows[:limit]], rows[limit - 1][0] if len(rows) > limit else None


def messages_of_run(database: Database, owner: str, conversation_id: str, run_id: str) -> list[dict[str, Any]]:
    """The two messages that a run stored; none where it stored none. Looks from the newest turn back."""
    newest = database.read(
        f"{MESSAGE} WHERE conversation_id = %s AND owner = %s ORDER BY id DESC LIMIT 2", (conversation_id, owner)
    )
    found = [row for row in newest if row[3] == run_id] or database.read(
        f"{MESSAGE} WHERE conversation_id = %s AND owner = %s AND run_id = %s ORDER BY id DESC LIMIT 2",
        (conversation_id, owner, run_id),
    )
    return [message(row) for row in reversed(found)]


def create_conversation(database: Database, owner: str, conversation_id: str, metadata: str | None) -> None:
    """A conversation in which nothing has been said yet, under a name that nobody has. metadata: a JSON object."""
    statement = (  # after a lost reply it may be there already
        "INSERT INTO conversations (owner, conversation_id, turns, metadata) VALUES (%s, %s, 0, %s) "
        "ON DUPLICATE KEY UPDATE owner = owner"
    )

    def create(_: bool) -> None:
        with database.cursor() as cursor:
            cursor.execute(statement, (owner, conversation_id, metadata))

    database.again(create)


def rename_conversation(database: Database, owner: str, conversation_id: str, title: str | None) -> dict[str, Any]:
    """Give a conversation another title. Raises NotFound."""
    return change_conversation(database, owner, conversation_id, "title", title)


def change_conversation(
    database: Database, owner: str, conversation_id: str, column: Literal["title", "metadata"], value: str | None
) -> dict[str, Any]:
    """Change what a caller may of a conversation. Raises NotFound."""
    statement = (
        f"UPDATE conversations SET {column} = %s, updated_at = CURRENT_TIMESTAMP(6) "
        "WHERE conversation_id = %s AND owner = %s"
    )

    def change(_: bool) -> None:
        with database.cursor() as cursor:
            cursor.execute(statement, (value, conversation_id, owner))

    database.again(change)
    return get_conversation(database, owner, conversation_id)


def delete_conversation(
    database: Database, owner: str, conversation_id: str, also: Sequence[Forget] = (), most_turns: int = 1 << 31
) -> None:
    """Remove a conversation with all its messages, which go by the foreign key. Raises NotFound.

    also: what else the same transaction has to remove or empty. most_turns: one with more is left alone, as NotFound.
    """
    statement = "DELETE FROM conversations WHERE conversation_id = %s AND owner = %s AND turns <= %s"

    def delete(commit_lost: bool) -> None:
        with database.transaction() as cursor:
            if not cursor.execute(statement, (conversation_id, owner, most_turns)) and not commit_lost:
                raise NotFound(what="conversation")
            for more in also:
                more(cursor, owner, conversation_id)

    database.again(delete)
