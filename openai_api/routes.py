"""The `/v1` routes, gathered in a router of their own whose errors have OpenAI's shape."""

import time
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.routing import APIRoute
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.routing import Match

from errors import MethodNotAllowed, NotFound
from problems import problem_route
from runtime import Caller, Runtime

from .completions import add_completions
from .conversations import add_conversations
from .refusals import ERRORS, error_answer
from .responses import add_responses

BODY_LIMIT = 8 * 1024 * 1024  # a caller's own history comes with each request
METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE"]


class Rest(PathConvertor):
    """What is left of a path, with line breaks: those of Starlette's `path` end there."""

    regex = r"[\s\S]*"


register_url_convertor("rest", Rest())


def add_openai(router: APIRouter, runtime: Runtime, caller: Caller) -> None:
    """Add the routes to the service's router."""
    limit = max(BODY_LIMIT, 12 * runtime.settings.max_message_chars + 65_536)
    own = APIRouter(
        route_class=problem_route(limit, error_answer),
        strict_content_type=False,
        generate_unique_id_function=router.generate_unique_id_function,
    )
    add_models(own, runtime, caller)
    add_completions(own, runtime, caller)
    add_responses(own, runtime, caller)
    add_conversations(own, runtime, caller)
    add_elsewhere(own)
    router.include_router(own)


def add_models(router: APIRouter, runtime: Runtime, caller: Caller) -> None:
    """The routes that name the model."""
    name, since = runtime.settings.default_model, int(time.time())
    model = {"id": name, "object": "model", "created": since, "owned_by": "turnkeeper"}

    @router.get("/v1/models", tags=["openai"], responses=ERRORS, dependencies=[Depends(caller)])
    async def list_models() -> dict[str, Any]:
        """The model that answers where a request names none."""
        return {"object": "list", "data": [model] if name else []}

    @router.get("/v1/models/{model_id:rest}", tags=["openai"], responses=ERRORS, dependencies=[Depends(caller)])
    async def get_model(model_id: str) -> dict[str, Any]:
        """The same by its name."""
        if not name or model_id != name:
            raise NotFound(what="model of this name")
        return model


def add_elsewhere(router: APIRouter) -> None:
    """What is not there is said in OpenAI's shape too."""
    routes = list(router.routes)

    # Every method: a route that takes another one would otherwise never be asked.
    @router.api_route("/v1/{rest:rest}", methods=METHODS, include_in_schema=False)
    async def elsewhere(rest: Annotated[str, "the path below /v1"], request: Request) -> None:
        scope = {"type": "http", "path": f"/v1/{rest}", "method": "", "headers": []}
        there = [route for route in routes if isinstance(route, APIRoute) and route.matches(scope)[0] != Match.NONE]
        if there:
            allow = ", ".join(sorted({method for route in there for method in route.methods or ()}))
            raise MethodNotAllowed(method=request.method, allow=allow)
        raise NotFound(what="path")
