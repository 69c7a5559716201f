"""A way to the database that can be cut, requests over it, and what MySQL holds afterwards."""

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest
from fastapi.testclient import TestClient

from dev.mariadb import PrivateServer
from dev.proxy import CuttableProxy

Reply = httpx2.Response


class Proxy(CuttableProxy):
    """Calls `on_cut` when a fault has struck and before the service learns of it."""

    def __init__(self, port: int) -> None:
        self.on_cut: Callable[[], object] = lambda: None
        super().__init__("127.0.0.1", port)

    def count_cut(self) -> None:
        self.on_cut()
        super().count_cut()


def chat(client: TestClient, conversation_id: str, message: str) -> Reply:
    return client.post("/chat", json={"conversation_id": conversation_id, "message": message})


def is_stored(answer: Reply, turn: int) -> bool:
    return answer.status_code == 200 and answer.json()["turn"] == turn


def refused(answer: Reply) -> tuple[int, str]:
    """Status and code of an answer that is an error; one that may pass says when to come back."""
    problem = answer.json()
    assert answer.headers["content-type"] == "application/problem+json"
    assert (answer.status_code == 503) == ("retry-after" in answer.headers)
    return answer.status_code, problem["code"]


CONFLICT = 409, "turn_conflict"

UNAVAILABLE = 503, "store_unavailable"


def echoed(*questions: str) -> list[tuple[str, str]]:
    """What MySQL holds after these turns with a model that echoes."""
    return [(question, f"echo: {question}") for question in questions]


@contextlib.contextmanager
def root(server: PrivateServer) -> Iterator[Callable[..., list[tuple[Any, ...]]]]:
    """Statements as root, over one connection: `ask("SHOW STATUS …")`."""
    with contextlib.closing(server.admin()) as connection, connection.cursor() as cursor:

        def ask(statement: str) -> list[tuple[Any, ...]]:
            cursor.execute(statement)
            return list(cursor.fetchall())

        yield ask


def our_connections(server: PrivateServer) -> list[int]:
    """The connections of the application's account."""
    with root(server) as ask:
        return [number for (number,) in ask("SELECT id FROM information_schema.processlist WHERE user = 'turnkeeper'")]


def kill_connections(server: PrivateServer) -> int:
    """End them all; how many there were."""
    numbers = our_connections(server)
    with root(server) as ask:
        for number in numbers:
            ask(f"KILL {number}")
    return len(numbers)


def crash(server: PrivateServer) -> None:
    """A crash of the server, which its machine starts again."""
    server.kill()
    server.start()


# A statement as it goes over the wire begins with the byte that says that it is one: READ COMMITTED is no COMMIT.
LOAD, BEGIN, COMMIT = b"\x03\nSELECT c.id", b"\x03BEGIN", b"\x03COMMIT"

INSERT_MESSAGES, LOOK = b"\x03INSERT INTO messages", b"\x03SELECT run_id"


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
