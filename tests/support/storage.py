"""What the tests of `memory.py` say, load and look for."""

import contextlib

from hypothesis import strategies as st

from db import Database
from memory import History, Place, load_history, save_turn
from run import new_run_id
from shapes import conversation_name

EVERYTHING = 1000, 1_000_000  # a window that leaves nothing out


def load(database: Database, conversation_id: str, owner: str = "") -> History:
    return load_history(database, owner, conversation_id, *EVERYTHING)


def say(database: Database, conversation_id: str, question: str = "Q", answer: str = "A", owner: str = "") -> Place:
    """One more turn; where it went."""
    place = load(database, conversation_id, owner).place
    save_turn(database, place, question, answer, new_run_id())
    return place


def texts(history: History) -> list[str]:
    return [message.content for message in history.messages]


def is_a_name(text: str) -> bool:
    with contextlib.suppress(ValueError):
        return 1 <= len(text) <= 100 and conversation_name(text) == text
    return False


names = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=100).filter(is_a_name)
