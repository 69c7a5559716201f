"""The tool `recall_run`: what tools returned in earlier turns of this conversation, read from the stored runs.

`messages` hold only questions and answers, so that the history stays small; what a tool returned two turns ago is still
in the run, for as long as it is kept.
"""

import json
from typing import Annotated, Any

from pydantic import Field

from db import Database
from run import RunContext
from runtime import Runtime
from text import cut_text

MAX_RUNS = 5
MAX_CHARS = 8_000


def register_recall(runtime: Runtime) -> None:
    """The toolset `recall`."""

    @runtime.tools.tool(parallel=True)
    async def recall_run(
        context: RunContext,
        turn: Annotated[int | None, Field(description="which turn, counted from 1; left out: the newest ones")] = None,
    ) -> str:
        """Read which tools were called in earlier turns of this conversation, with what arguments and results."""
        found = await runtime.database.run(recall, context.owner, context.conversation_id, turn)
        if not found:
            return "No tool results of earlier turns are kept for this conversation."
        return cut_text(json.dumps(found, ensure_ascii=False), MAX_CHARS)


def recall(database: Database, owner: str, conversation_id: str, turn: int | None) -> list[dict[str, Any]]:
    """The tool calls of stored turns, newest first: of one turn or the newest few, of this owner's conversation."""
    if not conversation_id:
        return []
    which, values = ("AND r.turn = %s", (turn,)) if turn is not None else ("AND r.turn IS NOT NULL", ())
    rows = database.read(
        "SELECT r.turn, d.record FROM runs AS r JOIN run_records AS d ON d.id = r.id "
        f"WHERE r.conversation_id = %s AND r.owner = %s {which} ORDER BY r.id DESC LIMIT %s",
        (conversation_id, owner, *values, MAX_RUNS),
    )
    return [
        {"turn": number, "question": cut_text(record["question"], 200), "tools": used}
        for number, record in ((number, json.loads(text)) for number, text in rows)
        if (used := results_of(record["events"]))
    ]


def results_of(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each tool call of a run with its result."""
    asked = {
        (event["step"], event["details"]["call_id"]): event["details"]["arguments"]
        for event in events
        if event["type"] == "tool_call"
    }
    return [
        {
            "tool": event["details"]["tool"],
            "arguments": asked.get((event["step"], event["details"]["call_id"])),
            "result": cut_text(event["details"]["text"], 2_000),
        }
        for event in events
        if event["type"] == "tool_result"
    ]
