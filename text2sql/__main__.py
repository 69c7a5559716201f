"""`python -m text2sql policy` writes a policy from the database; `python -m text2sql check` judges statements."""

import argparse
import json
import sys

from config import Settings
from errors import ConfigError

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
    given = parser.parse_args(arguments)
    try:
        return make_policy(given.url) if given.command == "policy" else check_lines(given.policy, given.dialect)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2


def make_policy(url: str | None) -> int:
    """Print the policy of a database."""
    from . import Text2SqlSettings
    from .database import Target

    if url is None:
        url = Settings.from_env().section("text2sql", Text2SqlSettings).url.get_secret_value()
    target = Target(url)
    catalogue = {table: tuple(column.name for column in columns) for table, columns in target.columns().items()}
    print(write_policy(catalogue, target.foreign_keys(catalogue)), end="")
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
