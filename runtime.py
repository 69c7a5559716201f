"""Runtime: what one application stands on, built once and handed to everything: settings, database, model, tools.

A capability plugs in by `register(runtime)`: its tools, its part of the system prompt, its routers, its close hooks.
Building one opens nothing; `close` ends what was opened since.
"""

import asyncio
import contextlib
import importlib
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

from fastapi import APIRouter

from config import Settings
from db import Database
from errors import ConfigError, StoreUnavailable
from idempotency import forget_answers, sweep_keys
from memory import Forget
from migrate import migrations, schema_version
from model import Model
from tools import ToolRegistry, register_calculator, register_clock
from turn import Turns

log = logging.getLogger(__name__)

HOUSEKEEPING_S = 300.0
DRAIN_S = 20.0  # how long turns under way may take when the application ends

Caller = Callable[..., str | Awaitable[str]]  # a dependency that says who is calling
Register = Callable[["Runtime"], None]
BUILT_IN: dict[str, Register] = {
    "calculator": lambda runtime: register_calculator(runtime.tools),
    "clock": lambda runtime: register_clock(runtime.tools),
}


class Runtime:
    """Everything of one application. `Runtime(settings)`; several with different settings live in one process.

    Building one raises ConfigError.
    """

    def __init__(self, settings: Settings, capabilities: Mapping[str, Register] | None = None) -> None:
        self.settings = settings
        settings.prompt()  # a file that cannot be read is found now, not by the first caller
        self.database = Database(settings)
        self.model = Model(settings)
        self.tools: ToolRegistry = ToolRegistry()
        self.prompt_parts: list[Callable[[], str]] = [settings.prompt]
        self.turns = Turns(settings, self.database, self.model, self.tools, self.system_prompt)
        self.forget: list[Forget] = [forget_answers]  # what a deleted conversation takes with it
        self.sweeps: list[Callable[[Database], bool]] = [sweep_keys]  # what expires; True while there may be more
        self.routers: list[Callable[[APIRouter, Caller], None]] = []  # add routes of their own to the service's
        self.in_background: list[Callable[[], Coroutine[Any, Any, None]]] = []  # go on while the application runs
        self._closing: list[Callable[[], Awaitable[None] | None]] = []
        for name in settings.toolsets:
            self._plug_in(name, {**BUILT_IN, **(capabilities or {})})

    def _plug_in(self, name: str, known: Mapping[str, Register]) -> None:
        """A toolset by its built-in name, or by the import path of a module with `register(runtime)`."""
        register = known.get(name)
        if register is None:
            try:
                register = getattr(importlib.import_module(name), "register", None)
            except Exception as error:  # whatever a module raises that is not ours
                names, why = ", ".join(known), f"{type(error).__name__}: {error}"
                raise ConfigError(
                    f"TOOLSETS names {name!r}, which is none of {names} and cannot be imported: {why}"
                ) from error
        if register is None:
            raise ConfigError(f"TOOLSETS names {name!r}; a module there needs a function register(runtime)")
        try:
            register(self)
        except ConfigError:
            raise
        except TypeError as error:  # a tool that cannot be described, or two of one name
            raise ConfigError(f"TOOLSETS: {name} cannot be registered: {error}") from error
        except Exception as error:
            raise ConfigError(f"TOOLSETS: {name} cannot be registered: {type(error).__name__}: {error}") from error

    def on_close(self, hook: Callable[[], Awaitable[None] | None]) -> None:
        """Have `hook` called when the application ends; the last one added comes first."""
        self._closing.append(hook)

    def system_prompt(self) -> str:
        """The first message of every transcript: the operator's text and what the capabilities add."""
        return "\n\n".join(text for part in self.prompt_parts if (text := part()))

    async def problems(self) -> dict[str, str]:
        """What keeps this application from answering: {layer: what to do}. Empty when it is ready."""
        found = {}
        try:
            version = await self.database.run(schema_version)
        except StoreUnavailable:
            found["database"] = "MySQL does not answer or refuses the login; see the log and `python3 -m dev doctor`"
        else:
            if version < max(migrations()):
                found["schema"] = "tables are missing or older than this release; run `python3 -m dev migrate`"
        if missing := self.settings.missing_for_model():
            found["model"] = f"{' and '.join(missing)} not set"
        try:
            self.settings.prompt()
        except ConfigError as error:
            found["prompt"] = str(error)
        return found

    async def keep_house(self) -> None:
        """Forget what has expired, again and again, until it is cancelled."""
        while True:
            await asyncio.sleep(HOUSEKEEPING_S)
            for sweep in self.sweeps:
                with contextlib.suppress(StoreUnavailable):  # next time
                    while await self.database.run(sweep):
                        await asyncio.sleep(0.1)

    async def close(self) -> None:
        """Let the turns under way end, then all that was opened, even when a part of it fails to end."""
        await self.turns.drain(DRAIN_S)
        for hook in [*reversed(self._closing), self.model.close, self.tools.close]:
            try:
                ended = hook()
                if inspect.isawaitable(ended):
                    await ended
            except Exception:
                log.exception("closing %r failed", hook)
        await asyncio.to_thread(self.database.close)
