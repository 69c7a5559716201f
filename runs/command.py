"""The command line: `python main.py ask "…"` answers one question here, `python main.py show …` shows a run.

The answer goes to standard output, what happens on the way to standard error. Both go the way that HTTP requests go.
"""

import argparse
import asyncio
import json
import logging
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from config import Settings
from db import Database
from errors import ChatError, ConfigError, StoreUnavailable, TurnkeeperError
from logs import configure_logging
from problems import as_chat_error
from run import LIMITS, Event
from runtime import Runtime
from shapes import ChatReply
from turn import Begun, Question, Turn

from .files import NotARun, read_run_file, try_writing, with_every_field, write_run_file
from .readable import as_text, compact, visible
from .routes import STEPS, TOOL_CALLS, RunRequest
from .store import as_json, bounded, get_run, record_of

ANSWERED, FAILED, STOPPED_EARLY, INTERRUPTED = 0, 1, 2, 130
WHENCE = "Settings come from the environment and .env; `python3 -m dev with python main.py …` gives those of `dev up`."
RUN_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
SHOWN_CHARS = 500  # of arguments and results, on the way


class Parser(argparse.ArgumentParser):
    """Exits with 1 for what it does not understand: 2 says that a run stopped early."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(FAILED, f"{self.prog}: {message}\n")


def parser_of() -> argparse.ArgumentParser:
    """What may be said on the command line."""
    parser = Parser(
        prog="python main.py",
        description="Ask one question in the terminal, or show a run. To serve HTTP: uvicorn main:app",
        epilog="Exit status: 0 answered, 1 an error, 2 stopped early, 130 interrupted.",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    ask = commands.add_parser("ask", help="ask one question", description="Ask one question and print the answer.")
    ask.add_argument("question")
    ask.add_argument("--conversation", metavar="ID", help="ask within this conversation; by default outside any")
    ask.add_argument("--owner", default="", help="whose conversation, where callers have keys")
    ask.add_argument("--model", help="another model of the same service")
    ask.add_argument("--max-steps", type=int, default=STEPS, metavar="N", help="model rounds (%(default)s)")
    ask.add_argument("--max-tool-calls", type=int, default=TOOL_CALLS, metavar="N", help="0 forbids them (%(default)s)")
    for name, limit in LIMITS.items():
        ask.add_argument(flag_of(name), type=int, metavar="N", help=f"calls of {limit.tool}, instead of {name.upper()}")
    ask.add_argument("--trace-file", type=Path, metavar="FILE", help="write the whole run there, also after an error")
    ask.add_argument("--json", action="store_true", help="print the body that HTTP callers get")
    show = commands.add_parser("show", help="show a run", description="Show a stored run, or one in a file.")
    show.add_argument("run", metavar="RUN|FILE", help="the id of a stored run, or a run file")
    show.add_argument("--trace-file", type=Path, metavar="FILE", help="write the run there instead")
    show.add_argument("--json", action="store_true", help="print the record as it is")
    for one in (ask, show):
        one.add_argument("--verbose", action="store_true", help="print the log, on standard error")
    return parser


def flag_of(limit: str) -> str:
    """`--max-sql-attempts`, of `max_sql_attempts`."""
    return f"--{limit.replace('_', '-')}"


def command(arguments: Sequence[str], build: Callable[[Settings], Runtime]) -> int:
    """Do what the command line says; the exit status. build: makes the runtime of the service."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    parser = parser_of()
    given = parser.parse_args(arguments)
    try:
        if given.command == "ask":
            return ask(given, build)
        if given.command == "show":
            return show(given)
        parser.print_help()
        return ANSWERED
    except KeyboardInterrupt:
        say("Interrupted: the run was cancelled.")
        return INTERRUPTED
    except BrokenPipeError:  # who reads us has gone; nothing more can be written, at exit neither
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except StoreUnavailable:
        say(f"Error store_unavailable: {place_of_database()} does not answer. {WHENCE}")
        return FAILED
    except ChatError as error:
        run = f" (run {error.run_id})" if error.run_id else ""
        say(f"Error {error.code}: {error.problem(language())['detail']}{run}")
        return FAILED
    except (TurnkeeperError, OSError) as error:
        say(f"Error: {error}")
        return FAILED


def say(line: str) -> None:
    """A line for people."""
    print(visible(line), file=sys.stderr, flush=True)


def place_of_database() -> str:
    """Where the conversations should be, for people."""
    settings = Settings.from_env()
    return f"the database {settings.db_name} at {settings.db_socket or f'{settings.db_host}:{settings.db_port}'}"


def language() -> str:
    """`zh` where the terminal's language is Chinese."""
    name = next((os.environ[key] for key in ("LC_ALL", "LC_MESSAGES", "LANG") if os.environ.get(key)), "")
    return "zh" if name.lower().startswith("zh") else "en"


def settings_for(given: argparse.Namespace) -> Settings:
    """The settings, with the log quiet unless it is wanted. Raises ConfigError."""
    settings = Settings.from_env()
    configure_logging(settings.log_format)
    logging.getLogger().setLevel(logging.INFO if given.verbose else logging.CRITICAL)
    return settings


# ---------------------------------------------------------------------------------------- ask


