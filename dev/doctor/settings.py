"""The layer `configuration`: the settings are usable, and where each of them comes from."""

from __future__ import annotations

import difflib
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from dev import configuration, database, up
from dev.doctor.case import DEFAULT, DEV_UP, ENVIRONMENT, FROM, PRIVATE, SECRET, Case, Finding, fail, ok
from dev.doctor.files import env_file, shown


def check_configuration(case: Case) -> Finding:
    """All that `up` would configure the service with is usable; where each setting comes from."""
    from config import Settings
    from db import Database
    from errors import ConfigError
    from main import create_app

    case.environ = {**up.DEFAULTS, **configuration.read()}
    case.demo = not configuration.is_set(case.environ, "BASE_URL", "API_KEY")
    chosen = choose_database(case)
    fields = [name.upper() for name in Settings.model_fields if name != "environ"]
    others = [name for name in case.environ if is_setting(name)]
    case.sources = {name: source_of(name, chosen) for name in dict.fromkeys([*fields, *others])}
    case.stack.enter_context(environment(case.environ))
    try:
        case.settings = Settings.from_env(case.environ)
        case.settings.prompt()
        case.database = Database(case.settings)
        create_app(case.settings.model_copy(update={"toolsets": ()}))  # for the settings of its parts
    except ConfigError as error:
        named = [name for name in case.sources if re.search(rf"\b{name}\b", str(error))]
        mend = f"Mend {case.origin(*named)}; " if named else ""
        return fail(str(error), f"{mend}docs/configuration.md says what is expected.")
    case.stack.callback(case.database.close)
    finding = ok(told_sources(case.sources), *odd_lines(set(fields)), *hidden_values(case))
    return replace(finding, settings={name: told_setting(case, name) for name in case.sources})


def is_setting(name: str) -> bool:
    """Whether a variable is meant for the application."""
    return name in configuration.SETTINGS or name.startswith(configuration.PREFIXES)


def choose_database(case: Case) -> Mapping[str, str]:
    """As `up` chooses: what is configured, else the private server, which then brings the settings returned here."""
    if configuration.is_set(case.environ, "DB_HOST", "DB_SOCKET"):
        case.has_database = True
        return {}
    server = database.private_server()
    if not server.data.exists():
        return {}
    case.private = server
    if not server.running():
        return {}
    chosen = {**server.environment(), **database.NOTHING_ELSE}
    case.environ.update(chosen)
    case.has_database = True
    return chosen


@contextmanager
def environment(environ: Mapping[str, str]) -> Iterator[None]:
    """Have the process see what the service would see: variables for proxies, for instance, may stand in `.env`."""
    before = dict(os.environ)
    os.environ.update(environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def values_in_file() -> dict[str, str | None]:
    """What the file of settings says."""
    from dotenv import dotenv_values

    path = env_file()
    return dotenv_values(path, interpolate=False, encoding="utf-8-sig") if path is not None else {}


def source_of(name: str, chosen: Mapping[str, str]) -> str:
    """Where the value of a setting comes from; an empty variable is none."""
    path = env_file()
    if chosen.get(name):
        return PRIVATE
    if name in os.environ:
        return ENVIRONMENT if os.environ[name].strip() else DEFAULT
    if path is not None and values_in_file().get(name):
        return shown(path)
    return DEV_UP if name in up.DEFAULTS else DEFAULT


def told_sources(sources: Mapping[str, str]) -> str:
    """`from .env: API_KEY, BASE_URL; from the environment: DB_HOST; the rest by default`."""
    texts = []
    for source in dict.fromkeys(sources.values()):
        if source != DEFAULT:
            names = ", ".join(name for name, its_source in sources.items() if its_source == source)
            texts.append(f"{FROM.get(source, f'from {source}')}: {names}")
    return "; ".join([*texts, "the rest by default"])


def told_setting(case: Case, name: str) -> dict[str, Any]:
    """One setting for programs: its source, and its value where that can be no secret."""
    from config import SECRETS

    told: dict[str, Any] = {"source": case.sources[name]}
    value = getattr(case.settings, name.lower(), None)
    if value is None or name.lower() in SECRETS or SECRET.search(name):
        return told | {"set": bool(case.environ.get(name, "").strip())}
    return told | {"value": value}


def odd_lines(fields: set[str]) -> list[tuple[str, str]]:
    """Lines of the file of settings that do not do what they seem to. Their values may be secret."""
    from dotenv.parser import parse_stream

    path = env_file()
    if path is None or not path.is_file():
        return []
    with path.open(encoding="utf-8") as file:
        bindings = list(parse_stream(file))
    broken = [one.original.line for one in bindings if one.error or (one.key and one.value is None)]
    hint = "Write it as NAME=value, with an ASCII `=`."
    odd = [(f"line {line} of {shown(path)} is no setting", hint) for line in broken]
    for name, times in Counter(one.key for one in bindings if one.key and one.value is not None).items():
        if times > 1:
            odd.append((f"{name} stands {times} times in {shown(path)}", f"Keep one {name}; the last one counts."))
        near = difflib.get_close_matches(name, fields, n=1, cutoff=0.85)
        if near and name not in fields and name not in configuration.SETTINGS:
            odd.append((f"{name} in {shown(path)} is no setting", f"If {near[0]} is meant, write it so."))
    return odd


def hidden_values(case: Case) -> list[tuple[str, str]]:
    """Settings in the file that an empty variable of the environment takes away."""
    path, there = env_file(), values_in_file()
    if path is None or case.private:
        return []
    hidden = [name for name in case.sources if case.environ.get(name) == "" and there.get(name)]
    odd = f"is empty in the environment, which hides its value in {shown(path)}"
    return [(f"{name} {odd}", f"Unset {name}.") for name in hidden]
