"""`dev owner` and `dev key`: what has to be done once when keys arrive."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dev import configuration
from dev.common import DevError, say
from dev.database import choose

if TYPE_CHECKING:
    from db import Database

BATCH = 200  # rows handed over in one transaction; conversations with all that belongs to them
DUPLICATE = 1062
USAGE = (
    "usage: python3 -m dev owner NAME [--from OTHER]\n"
    "  NAME   the name of a key, or NAME/USER for a user it acts for; '' for the service without keys\n"
    "  OTHER  whose things NAME gets, all of them; by default '', what was stored without keys"
)


def owner(arguments: list[str]) -> int:
    """`dev owner NAME [--from OTHER]`: hand all that one owner has to another, by default what nobody has."""
    import pymysql

    from config import Settings
    from db import Database
    from errors import ConfigError, TurnkeeperError

    new, old = new_and_old(arguments)
    environ = configuration.read()
    for warning in doubts(environ, new):
        say(f"Note: {warning}")
    with ExitStack() as stack:
        chosen = choose(environ, stack)
        try:
            settings = Settings.from_env({**environ, **chosen.settings})
            moved, left = hand_over(stack.enter_context(closing(Database(settings))), new, old)
        except ConfigError as error:
            raise DevError(str(error)) from error
        except (TurnkeeperError, pymysql.Error, OSError) as error:
            raise DevError(
                f"not all was handed over in {chosen.label}:\n    {error}\n"
                "Run it again once that is mended; where tables are missing, after python3 -m dev migrate."
            ) from error
    say(f"Moved from {called(old)} to {called(new)}: {counted(moved)}.")
    if +left:
        say(f"Left where they are, because {called(new)} has the same names already: {counted(left)}.")
    return 0


def new_and_old(arguments: Sequence[str]) -> tuple[str, str]:
    """Who gets the things, and who has them. Raises DevError with the usage."""
    from access.keys import NAME

    rest, old = list(arguments), ""
    if "--from" in rest[:-1]:
        at = rest.index("--from")
        old = rest[at + 1]
        del rest[at : at + 2]
    new = rest[0] if len(rest) == 1 else "-"
    if new.startswith("-") or (new and not NAME.fullmatch(new.split("/")[0])) or max(len(new), len(old)) > 100:
        raise DevError(USAGE)
    if new == old:
        raise DevError(f"{USAGE}\nNAME and OTHER are the same.")
    return new, old


def doubts(environ: Mapping[str, str], new: str) -> list[str]:
    """Why nobody may see what `new` gets, as far as the keys that are configured tell."""
    from access.keys import keys_in_file, keys_in_text
    from errors import ConfigError

    text, file = environ.get("API_KEYS", ""), environ.get("API_KEYS_FILE", "")
    try:
        keys = [*keys_in_text(text), *(keys_in_file(Path(file)) if file else [])]
    except ConfigError as error:
        return [f"whether there is a key for {called(new)} is not known. {error}"]
    name, for_user, _ = new.partition("/")
    named = [key for key in keys if key.name == name]
    if keys and not named:
        what = "callers with keys do not see what belongs to it" if not new else f"no key is named {name!r}"
        return [f"{what}. It is all moved on by: python3 -m dev owner NAME --from '{new}'"]
    if for_user and named and not any("users" in key.may for key in named):
        return [f'no key named {name!r} may act for users: it needs may = ["users"]']
    return []


def called(name: str) -> str:
    """An owner, for people."""
    return repr(name) if name else "'' (the service without keys)"


def counted(numbers: Counter[str]) -> str:
    """`2 conversations, 1 run`."""
    return ", ".join(f"{n} {what}{'s' * (n != 1)}" for what, n in numbers.items() if n) or "nothing"


# ---------------------------------------------------------------------------------------- what is handed over

CONVERSATIONS = (
    "SELECT x.id, x.conversation_id FROM conversations AS x WHERE x.owner = %s AND NOT EXISTS "
    "(SELECT 1 FROM conversations AS t WHERE t.owner = %s AND t.conversation_id = x.conversation_id) "
    "ORDER BY x.id LIMIT %s"
)
# What belongs to a conversation that stays, because the new owner has one of its name, stays with it.
GOES = "NOT EXISTS (SELECT 1 FROM conversations AS c WHERE c.owner = x.owner AND c.conversation_id = x.conversation_id)"


@dataclass(frozen=True)
class Rows:
    """Rows with an owner that may belong to no conversation. named: the key is unique for each owner only."""

    table: str
    key: str
    owner: str = "owner"
    which: str = "TRUE"
    named: bool = False

    def find(self, database: Database, new: str, old: str) -> list[Any]:
        """The keys of some that are to be moved."""
        taken = f"SELECT 1 FROM {self.table} AS t WHERE t.{self.owner} = %s AND t.{self.key} = x.{self.key}"
        free = f" AND NOT EXISTS ({taken})" if self.named else ""
        rows = database.read(
            f"SELECT x.{self.key} FROM {self.table} AS x WHERE x.{self.owner} = %s AND {self.which}{free} "
            f"ORDER BY x.{self.key} LIMIT %s",
            (old, new, BATCH) if self.named else (old, BATCH),
        )
        return [row[0] for row in rows]

    def move(self, database: Database, new: str, old: str, keys: Sequence[Any]) -> int:
        """Move these, but none whose name `new` has come to have; how many."""
        statement = (
            f"UPDATE IGNORE {self.table} SET {self.owner} = %s "
            f"WHERE {self.owner} = %s AND {self.key} IN ({marks(keys)})"
        )

        def update(_: bool) -> int:
            with database.cursor() as cursor:
                return cursor.execute(statement, (new, old, *keys))

        return database.again(update)


REST = {
    "run": Rows("runs", "id", which=GOES),  # its record is found by its id
    "idempotency key": Rows("idempotency_keys", "name", which=GOES, named=True),
    "cancellation": Rows("run_cancellations", "run_id", named=True),
    "note": Rows("schema_notes", "id", owner="author", which="x.source = 'human'"),
}
LEFT = {
    "conversation": "SELECT COUNT(*) FROM conversations WHERE owner = %s",
    "run": "SELECT COUNT(*) FROM runs WHERE owner = %s",
    "idempotency key": "SELECT COUNT(*) FROM idempotency_keys WHERE owner = %s",
}


def hand_over(database: Database, new: str, old: str = "") -> tuple[Counter[str], Counter[str]]:
    """Give all that `old` has to `new`: how many of each were moved, and how many stay because `new` has their names.

    A conversation goes with its messages, runs and keys; after all of them what belongs to no conversation, or to one
    that is deleted. Safe to break off and to run again.
    """
    moved: Counter[str] = Counter()
    while rows := database.read(CONVERSATIONS, (old, new, BATCH)):
        moved += move_conversations(database, new, old, rows)
    for what, kind in REST.items():
        while keys := kind.find(database, new, old):
            moved[what] += kind.move(database, new, old, keys)
    return moved, Counter({what: database.read(statement, (old,))[0][0] for what, statement in LEFT.items()})


def move_conversations(database: Database, new: str, old: str, rows: Sequence[tuple[Any, ...]]) -> Counter[str]:
    """Move these (id, conversation_id) with all that belongs to them; none where `new` made one of the same name."""
    import pymysql

    from db import error_number

    ids, names = zip(*rows, strict=True)
    of_them = f"WHERE owner = %s AND conversation_id IN ({marks(names)})"

    def update(_: bool) -> Counter[str]:
        with database.transaction() as cursor:
            # The messages follow by their foreign key.
            statement = f"UPDATE conversations SET owner = %s WHERE owner = %s AND id IN ({marks(ids)})"
            conversations = cursor.execute(statement, (new, old, *ids))
            runs = cursor.execute(f"UPDATE runs SET owner = %s {of_them}", (new, old, *names))
            keys = cursor.execute(f"UPDATE IGNORE idempotency_keys SET owner = %s {of_them}", (new, old, *names))
        return Counter({"conversation": conversations, "run": runs, "idempotency key": keys})

    try:
        return database.again(update)
    except pymysql.err.IntegrityError as error:
        if error_number(error) != DUPLICATE:
            raise
        return Counter()  # the next look leaves that one out


def marks(values: Sequence[Any]) -> str:
    """A place for each value in a statement."""
    return ", ".join(["%s"] * len(values))


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
