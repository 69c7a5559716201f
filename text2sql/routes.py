"""`/api/catalogue…`: versions of the structure, what differs between them, notes, and drafts of notes."""

import json
import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from enum import Enum
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request
from pydantic import BaseModel, Field

from access import may, require
from db import Database
from errors import (
    BodyTooLarge,
    ModelError,
    ModelNotFound,
    ModelRateLimited,
    ModelTimeout,
    ModelUnavailable,
    NotFound,
    StoreUnavailable,
)
from model import OutOfTime
from problems import language_of, mark_of, page_of, problems
from runtime import Runtime
from shapes import Page, Shape
from text import cut_text, is_blank

from .catalogue import (
    MAX_NAME_CHARS,
    MAX_NOTE_CHARS,
    Notes,
    NoteText,
    Place,
    get_changes,
    get_version,
    list_notes,
    list_versions,
    read_notes,
    readable_part,
    write_note,
)
from .database import Structure
from .toolset import SqlTools

MAX_DRAFT_CHARS = 20_000  # of the structure that the model is given

TableName = Annotated[str, Path(min_length=1, max_length=MAX_NAME_CHARS)]
ColumnName = Annotated[str, Path(min_length=1, max_length=MAX_NAME_CHARS)]
VersionName = Annotated[str, Path(pattern=r"^(latest|[1-9][0-9]{0,8})$", description="its number, or `latest`")]
Since = Annotated[int | None, Query(ge=0, lt=1 << 30, description="left out: the version before; 0: from nothing")]
OfTable = Annotated[str | None, Query(min_length=1, max_length=MAX_NAME_CHARS, description="only of this table")]
Limit = Annotated[int, Query(ge=1, le=200)]
After = Annotated[str | None, Query(max_length=100)]

DRAFT = (
    "You draft the description of one database table, for people and for a model that writes SQL. You are given its "
    "structure as JSON: names, types, keys, comments, never a row. Say in one to three sentences of plain text what a "
    "row of it stands for and how it is connected to other tables; then, only where a name does not say it, what a "
    "column holds. Invent nothing: say what is not clear. Answer with the description and nothing else, in {language}."
)


class Version(BaseModel):
    """One version of the structure. created_at, checked_at: when a sync first and last saw it so, in UTC."""

    version: int
    created_at: datetime
    checked_at: datetime


class CatalogueColumn(BaseModel):
    """A column. note: what is told of it, by a person (`human`) or else as it was packaged (`packaged`)."""

    name: str
    type: str
    nullable: bool
    comment: str = Field(description="the database's own")
    note: str | None
    note_source: str | None


class CatalogueKey(BaseModel):
    """A foreign key."""

    columns: list[str]
    table: str
    references: list[str]


class CatalogueIndex(BaseModel):
    """An index besides the primary key."""

    name: str
    columns: list[str]
    unique: bool


class CatalogueTable(BaseModel):
    """A table or view. rows: the server's own estimate. note_source: `human`, `policy` or `packaged`."""

    table: str
    kind: str
    comment: str
    rows: int | None
    note: str | None
    note_source: str | None
    columns: list[CatalogueColumn]
    primary_key: list[str]
    foreign_keys: list[CatalogueKey]
    indexes: list[CatalogueIndex]


class Snapshot(Version):
    """One version with its tables."""

    tables: list[CatalogueTable]


class Change(BaseModel):
    """What something was, and what it is."""

    before: Any
    now: Any


class TableChanges(BaseModel):
    """What differs in one table."""

    columns_added: list[str]
    columns_removed: list[str]
    columns_changed: dict[str, dict[str, Change]]
    properties: dict[str, Change]


class Changes(BaseModel):
    """What differs between two versions."""

    version: int
    since: int
    added: list[str]
    removed: list[str]
    changed: dict[str, TableChanges]


class StoredNote(BaseModel):
    """A note. column: null where it is about the table; note: null where it was taken back."""

    table: str
    column: str | None
    source: str
    version: int
    note: str | None
    author: str | None = Field(description="shown to those who may edit")
    created_at: datetime


