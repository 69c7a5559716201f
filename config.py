"""Settings: one frozen value, read from the environment and `.env` in one place and handed on from there.

Environment names are the field names in capitals: `max_steps` is MAX_STEPS. Every bad value is named, with what is
expected of it; a secret is never shown.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar
from urllib.parse import urlsplit

from dotenv import dotenv_values
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, ValidationError, field_validator

from errors import ConfigError

HERE = Path(__file__).resolve().parent
SECRETS = {"api_key", "db_password", "base_url"}  # never repeated in a message; a URL may carry a password

DEFAULT_PROMPT = (
    "You are a helpful assistant. Use the tools you are given when they help, one step after the other, and work only "
    "with the results they return. Answer in the language of the question."
)

Section = TypeVar("Section", bound=BaseModel)


def comma_separated(value: object) -> object:
    """`"a, b"` -> `("a", "b")`; what is not text is left alone."""
    return tuple(name.strip() for name in value.split(",") if name.strip()) if isinstance(value, str) else value


class Settings(BaseModel):
    """All that the core can be told. `Settings(...)` for tests and hosts, `Settings.from_env()` for the service."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # The model: any OpenAI-compatible service.
    api_key: SecretStr = SecretStr("")
    base_url: str = ""  # "": the openai package's own default
    default_model: str = ""

    # The database.
    db_host: str = "127.0.0.1"
    db_port: int = Field(default=3306, ge=1, le=65535)
    db_socket: str = ""  # a unix socket, instead of host and port
    db_user: str = "root"
    db_password: SecretStr = SecretStr("")
    db_name: str = Field(default="agent_demo", min_length=1, max_length=64)
    db_ssl_ca: str = ""  # a PEM file: the server's certificate is checked against it, and TLS required
    db_pool_size: int = Field(default=10, ge=1, le=1000)

    # What one turn may spend; see DESIGN "The loop". Times in seconds.
    max_steps: int = Field(default=10, ge=1, le=1000)
    max_tool_calls: int = Field(default=30, ge=0, le=10_000)
    turn_timeout_s: float = Field(default=300, gt=0, le=86_400)
    model_timeout_s: float = Field(default=60, gt=0, le=86_400)
    tool_timeout_s: float = Field(default=30, gt=0, le=86_400)
    max_in_flight: int = Field(default=1000, ge=1, le=100_000)
    conversation_busy: Literal["wait", "reject"] = "wait"

    # What the model is given and what is kept. Sizes in characters.
    history_turns: int = Field(default=20, ge=0, le=1000)
    history_chars: int = Field(default=60_000, ge=100, le=10_000_000)
    max_message_chars: int = Field(default=32_000, ge=1, le=1_000_000)
    max_answer_chars: int = Field(default=200_000, ge=1, le=4_000_000)
    system_prompt: str = DEFAULT_PROMPT
    system_prompt_file: str = ""

    cors_origins: Annotated[tuple[str, ...], BeforeValidator(comma_separated)] = ()  # web pages that may call
    toolsets: Annotated[tuple[str, ...], BeforeValidator(comma_separated)] = ("calculator",)
    log_format: Literal["text", "json", "classroom"] = "text"

    # What was read, for the sections of capabilities.
    environ: Mapping[str, str] = Field(default_factory=dict, repr=False, exclude=True)

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Self:
        """The settings in `environ`, by default the process's own with `.env` beside this file below it.

        ENV_FILE names another file than `.env`; empty, no file is read. Raises ConfigError.
        """
        if environ is None:
            file = os.environ.get("ENV_FILE", str(HERE / ".env"))
            environ = read_env_file(file) | dict(os.environ)
        return read_settings(cls, environ, environ=dict(environ))

    def section(self, prefix: str, section: type[Section]) -> Section:
        """The settings of one capability: its fields as `{PREFIX}_{FIELD}` from the same environment."""
        return read_settings(section, self.environ, f"{prefix}_")

    @field_validator("api_key")
    @classmethod
    def check_key(cls, key: SecretStr) -> SecretStr:
        text = key.get_secret_value()
        if not all("!" <= character <= "~" for character in text):
            raise ValueError("it goes into a header: only visible ASCII characters, no spaces")
        return key

    @field_validator("base_url")
    @classmethod
    def check_url(cls, url: str) -> str:
        parts = urlsplit(url)
        if url and (parts.scheme not in ("http", "https") or not parts.hostname):
            raise ValueError("it should be a URL such as https://api.example.com/v1")
        if parts.username or parts.password:
            raise ValueError("it should hold no user and password; put the key into API_KEY")
        return url.rstrip("/")

    def prompt(self) -> str:
        """The operator's system prompt, from SYSTEM_PROMPT_FILE if that is set. Raises ConfigError."""
        if not self.system_prompt_file:
            return self.system_prompt
        try:
            return Path(self.system_prompt_file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"SYSTEM_PROMPT_FILE cannot be read as UTF-8 text: {type(error).__name__}") from error

    def missing_for_model(self) -> list[str]:
        """The names of settings without which no model can be asked."""
        given = {"API_KEY": self.api_key.get_secret_value(), "DEFAULT_MODEL": self.default_model}
        return [name for name, value in given.items() if not value]


def read_env_file(file: str | Path) -> dict[str, str]:
    """The variables of a file such as `.env`; none where no file is named or there. Raises ConfigError."""
    try:
        # Not interpolated: a password with a dollar sign stays what it is. Some editors begin a file with a mark.
        found = dotenv_values(file, interpolate=False, encoding="utf-8-sig") if file else {}
    except UnicodeDecodeError:
        raise ConfigError(f"{file} is not UTF-8 text: save it as UTF-8") from None
    return {name: value for name, value in found.items() if value is not None}


def read_settings(section: type[Section], environ: Mapping[str, str], prefix: str = "", /, **more: Any) -> Section:
    """One value of `section` from `environ`; an empty variable counts as not set. Raises ConfigError."""
    given = {}
    for field in section.model_fields:
        text = environ.get((prefix + field).upper(), "")
        # A password may begin or end with a space; the line break that a secret's file ends with is nobody's.
        text = text.strip("\r\n") if field.endswith("password") else text.strip()
        if text:
            given[field] = text
    try:
        return section(**given | more)
    except ValidationError as error:
        raise ConfigError("; ".join(explain(prefix, problem) for problem in error.errors())) from None


def explain(prefix: str, problem: Any) -> str:
    """`MAX_STEPS is 'ten': input should be a valid integer…`"""
    field = str(problem["loc"][0])
    shown = "" if field in SECRETS else f" is {str(problem['input'])[:80]!r}"
    message = problem["msg"].removeprefix("Value error, ")
    return f"{(prefix + field).upper()}{shown}: {message[:1].lower()}{message[1:]}"
