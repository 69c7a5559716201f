"""MCP both ways: tools of allow-listed servers join the registry, and this service's own are offered under `/mcp`.

The official SDK is needed only where one of the two is switched on.
"""

import importlib.util

from pydantic import BaseModel

from errors import ConfigError
from runtime import Runtime

__all__ = ["McpSettings", "register", "register_servers"]


class McpSettings(BaseModel):
    """The section MCP of the settings."""

    servers: str = ""  # MCP_SERVERS: a TOML file, see configuration.py
    serve: bool = False  # MCP_SERVE: offer our tools and `chat` under /mcp


def register(runtime: Runtime) -> None:
    """Offer this service as an MCP server, where MCP_SERVE says so. Opens no connection. Raises ConfigError."""
    if not runtime.settings.section("mcp", McpSettings).serve:
        return
    need_sdk("MCP_SERVE")
    from .offered import Endpoint

    endpoint = Endpoint(runtime)
    runtime.in_background.append(endpoint.start)
    runtime.on_close(endpoint.stop)
    runtime.routers.append(endpoint.add_route)


def register_servers(runtime: Runtime) -> None:
    """The toolset `mcp`: what the servers of MCP_SERVERS have. Opens no connection yet. Raises ConfigError."""
    settings = runtime.settings.section("mcp", McpSettings)
    if not settings.servers:
        raise ConfigError("TOOLSETS names mcp; MCP_SERVERS should name a TOML file with the servers")
    need_sdk("TOOLSETS: mcp")
    from .configuration import read_servers
    from .servers import Servers

    servers = Servers(read_servers(settings.servers), runtime.tools)
    runtime.in_background.append(servers.start)
    runtime.on_close(servers.stop)


def need_sdk(setting: str) -> None:
    """Raise ConfigError where the SDK is not installed."""
    if importlib.util.find_spec("mcp") is None:
        raise ConfigError(f"{setting} needs the MCP SDK: pip install 'mcp>=2.3,<3'")
