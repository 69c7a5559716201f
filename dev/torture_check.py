"""What must hold at the end of `dev torture`, whatever happened before: the journal against the tables."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dev.torture_callers import Asked, Journal
from dev.torture_model import answer_to

Query = Callable[[str], Sequence[Sequence[Any]]]


@dataclass(frozen=True)
class Stored:
    """A turn as the tables have it."""

    conversation: str
    turn: int
    question: str
    answer: str
    run_id: str


def violations(journal: Journal, conversations: set[str], query: Query) -> list[str]:
    """Everything that is not as it must be. query: of the service's database."""
    found: list[str] = []
    stored = read_turns(query, found)
    if strangers := {turn.conversation for turn in stored} - conversations:
        found.append(f"rows of conversations that nobody began: {sorted(strangers)[:5]}")
    found += [
        f"stored {n} times: {text[:20]}" for text, n in Counter(turn.question for turn in stored).items() if n > 1
    ]
    by_text = {turn.question: turn for turn in stored}
    found += [
        f"stored, and nobody asked it: {text[:60]!r}" for text in by_text.keys() - {a.text for a in journal.asked}
    ]
    for asked in journal.asked:
        found += check_request(asked, by_text.get(asked.text), journal)
    found += check_order(stored, journal)
    found += check_keys(journal, by_text, query)
    return found + check_runs(stored, query)


def read_turns(query: Query, found: list[str]) -> list[Stored]:
    """All turns, in order. What is no whole turn, or not where it should be, is reported."""
    counts = {name: turns for name, turns in query("SELECT conversation_id, turns FROM conversations")}
    rows: dict[str, list[Sequence[Any]]] = {name: [] for name in counts}
    for name, *row in query(
        "SELECT conversation_id, id, role, content, run_id, owner FROM messages ORDER BY conversation_id, id"
    ):
        rows.setdefault(name, []).append(row)
    stored = []
    for name, mine in rows.items():
        ids, roles = [row[0] for row in mine], [row[1] for row in mine]
        if ids != list(range(1, len(ids) + 1)) or roles != ["user", "assistant"] * (len(ids) // 2):
            found.append(f"{name}: no whole turns, or gaps: {list(zip(ids, roles, strict=True))[-6:]}")
        if counts.get(name) != len(mine) // 2:
            found.append(f"{name}: turns is {counts.get(name)}, and {len(mine)} messages are stored")
        if any(row[4] for row in mine):
            found.append(f"{name}: rows of another owner")
        for first, second in zip(mine[::2], mine[1::2], strict=False):
            if first[3] != second[3]:
                found.append(f"{name}: messages {first[0]} and {second[0]} are of different runs")
            stored.append(Stored(name, second[0] // 2, first[2], second[2], str(first[3])))
    return stored


def check_request(asked: Asked, turn: Stored | None, journal: Journal) -> list[str]:
    """One request: stored, or not, as its caller was told."""
    name = f"{asked.conversation} {asked.text[:20]}"
    mine = [one for one in journal.deletions if one.conversation == asked.conversation]
    may_be_deleted = any(one.done_by >= asked.sent_at for one in mine)
    found = []
    if turn:
        if (turn.conversation, turn.answer) != (asked.conversation, answer_to(asked.text)):
            found.append(f"{name}: stored in {turn.conversation} with the answer {turn.answer[:40]!r}")
        if asked.outcome in ("refused", "deleted"):
            found.append(f"{name}: stored, and its caller was told that it is {asked.outcome}")
        if asked.outcome == "acknowledged":
            if (turn.turn, turn.run_id) != (asked.told["turn"], asked.told["run_id"]):
                found.append(f"{name}: told turn {asked.told['turn']} of {asked.told['run_id']}, stored as {turn}")
            if any(one.began_at > asked.ended_at for one in mine):
                found.append(f"{name}: still there after its conversation was deleted")
    elif asked.outcome == "acknowledged" and not may_be_deleted:
        found.append(f"{name}: LOST: acknowledged as turn {asked.told['turn']}, and not there")
    if asked.outcome == "deleted" and not may_be_deleted:
        found.append(f"{name}: told that its conversation was deleted, and nobody did that")
    if asked.outcome == "under way" or (asked.outcome == "unknown" and asked.key):
        found.append(f"{name}: its caller never learned what became of it")
    return found


def check_order(stored: Sequence[Stored], journal: Journal) -> list[str]:
    """A turn acknowledged before another was first sent stands before it."""
    acknowledged = {asked.text: asked for asked in journal.asked if asked.outcome == "acknowledged"}
    found, latest, conversation = [], 0.0, ""
    for turn in stored:
        if turn.conversation != conversation:
            latest, conversation = 0.0, turn.conversation
        if asked := acknowledged.get(turn.question):
            if asked.ended_at < latest:
                found.append(f"{conversation}: turn {turn.turn} was acknowledged before an earlier one was sent")
            latest = max(latest, asked.sent_at)
    return found


def check_keys(journal: Journal, by_text: dict[str, Stored], query: Query) -> list[str]:
    """Each key: done with its turn, a mark without content after a delete, or gone."""
    rows = {row[0]: row[1:] for row in query("SELECT name, state, run_id, answer FROM idempotency_keys")}
    found = []
    for asked in journal.asked:
        if not asked.key:
            continue
        state, run_id, answer = rows.pop(asked.key, (None, None, None))
        turn, name = by_text.get(asked.text), f"key of {asked.conversation} {asked.text[:20]}"
        if turn and (state, run_id) != ("done", turn.run_id):
            found.append(f"{name}: {state} by {run_id}, and its turn is stored by {turn.run_id}")
        if turn and asked.outcome == "acknowledged" and answer != asked.body:
            found.append(f"{name}: holds another answer than the caller was given")
        if not turn and (state not in ("deleted", None) or answer is not None):
            found.append(f"{name}: {state}, and no turn is stored")
        if not turn and asked.outcome in ("acknowledged", "deleted") and state != "deleted":
            found.append(f"{name}: {state}, and it should say that its conversation was deleted")
    return found + [f"a key that nobody used: {name}" for name in rows]


def check_runs(stored: Sequence[Stored], query: Query) -> list[str]:
    """The record of a run that stored a turn goes with the turn. A turn may be without one: it is worth more."""
    rows = query("SELECT run_id, conversation_id, turn FROM runs WHERE turn IS NOT NULL")
    there = {(turn.run_id, turn.conversation, turn.turn) for turn in stored}
    return [
        f"run {row[0]} of {row[1]} is recorded, and its turn {row[2]} is not there"
        for row in rows
        if (*row,) not in there
    ]
