"""What the application would be configured with: the environment, over `.env`."""

from __future__ import annotations

import os
from collections.abc import Mapping

from dev.common import ROOT, DevError

# The settings of the application, so that tests can run without any of them. Names that begin like these belong to a
# capability, to the database or to the client of the model.
SETTINGS = frozenset(
    """
    API_KEY BASE_URL DEFAULT_MODEL MAX_STEPS MAX_TOOL_CALLS TURN_TIMEOUT_S MODEL_TIMEOUT_S TOOL_TIMEOUT_S
    MAX_IN_FLIGHT HISTORY_TURNS HISTORY_CHARS MAX_MESSAGE_CHARS MAX_ANSWER_CHARS SYSTEM_PROMPT SYSTEM_PROMPT_FILE
    TOOLSETS CONVERSATION_BUSY TRACE_RETENTION_DAYS LOG_FORMAT MAX_SQL_ATTEMPTS
    """.split()
)
PREFIXES = tuple("DB_ API_ TRACE_ TELEMETRY_ OTEL_ OPENAI_ MCP_ TEXT2SQL_ ONTOLOGY_ REVENUE_ WORKBENCH_".split())


def read() -> dict[str, str]:
    """The environment with what `.env` adds to it. ENV_FILE names another file; empty, none is read."""
    from config import read_env_file
    from errors import ConfigError

    name = os.environ.get("ENV_FILE", ".env")
    try:
        return {**read_env_file(ROOT / name if name else ""), **os.environ}
    except ConfigError as error:
        raise DevError(str(error)) from None


def is_set(environ: Mapping[str, str], *names: str) -> bool:
    """Whether one of them has a value; an empty one is as good as none."""
    return any(environ.get(name, "").strip() for name in names)


def for_tests() -> dict[str, str]:
    """The environment without any setting of the application, and with `.env` switched off."""
    kept = {key: value for key, value in os.environ.items() if key not in SETTINGS and not key.startswith(PREFIXES)}
    return {**kept, "ENV_FILE": ""}
