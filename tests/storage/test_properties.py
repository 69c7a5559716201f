"""What holds for any texts and any order of writes."""

import unicodedata
import uuid
from collections.abc import Callable
from itertools import accumulate
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

import memory
from db import Database
from memory import fit
from tests.support.storage import is_a_name, load, names, say, texts
from text import TITLE_CHARS, title_of, whole_characters

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
