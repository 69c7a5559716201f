"""Errors in OpenAI's shape, and the refusal of a parameter by its name.

{"error": {"message": "…", "type": "invalid_request_error", "param": "tools[0].type", "code": "invalid_request"}}
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from fastapi import Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from errors import ChatError, InvalidRequest
from problems import error_headers, language_of


class Refused(InvalidRequest):
    """A parameter that cannot be used as it is, or that this service does not have."""

    status = 400
    detail = "{param}: {what}"
    detail_zh = "{param}：{what}"

    def __init__(self, param: str, what: str) -> None:
        super().__init__(param=param[:200], what=what, errors=[{"field": param[:200], "detail": what}])


class PreviousResponseNotFound(Refused):
    """There is no such response, it is not the caller's, or nothing of it was stored."""

    code = "previous_response_not_found"


class ErrorOfOpenAI(BaseModel):
    """What is in `error`. param: the parameter that is to blame, where one is."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorBody(BaseModel):
    """An error."""

    error: ErrorOfOpenAI


ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": ErrorBody, "description": "the request, the key or the moment is to blame; `code` says which"},
    "5XX": {"model": ErrorBody, "description": "the service, its database or its model is to blame"},
}
TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


def error_of(error: ChatError, language: str) -> dict[str, Any]:
    """What stands in `error`."""
    status = status_of(error)
    field = str(error.errors[0].get("field", "")) if error.errors else ""
    if field == "body" or field.isdecimal():  # the body as a whole, or a place in a text that is not JSON
        field = ""
    return {
        "message": error.problem(language)["detail"],
        "type": TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error"),
        "param": re.sub(r"\.(\d+)(?=\.|$)", r"[\1]", field) if field else None,
        "code": error.code,
    }


def status_of(error: ChatError) -> int:
    """OpenAI answers 400 where the rest of this service says that a request has the wrong shape."""
    return 400 if isinstance(error, InvalidRequest) else error.status


def error_answer(request: Request, error: ChatError) -> Response:
    """The answer that tells a caller of an error."""
    body = {"error": error_of(error, language_of(request))}
    allow = {"Allow": str(error.facts["allow"])} if "allow" in error.facts else {}
    return JSONResponse(body, status_of(error), error_headers(error) | allow)


def as_json(value: Any) -> str:
    """A body as it is sent. A lone surrogate, which a model may write, travels only as an escape."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":"))
    return text


def check_sendable(param: str, value: Any) -> None:
    """Raise Refused for what cannot be passed on as JSON: lone surrogates, NaN and Infinity, nesting without end."""
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:  # UnicodeEncodeError is a ValueError
        raise Refused(param, "it holds something that is not JSON in UTF-8, such as a lone surrogate") from error


def refuse_others(given: Mapping[str, Any], only: Mapping[str, tuple[Any, ...]]) -> None:
    """Raise Refused for a parameter that would change the meaning of the answer and has no effect here.

    only: the values that ask for nothing but what is done anyway, besides null.
    """
    for name, harmless in only.items():
        value = given.get(name)
        if value is not None and value not in harmless:
            allowed = " or ".join(json.dumps(one) for one in harmless)
            raise Refused(name, f"this is not supported{f'; it may be {allowed}' if allowed else ''}")
