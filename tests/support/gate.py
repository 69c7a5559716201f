"""Answers of the model that wait until the test lets them go, and what goes on beside the test meanwhile."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from tests.support.scripted_model import Answer, Json, completion
from tests.support.waiting import LONG

Beside = Callable[..., "Future[Any]"]


class Gate:
    """An answer of the model that waits until the test lets it go: `model.answers_by(gate.answer("A1"))`."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()

    def answer(self, text: str) -> Answer:
        def answer(request: Json) -> Json:
            self.reached.set()
            assert self.opened.wait(LONG)
            return completion({"role": "assistant", "content": text}, "stop")(request)

        return answer

    def wait(self) -> None:
        """Until the model has been asked."""
        assert self.reached.wait(LONG)

    def open(self) -> None:
        self.opened.set()
