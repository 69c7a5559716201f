"""For any reply at all, made up by chance: it is clean or cannot be used."""

import contextlib
import json
from typing import Any

from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from reply import BadReply, Draft, Reply, TextGate, finish
from tests.support.scripted_model import Inspection

WORDS = [
    "note",
    "now",
    "a",
    "",
    "stop",
    "length",
    "error",
    '{"text": "a"}',
    '{"text"',
    "[]",
    "null",
    "\ud83d",
    "\ude42",
]
WORDS += ["<think>", "</think>", "<tool_call>", '{"name": "note", "arguments": {}}', "```", "thinking", "text", "\0"]
NAMES = ["choices", "message", "delta", "content", "tool_calls", "function", "function_call", "name", "arguments"]
NAMES += ["id", "index", "finish_reason", "usage", "prompt_tokens", "refusal", "reasoning_content", "type", "text"]
scalars = st.none() | st.booleans() | st.integers(-1, 2) | st.just(1.5) | st.sampled_from(WORDS)
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=5),
    max_leaves=8,
)
odd_calls = st.fixed_dictionaries(
    {},
    optional={
        "index": scalars,
        "id": scalars,
        "function": st.fixed_dictionaries({}, optional={"name": anything, "arguments": anything}),
    },
)
odd_messages = anything | st.fixed_dictionaries(
    {},
    optional={
        "content": anything,
        "tool_calls": st.lists(odd_calls | anything, max_size=3),
        "function_call": anything,
        "reasoning_content": anything,
    },
)
odd_choices = st.fixed_dictionaries(
    {}, optional={"index": scalars, "message": odd_messages, "delta": odd_messages, "finish_reason": scalars}
)
odd_bodies = anything | st.fixed_dictionaries(
    {"choices": st.lists(odd_choices, max_size=2)}, optional={"usage": anything}
)


def is_fit_to_go_on_with(reply: Reply) -> None:
    """What is stored, shown and sent back of a reply is what a strict vendor takes."""
    reply.text.encode()
    if reply.tool_calls:
        observed = [{"role": "tool", "tool_call_id": one.id, "content": "x"} for one in reply.tool_calls]
        sent = {"model": "m", "messages": [{"role": "user", "content": "Hi"}, reply.as_dict(), *observed]}
        assert Inspection(sent, False, None).breaches == []
        json.dumps(sent, ensure_ascii=False, allow_nan=False).encode()


@given(odd_bodies)
@hypothesis_settings(max_examples=400, deadline=None, derandomize=True, database=None)
def test_any_body_at_all_is_a_clean_reply_or_one_that_cannot_be_used(body: Any) -> None:
    draft = Draft({"note", "now"})
    with contextlib.suppress(BadReply):
        draft.take_body(body)
        is_fit_to_go_on_with(finish(draft))


@given(st.lists(odd_bodies, max_size=5))
@hypothesis_settings(max_examples=400, deadline=None, derandomize=True, database=None)
def test_any_stream_at_all_is_a_clean_reply_or_one_that_cannot_be_used(bodies: list[Any]) -> None:
    draft, passed = Draft({"note", "now"}), list[str]()
    gate = TextGate(passed.append)
    with contextlib.suppress(BadReply):
        for body in bodies:
            before = len(draft.text)
            draft.take_chunk(body)
            gate.feed(draft.text[before:])
        draft.complete = True
        reply = finish(draft)
        is_fit_to_go_on_with(reply)
        if not reply.tool_calls and reply.text.startswith("".join(passed)):
            gate.close(reply.text)
            assert "".join(passed) == reply.text
