"""The callers of `dev torture`: what they send, what they are told, and what follows from it.

A caller with a key insists: it sends its request again, to any of the services, until it is acknowledged or refused
for good. Everything they were told goes into the journal, to be held against what MySQL holds at the end.
"""

import http.client
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Literal

from dev.torture_model import answer_to

PATIENCE_S = 60.0  # for one answer; a turn, its claim and its save take less, whatever happens
INSIST_S = 150.0  # nothing may keep a request from its answer for so long
LATE_S = 20.0  # what a killed or frozen service had sent to the server may still be done for so long

# What a service may say while it is tormented. Only with these is nothing known of what was stored:
UNKNOWN = {"store_unavailable"}
REFUSALS = {
    "turn_conflict",
    "request_in_progress",
    "overloaded",
    "model_error",
    "model_unavailable",
    "model_timeout",
    *UNKNOWN,
}

Outcome = Literal["under way", "acknowledged", "refused", "deleted", "unknown"]


@dataclass(eq=False)
class Asked:
    """One turn that a caller wants, however often it sends it. Times are those of time.monotonic()."""

    conversation: str
    text: str
    key: str | None
    sent_at: float
    outcome: Outcome = "under way"
    ended_at: float = 0.0
    told: dict[str, Any] = field(default_factory=dict)  # the body of the answer that acknowledged it
    body: str = ""  # the same, as it was sent


@dataclass(frozen=True)
class Deletion:
    """A conversation deleted at some time between the two."""

    conversation: str
    began_at: float
    done_by: float


class Answer:
    """What came back for one request."""

    def __init__(self, status: int, headers: Any, content: bytes) -> None:
        self.replayed = headers.get("Idempotency-Replayed") == "true"
        self.retry_after = headers.get("Retry-After")
        self.body = content.decode()
        if str(headers.get("Content-Type")).startswith("text/event-stream"):
            *_, last, rest = ["", *self.body.split("\n\n")]
            name, _, self.body = last.partition("\ndata: ")
            if rest or not name.endswith(("event: result", "event: error")):
                raise http.client.HTTPException("the stream has no end")
        self.told: dict[str, Any] = json.loads(self.body) if self.body else {}
        self.status: int = self.told["status"] if isinstance(self.told.get("status"), int) else status
        self.code = str(self.told.get("code", ""))


class Journal:
    """What was asked and told, by all callers."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.deletions: list[Deletion] = []
        self.counts: Counter[str] = Counter()
        self.complaints: list[str] = []
        self._lock = threading.Lock()

    def add(self, asked: Asked) -> Asked:
        with self._lock:
            self.asked.append(asked)
        return asked

    def count(self, what: str) -> None:
        with self._lock:
            self.counts[what] += 1

    def complain(self, text: str) -> None:
        """Something that must never be."""
        with self._lock:
            self.complaints.append(text)


def send(port: int, way: str, asked: Asked, patience_s: float = PATIENCE_S) -> Answer:
    """One request. Raises OSError, HTTPException."""
    headers = {"Content-Type": "application/json"}
    if asked.key:
        headers["Idempotency-Key"] = asked.key
    body = json.dumps({"conversation_id": asked.conversation, "message": asked.text})
    return call(port, "POST", way, body, headers, patience_s)


def call(port: int, method: str, path: str, body: str, headers: dict[str, str], patience_s: float) -> Answer:
    """One request over a connection of its own. Raises OSError, HTTPException."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=patience_s)) as connection:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return Answer(response.status, response.headers, response.read())


