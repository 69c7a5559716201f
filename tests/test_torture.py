"""Everything dies at any moment, and nothing that was acknowledged is lost, doubled, halved or out of order."""

import os
from pathlib import Path
from typing import Any

import pytest

from dev import torture
from dev.torture_callers import Asked, Deletion, Journal
from dev.torture_check import violations
from dev.torture_model import answer_to


def test_half_a_minute_of_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = torture.main(["--minutes", "0.5", "--seed", "20", "--folder", str(tmp_path)])
    report = capsys.readouterr().out
    assert status == 0, report
    assert "no violation" in report
    assert "kill database" in report and "kill service" in report


@pytest.mark.slow
@pytest.mark.parametrize("seed", [21, 22])
def test_some_minutes_of_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str], seed: int) -> None:
    status = torture.main(["--minutes", "3", "--seed", str(seed), "--folder", str(tmp_path)])
    assert status == 0, capsys.readouterr().out


@pytest.mark.slow
def test_some_minutes_of_everything_on_mysql(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if not os.environ.get("TURNKEEPER_MYSQLD"):
        pytest.skip("TURNKEEPER_MYSQLD names no mysqld program")
    status = torture.main(["--minutes", "2", "--seed", "23", "--mysql", "--folder", str(tmp_path)])
    assert status == 0, capsys.readouterr().out


# ---------------------------------------------------------------------------------------- the judge is judged

RUN = "run-1"


def asked(text: str = "Q1", key: str | None = "k1", turn: int = 1, at: float = 10.0, **other: object) -> Asked:
    """A request acknowledged a second after it was sent."""
    one = Asked("c", text, key, at, "acknowledged", at + 1, {"turn": turn, "run_id": f"run-{turn}"}, "{}")
    for name, value in other.items():
        setattr(one, name, value)
    return one


def rows(text: str = "Q1", turn: int = 1, run_id: str | None = None) -> list[tuple[object, ...]]:
    run_id = run_id or f"run-{turn}"
    return [
        ("c", 2 * turn - 1, "user", text, run_id, ""),
        ("c", 2 * turn, "assistant", answer_to(text), run_id, ""),
    ]


def found(
    requests: list[Asked],
    messages: list[tuple[object, ...]],
    keys: list[tuple[object, ...]] | None = None,
    turns: int | None = None,
    deletions: tuple[Deletion, ...] = (),
    records: list[tuple[object, ...]] | None = None,
) -> list[str]:
    """What the judge says to a journal and tables."""
    journal = Journal()
    journal.asked += requests
    journal.deletions += deletions
    turns = len(messages) // 2 if turns is None else turns
    tables = {
        "conversations": [("c", turns)] if turns else [],
        "messages": messages,
        "idempotency_keys": [("k1", "done", RUN, "{}")] if keys is None else keys,
        "runs": [] if records is None else records,
    }

    def query(statement: str) -> list[tuple[object, ...]]:
        return tables[statement.split(" FROM ")[1].split()[0]]

    return violations(journal, {"c"}, query)


def test_the_judge_finds_nothing_where_nothing_is_wrong() -> None:
    assert found([asked()], rows()) == []
    assert found([asked()], rows(), records=[(RUN, "c", 1)]) == []
    assert found([asked(outcome="refused")], [], []) == []
    assert found([asked(key=None, outcome="unknown")], [], []) == []
    assert found([asked(key=None, outcome="unknown")], rows(), []) == []
    mark = [("k1", "deleted", RUN, None)]
    for deletion in (Deletion("c", 5, 10.5), Deletion("c", 10.2, 10.3), Deletion("c", 20, 21)):
        assert found([asked()], [], mark, deletions=(deletion,)) == []
    assert found([asked()], rows(), deletions=(Deletion("c", 5, 30),)) == []


DELETED_LATER, DELETED_EARLIER = Deletion("c", 20, 21), Deletion("c", 1, 2)
WRONG: dict[str, tuple[Any, ...]] = {
    "lost": ([asked()], [], [], None, ()),
    "lost though deleted earlier": ([asked()], [], [], None, (DELETED_EARLIER,)),
    "survives its deletion": ([asked()], rows(), None, None, (DELETED_LATER,)),
    "twice": ([asked()], rows() + rows(turn=2), None, None, ()),
    "in another place": ([asked(turn=2)], rows(), None, None, ()),
    "by another run": ([asked()], rows(run_id="run-9"), [("k1", "done", "run-9", "{}")], None, ()),
    "half": ([asked()], rows()[:1], None, 1, ()),
    "a gap": ([asked(turn=2)], rows(turn=2), [("k1", "done", "run-2", "{}")], None, ()),
    "turns is wrong": ([asked()], rows(), None, 2, ()),
    "a stranger's row": ([], rows(), [], None, ()),
    "stored though refused": ([asked(outcome="refused")], rows(), None, None, ()),
    "never told": ([asked(outcome="unknown")], rows(), None, None, ()),
    "told deleted, and it was not": ([asked(outcome="deleted")], [], [("k1", "deleted", RUN, None)], None, ()),
    "key still running": ([asked(outcome="refused")], [], [("k1", "running", RUN, None)], None, ()),
    "key not done": ([asked()], rows(), [("k1", "running", RUN, None)], None, ()),
    "key with another answer": ([asked()], rows(), [("k1", "done", RUN, "{ }")], None, ()),
    "key with content after a delete": ([asked()], [], [("k1", "deleted", RUN, "{}")], None, (DELETED_LATER,)),
    "no mark after a delete": ([asked()], [], [], None, (DELETED_LATER,)),
    "a stranger's key": ([asked()], rows(), [("k1", "done", RUN, "{}"), ("k2", "done", RUN, "{}")], None, ()),
    "a run that is left of nothing": ([asked(outcome="refused")], [], [], None, (), [(RUN, "c", 1)]),
    "a run of another turn": ([asked()], rows(), None, None, (), [(RUN, "c", 2)]),
    "out of order": (
        [asked(turn=2, at=10), asked("Q2", None, turn=1, at=20)],
        rows("Q2", 1) + rows("Q1", 2),
        [("k1", "done", "run-2", "{}")],
        None,
        (),
    ),
}


@pytest.mark.parametrize("case", WRONG.values(), ids=WRONG.keys())
def test_the_judge_finds_what_is_wrong(case: tuple[Any, ...]) -> None:
    assert found(*case) != []
