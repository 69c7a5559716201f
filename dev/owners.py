"""`dev owner` and `dev key`: what has to be done once when keys arrive."""

from __future__ import annotations

from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

from dev import configuration
from dev.common import DevError, say
from dev.database import choose

if TYPE_CHECKING:
    from db import Database

BATCH = 200  # conversations handed over in one transaction


def owner(arguments: list[str]) -> int:
    """`dev owner NAME`: hand all that was stored without keys to one owner."""
    from access.keys import NAME
    from config import Settings
    from db import Database

    name = arguments[0] if len(arguments) == 1 else ""
    if name.startswith("-") or not NAME.fullmatch(name.split("/")[0]) or len(name) > 100:
        raise DevError("usage: python3 -m dev owner NAME, the name of a key, or NAME/USER for a user it acts for")
    environ = configuration.read()
    with ExitStack() as stack:
        settings = {**environ, **choose(environ, stack).settings}
        database = stack.enter_context(closing(Database(Settings.from_env(settings))))
        moved = hand_over(database, arguments[0])
    say(f"{moved} conversations now belong to {arguments[0]}.")
    return 0


def hand_over(database: Database, name: str) -> int:
    """Give the conversations of nobody, with their messages and keys, to `name`; how many. Safe to break off."""
    moved = 0
    while True:
        rows = database.read(
            "SELECT c.id, c.conversation_id FROM conversations AS c WHERE c.owner = '' AND NOT EXISTS "
            "(SELECT 1 FROM conversations AS t WHERE t.owner = %s AND t.conversation_id = c.conversation_id) "
            "ORDER BY c.id LIMIT %s",
            (name, BATCH),
        )
        if not rows:
            break
        with database.transaction() as cursor:
            for key, conversation_id in rows:
                # The messages follow by their foreign key.
                cursor.execute("UPDATE conversations SET owner = %s WHERE id = %s", (name, key))
                cursor.execute(
                    "UPDATE IGNORE idempotency_keys SET owner = %s WHERE owner = '' AND conversation_id = %s",
                    (name, conversation_id),
                )
        moved += len(rows)
    left = database.read("SELECT COUNT(*) FROM conversations WHERE owner = ''")[0][0]
    if left:
        say(f"{left} conversations stay where they are: {name} has conversations of the same names already.")
    return moved


def key(arguments: list[str]) -> int:
    """`dev key NAME [right…]`: make a key; print it once, and what API_KEYS_FILE has to hold of it."""
    from access.keys import NAME, RIGHTS, hash_of, new_key

    name, *rights = arguments or [""]
    if name.startswith("-") or not NAME.fullmatch(name) or not RIGHTS.issuperset(rights):
        raise DevError(f"usage: python3 -m dev key NAME [{' | '.join(sorted(RIGHTS))} …]")
    made = new_key()
    say("The key, shown this once; give it to its user:")
    print(made)
    say("For the file that API_KEYS_FILE names:")
    may = "\nmay = [" + ", ".join(f'"{right}"' for right in rights) + "]" if rights else ""
    print(f'[[key]]\nname = "{name}"\nhash = "{hash_of(made)}"{may}')
    return 0
