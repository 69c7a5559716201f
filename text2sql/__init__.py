"""Text2SQL: the model writes SQL, a policy says what it may read, and only what was checked runs.

The toolset `text2sql`. Three barriers stand one behind the other: the guard (guard.py), a session that may only read
(database.py), and an account that should have no right to write.
"""

from pydantic import BaseModel, Field, SecretStr

from errors import ConfigError
from run import LIMITS, NOTICES, ToolLimit
from runtime import Runtime

NOTICES |= {
    "sql_attempt_limit": (
        "The question needed more database queries than are permitted.",
        "该问题所需的数据库查询次数超过上限。",
    ),
    "sql_recovery_stopped": (
        "A database query failed in a way that cannot be corrected.",
        "数据库查询失败，且无法修正。",
    ),
    "repeated_failed_sql": (
        "The model sent a query again that had failed already.",
        "模型重复提交了已失败的查询。",
    ),
}
LIMITS["max_sql_attempts"] = ToolLimit("run_sql", "text2sql")


class Text2SqlSettings(BaseModel):
    """The section TEXT2SQL of the settings."""

    url: SecretStr = SecretStr("")  # TEXT2SQL_URL: the database that may be asked, as an SQLAlchemy URL
    policy: str = ""  # TEXT2SQL_POLICY: a TOML file that says what may be read


class AttemptSettings(BaseModel):
    """The setting MAX_SQL_ATTEMPTS, a budget like the core's own."""

    sql_attempts: int = Field(3, ge=0, le=1000)  # 0: run_sql is not offered


def register(runtime: Runtime) -> None:
    """Add the toolset. Opens no connection. Raises ConfigError."""
    settings = runtime.settings.section("text2sql", Text2SqlSettings)
    attempts = runtime.settings.section("max", AttemptSettings).sql_attempts
    if not settings.url.get_secret_value():
        raise ConfigError("TEXT2SQL_URL is not set; it should be an SQLAlchemy URL with an account that may only read")
    if not settings.policy:
        raise ConfigError("TEXT2SQL_POLICY is not set; it should name a file; `python -m text2sql policy` writes one")
    try:
        from .catalogue import read_notes  # here: who does not use the toolset does not need its packages
        from .database import Target
        from .policy import load_policy
        from .routes import add_catalogue
        from .toolset import SqlTools
    except ModuleNotFoundError as error:
        raise ConfigError(f"the toolset text2sql needs the package {error.name}; see requirements.txt") from None
    policy = load_policy(settings.policy)
    target = Target(settings.url.get_secret_value(), policy.file.schema_name)
    tools = SqlTools(target, policy, attempts, lambda: runtime.database.wait(read_notes, target.name))
    tools.add_to(runtime)
    runtime.routers.append(lambda router, caller: add_catalogue(router, runtime, caller, tools))
