"""Calls that come in pieces: each piece goes to the call that it belongs to, whatever the vendor numbers it."""

from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.conftest import Store
from tests.support.odd_replies import asks, call
from tests.support.outcomes import answered, both_ways
from tests.support.recording_tools import RUNS
from tests.support.scripted_model import Json, ScriptedModel
from tests.support.stream import A, B, _, chunk, part
from tests.support.ways import ask

NOTE_A, NOTE_B, NOW = ("note", {"text": "a", "times": 1}), ("note", {"text": "b", "times": 1}), ("now", {})

A1, A2 = A[:5], A[5:]

Part = tuple[Any, ...]  # index, id, name and arguments

PIECES: list[
    tuple[str, list[list[Part]], list[tuple[str, Json]]]
] = [  # the parts of each event, and what is carried out
    ("index 0, ids", [[(0, "a", "note", "")], [(0, "b", "now", "")], [(0, "a", _, A)]], [NOTE_A, NOW]),
    (
        "index 0, ids, in turns",
        [
            [(0, "a", "note", A1), (0, "b", "note", B[:5])],
            [(0, "b", _, B[5:])],
            [(0, "a", _, A2)],
        ],
        [NOTE_A, NOTE_B],
    ),
    ("no index, ids", [[(_, "a", "note", ""), (_, "b", "now", "")], [(_, "a", _, A)]], [NOTE_A, NOW]),
    (
        "no index, ids and names",
        [[(_, "a", "note", "")], [(_, "b", "now", "")], [(_, "a", "note", A)], [(_, "b", "now", "{}")]],
        [NOTE_A, NOW],
    ),
    ("index null, ids", [[(None, "a", "note", "")], [(None, "b", "now", "")], [(None, "a", _, A)]], [NOTE_A, NOW]),
    ("no index later", [[(0, "a", "note", ""), (1, "b", "now", "")], [(_, "a", _, A)]], [NOTE_A, NOW]),
    ("a wrong index later", [[(0, "a", "note", ""), (1, "b", "now", "")], [(1, "a", _, A)]], [NOTE_A, NOW]),
    ("an unknown index later", [[(0, "a", "note", "")], [(1, "a", _, A)]], [NOTE_A]),
    (
        "the id in the first piece alone",
        [[(0, "a", "note", "")], [(0, "b", "now", "")], [(0, "a", _, A1)], [(0, _, _, A2)]],
        [NOTE_A, NOW],
    ),
    ("index 0, no ids, another name", [[(0, _, "now", "")], [(0, _, "note", A)]], [NOW, NOTE_A]),
    ("no index, no ids, another name", [[(_, _, "now", ""), (_, _, "note", A)]], [NOW, NOTE_A]),
    (
        "index 0, another name in pieces",
        [[(0, _, "now", "")], [(0, _, "note", A1)], [(0, _, "note", A2)]],
        [NOW, NOTE_A],
    ),
    ("index 0, no ids, a tool that there is not", [[(0, _, "now", "")], [(0, _, "other", A)]], [NOW]),
    ("a namespace the second time", [[(0, "a", "note", A1)], [(0, "a", "functions.note", A2)]], [NOTE_A]),
    ("an id that comes again at another index", [[(0, "a", "note", A)], [(1, "a", "note", B)]], [NOTE_A, NOTE_B]),
    (
        "an id that comes again, in pieces",
        [[(0, "a", "note", A1)], [(0, "a", _, A2)], [(1, "a", "note", B[:5])], [(1, "a", _, B[5:])]],
        [NOTE_A, NOTE_B],
    ),
    ("an id only for the second", [[(0, _, "note", A)], [(0, "b", "note", B)]], [NOTE_A, NOTE_B]),
    ("everything again at the end", [[(0, "a", "note", A)], [(0, "b", "now", "{}")], [(0, "a", "note", A)]], [NOW]),
]


@pytest.mark.parametrize(("events", "ran"), [row[1:] for row in PIECES], ids=[row[0] for row in PIECES])
def test_a_piece_of_a_call_goes_to_the_call_whose_id_it_has_and_another_name_begins_another_call(
    client: TestClient,
    store: Store,
    model: ScriptedModel,
    conversation_id: str,
    events: list[list[Part]],
    ran: list[tuple[str, Json]],
) -> None:
    sent = [chunk({"tool_calls": [part(*one) for one in parts]}) for parts in events]
    model.events([*sent, chunk({}, "tool_calls")]).says("Done.")
    answered(ask(client, "/chat/stream", conversation_id), store, conversation_id, "Done.")
    assert ran == RUNS


@both_ways
def test_calls_of_two_tools_run_each_with_its_own_arguments(
    client: TestClient, store: Store, model: ScriptedModel, conversation_id: str, way: str
) -> None:
    asks(model, call("now", "", "a"), call("note", A, "b"), call("now", {}, "c"))
    model.says("Done.")
    answered(ask(client, way, conversation_id), store, conversation_id, "Done.")
    assert [NOW, NOTE_A, NOW] == RUNS
