"""Text that goes out and is kept: made harmless, cut without breaking a character, made into a title."""

import re
import unicodedata

TITLE_CHARS = 60


def join_halves(text: str) -> str:
    """Two surrogates in a row become the character whose halves they are."""
    return re.sub(
        "[\ud800-\udbff][\udc00-\udfff]", lambda pair: pair[0].encode("utf-16", "surrogatepass").decode("utf-16"), text
    )


def clean_text(text: str) -> str:
    """Text that every JSON reader and MySQL take: lone surrogates and NUL become U+FFFD."""
    return re.sub("[\ud800-\udfff\0]", "\ufffd", join_halves(text))


def is_blank(text: str) -> bool:
    """Whether there is nothing in it to see: white space, control and format characters only."""
    return all(unicodedata.category(character)[0] in "ZC" for character in text)


def cut_text(text: str, limit: int) -> str:
    """At most `limit` characters, and a word about the rest."""
    return text if len(text) <= limit else f"{text[:limit]}\n[cut here: {len(text) - limit} more characters]"


def whole_characters(text: str, at: int) -> int:
    """The last position up to `at` that splits no emoji sequence, flag or combined character."""

    def joins(position: int) -> bool:
        before, after = text[position - 1], text[position]
        flags = 0
        while position - 1 - flags >= 0 and "\U0001f1e6" <= text[position - 1 - flags] <= "\U0001f1ff":
            flags += 1
        return (
            before == "\u200d"
            or after == "\u200d"
            or unicodedata.category(after).startswith("M")
            or "\U0001f3fb" <= after <= "\U0001f3ff"  # tones of skin
            or "\U000e0020" <= after <= "\U000e007f"  # tags: the flags of England, Scotland and Wales
            or "\u1160" <= after <= "\u11ff"  # the further letters of a Hangul syllable
            or ("\U0001f1e6" <= after <= "\U0001f1ff" and flags % 2 == 1)
        )

    if at >= len(text):
        return len(text)
    position = at
    while position > 0 and joins(position):
        position -= 1
    return position or at  # one endless sequence: cut it all the same


def title_of(question: str) -> str:
    """The first line of a question, short enough for a list."""
    line = next((line for line in question.split("\n") if line.strip()), "").strip()
    end = whole_characters(line, TITLE_CHARS)
    return line if end == len(line) else line[:end].rstrip() + "…"
