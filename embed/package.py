"""Turnkeeper as a package, for another backend.

runtime = turnkeeper.build_runtime(settings)
host.include_router(turnkeeper.chat_router(runtime, caller=your_dependency), prefix="/assistant")
"""

from agent import RunResult, run_agent
from config import Settings
from db import Database
from errors import ChatError, ConfigError, StopRun, ToolError
from main import build_runtime, chat_router, create_app
from migrate import migrate
from model import Model
from reply import Reply
from run import Budget, Run, RunContext, Usage
from runtime import Runtime
from tools import ToolCall, ToolRegistry, ToolResult

__all__ = [
    "Budget",
    "ChatError",
    "ConfigError",
    "Database",
    "Model",
    "Reply",
    "Run",
    "RunContext",
    "RunResult",
    "Runtime",
    "Settings",
    "StopRun",
    "ToolCall",
    "ToolError",
    "ToolRegistry",
    "ToolResult",
    "Usage",
    "build_runtime",
    "chat_router",
    "create_app",
    "migrate",
    "run_agent",
]
