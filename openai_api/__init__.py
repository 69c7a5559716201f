"""The OpenAI wire format: `/v1/models`, `/v1/chat/completions`, `/v1/responses`, `/v1/conversations`.

An unmodified OpenAI client talks to this service by its `base_url`. What is stored is what `/chat` stores, in the same
conversations, by the same rules; what a stored conversation cannot hold is refused by name or not stored.
"""

from runtime import Runtime

from .routes import add_openai

__all__ = ["register"]


def register(runtime: Runtime) -> None:
    """Add the `/v1` routes. Opens no connection."""
    runtime.routers.append(lambda router, caller: add_openai(router, runtime, caller))
