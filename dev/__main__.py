"""`python3 -m dev COMMAND`: everything that is done with a checkout. Standard library only, at least until `.venv`."""

import sys
from pathlib import Path

if not __package__:  # started as `python3 path/to/dev`, which puts this folder on the path in place of the checkout
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import argparse
import io

from dev import environment
from dev.common import DevError, say

DESCRIPTION = """\
Set up, run and test this checkout. Every command first makes .venv with the pinned
requirements if need be, so each works right after cloning."""

UP = """\
Serve the application until Ctrl-C, with everything it needs.

database   DB_HOST or DB_SOCKET, if configured in the environment or .env; otherwise a
           private MariaDB under .local/mariadb (installed first if that is possible);
           otherwise MySQL in Docker
model      BASE_URL, API_KEY and DEFAULT_MODEL, if configured; otherwise the demo model,
           a small deterministic stand-in that needs no key
sample     with --sample shop, a small shop in the private server, which the model may
           ask in SQL by an account that may only read; python3 -m dev.shop is its SQL"""

WITH = """\
Run a program in this checkout as the service would run: the same database (shared with
an `up` that runs), the same model, the same sample, all of it given as settings.

  python3 -m dev with python main.py ask "What is 12 * 8 / 4?"
  python3 -m dev with --sample shop python -m text2sql sync"""

TEST = """\
Run the tests. Further arguments go to pytest:

  python3 -m dev test -x tests/test_chat.py
  python3 -m dev test -k "stream and not error"

The tests use the server named by TEST_DATABASE_URL, if set, else a private MariaDB of
their own. They read neither .env nor DB_*, BASE_URL, API_KEY or any other setting."""

DB = """\
The private MariaDB under .local/mariadb (start, stop, status), and a shell for SQL on
whichever database `up` would use. A server started with `db start` runs until `db stop`;
one that `up` started ends with the last `up`."""


def build_parser() -> argparse.ArgumentParser:
    """All commands and what they take."""
    parser = argparse.ArgumentParser(
        prog="python3 -m dev", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, summary: str, description: str = "") -> argparse.ArgumentParser:
        return commands.add_parser(
            name,
            help=summary,
            description=description or f"{summary[0].upper()}{summary[1:]}.",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    up = command("up", "serve the application until Ctrl-C, with everything it needs", UP)
    up.add_argument("--port", type=port_number, default=8000, help="port to serve on (8000); 0: any free one")
    up.add_argument("--host", default="127.0.0.1", help="address to serve on (127.0.0.1, this machine only)")
    up.add_argument("--sample", choices=["shop"], help="load a sample for questions about data")
    others = command("with", "run another program with the database and the model that `up` would use", WITH)
    others.add_argument("--sample", choices=["shop"], help="with the sample, too")
    others.add_argument("program", nargs=argparse.REMAINDER, metavar="PROGRAM …", help="and its arguments")
    test = command("test", "run the tests; further arguments go to pytest", TEST)
    test.add_argument("--all", action="store_true", help="also what is slow or needs rare parts")
    test.add_argument("pytest", nargs="*", metavar="…", help="arguments for pytest; its own help: test -- --help")
    command("check", "lint, formatting, types and the direction of imports; all of them, then a verdict on each")
    command("migrate", "bring the database's tables to the current schema, and do nothing else")
    db = command("db", "start, stop or look at the private database server; open a shell for SQL", DB)
    db.add_argument("action", choices=["start", "stop", "status", "shell"])
    command("doctor", "look for what keeps this checkout from working, and say what to do")
    command("bench", "measure what a turn costs")
    command("torture", "kill, freeze and cut everything at any moment, and look whether a turn was lost or doubled")
    command("owner", "hand what was stored without keys, or what another owner has, to an owner")
    command("key", "make a key for a caller")
    return parser


def port_number(text: str) -> int:
    """A TCP port from a command line."""
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: a whole number from 0 to 65535")
    return int(text)


def run_for_others(command: str, rest: list[str]) -> int | None:
    """The commands that understand their own arguments. None: not one of them."""
    if command == "test" and not {"-h", "--help"} & set(rest[: rest.index("--")] if "--" in rest else rest):
        from dev import test

        environment.enter()
        return test.main(rest)
    if command == "doctor":
        environment.enter()
        from dev import doctor

        return doctor.main(rest)
    if command in ("owner", "key"):
        environment.enter()
        from dev import owners

        return owners.owner(rest) if command == "owner" else owners.key(rest)
    if command == "bench":
        environment.enter()
        from dev import bench

        return bench.main(rest)
    if command == "torture":
        environment.enter()
        from dev import torture

        return torture.main(rest)
    return None


def run(arguments: argparse.Namespace) -> int:
    """Carry out one of our own commands, in `.venv`."""
    if arguments.command == "up":
        from dev import up

        up.refuse_busy_port(arguments.host, arguments.port)  # before a minute is spent on setting up
        environment.enter()
        return up.main(arguments.host, arguments.port, arguments.sample)
    environment.enter()
    if arguments.command == "with":
        from dev import up

        if not arguments.program:
            raise DevError('name a program, as in: python3 -m dev with python main.py ask "What is 12 * 8 / 4?"')
        return up.run(arguments.program, arguments.sample)
    if arguments.command == "check":
        from dev import check

        return check.main()
    from dev import database

    return database.migrate() if arguments.command == "migrate" else database.main(arguments.action)


def main(argv: list[str]) -> int:
    """Exit status: 0 done, 1 something to mend (told on stderr), 2 wrong usage, 130 Ctrl-C, else the program's own."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal without UTF-8 is no reason to fail
    try:
        status = run_for_others(argv[0], argv[1:]) if argv else None
        return run(build_parser().parse_args(argv)) if status is None else status
    except DevError as error:
        say(f"error: {error}")
        return 1
    except PermissionError as error:
        say(f"error: no access to {error.filename}: go on as the user who set up this checkout, or clone it")
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
