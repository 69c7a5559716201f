"""What MySQL holds of a conversation."""

import contextlib

from tests.conftest import Store


def pairs(store: Store, conversation_id: str, owner: str = "") -> list[tuple[str, str]]:
    """The turns that MySQL holds at one moment: (question, answer). Fails if one of them is not whole."""
    at = "WHERE conversation_id = %s AND owner = %s"
    with contextlib.closing(store.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        cursor.execute(f"SELECT turns FROM conversations {at}", (conversation_id, owner))
        turns = list(cursor.fetchall())
        cursor.execute(f"SELECT id, role, content, run_id FROM messages {at} ORDER BY id", (conversation_id, owner))
        rows = list(cursor.fetchall())
    assert turns == ([(len(rows) // 2,)] if rows else [])
    assert [(number, role) for number, role, *_ in rows] == [
        (number, "user" if number % 2 else "assistant") for number in range(1, 2 * (len(rows) // 2) + 1)
    ]
    runs = [run_id for *_, run_id in rows]
    assert runs[::2] == runs[1::2]
    assert len(set(runs)) == len(runs) // 2
    texts = [content for _, _, content, _ in rows]
    return list(zip(texts[::2], texts[1::2], strict=True))
