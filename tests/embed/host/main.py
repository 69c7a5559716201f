"""A backend with modules named as ours are, and its own callers, errors, log and lifespan. It has two assistants."""

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator

import turnkeeper
from fastapi import FastAPI, Header, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException as AnyHTTPException

import agent
import config
import db
import errors
import memory
import tools

logging.basicConfig(level=logging.INFO, format="HOST|%(levelname)s|%(name)s|%(message)s")


async def host_auth(authorization: str = Header("")) -> str:
    """The host's own way to know its callers."""
    user = authorization.removeprefix("Bearer ")
    if not user:
        raise errors.NotSignedIn
    if user == "banned":
        raise HTTPException(403, "the host bans you") from ValueError(user)
    if user == "broken":
        raise RuntimeError("the host's session store is down")
    return user


def assistant(**other: object) -> turnkeeper.Runtime:
    """One assistant of the host's, with a tool of the host's."""
    runtime = turnkeeper.build_runtime(turnkeeper.Settings(**config.ASSISTANT | other))
    runtime.tools.tool(tools.in_stock)

    async def work() -> None:
        memory.STARTED.append(runtime.settings.system_prompt)
        await asyncio.Event().wait()

    runtime.in_background.append(work)
    return runtime


@contextlib.asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    memory.STARTED.append("the host")
    yield


app = FastAPI(title="Host", lifespan=lifespan)
first = assistant(system_prompt="You are the first.")
second = assistant(system_prompt="You are the second.", toolsets=("clock",), max_steps=1, max_message_chars=10)
app.include_router(turnkeeper.chat_router(first, caller=host_auth), prefix="/assistant")
app.include_router(turnkeeper.chat_router(second, caller=host_auth), prefix="/second")


@app.get("/chat")
async def chat() -> dict[str, object]:
    """A route of the host's, with the name of one of ours."""
    loaded = [agent.OWNED_BY, config.OWNED_BY, db.OWNED_BY, errors.OWNED_BY, memory.OWNED_BY, tools.OWNED_BY]
    return {"pid": os.getpid(), "seen": memory.SEEN, "started": memory.STARTED, "owned_by": loaded}


@app.exception_handler(errors.NotSignedIn)
async def not_signed_in(_: Request, error: errors.NotSignedIn) -> JSONResponse:
    memory.SEEN.append("NotSignedIn")
    return JSONResponse({"host": "sign in first"}, 401)


@app.exception_handler(AnyHTTPException)
@app.exception_handler(RequestValidationError)
@app.exception_handler(turnkeeper.ChatError)
@app.exception_handler(ValueError)
@app.exception_handler(Exception)
async def anything(_: Request, error: Exception) -> JSONResponse:
    memory.SEEN.append(type(error).__name__)
    return JSONResponse({"host": str(error)}, getattr(error, "status_code", 500))
