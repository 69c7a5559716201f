"""Who may: callers known by keys, whose each thing is, and how much one caller may ask at once.

`caller_of(runtime)` gives the dependency that says who is calling. A key is kept and compared as its SHA-256 only; the
owner of what a caller stores is the key's name, or `name/user` where the key may act for the users it names.
"""

import time
from dataclasses import dataclass
from urllib.parse import unquote

from fastapi import Request
from fastapi.openapi.models import HTTPBearer
from fastapi.security.base import SecurityBase
from limits import RateLimitItem, parse
from limits.storage import MemoryStorage
from limits.strategies import SlidingWindowCounterRateLimiter
from pydantic import BaseModel, Field

from errors import Bilingual, ConfigError, InvalidRequest, MayNot, RateLimited, Unauthorized
from runtime import Runtime

from .keys import Key, Keys

USER = Bilingual(
    "a name that can be printed, without spaces at the ends, at most 100 characters with the key's name; "
    "what is not ASCII is percent-encoded UTF-8",
    "应为可打印的名称，首尾无空格，连同密钥名称最多 100 个字符；非 ASCII 字符须为 UTF-8 的百分号编码",
)

__all__ = ["AccessSettings", "Caller", "Key", "Keys", "caller_of", "may", "require"]


class AccessSettings(BaseModel):
    """The section API of the settings: API_KEYS, API_KEYS_FILE, API_RATE, API_IN_FLIGHT."""

    keys: str = ""  # name:key,name:key
    keys_file: str = ""  # TOML; see keys.py
    rate: str = ""  # such as 120/minute, for each owner and process
    in_flight: int = Field(0, ge=0)  # turns at once for each owner and process; 0: no limit of its own


@dataclass(frozen=True)
class Caller:
    """Who is calling: the key, and the owner of what is stored."""

    key: Key
    owner: str


class CallerByKey(SecurityBase):
    """The dependency that knows callers by their keys; a scheme in the OpenAPI document, so that /docs can send one."""

    scheme_name = "key"
    model = HTTPBearer(
        description="One of the service's keys. One that may act for `users` names the user in `X-User-Id`."
    )

    def __init__(self, keys: Keys, limit: RateLimitItem | None) -> None:
        self._keys, self._limit = keys, limit
        self._limiter = SlidingWindowCounterRateLimiter(MemoryStorage())

    async def __call__(self, request: Request) -> str:
        found = identify(self._keys, request)
        limit, limiter = self._limit, self._limiter
        if limit and not limiter.hit(limit, found.owner):
            reset = limiter.get_window_stats(limit, found.owner).reset_time
            raise RateLimited(retry_after_s=max(1.0, min(reset - time.time(), limit.get_expiry())))
        request.state.caller = found
        return found.owner


def caller_of(runtime: Runtime) -> CallerByKey | None:
    """The dependency that knows callers by their keys; None where no keys are set. Raises ConfigError."""
    settings = runtime.settings.section("api", AccessSettings)
    keys = Keys.read(settings.keys, settings.keys_file)
    if keys is None:
        return None
    runtime.turns.max_of_one_owner = settings.in_flight or None
    return CallerByKey(keys, rate_of(settings.rate))


def identify(keys: Keys, request: Request) -> Caller:
    """The caller that a request's headers name. Raises Unauthorized, MayNot, InvalidRequest."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    key = keys.find(token.strip()) if scheme.lower() == "bearer" else None
    if key is None:
        raise Unauthorized
    named = request.headers.get("x-user-id")
    if named is None:
        return Caller(key, key.name)
    if "users" not in key.may:
        raise MayNot(what="act for the user in X-User-Id")
    try:
        user = unquote(named, errors="strict") if named.isascii() else ""
    except UnicodeDecodeError:
        user = ""
    # A key's name has no slash, so nobody can pass for the user of another key by a clever name.
    owner = f"{key.name}/{user}"
    if not user or len(owner) > 100 or user != user.strip() or not user.isprintable():
        raise InvalidRequest(errors=[{"field": "X-User-Id", "detail": USER}])
    return Caller(key, owner)


def may(request: Request, right: str) -> bool:
    """Whether the caller's key may `edit`, see `statistics` … Without keys everybody may."""
    caller: Caller | None = getattr(request.state, "caller", None)
    return caller is None or right in caller.key.may


def require(request: Request, right: str) -> None:
    """Raise MayNot unless the caller may."""
    if not may(request, right):
        raise MayNot(what=right)


def rate_of(text: str) -> RateLimitItem | None:
    """`120/minute` as a limit. Raises ConfigError."""
    if not text:
        return None
    try:
        return parse(text)
    except ValueError as error:
        raise ConfigError(f"API_RATE is {text[:40]!r}; it should be a number and a time, such as 120/minute") from error