class Caller:
    """One who asks one thing after the other, until `until`. aborted: leave everything as it is."""

    def __init__(
        self, name: str, seed: int, ports: Sequence[int], conversations: Sequence[str], journal: Journal
    ) -> None:
        self.name, self.ports, self.conversations, self.journal = name, ports, conversations, journal
        self.chance = random.Random(f"{seed} {name}")
        self.aborted = threading.Event()
        self.asked = 0

    def keep_asking(self, until: float) -> None:
        while time.monotonic() < until and not self.aborted.is_set():
            self.ask(self.chance.choice(self.conversations), with_key=self.chance.random() < 0.75)

    def ask(self, conversation: str, with_key: bool) -> Asked:
        """One turn, to its end."""
        self.asked += 1
        name = f"{self.name}-{self.asked}"
        text = f"{name}: 12 × 8 = ? 😀" + "あ" * self.chance.choice([0, 0, 0, 0, 10, 300, 20_000])
        key = f"{name}-{self.chance.getrandbits(64):x}" if with_key else None
        asked = self.journal.add(Asked(conversation, text, key, time.monotonic()))
        if with_key:
            self.insist(asked)
        else:
            self.try_once(asked)
        return asked

    def way(self) -> str:
        return self.chance.choice(["/chat", "/chat", "/chat/stream"])

    def end(self, asked: Asked, outcome: Outcome, answer: Answer | None = None) -> None:
        asked.outcome, asked.ended_at = outcome, time.monotonic()
        if answer and outcome == "acknowledged":
            asked.told, asked.body = answer.told, answer.body
            if answer.told.get("answer") != answer_to(asked.text):
                self.journal.complain(f"{asked.text[:20]}: answered {str(answer.told.get('answer'))[:40]!r}")
        self.journal.count(outcome)

    def attempt(self, asked: Asked, patience_s: float = PATIENCE_S) -> Answer | None:
        """One try at any service; None if the connection broke."""
        try:
            answer = send(self.chance.choice(self.ports), self.way(), asked, patience_s)
        except (OSError, http.client.HTTPException):
            self.journal.count("try: connection lost")
            return None
        stop = answer.told.get("stop_reason")
        said = answer.code or ("replayed" if answer.replayed else str(stop))
        self.journal.count(f"try: {said}")
        if answer.status != 200 and answer.code not in REFUSALS:
            self.journal.complain(f"{asked.text[:20]}: {answer.status} {answer.body[:300]}")
        if answer.code == "request_in_progress" and answer.retry_after is None:
            self.journal.complain(f"{asked.text[:20]}: request_in_progress without Retry-After")
        return answer

    def try_once(self, asked: Asked) -> None:
        """Without a key a request is sent once: nobody could tell it from another."""
        answer = self.attempt(asked)
        if answer is None or answer.code in UNKNOWN:
            return self.end(asked, "unknown")
        self.end(asked, "acknowledged" if answer.told.get("status") == "completed" else "refused", answer)

    def insist(self, asked: Asked) -> None:
        """Send it until it is acknowledged, or refused for good."""
        give_up_at, pause_s, lost = time.monotonic() + INSIST_S, 0.02, False
        while not self.aborted.is_set():
            if time.monotonic() > give_up_at:
                self.journal.complain(f"{asked.text[:20]}: not answered within {INSIST_S:.0f} s")
                return self.end(asked, "unknown")
            impatient = self.chance.random() < 0.08
            answer = self.attempt(asked, self.chance.uniform(0.02, 0.5) if impatient else PATIENCE_S)
            lost = lost or answer is None
            if answer and answer.told.get("status") == "completed":
                self.end(asked, "acknowledged", answer)
                return self.ask_again(asked) if self.chance.random() < 0.25 else None
            if answer and answer.code == "turn_conflict":
                if "deleted since" in answer.told["detail"]:
                    return self.end(asked, "deleted")
                # The caller wants it no more. A try whose answer was lost may still be under way, and be done.
                if self.chance.random() < 0.3 and not lost:
                    return self.end(asked, "refused")
            pause_s = min(pause_s * 1.5, 0.5)
            self.aborted.wait(pause_s * self.chance.random())
        return None

    def ask_again(self, asked: Asked) -> None:
        """What was acknowledged is answered again with the same words, unless it was deleted meanwhile."""
        answer = self.attempt(asked)
        if answer is None or answer.code in UNKNOWN or "deleted since" in answer.told.get("detail", ""):
            return
        if not answer.replayed or answer.body != asked.body:
            self.journal.complain(f"{asked.text[:20]}: done again: {answer.body[:200]} after {asked.body[:200]}")


def delete(ports: Sequence[int], conversation: str, chance: random.Random, journal: Journal, end: float) -> None:
    """Delete a conversation, and insist until somebody says that it is gone."""
    began_at, late = time.monotonic(), False
    while time.monotonic() < end:
        try:
            answer = call(chance.choice(ports), "DELETE", f"/api/conversations/{conversation}", "", {}, PATIENCE_S)
        except (OSError, http.client.HTTPException):
            answer = None
        if answer and answer.status in (204, 404):
            done_by = time.monotonic() + (LATE_S if late else 0.0)
            journal.deletions.append(Deletion(conversation, began_at, done_by))
            return
        if answer and answer.code not in UNKNOWN:
            journal.complain(f"DELETE: {answer.status} {answer.body[:300]}")
        late = True
        time.sleep(0.05)
    journal.deletions.append(Deletion(conversation, float("inf"), float("inf")))  # perhaps; nobody knows when
    journal.complain("a conversation could not be deleted")
