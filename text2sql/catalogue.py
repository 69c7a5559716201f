"""The catalogue: versions of the structure of the database that is asked, and notes about its tables and columns.

Both lie in the service's own database. A note is a row of its own for each change; the newest one of a place holds, and
what a person wrote is shown before what was packaged. No row of the database that is asked is ever read here.
"""

import hashlib
import json
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

import pymysql
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pymysql.cursors import Cursor

from db import Database, error_number
from errors import ConfigError, NotFound, StoreUnavailable
from memory import as_time
from shapes import Said

from .database import Structure, Target
from .policy import Policy
from .recovery import classify, number_of

HUMAN, PACKAGED = "human", "packaged"
MAX_STRUCTURE_BYTES = 8_000_000
MAX_NOTE_CHARS, MAX_NAME_CHARS = 2_000, 128
TRIES = 20  # of those who take the same version at the same moment one comes first each time
DUPLICATE = 1062

Place = tuple[str, str]  # table and column; the column is empty where the table is meant
T = TypeVar("T")
NoteText = Annotated[Said, Field(min_length=1, max_length=MAX_NOTE_CHARS)]


# ---------------------------------------------------------------------------------------- structures


def fingerprint_of(structure: Structure) -> str:
    """The same for structures between which `changes` finds nothing."""
    return hashlib.sha256(json.dumps(facts_of(structure), sort_keys=True).encode()).hexdigest()


def facts_of(structure: Structure) -> Structure:
    """A structure without its row estimates, which change all the time."""
    return {table: {name: fact for name, fact in facts.items() if name != "rows"} for table, facts in structure.items()}


def changes(before: Structure, now: Structure) -> dict[str, Any]:
    """What differs: tables `added`, `removed`, `changed` and in what. The order of columns does not count."""
    before, now = facts_of(before), facts_of(now)
    both = sorted(before.keys() & now.keys())
    changed = {table: table_changes(before[table], now[table]) for table in both if before[table] != now[table]}
    return {
        "added": sorted(now.keys() - before.keys()),
        "removed": sorted(before.keys() - now.keys()),
        "changed": changed,
    }


def table_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """What differs in one table: its columns, and its properties such as its comment or primary key."""
    old, new = before["columns"], now["columns"]
    return {
        "columns_added": [column for column in new if column not in old],
        "columns_removed": [column for column in old if column not in new],
        "columns_changed": {
            column: differing(old[column], new[column])
            for column in new
            if column in old and old[column] != new[column]
        },
        "properties": differing({**before, "columns": None}, {**now, "columns": None}),
    }


def differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """{"type": {"before": …, "now": …}} of what is not the same."""
    return {name: {"before": before[name], "now": now[name]} for name in now if before[name] != now[name]}


def readable_part(structure: Structure, policy: Policy) -> Structure:
    """What of a structure the policy makes readable: no other table or column, and no key that names one."""
    over = policy.with_catalogue({table: tuple(facts["columns"]) for table, facts in structure.items()})
    seen = {table: set(over.readable(table).visible or ()) for table in structure if table in policy.file.tables}

    def part(table: str, facts: Mapping[str, Any]) -> dict[str, Any]:
        mine = seen[table]
        return {
            **facts,
            "columns": {name: column for name, column in facts["columns"].items() if name in mine},
            "primary_key": facts["primary_key"] if mine.issuperset(facts["primary_key"]) else [],
            "indexes": [index for index in facts["indexes"] if mine.issuperset(index["columns"])],
            "foreign_keys": [
                key
                for key in facts["foreign_keys"]
                if mine.issuperset(key["columns"]) and seen.get(key["table"], set()).issuperset(key["references"])
            ],
        }

    return {table: part(table, facts) for table, facts in structure.items() if table in seen}


def places_of(structure: Structure) -> set[Place]:
    """Everything that a note can be about."""
    return {(table, column) for table, facts in structure.items() for column in ("", *facts["columns"])}


# ---------------------------------------------------------------------------------------- notes


@dataclass(frozen=True)
class Notes:
    """The notes that hold now: {(table, column): {source: row}}."""

    of_place: dict[Place, dict[str, dict[str, Any]]] = field(default_factory=dict)

    def find(self, table: str, column: str = "", operators: str = "") -> tuple[str, str] | None:
        """Text and source of the note that is shown. operators: the policy's own, which stands between the two."""
        here = self.of_place.get((table, column), {})
        found = {source: str(row["note"]) for source, row in here.items()} | (
            {"policy": operators} if operators else {}
        )
        return next(((found[source], source) for source in (HUMAN, "policy", PACKAGED) if source in found), None)