class NewNote(Shape):
    """What a person says of a table or column."""

    note: NoteText = Field(examples=["一行是一笔订单，金额含税，单位为元。"])


class Draft(BaseModel):
    """A proposal for the note of a table. It is not saved."""

    table: str
    draft: str
    model: str


def add_catalogue(
    router: APIRouter, runtime: Runtime, caller: Callable[..., str | Awaitable[str]], tools: SqlTools
) -> None:
    """Add the routes of the catalogue to the service's router."""
    add_looking(router, runtime, caller, tools)
    add_editing(router, runtime, caller, tools)


def shown_to(request: Request, tools: SqlTools) -> Callable[[Structure], Structure]:
    """What of a structure a caller sees: all who may `edit`, what the policy makes readable everybody else."""
    return (lambda all: all) if may(request, "edit") else lambda all: readable_part(all, tools.policy)


def number_of(version: str) -> int | None:
    return None if version == "latest" else int(version)


def add_looking(
    router: APIRouter, runtime: Runtime, caller: Callable[..., str | Awaitable[str]], tools: SqlTools
) -> None:
    """The routes that look at versions and notes."""
    database, target = runtime.database, tools.target.name
    Owner = Annotated[str, Depends(caller)]
    tags: list[str | Enum] = ["catalogue"]
    errors = problems(NotFound, StoreUnavailable)

    @router.get("/api/catalogue/versions", tags=tags, responses=problems(StoreUnavailable))
    async def catalogue_versions(_: Owner, limit: Limit = 50, after: After = None) -> Page[Version]:
        """The versions of the structure of the database that is asked, newest first."""
        rows, mark = await database.run(list_versions, target, limit, mark_of("v", after))
        return Page[Version].model_validate(page_of("v", rows, mark))

    @router.get("/api/catalogue/versions/{version}", tags=tags, responses=errors)
    async def catalogue_version(version: VersionName, request: Request, _: Owner, table: OfTable = None) -> Snapshot:
        """One version with its tables and the notes that hold now. Callers without `edit` see what may be read."""
        about, structure = await database.run(get_version, target, number_of(version))
        notes = await database.run(read_notes, target)
        shown = shown_to(request, tools)(structure)
        names = [name for name in sorted(shown) if table in (None, name)]
        return Snapshot(**about, tables=[table_shown(name, shown[name], notes, tools) for name in names])

    @router.get("/api/catalogue/versions/{version}/changes", tags=tags, responses=errors)
    async def catalogue_changes(version: VersionName, request: Request, _: Owner, since: Since = None) -> Changes:
        """What differs between two versions. The order of columns and row estimates do not count."""
        shown = shown_to(request, tools)
        return Changes(**await database.run(get_changes, target, number_of(version), since, shown))

    @router.get("/api/catalogue/notes", tags=tags, responses=errors)
    async def catalogue_notes(
        request: Request, _: Owner, limit: Limit = 50, after: After = None, table: OfTable = None, history: bool = False
    ) -> Page[StoredNote]:
        """The notes that hold, newest first; with `history`, which needs `edit`, those before them too."""
        edits = may(request, "edit")
        if history:
            require(request, "edit")
        seen = (lambda place: True) if edits else await database.run(places_shown, target, shown_to(request, tools))
        rows, mark = await database.run(list_notes, target, seen, limit, mark_of("n", after), table, history)
        rows = [{**row, "author": row["author"] if edits else None} for row in rows]
        return Page[StoredNote].model_validate(page_of("n", rows, mark))


def places_shown(database: Database, target: str, shown: Callable[[Structure], Structure]) -> Callable[[Place], bool]:
    """Whether the note of a place may be seen: the newest version shows the place. Raises NotFound."""
    structure = shown(get_version(database, target, None)[1])

    def seen(place: Place) -> bool:
        table, column = place
        return table in structure and (not column or column in structure[table]["columns"])

    return seen


