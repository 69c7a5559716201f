"""`Idempotency-Key`: a request sent again is answered again, not done again.

A key is claimed in a commit of its own before the model is asked, and finished in the transaction that stores the turn.
The run that holds it is written into it, so a process that was given up for dead and wakes up later stores nothing.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pymysql.cursors import Cursor

from db import Database
from errors import ConversationDeleted, IdempotencyMismatch, RequestInProgress, TurnConflict

KEEP_S = 24 * 3600  # how long a key is remembered
SWEEP_ROWS = 500


@dataclass(frozen=True)
class Claim:
    """A key, and for what it is sent. fingerprint: of the request, by `fingerprint_of`; lease_s: longer than a turn."""

    owner: str
    name: str
    fingerprint: str
    conversation_id: str
    run_id: str
    lease_s: float


def fingerprint_of(request: dict[str, Any]) -> str:
    """What makes two requests the same: their fields and values; not their order, spacing or way of escaping."""
    return hashlib.sha256(json.dumps(request, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


# With a duplicate this changes nothing, but locks the row there is, so that two of us cannot wait for each other.
CLAIM = (
    "INSERT INTO idempotency_keys "
    "(owner, name, fingerprint, conversation_id, run_id, state, leased_until, expires_at) "
    "VALUES (%s, %s, %s, %s, %s, 'running', NOW(6) + INTERVAL %s SECOND, NOW(6) + INTERVAL %s SECOND) "
    "ON DUPLICATE KEY UPDATE owner = owner"
)
CLAIMED = (
    "SELECT fingerprint, run_id, state, answer, leased_until < NOW(6), expires_at < NOW(6) "
    "FROM idempotency_keys WHERE owner = %s AND name = %s"
)
TAKE_OVER = (
    "UPDATE idempotency_keys SET fingerprint = %s, conversation_id = %s, run_id = %s, state = 'running', "
    "answer = NULL, leased_until = NOW(6) + INTERVAL %s SECOND, expires_at = NOW(6) + INTERVAL %s SECOND "
    "WHERE owner = %s AND name = %s"
)
FINISH = (
    "UPDATE idempotency_keys SET state = 'done', answer = %s "
    "WHERE owner = %s AND name = %s AND run_id = %s AND state = 'running'"
)
FREE = "DELETE FROM idempotency_keys WHERE owner = %s AND name = %s AND run_id = %s AND state = 'running'"
FORGET_ANSWERS = (
    "UPDATE idempotency_keys SET state = 'deleted', answer = NULL "
    "WHERE conversation_id = %s AND owner = %s AND state IN ('running', 'done')"
)
SWEEP = "DELETE FROM idempotency_keys WHERE expires_at < NOW(6) ORDER BY expires_at LIMIT %s"


def claim_key(database: Database, claim: Claim) -> str | None:
    """Take the key for this run; None when it is ours, or the answer that the same request was given before.

    Raises IdempotencyMismatch, RequestInProgress, ConversationDeleted, StoreUnavailable.
    """

    def claim_again(_: bool) -> str | None:  # after a lost reply our own run is found in the row
        with database.transaction() as cursor:
            return claim_once(cursor, claim)

    return database.again(claim_again)


def claim_once(cursor: Cursor, claim: Claim) -> str | None:
    """One try, within a transaction."""
    at = (claim.owner, claim.name)
    ours = (claim.fingerprint, claim.conversation_id, claim.run_id)
    if cursor.execute(CLAIM, (*at, *ours, claim.lease_s, KEEP_S)) == 1:
        return None
    cursor.execute(CLAIMED, at)
    found = cursor.fetchone()
    assert found is not None  # our INSERT holds its lock
    fingerprint, run_id, state, answer, lease_over, expired = found
    if expired or (state == "running" and lease_over and fingerprint == claim.fingerprint):
        cursor.execute(TAKE_OVER, (*ours, claim.lease_s, KEEP_S, *at))
        return None
    if fingerprint != claim.fingerprint:
        raise IdempotencyMismatch
    if state == "deleted":
        raise ConversationDeleted
    if state == "done":
        return str(answer)
    if run_id == claim.run_id:
        return None
    raise RequestInProgress


def finish_key(claim: Claim, answer: str) -> Callable[[Cursor], None]:
    """What the transaction that stores the turn has to do besides. Raises TurnConflict when the key is not ours."""

    def finish(cursor: Cursor) -> None:
        if not cursor.execute(FINISH, (answer, claim.owner, claim.name, claim.run_id)):
            raise TurnConflict

    return finish


def free_key(database: Database, claim: Claim) -> None:
    """Give the key back, because nothing was stored for it. Where the turn was stored after all, nothing changes."""

    def free(_: bool) -> None:
        with database.cursor() as cursor:
            cursor.execute(FREE, (claim.owner, claim.name, claim.run_id))

    database.again(free)


def forget_answers(cursor: Cursor, owner: str, conversation_id: str) -> None:
    """Empty the keys of a conversation that is being deleted; that they were used is remembered until they expire.

    Those of turns under way too: a turn that ends with a conflict is sent again by many clients of themselves.
    """
    cursor.execute(FORGET_ANSWERS, (conversation_id, owner))


def sweep_keys(database: Database) -> bool:
    """Forget some keys that have expired; whether there may be more. One process at a time does it, by a lock."""
    with database.cursor() as cursor:
        lock = "turnkeeper-sweep-" + hashlib.sha256(database.settings.db_name.encode()).hexdigest()[:32]
        cursor.execute("SELECT GET_LOCK(%s, 0)", (lock,))
        if cursor.fetchone() != (1,):
            return False
        try:
            return cursor.execute(SWEEP, (SWEEP_ROWS,)) == SWEEP_ROWS
        finally:
            cursor.execute("SELECT RELEASE_LOCK(%s)", (lock,))
