"""Which MCP servers may be used, and which of their tools: the TOML file that MCP_SERVERS names.

[[server]]
name = "files"                          # its tools are named files_…
command = ["python3", "file_server.py"] # started by us, spoken to over its standard input and output
env = { ROOT = "/srv/files" }           # it gets PATH, HOME and these, none of our settings
tools = ["read_file"]                   # nothing that is not listed is offered to the model

[[server]]
name = "weather"
url = "https://weather.example/mcp"     # streamable HTTP
headers = { Authorization = "Bearer …" }
tools = ["forecast"]
timeout_s = 10
"""

import tomllib
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from errors import ConfigError


class Server(BaseModel):
    """One server. timeout_s: for one call of a tool."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"^[A-Za-z0-9_-]{1,30}$")
    command: list[str] = Field(default=[], repr=False)
    url: str = Field(default="", repr=False)
    env: dict[str, str] = Field(default={}, repr=False)
    headers: dict[str, str] = Field(default={}, repr=False)
    tools: list[str] = Field(min_length=1)
    timeout_s: float = Field(default=30, gt=0, le=86_400)

    @model_validator(mode="after")
    def check_way(self) -> Self:
        parts = urlsplit(self.url)
        if bool(self.command) == bool(self.url):
            raise ValueError("it has either a command or a url")
        if self.url and (parts.scheme not in ("http", "https") or not parts.hostname):
            raise ValueError("url should be such as https://tools.example.com/mcp")
        return self


def read_servers(file: str) -> list[Server]:
    """The servers of the file. Raises ConfigError that names the place and repeats nothing of what stands there."""
    try:
        content = tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"MCP_SERVERS cannot be read as TOML: {type(error).__name__}") from None
    entries = content.get("server", [])
    if set(content) != {"server"} or not isinstance(entries, list) or not entries:
        raise ConfigError("MCP_SERVERS: the file should hold tables [[server]] and nothing else")
    servers = []
    for number, entry in enumerate(entries, 1):
        try:
            servers.append(Server.model_validate(entry))
        except ValidationError as error:
            faults = (f"{'.'.join(map(str, fault['loc'])) or 'server'}: {fault['msg']}" for fault in error.errors())
            raise ConfigError(f"MCP_SERVERS, server {number}: {'; '.join(faults)}") from None
    if len({server.name for server in servers}) < len(servers):
        raise ConfigError("MCP_SERVERS: two servers have the same name")
    return servers