def table_shown(table: str, facts: dict[str, Any], notes: Notes, tools: SqlTools) -> CatalogueTable:
    """A table with what is told of it."""
    rule = tools.policy.file.tables.get(table)
    note, source = notes.find(table, operators=rule.note if rule else "") or (None, None)
    columns = []
    for name, column in facts["columns"].items():
        text, whose = notes.find(table, name) or (None, None)
        columns.append(CatalogueColumn(name=name, **column, note=text, note_source=whose))
    return CatalogueTable(**{**facts, "table": table, "note": note, "note_source": source, "columns": columns})


def add_editing(
    router: APIRouter, runtime: Runtime, caller: Callable[..., str | Awaitable[str]], tools: SqlTools
) -> None:
    """The routes for those who may `edit`."""
    database, target = runtime.database, tools.target.name
    Owner = Annotated[str, Depends(caller)]
    tags: list[str | Enum] = ["catalogue"]
    errors = problems(NotFound, BodyTooLarge, StoreUnavailable)

    async def change(request: Request, owner: str, place: Place, note: str | None) -> StoredNote:
        require(request, "edit")
        stored = await database.run(write_note, target, place, note, owner)
        tools.notes.forget()
        return StoredNote(**stored)

    @router.put("/api/catalogue/tables/{table}/note", tags=tags, responses=errors)
    async def put_table_note(table: TableName, body: NewNote, request: Request, owner: Owner) -> StoredNote:
        """Say what a table is. Needs `edit`. The same text again makes no new version."""
        return await change(request, owner, (table, ""), body.note)

    @router.put("/api/catalogue/tables/{table}/columns/{column}/note", tags=tags, responses=errors)
    async def put_column_note(
        table: TableName, column: ColumnName, body: NewNote, request: Request, owner: Owner
    ) -> StoredNote:
        """Say what a column is. Needs `edit`."""
        return await change(request, owner, (table, column), body.note)

    @router.delete("/api/catalogue/tables/{table}/note", tags=tags, responses=errors, status_code=204)
    async def delete_table_note(table: TableName, request: Request, owner: Owner) -> None:
        """Take back what a person said of a table; what was packaged shows again. Needs `edit`."""
        await change(request, owner, (table, ""), None)

    @router.delete("/api/catalogue/tables/{table}/columns/{column}/note", tags=tags, responses=errors, status_code=204)
    async def delete_column_note(table: TableName, column: ColumnName, request: Request, owner: Owner) -> None:
        """Take back what a person said of a column. Needs `edit`."""
        await change(request, owner, (table, column), None)

    model_errors = problems(
        NotFound, ModelNotFound, ModelRateLimited, ModelError, ModelUnavailable, ModelTimeout, StoreUnavailable
    )

    @router.post("/api/catalogue/tables/{table}/draft", tags=tags, responses=model_errors)
    async def draft_note(table: TableName, request: Request, _: Owner) -> Draft:
        """Ask the model to describe a readable table, from its structure alone. Needs `edit`; saves nothing."""
        require(request, "edit")
        structure = (await database.run(get_version, target, None))[1]
        facts = readable_part(structure, tools.policy).get(table)
        if facts is None:
            raise NotFound(what="readable table of this name in the newest version of the catalogue")
        notes = await database.run(read_notes, target)
        return Draft(
            table=table,
            draft=await draft(runtime, table_shown(table, facts, notes, tools), language_of(request)),
            model=runtime.settings.default_model,
        )


async def draft(runtime: Runtime, table: CatalogueTable, language: str) -> str:
    """What the model proposes as the note of a table. Raises its errors."""
    end = time.monotonic() + runtime.settings.model_timeout_s
    told = json.dumps(table.model_dump(exclude={"note_source", "rows"}), ensure_ascii=False)
    transcript = [
        {"role": "system", "content": DRAFT.format(language="Chinese" if language == "zh" else "English")},
        {"role": "user", "content": cut_text(told, MAX_DRAFT_CHARS)},
    ]
    try:
        reply = await runtime.model.complete(transcript, [], time_left_s=lambda: end - time.monotonic())
    except OutOfTime:
        raise ModelTimeout from None
    if reply.finish_reason in ("length", "content_filter") or is_blank(reply.text):
        raise ModelError
    return reply.text.strip()[:MAX_NOTE_CHARS]
