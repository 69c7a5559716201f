"""The edge of HTTP: errors as problem details, bodies that are bounded, callers that are served, opaque cursors.

All of it works from within the routes, so that they behave the same in whatever application they are.
"""

import asyncio
import base64
import contextlib
import functools
import ipaddress
import logging
import re
import traceback
from collections.abc import Callable
from random import getrandbits
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError, ValidationException
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.routing import Match
from starlette.types import Receive, Scope, Send

from errors import (
    Bilingual,
    BodyTooLarge,
    ChatError,
    Forbidden,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    Unauthorized,
)
from logs import REQUEST_ID

log = logging.getLogger(__name__)
BODY_TIMEOUT_S = 30.0  # a body that drips longer than this is refused
UNREADABLE = "There was an error parsing the body"  # FastAPI's words for whatever fails while it reads one


class Problem(BaseModel):
    """An error (RFC 9457). code: for programs; detail: for people, in Chinese where Accept-Language asks for it."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    run_id: str | None = None
    errors: list[dict[str, str]] | None = None


def problems(*kinds: type[ChatError]) -> dict[int | str, dict[str, Any]]:
    """The errors of a route, for the OpenAPI document."""
    found: dict[int | str, dict[str, Any]] = {}
    everything: list[type[ChatError]] = [InvalidRequest, Unauthorized, Forbidden, *kinds, ChatError]
    for kind in everything:
        text = f"`{kind.code}`: {(kind.__doc__ or '').splitlines()[0]}"
        entry: dict[str, Any] = found.setdefault(
            kind.status, {"content": {"application/problem+json": {"schema": Problem.model_json_schema()}}}
        )
        entry["description"] = f"{entry['description']} {text}" if "description" in entry else text
    return found


def language_of(request: Request) -> str:
    """`zh` where the caller prefers Chinese to English, else `en`."""
    best, best_weight = "en", 0.0
    for part in request.headers.get("accept-language", "").split(","):
        tag, _, parameter = part.lower().partition(";")
        weight = re.fullmatch(r"\s*q=([01](?:\.\d{0,3})?)\s*", parameter)
        value = float(weight[1]) if weight else 1.0
        language = tag.strip().partition("-")[0]
        if language in ("zh", "en") and value > best_weight:
            best, best_weight = language, value
    return best


def problem_answer(request: Request, error: ChatError) -> Response:
    """The answer that tells a caller of an error."""
    body = error.problem(language_of(request))
    return JSONResponse(body, error.status, error_headers(error), media_type="application/problem+json")


def error_headers(error: ChatError) -> dict[str, str]:
    """What the headers say of an error."""
    headers = {"Retry-After": str(max(1, round(error.retry_after_s)))} if error.retry_after_s else {}
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return headers


def as_chat_error(error: Exception, method: str) -> ChatError:
    """The error that a caller is told of instead of what was raised. Our own defects are logged here."""
    if isinstance(error, ChatError):
        return error
    if isinstance(error, RequestValidationError):
        faults = error.errors()[:10]
        return InvalidRequest(errors=[{"field": field_of(fault), "detail": fault_text(fault)} for fault in faults])
    if isinstance(error, HTTPException):
        if isinstance(error.__cause__, ChatError):  # ours, raised while the body was read
            return error.__cause__
        if error.status_code == 404:
            return NotFound(what="path")
        if error.status_code == 405:
            return MethodNotAllowed(method=method)
        wrong = NOT_UTF_8 if isinstance(error.__cause__, UnicodeDecodeError) else NOT_READABLE
        return InvalidRequest(errors=[{"field": "body", "detail": wrong}])
    log.error("a request failed", exc_info=error)
    return ChatError()


# ---------------------------------------------------------------------------------------- what is wrong with a field

NOT_UTF_8 = Bilingual("it is not UTF-8; JSON in UTF-8 is expected", "不是 UTF-8 编码；应为 UTF-8 编码的 JSON")
NOT_READABLE = Bilingual(
    "it is not JSON that can be read; it may be nested too deeply or hold too long a number",
    "不是可读取的 JSON，可能嵌套过深或含有过长的数字",
)
TOO_SLOW = Bilingual(f"it did not arrive within {BODY_TIMEOUT_S:.0f} s", f"未能在 {BODY_TIMEOUT_S:.0f} 秒内完整到达")
NOT_AN_OBJECT = Bilingual(
    "a JSON object is expected, with content type application/json", "应为 JSON 对象，内容类型为 application/json"
)
NOT_A_CURSOR = Bilingual("it should be the `next` of the page before", "应为上一页的 `next`")
FAULTS = {
    "extra_forbidden": Bilingual("there is no such field", "没有该字段"),
    "dict_type": NOT_AN_OBJECT,
    "model_attributes_type": NOT_AN_OBJECT,
    "string_unicode": Bilingual("it should be text without lone surrogates", "应为不含不成对代理项的文本"),
}
PATTERNS = {  # what the patterns of our routes expect
    "^[!-~]+$": Bilingual(
        "1 to 255 visible ASCII characters are expected, no spaces", "应为 1 到 255 个可见 ASCII 字符，不含空格"
    ),
    "^[0-9a-f-]{36}$": Bilingual(
        "a run_id is expected: 36 characters, the digits 0-9 a-f and hyphens",
        "应为 run_id：36 个字符，只含数字 0-9、字母 a-f 和连字符",
    ),
    "^[a-z_]+$": Bilingual(
        "small letters and underscores are expected, such as max_steps", "应为小写字母和下划线，例如 max_steps"
    ),
    "^(latest|[1-9][0-9]{0,8})$": Bilingual(
        "the number of a version, such as 3, or latest is expected", "应为版本号（例如 3）或 latest"
    ),
}
CHINESE_FAULTS = {  # by pydantic's types; its own English is good enough
    "missing": "缺少该字段",
    "string_type": "应为字符串",
    "string_too_short": "至少需要 {min_length} 个字符",
    "string_too_long": "最多允许 {max_length} 个字符",
    "string_pattern_mismatch": "应符合模式 {pattern}",
    "int_type": "应为整数",
    "int_parsing": "应为整数",
    "int_from_float": "应为整数",
    "int_parsing_size": "数字过大",
    "greater_than": "应大于 {gt}",
    "greater_than_equal": "应大于或等于 {ge}",
    "less_than": "应小于 {lt}",
    "less_than_equal": "应小于或等于 {le}",
    "bool_type": "应为 true 或 false",
    "bool_parsing": "应为 true 或 false",
    "list_type": "应为列表",
    "too_short": "至少需要 {min_length} 项",
    "too_long": "最多允许 {max_length} 项",
    "literal_error": "应为以下之一：{expected}",
}


def field_of(fault: dict[str, Any]) -> str:
    """The name of the field that a fault is in, `body` for the body as a whole."""
    place = fault["loc"][1:] if fault["type"] != "json_invalid" else ()  # there it is how far the text was read
    return ".".join(str(part) for part in place)[:100] or "body"


def fault_text(fault: dict[str, Any]) -> str | Bilingual:
    """What is wrong with a field, without repeating what was sent."""
    kind, facts = fault["type"], fault.get("ctx") or {}
    if kind == "json_invalid":
        place = int(fault["loc"][-1]) + 1
        return Bilingual(f"this is not valid JSON, at character {place}", f"不是有效的 JSON（第 {place} 个字符处）")
    if kind == "missing" and len(fault["loc"]) == 1:
        return NOT_AN_OBJECT
    if kind == "extra_forbidden" and fault["loc"][-1] == "question":
        return Bilingual("it is named message", "该字段名为 message")
    ours = next(iter(facts["error"].args), None) if kind == "value_error" else None
    if isinstance(ours, Bilingual):
        return ours
    if known := FAULTS.get(kind) or PATTERNS.get(facts.get("pattern", "")):
        return known
    english = re.sub("^(Input|String|List) should", "it should", str(fault["msg"]).removeprefix("Value error, "))
    english = english[:1].lower() + english[1:]
    english = re.split(", unable to parse| after validation", english)[0]
    return Bilingual(english, CHINESE_FAULTS[kind].format(**facts)) if kind in CHINESE_FAULTS else english


def check_length(field: str, text: str, longest: int) -> None:
    """Raise InvalidRequest for a message longer than this service takes."""
    if len(text) > longest:
        detail = Bilingual(
            f"it has {len(text)} characters; at most {longest} are taken",
            f"共 {len(text)} 个字符，最多接受 {longest} 个",
        )
        raise InvalidRequest(errors=[{"field": field, "detail": detail}])


# ---------------------------------------------------------------------------------------- routes


def name_request(request: Request) -> None:
    """Take the id that the caller gives the request, or make one; the log and the answer carry it."""
    given = request.headers.get("x-request-id", "")
    REQUEST_ID.set(given if re.fullmatch(r"[A-Za-z0-9._-]{1,64}", given) else f"{getrandbits(128):032x}")


def with_usual_headers(answer: Response) -> Response:
    """An answer with what every answer of this service carries."""
    answer.headers["X-Request-Id"] = REQUEST_ID.get()
    answer.headers["X-Content-Type-Options"] = "nosniff"
    answer.headers.setdefault("Cache-Control", "no-store")
    return answer


ErrorAnswer = Callable[[Request, ChatError], Response]


class BoundedRequest(Request):
    """A request whose body is refused as soon as it is larger than any real one, while it still arrives."""

    limit: int

    async def body(self) -> bytes:
        if not hasattr(self, "_body"):
            if int(self.headers.get("content-length") or 0) > self.limit:
                raise BodyTooLarge(limit=self.limit)
            try:
                async with asyncio.timeout(BODY_TIMEOUT_S):
                    self._body = await self._arriving()
            except TimeoutError:
                raise InvalidRequest(errors=[{"field": "body", "detail": TOO_SLOW}]) from None
        return self._body

    async def _arriving(self) -> bytes:
        pieces, size = [], 0
        async for piece in self.stream():
            size += len(piece)
            if size > self.limit:
                raise BodyTooLarge(limit=self.limit)
            pieces.append(piece)
        return b"".join(pieces)


class ProblemRoute(APIRoute):
    """A route whose errors become problem details, in whatever application it is; see problem_route."""

    body_limit: ClassVar[int]
    methods_of: ClassVar[dict[str, set[str]]]  # what each path of this service takes

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        self.methods_of.setdefault(self.path, set()).update(self.methods or ())

    @staticmethod
    def error_answer(request: Request, error: ChatError, /) -> Response:
        """What tells a caller of an error."""
        return problem_answer(request, error)

    def get_route_handler(self) -> Callable[[Request], Any]:
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            bounded = BoundedRequest(request.scope, request.receive)
            bounded.limit = self.body_limit
            name_request(request)
            try:
                answer: Response = await handler(bounded)
            except Exception as error:
                if self.is_for_the_host(error, request):
                    raise
                answer = self.error_answer(request, as_chat_error(error, request.method))
            return with_usual_headers(answer)

        return handle

    def is_for_the_host(self, error: Exception, request: Request) -> bool:
        """Whether a dependency of the host's raised what the host answers everywhere, such as HTTPException(401)."""
        if isinstance(error, ChatError | ValidationException):
            return False
        if isinstance(error, HTTPException):
            return error.detail != UNREADABLE
        code = getattr(self.endpoint, "__code__", None)
        if any(frame.f_code is code for frame, _ in traceback.walk_tb(error.__traceback__)):
            return False  # raised while our route worked: a defect of ours
        handlers = getattr(request.app, "exception_handlers", {})
        return any(kind in handlers for kind in type(error).__mro__ if kind not in (Exception, BaseException, object))

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """An encoded slash is a character of an id, not a border of the path."""
        raw = scope.get("raw_path") or b""
        if b"%2f" not in raw.lower():
            return super().matches(scope)
        # A lone surrogate stands for it while the path is taken apart: no decoded path can hold one.
        parts = raw.decode("ascii", "replace").partition("?")[0].split("/")
        path = "/".join(unquote(part).replace("/", "\udc2f") for part in parts)
        match, found = super().matches({**scope, "path": path})
        if "path_params" in found:
            found["path_params"] = {
                name: value.replace("\udc2f", "/") if isinstance(value, str) else value
                for name, value in found["path_params"].items()
            }
        return match, found

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A method that the path does not take is told so here, not by the application around."""
        if scope["method"] in (self.methods or ()):
            await super().handle(scope, receive, send)
            return
        request = Request(scope)
        name_request(request)
        answer = self.error_answer(request, MethodNotAllowed(method=scope["method"]))
        answer.headers["Allow"] = ", ".join(sorted(self.methods_of[self.path]))
        await with_usual_headers(answer)(scope, receive, send)


def problem_route(limit: int, answer: ErrorAnswer = problem_answer) -> type[APIRoute]:
    """The class of the routes of one service.

    limit: the largest body that is taken, in bytes. answer: what tells a caller of an error, in another shape.
    """

    class Route(ProblemRoute):
        body_limit = limit
        error_answer = staticmethod(answer)
        methods_of: ClassVar[dict[str, set[str]]] = {}

    return Route


# ---------------------------------------------------------------------------------------- who is served

PROXIED = {b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip", b"via"}


@functools.lru_cache(maxsize=1_000)
def is_loopback(host: str | None) -> bool:
    """Whether a host name or address is this machine's own."""
    try:
        address = ipaddress.ip_address(host or "")
    except ValueError:
        return (host or "").lower() == "localhost"
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


