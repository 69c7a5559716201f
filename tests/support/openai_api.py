"""Clients of the wire format, what they ask, and what is stored of it."""

import asyncio
import json
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from fastapi.testclient import TestClient
from openai import AsyncOpenAI, OpenAI

from tests.conftest import Service, Store
from tests.support.scripted_model import ScriptedModel

HI = [{"role": "user", "content": "Hi"}]

WEATHER = {
    "name": "weather",
    "description": "The weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}

CHAT_TOOL = {"type": "function", "function": WEATHER}

RESPONSES_TOOL = {"type": "function", "strict": False, **WEATHER}


def client_of(service: Service, key: str = "sk-any", **more: Any) -> OpenAI:
    return OpenAI(base_url=f"http://127.0.0.1:{service.port}/v1", api_key=key, **{"max_retries": 0, **more})


def with_async(service: Service, work: Callable[[AsyncOpenAI], Any]) -> Any:
    """Run `work` with the async client."""

    async def run() -> Any:
        async with AsyncOpenAI(base_url=f"http://127.0.0.1:{service.port}/v1", api_key="any", max_retries=0) as client:
            return await work(client)

    return asyncio.run(run())


def named(conversation_id: str, **more: str) -> dict[str, str]:
    return {"X-Conversation-Id": quote(conversation_id, safe="")} | more


def complete(api: OpenAI, messages: Any = HI, **more: Any) -> Any:
    return api.chat.completions.create(model="scripted", messages=messages, **more)


def joined(chunks: Any) -> tuple[str, Any]:
    """The content of a stream of chunks, and the last one with a reason to finish."""
    text, last = "", None
    for chunk in chunks:
        if chunk.choices:
            text += chunk.choices[0].delta.content or ""
            last = chunk if chunk.choices[0].finish_reason else last
    return text, last


def transcript(model: ScriptedModel, at: int = -1) -> list[tuple[str, Any]]:
    """(role, content) of what the model was sent, without the system prompt."""
    return [(m["role"], m["content"]) for m in model.requests[at]["messages"] if m["role"] != "system"]


def stored(store: Store) -> int:
    return int(store.rows("SELECT COUNT(*) FROM messages")[0][0])


def refused(client: TestClient, path: str, body: Any, param: str, headers: Any = None, status: int = 400) -> None:
    text = json.dumps(body).encode()
    for stream in (False, True):
        sent = text if not stream or "stream" in body else json.dumps({**body, "stream": True}).encode()
        answer = client.post(path, content=sent, headers=headers)
        assert answer.status_code == status, answer.text
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert (error["param"], error["type"]) == (param, "invalid_request_error"), error