def with_limits(settings: Settings, given: argparse.Namespace) -> Settings:
    """The settings with the limits of toolsets that are given in their place. Raises ConfigError."""
    asked = {name: getattr(given, name) for name in LIMITS if getattr(given, name) is not None}
    for name in asked:
        if LIMITS[name].toolset not in settings.toolsets:
            there = ", ".join(settings.toolsets) or "none"
            missing = f"limits {LIMITS[name].tool} of the toolset {LIMITS[name].toolset}, which is off"
            raise ConfigError(f"{flag_of(name)} {missing}; add it to TOOLSETS ({there})")
    return settings.model_copy(
        update={"environ": {**settings.environ, **{k.upper(): str(v) for k, v in asked.items()}}}
    )


def ask(given: argparse.Namespace, build: Callable[[Settings], Runtime]) -> int:
    """Answer one question. Raises ChatError, ConfigError, OSError, KeyboardInterrupt."""
    settings = with_limits(settings_for(given), given)
    if missing := [name for name in settings.missing_for_model() if name != "DEFAULT_MODEL" or not given.model]:
        raise ConfigError(f"no model can be asked: {', '.join(missing)} not set. {WHENCE}")
    question = question_of(given, settings.max_message_chars)
    runtime = build(settings)
    if given.trace_file:
        try_writing(given.trace_file)
    ended: list[Turn] = []
    runtime.turns.recorders.append(ended.append)
    progress = Progress(live=sys.stdout.isatty() and not given.json)
    try:
        turn = asyncio.run(answer(runtime, question, progress))
    except (ChatError, KeyboardInterrupt):
        raise
    except Exception as error:
        raise as_chat_error(error, "") from error
    finally:
        progress.end_line()
        unwritten = False
        if given.trace_file and ended:
            try:
                write_run_file(given.trace_file, json.loads(bounded(record_of(ended[-1], settings.default_model))))
            except OSError as error:  # the answer is not lost with it
                say(f"Error: the run was not written to {given.trace_file}: {error}")
                unwritten = True
    reply = ChatReply.of(turn, language(), with_trace=False)
    if given.json:
        print(reply.model_dump_json(exclude_unset=True))
    elif reply.answer is not None and progress.written != visible(reply.answer):
        print(visible(reply.answer))
    if reply.notice:
        say(reply.notice)
    if unwritten:
        return FAILED
    return ANSWERED if reply.status == "completed" else STOPPED_EARLY


def question_of(given: argparse.Namespace, longest: int) -> Question:
    """What is asked, by the same rules as over HTTP. Raises InvalidRequest."""
    fields = {
        "question": given.question,
        "conversation_id": given.conversation,
        "max_steps": given.max_steps,
        "max_tool_calls": given.max_tool_calls,
        "model": given.model,
    }
    try:
        return RunRequest(**fields).asked_by(given.owner, longest)
    except ValidationError as error:
        faults = [{**fault, "loc": ("", *fault["loc"])} for fault in error.errors()]
        raise as_chat_error(RequestValidationError(faults), "") from None


async def answer(runtime: Runtime, question: Question, progress: "Progress") -> Turn:
    """The turn, to its end; an interrupt cancels it and waits until it has left everything in order."""
    try:
        begun = await runtime.turns.begin(question, progress.event, progress.text if progress.live else None)
        assert isinstance(begun, Begun)
        return await begun.task
    finally:
        await runtime.close()


class Progress:
    """What happens, line by line on standard error. live: the text too, as it is written, on standard output."""

    def __init__(self, live: bool) -> None:
        self.live = live
        self.written = ""  # of the text of this step
        self._open = False  # whether the line of text on standard output has not ended

    def event(self, event: Event) -> None:
        """Something happened."""
        details = event["details"]
        if event["type"] == "model_request":
            self.line(f"step {event['step']}: the model is asked")
            self.written = ""
        elif event["type"] == "model_error":
            self.line(f"  it failed: {details['code']}")
        elif event["type"] == "tool_call":
            self.line(f"  calls {details['tool']} {short(compact(details['arguments']))}")
        elif event["type"] == "tool_result":
            how = "returned" if details["ok"] else f"failed ({details['code']})"
            self.line(f"  {details['tool']} {how} in {details['duration_ms']:.1f} ms: {short(details['text'])}")

    def text(self, _: int, piece: str) -> None:
        """A piece of text."""
        piece = visible(piece)
        self.written += piece
        print(piece, end="", flush=True)
        self._open = True

    def line(self, line: str) -> None:
        self.end_line()
        say(line)

    def end_line(self) -> None:
        """End the line of text, if one was begun."""
        if self._open:
            print(flush=True)
        self._open = False


def short(text: str) -> str:
    """The beginning of a text, in one line."""
    line = " ".join(text.split())
    return line if len(line) <= SHOWN_CHARS else line[:SHOWN_CHARS] + "…"


# ---------------------------------------------------------------------------------------- show


def show(given: argparse.Namespace) -> int:
    """Show a stored run or a run file. Raises NotFound, NotARun, StoreUnavailable, OSError."""
    record = record_named(given)
    if given.trace_file:
        write_run_file(given.trace_file, record)
    elif given.json:
        print(as_json(record, indent=2))
    else:
        print(as_text(with_every_field(record)))
    return ANSWERED


def record_named(given: argparse.Namespace) -> dict[str, Any]:
    """The record of a stored run by its id, else of a file."""
    file = Path(given.run)
    if file.exists() or not RUN_ID.fullmatch(given.run):
        try:
            return read_run_file(file)
        except NotARun as error:
            raise NotARun(f"{error}. Give the id of a stored run, or a run file") from error
    database = Database(settings_for(given))
    try:
        return database.call(get_run, None, given.run)
    finally:
        database.close()