class TableNotes(BaseModel):
    """What a file says of one table."""

    model_config = ConfigDict(extra="forbid")

    note: NoteText | None = None
    columns: dict[str, NoteText] = {}


class NotesFile(BaseModel):
    """A file of packaged notes."""

    model_config = ConfigDict(extra="forbid")

    tables: dict[str, TableNotes]


def load_notes(file: str) -> dict[Place, str]:
    """The notes of a file, JSON where its name ends so, else TOML. Raises ConfigError that says where it is wrong."""
    try:
        text = Path(file).read_text(encoding="utf-8")
        content = json.loads(text) if file.lower().endswith(".json") else tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise ConfigError(f"the notes {file} cannot be read as JSON or TOML: {error}") from None
    try:
        tables = NotesFile.model_validate(content).tables
    except ValidationError as error:
        faults = (f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()[:10])
        raise ConfigError(f"the notes {file} cannot be used: {'; '.join(faults)}") from None
    found = {(table, ""): said.note for table, said in tables.items() if said.note is not None}
    return found | {(table, column): note for table, said in tables.items() for column, note in said.columns.items()}


NOTE = "table_name column_name source version note author created_at".split()
HOLDING = (
    f"SELECT id, {', '.join(NOTE)} FROM schema_notes JOIN (SELECT table_name, column_name, source, "
    "MAX(version) AS version FROM schema_notes WHERE target = %s GROUP BY table_name, column_name, source) AS newest "
    "USING (table_name, column_name, source, version) WHERE target = %s AND note IS NOT NULL"
)
NEWEST_NOTE = (
    "SELECT version, note FROM schema_notes WHERE target = %s AND table_name = %s AND column_name = %s AND source = %s "
    "ORDER BY version DESC LIMIT 1"
)
INSERT_NOTE = (
    "INSERT INTO schema_notes (target, table_name, column_name, source, version, note, author) "
    "VALUES (%s, %s, %s, %s, %s, %s, %s)"
)


def note_of(row: tuple[Any, ...]) -> dict[str, Any]:
    """A row of `schema_notes` without its id and target."""
    table, column, source, version, note, author, created_at = row
    shown = {"table": table, "column": column or None, "source": source, "version": version, "note": note}
    return {**shown, "author": author, "created_at": as_time(created_at)}


def read_notes(database: Database, target: str) -> Notes:
    """Every note that holds."""
    found = Notes()
    for row in database.read(HOLDING, (target, target)):
        note = note_of(row[1:])
        found.of_place.setdefault((note["table"], note["column"] or ""), {})[note["source"]] = note
    return found


def list_notes(
    database: Database,
    target: str,
    seen: Callable[[Place], bool],
    limit: int,
    before: int | None,
    table: str | None = None,
    history: bool = False,
) -> tuple[list[dict[str, Any]], int | None]:
    """Notes that may be seen, newest first: a page and the mark of the next. history: also what holds no more."""
    of_all = f"SELECT id, {', '.join(NOTE)} FROM schema_notes WHERE target = %s"
    statement, values = (of_all, (target,)) if history else (HOLDING, (target, target))
    where, more = (" AND table_name = %s", (table,)) if table is not None else ("", ())
    found: list[tuple[int, dict[str, Any]]] = []
    mark = before or 1 << 62
    while len(found) <= limit:
        rows = database.read(
            f"{statement}{where} AND id < %s ORDER BY id DESC LIMIT %s", (*values, *more, mark, limit + 1)
        )
        notes = ((row[0], note_of(row[1:])) for row in rows)
        found += [(key, note) for key, note in notes if seen((note["table"], note["column"] or ""))]
        if len(rows) <= limit:
            break
        mark = rows[-1][0]
    return [note for _, note in found[:limit]], found[limit - 1][0] if len(found) > limit else None


