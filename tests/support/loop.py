"""Runs of the loop as a library, and what is seen of them."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from agent import RunResult, run_agent
from config import Settings
from model import Model
from run import Budget
from tests.support.scripted_model import Json, ScriptedModel
from tests.support.ways import WAYS
from tools import ToolRegistry

both_ways = pytest.mark.parametrize("way", WAYS)


@dataclass(frozen=True)
class Said:
    """A message of the history."""

    role: str
    content: str

    def as_dict(self) -> Json:
        return {"role": self.role, "content": self.content}


def model_at(base_url: str) -> Model:
    given: Json = {"api_key": "sk-test", "base_url": base_url, "default_model": "scripted"}
    return Model(Settings(**given))


def settle(
    model: ScriptedModel, tools: ToolRegistry, budget: Budget | None = None, history: Sequence[Said] = (), **more: Any
) -> RunResult:
    """One run, as a library."""

    async def run() -> RunResult:
        asked = model_at(model.base_url)
        try:
            return await run_agent(history, "Hi", asked, tools, budget or Budget(), **more)
        finally:
            await asked.close()
            tools.close()

    return asyncio.run(run())


def in_time(seconds: float) -> float:
    """A deadline so many seconds from now."""
    return time.monotonic() + seconds


def observations(model: ScriptedModel) -> list[tuple[str, str]]:
    """(id, text) of what the model was given back, as its last request holds it."""
    messages = model.requests[-1]["messages"]
    return [(message["tool_call_id"], message["content"]) for message in messages if message["role"] == "tool"]


def events(result: RunResult, kind: str) -> list[Json]:
    """The details of the events of a kind."""
    return [event["details"] for event in result.run.events if event["type"] == kind]


def slow_tools(seconds: float) -> ToolRegistry:
    """The same wait, once in a thread and once in the event loop."""
    registry = ToolRegistry()

    @registry.tool
    def sleeps() -> str:
        """Wait."""
        time.sleep(seconds)
        return "slept"

    @registry.tool
    async def sleeps_async() -> str:
        """Wait."""
        await asyncio.sleep(seconds)
        return "slept"

    return registry
