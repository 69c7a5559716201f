"""`python -m text2sql`: `policy` writes a policy from the database, `check` judges statements, `sync` stores the
structure of the database as a version of the catalogue."""

import argparse
import contextlib
import json
import sys
from dataclasses import asdict

from config import Settings
from db import Database
from errors import ConfigError, StoreUnavailable

from .guard import Refused, check_statement
from .policy import load_policy, write_policy


def main(arguments: list[str] | None = None) -> int:
    """The exit status: 0, or 2 where the request cannot be carried out."""
    parser = argparse.ArgumentParser(prog="python -m text2sql", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    policy = commands.add_parser("policy", help="write a policy that permits what the account can read")
    policy.add_argument("--url", help="an SQLAlchemy URL; TEXT2SQL_URL if left out")
    check = commands.add_parser("check", help='judge statements, one JSON {"id", "sql"} a line')
    check.add_argument("--policy", required=True, help="a policy file")
    check.add_argument("--dialect", choices=["mysql", "mariadb", "postgres", "sqlite"], default="mysql")
    synced = commands.add_parser("sync", help="store what changed in the structure of TEXT2SQL_URL; reads no rows")
    synced.add_argument("--notes", metavar="FILE", help="packaged descriptions, JSON or TOML; all there are")
    synced.add_argument("--json", action="store_true", help="tell it as one JSON object")
    given = parser.parse_args(arguments)
    try:
        if given.command == "sync":
            return sync_catalogue(given.notes, given.json)
        return make_policy(given.url) if given.command == "policy" else check_lines(given.policy, given.dialect)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2


def make_policy(url: str | None) -> int:
    """Print the policy of a database."""
    from . import Text2SqlSettings
    from .catalogue import look_at
    from .database import Target

    if url is None:
        url = Settings.from_env().section("text2sql", Text2SqlSettings).url.get_secret_value()
    structure = look_at(Target(url))
    joins = [
        f"{table}.{here} = {key['table']}.{there}"
        for table, facts in sorted(structure.items())
        for key in facts["foreign_keys"]
        if key["table"] in structure
        for here, there in zip(key["columns"], key["references"], strict=True)
    ]
    print(write_policy({table: tuple(facts["columns"]) for table, facts in structure.items()}, joins), end="")
    return 0


def sync_catalogue(notes_file: str | None, as_json: bool) -> int:
    """Store the structure, where it changed, and the packaged notes, where a file of them is given."""
    from . import Text2SqlSettings
    from .catalogue import load_notes, readable_changes, sync
    from .database import Target

    settings = Settings.from_env()
    section = settings.section("text2sql", Text2SqlSettings)
    if not (url := section.url.get_secret_value()):
        raise ConfigError("TEXT2SQL_URL is not set; it should be an SQLAlchemy URL with an account that may only read")
    packaged = load_notes(notes_file) if notes_file else None
    target = Target(url, load_policy(section.policy).file.schema_name if section.policy else None)
    with contextlib.closing(Database(settings)) as database:
        try:
            found = database.call(sync, target, packaged)
        except StoreUnavailable:
            raise ConfigError(
                f"the service's own database {settings.db_name} at {settings.db_socket or settings.db_host} cannot be "
                "used, or another sync has long been under way: set DB_HOST and so on, `python3 -m dev migrate` makes "
                "its tables; or `python3 -m dev with python -m text2sql sync …` for that of `dev up`"
            ) from None
    for table, column in found.unknown:
        name = f"column {table}.{column}" if column else f"table {table}"
        print(f"warning: the notes speak of a {name}, which is not there; left out", file=sys.stderr)
    sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    print(json.dumps(asdict(found), ensure_ascii=False) if as_json else "\n".join(readable_changes(found)))
    return 0


def check_lines(policy_file: str, dialect: str) -> int:
    """Judge each line of the input."""
    policy, dialect = load_policy(policy_file), "mysql" if dialect == "mariadb" else dialect
    sys.stdin.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    for line in filter(str.strip, sys.stdin):
        try:
            request = json.loads(line)
            sql, name = str(request["sql"]), request.get("id")
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ConfigError(f'each line should be JSON like {{"id": …, "sql": …}}: {line[:80]!r}') from None
        verdict = {"id": name, "verdict": "allow", "code": None, "reason": None}
        try:
            check_statement(sql, policy, dialect)
        except Refused as error:
            verdict |= {"verdict": "deny", "code": error.code, "reason": f"{error.reason}. {error.hint}".strip()}
        print(json.dumps(verdict, ensure_ascii=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