@functools.lru_cache(maxsize=1_000)
def host_of(url: str) -> str | None:
    """The host that a URL names; None where it names none or is malformed."""
    with contextlib.suppress(ValueError):
        parts = urlsplit(url)
        if re.fullmatch(r"(\[[^][]*\]|[^][]*)(:\d*)?", parts.netloc):  # urlsplit lets a text follow the bracket
            return parts.hostname
    return None


async def local_caller(request: Request) -> str:
    """The owner of what a caller stores where there are no keys: `''`, for callers on this machine only.

    The Host, and the Origin if one is sent, have to be loopback too: a web page elsewhere that reaches us through a
    browser, by a foreign origin or a rebound name, has others. What comes through a proxy comes from somewhere else.
    """
    client = request.client.host if request.client else None
    host = host_of(f"//{request.headers.get('host', '')}")
    origin = request.headers.get("origin")
    if not is_loopback(client) or not is_loopback(host) or (origin and not is_loopback(host_of(origin))):
        raise Forbidden
    if any(name in PROXIED for name, _ in request.headers.raw):
        raise Forbidden
    return ""


# ---------------------------------------------------------------------------------------- pages


def cursor_of(kind: str, mark: int | None) -> str | None:
    """An opaque name for the place after which the next page begins."""
    return base64.urlsafe_b64encode(f"{kind}{mark}".encode()).decode().rstrip("=") if mark is not None else None


def mark_of(kind: str, cursor: str | None) -> int | None:
    """The place that a cursor names. Raises InvalidRequest for one that is not ours."""
    if cursor is None:
        return None
    with contextlib.suppress(ValueError):
        text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode("ascii")
        if re.fullmatch(rf"{kind}\d{{1,18}}", text):
            return int(text[len(kind) :])
    raise InvalidRequest(errors=[{"field": "after", "detail": NOT_A_CURSOR}])


def page_of(kind: str, rows: list[dict[str, Any]], mark: int | None) -> dict[str, Any]:
    """A page of a list; mark: where the next one begins, None at the end."""
    return {"data": rows, "has_more": mark is not None, "next": cursor_of(kind, mark)}