def write_note(database: Database, target: str, place: Place, note: str | None, author: str) -> dict[str, Any]:
    """Store what a person says of a place of the newest version; None takes it back. Raises NotFound."""

    def work(cursor: Cursor) -> dict[str, Any]:
        _, structure = newest(cursor, target)
        if note is not None and place not in places_of(structure):
            raise NotFound(what="such table or column in the newest version of the catalogue")
        key = (target, *place, HUMAN)
        cursor.execute(NEWEST_NOTE, key)
        version, before = cursor.fetchone() or (0, None)
        if note is None and before is None:
            raise NotFound(what="note of a person about this")
        if note != before:
            version += 1
            cursor.execute(INSERT_NOTE, (*key, version, note, author))
        cursor.execute(
            f"SELECT {', '.join(NOTE)} FROM schema_notes WHERE target = %s AND table_name = %s AND column_name = %s "
            "AND source = %s AND version = %s",
            (*key, version),
        )
        return note_of(cursor.fetchone() or ())

    return in_turn(database, work)


def write_packaged(cursor: Cursor, target: str, wanted: Mapping[Place, str]) -> tuple[int, int]:
    """Make `wanted` the packaged notes, all of them: how many were stored and how many taken back."""
    cursor.execute(
        "SELECT table_name, column_name, version, note FROM schema_notes WHERE target = %s AND source = %s "
        "ORDER BY version",
        (target, PACKAGED),
    )
    before = {(table, column): (version, note) for table, column, version, note in cursor.fetchall()}
    rows = []
    for place in sorted(before.keys() | wanted.keys()):
        version, note = before.get(place, (0, None))
        if note != wanted.get(place):
            rows.append((target, *place, PACKAGED, version + 1, wanted.get(place), ""))
    cursor.executemany(INSERT_NOTE, rows)
    taken_back = sum(row[5] is None for row in rows)
    return len(rows) - taken_back, taken_back


# ---------------------------------------------------------------------------------------- versions


@dataclass(frozen=True)
class Synced:
    """What a sync found and did. stored: whether there is a new version. unknown: what the notes name in vain."""

    target: str
    version: int
    stored: bool
    tables: int
    columns: int
    changes: dict[str, Any]
    notes_stored: int = 0
    notes_taken_back: int = 0
    unknown: tuple[Place, ...] = ()


NEWEST = "SELECT version, structure FROM schema_snapshots WHERE target = %s ORDER BY version DESC LIMIT 1"
LOCK_NEWEST = NEWEST.replace(", structure", "") + " FOR UPDATE"


def newest(cursor: Cursor, target: str) -> tuple[int, Structure]:
    """The newest version of the structure; 0 where there is none."""
    cursor.execute(NEWEST, (target,))
    version, text = cursor.fetchone() or (0, "{}")
    return version, json.loads(text)


def in_turn(database: Database, work: Callable[[Cursor], T]) -> T:
    """`work` in a transaction; from its beginning where somebody else has taken the same version meanwhile."""

    def attempt(_: bool) -> T:
        with database.transaction() as cursor:
            return work(cursor)

    for _ in range(TRIES):
        try:
            return database.again(attempt)
        except pymysql.err.IntegrityError as error:
            if error_number(error) != DUPLICATE:
                raise
    raise StoreUnavailable


def look_at(target: Target) -> Structure:
    """The structure as it is. Raises ConfigError, without a text of the driver's."""
    try:
        structure = target.structure()
    except Exception as error:
        code = classify(error, target.server.dialect)[0]
        what = f"the database of TEXT2SQL_URL cannot be read: {code} ({type(error).__name__} {number_of(error)})"
        raise ConfigError(f"{what}; check its address, its account and that it runs") from error
    if not structure:
        raise ConfigError(
            f"the account of TEXT2SQL_URL sees no table in {target.name}; give it SELECT on what is meant"
        )
    return structure


def sync(database: Database, target: Target, packaged: Mapping[Place, str] | None = None) -> Synced:
    """Store the structure of the target as a new version if it changed, and the packaged notes if there are any given.

    Two at once: the newest version is locked while the target is read, so that an older look never follows a newer one.
    Raises ConfigError for a target that cannot be read.
    """

    def work(cursor: Cursor) -> Synced:
        cursor.execute(LOCK_NEWEST, (target.name,))
        version, before = newest(cursor, target.name)
        structure = look_at(target)
        text = json.dumps(structure, ensure_ascii=False)
        if len(text.encode()) > MAX_STRUCTURE_BYTES:
            raise ConfigError(f"{target.name} has too much structure to keep: over {MAX_STRUCTURE_BYTES} bytes of it")
        if stored := fingerprint_of(structure) != fingerprint_of(before) or not version:
            version += 1
            cursor.execute(
                "INSERT INTO schema_snapshots (target, version, fingerprint, structure) VALUES (%s, %s, %s, %s)",
                (target.name, version, fingerprint_of(structure), text),
            )
        else:  # the estimates are newer
            cursor.execute(
                "UPDATE schema_snapshots SET structure = %s, checked_at = NOW(6) WHERE target = %s AND version = %s",
                (text, target.name, version),
            )
        places = {place for place in places_of(structure) if max(map(len, place)) <= MAX_NAME_CHARS}
        wanted = {place: note for place, note in (packaged or {}).items() if place in places}
        counts = write_packaged(cursor, target.name, wanted) if packaged is not None else (0, 0)
        unknown = tuple(sorted((packaged or {}).keys() - wanted.keys()))
        columns = sum(len(facts["columns"]) for facts in structure.values())
        return Synced(
            target.name, version, stored, len(structure), columns, changes(before, structure), *counts, unknown
        )

    return in_turn(database, work)


def list_versions(
    database: Database, target: str, limit: int, before: int | None
) -> tuple[list[dict[str, Any]], int | None]:
    """The versions, newest first: a page and the mark of the next."""
    rows = database.read(
        "SELECT version, created_at, checked_at FROM schema_snapshots WHERE target = %s AND version < %s "
        "ORDER BY version DESC LIMIT %s",
        (target, before or 1 << 30, limit + 1),
    )
    page = [{"version": row[0], "created_at": as_time(row[1]), "checked_at": as_time(row[2])} for row in rows[:limit]]
    return page, rows[limit - 1][0] if len(rows) > limit else None


def get_version(database: Database, target: str, version: int | None) -> tuple[dict[str, Any], Structure]:
    """One version and its structure; None for the newest. Raises NotFound."""
    rows = database.read(
        "SELECT version, created_at, checked_at, structure FROM schema_snapshots WHERE target = %s "
        + ("AND version = %s" if version is not None else "ORDER BY version DESC LIMIT 1"),
        (target, version) if version is not None else (target,),
    )
    if not rows:
        raise NotFound(what="such version of the catalogue; `python -m text2sql sync` makes the first one")
    number, created_at, checked_at, text = rows[0]
    about = {"version": number, "created_at": as_time(created_at), "checked_at": as_time(checked_at)}
    return about, json.loads(text)


def get_changes(
    database: Database, target: str, version: int | None, since: int | None, shown: Callable[[Structure], Structure]
) -> dict[str, Any]:
    """What differs between two versions; since: None for the one before. Raises NotFound."""
    about, now = get_version(database, target, version)
    since = about["version"] - 1 if since is None else since
    before = get_version(database, target, since)[1] if since else {}
    return {"version": about["version"], "since": since, **changes(shown(before), shown(now))}


def readable_changes(found: Synced) -> Iterable[str]:
    """The lines that tell people of a sync."""
    size = f"{found.tables} tables, {found.columns} columns"
    yield f"{found.target}: " + (
        f"version {found.version} stored ({size})"
        if found.stored
        else f"nothing changed since version {found.version} ({size})"
    )
    yield from (f"+ table {table}" for table in found.changes["added"])
    yield from (f"- table {table}" for table in found.changes["removed"])
    for table, changed in found.changes["changed"].items():
        yield f"~ table {table}"
        yield from (f"    + column {column}" for column in changed["columns_added"])
        yield from (f"    - column {column}" for column in changed["columns_removed"])
        for column, differences in changed["columns_changed"].items():
            yield from (f"    ~ column {column}, {line}" for line in difference_lines(differences))
        yield from (f"    ~ {line}" for line in difference_lines(changed["properties"]))
    if found.notes_stored or found.notes_taken_back:
        yield f"notes: {found.notes_stored} stored, {found.notes_taken_back} taken back"


def difference_lines(differences: Mapping[str, Mapping[str, Any]]) -> Iterable[str]:
    """`type: "int" -> "bigint"`, one line for each difference."""
    for name, change in differences.items():
        before, now = (json.dumps(change[side], ensure_ascii=False) for side in ("before", "now"))
        yield f"{name.replace('_', ' ')}: {before} -> {now}"
