"""`dev doctor`: goes through the layers, from the files up to the tools, and names the one that fails and the way out.

It looks and asks; nothing is changed, neither in the checkout nor in the database. Packages, and modules that need
them, are imported where they are used: one that is missing is something to be told of.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import difflib
import importlib
import importlib.util
import json
import logging
import os
import re
import shutil
import socket
import ssl
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from dev import apt, configuration, database, mariadb, up
from dev.common import ROOT, DevError

if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from pymysql.cursors import Cursor

    from config import Settings
    from db import Connection, Database
    from dev.mariadb import PrivateServer

DESCRIPTION = """\
Go through the layers of this checkout in order: file, import, configuration, network,
login, server, charset, privileges, schema, model, tools, and text2sql where that toolset
is on. Each gets a line; the layer that fails is named with the way out. It looks at what
`up` would use, and changes nothing."""

Status = Literal["ok", "warn", "FAIL"]
SECRET = re.compile(r"(KEY|KEYS|PASSWORD|SECRET|TOKEN)$")
# Where settings come from, beside `.env`.
ENVIRONMENT, DEV_UP, PRIVATE, DEFAULT = "environment", "dev up", "private server", "default"
FROM = {ENVIRONMENT: "from the environment", PRIVATE: "from the private server", DEFAULT: "by default"}


@dataclass(frozen=True)
class Finding:
    """What a layer has shown. way_out: what to do, each a sentence. ends: what needs this layer cannot be looked at."""

    status: Status
    found: str
    way_out: tuple[str, ...] = ()
    ends: bool = False
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # for programs, by name


def ok(found: str, *warnings: tuple[str, str]) -> Finding:
    """All is well, or with `warnings`, pairs of what is odd and the way out, not quite."""
    if not warnings:
        return Finding("ok", found)
    return Finding("warn", "; ".join([found, *(odd for odd, _ in warnings)]), tuple(hint for _, hint in warnings))


def fail(found: str, *way_out: str) -> Finding:
    """The layer does not work."""
    return Finding("FAIL", found, way_out, ends=True)


@dataclass
class Case:
    """What the layers have learned so far; each may use what those before it have found."""

    ask: bool
    stack: ExitStack
    modules: list[str] = field(default_factory=list)  # ours, those that others import first
    environ: dict[str, str] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)  # name of a setting -> where its value comes from
    private: PrivateServer | None = None  # the database is, or would be, this one
    has_database: bool = False
    demo: bool = False
    version: str = ""  # as the server reports it
    settings: Settings = field(init=False)
    database: Database = field(init=False)
    connection: Connection = field(init=False)

    @property
    def where(self) -> str:
        """The database, for people."""
        return database.place(self.environ)

    def origin(self, *names: str) -> str:
        """`DB_HOST (from .env), DB_PORT (by default)`."""
        sources = [(name, self.sources.get(name, DEFAULT)) for name in names]
        return ", ".join(f"{name} ({FROM.get(source, f'from {source}')})" for name, source in sources)

    def rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """What a statement that only reads gives."""
        with self.connection.cursor() as cursor:
            cursor.execute(statement, values or None)
            return list(cursor.fetchall())


# ---------------------------------------------------------------------------------------- file

# Names of packages that requirements.txt does not show: dotenv is python-dotenv, the others come with fastapi.
OTHER_PACKAGES = {"dotenv", "starlette", "pydantic_core", "typing_extensions"}
NO_NAMESAKE = "Install no package of that name: the file is a part of this checkout."


def check_files(case: Case) -> Finding:
    """The modules, the SQL files and `.env` are there and can be read."""
    if hiding := [path.name for path in ROOT.glob("*.py") if path.stem in packages() | sys.stdlib_module_names]:
        return fail(f"{', '.join(hiding)} hides what Python or a package has under that name", "Rename your file.")
    order: dict[str, Path] = {}
    missing: list[str] = []
    collect("main", order, missing)
    if missing:
        return missing_files(missing, order)
    case.modules = list(order)
    migrations, env = sorted((ROOT / "migrations").glob("[0-9]*.sql")), env_file()
    for path in [*order.values(), ROOT / "schema.sql", *migrations, *([env] if env and env.exists() else [])]:
        if fault := unreadable(path):
            return fail(f"{shown(path)} {fault}", f"`git checkout {shown(path)}` restores a file of ours.")
    found = f"{len(order)} modules, {len(migrations)} migrations"
    if env is None:
        return ok(f"{found}; ENV_FILE is empty, so no file of settings is read")
    if env.exists():
        return ok(f"{found}; settings in {shown(env)}")
    if "ENV_FILE" in os.environ:
        return fail(f"ENV_FILE names {env}, which is not there", "Mend or unset ENV_FILE.")
    near = [name for name in (".env.txt", "env.txt", "env") if (ROOT / name).is_file()]
    return ok(f"{found}; no .env", *((f"but {name}", f"If it holds settings, rename {name} to .env.") for name in near))


def env_file() -> Path | None:
    """The file of settings, there or not; None when ENV_FILE says that none is read."""
    name = os.environ.get("ENV_FILE", ".env")
    return ROOT / name if name else None


def packages() -> set[str]:
    """The names under which packages of requirements.txt are imported."""
    text = (ROOT / "requirements.txt").read_text("utf-8").lower().replace("-", "_")
    return set(re.findall(r"^(\w+)", text, re.MULTILINE)) | OTHER_PACKAGES


def collect(name: str, order: dict[str, Path], missing: list[str]) -> None:
    """Put our module `name`, after all of ours that it imports, into `order`, or into `missing` if it is not there."""
    path = next((path for path in (ROOT / f"{name}.py", ROOT / name / "__init__.py") if path.is_file()), None)
    if path is None:
        if name not in missing and is_ours(name):
            missing.append(name)
    elif name not in order:
        order[name] = path  # ends circles
        for other in imported_names(path):
            collect(other, order, missing)
        order[name] = order.pop(name)


def is_ours(name: str) -> bool:
    """Whether a name that no file here bears must be one of ours: it is neither Python's nor a package's."""
    if name in sys.stdlib_module_names or any(f"{package}_".startswith(f"{name}_") for package in packages()):
        return False
    spec = importlib.util.find_spec(name)
    return spec is None or list(spec.submodule_search_locations or []) == [str(ROOT / name)]  # just a folder of ours


def imported_names(path: Path) -> Iterator[str]:
    """The first parts of what a file imports whatever happens; none if it cannot be parsed, which `import` tells."""
    try:
        statements = ast.parse(path.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return
    for node in statements:
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def missing_files(missing: Sequence[str], order: Mapping[str, Path]) -> Finding:
    """Name them, and files that may be meant."""
    hints = []
    others = [path.name for path in ROOT.iterdir() if path.is_file() and path not in order.values()]
    for file in [f"{name}.py" for name in missing]:
        near = difflib.get_close_matches(file, others, n=1, cutoff=0.75)
        hints.append(f"Rename {near[0]} to {file}." if near else f"`git checkout {file}` restores it.")
    return fail(f"not there: {', '.join(f'{name}.py' for name in missing)}", *hints, NO_NAMESAKE)


def unreadable(path: Path) -> str:
    """What keeps a file from being read as UTF-8; empty if nothing does."""
    try:
        data = path.read_bytes()
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "is UTF-16: save it as UTF-8"
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        return f"is not UTF-8, see line {line}: save it as UTF-8"
    if path == env_file() and re.match("\ufeff[^#\r\n]", text):
        return "begins with a byte order mark, which becomes a part of the first name: save it as UTF-8 without BOM"
    return ""


def shown(path: Path) -> str:
    """A path as short as it can be."""
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)


# ---------------------------------------------------------------------------------------- import

ANEW = "Remove .venv and run this again, which makes it anew; elsewhere: `python -m pip install -r requirements.txt`."


def check_imports(case: Case) -> Finding:
    """Each module can be imported."""
    for name in case.modules:
        try:
            importlib.import_module(name)
        except (Exception, SystemExit) as error:
            return not_importable(case, name, error)
    version = ".".join(map(str, sys.version_info[:3]))
    return ok(f"{len(case.modules)} modules, with Python {version} in {shown(Path(sys.prefix))}")


def not_importable(case: Case, name: str, error: BaseException) -> Finding:
    """What keeps a module from being imported."""
    if isinstance(error, ModuleNotFoundError) and error.name:
        if error.name.partition(".")[0] in case.modules:
            file = f"{error.name.replace('.', '/')}.py"
            return fail(f"{name} needs {file}, which is not there", f"`git checkout {file}` restores it.", NO_NAMESAKE)
        return fail(f"{name} needs the package {error.name}, which is not installed in {sys.prefix}", ANEW)
    if isinstance(error, SyntaxError) and error.filename:
        place = f"{shown(Path(error.filename))}, line {error.lineno}"
        return fail(f"{place}: {error.msg}", f"Mend {place}; `git diff` shows what was changed.")
    hint = "Mend what the message names; `git diff` shows what was changed."
    return fail(f"{name}: {describe(error)}", hint, *([ANEW] if isinstance(error, ImportError) else []))


def describe(error: BaseException) -> str:
    """Kind and text of an error, and the line of the checkout where it arose."""
    frames = [(Path(frame.filename), frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    ours = [f" ({shown(path)}, line {line})" for path, line in frames if path.parent in (ROOT, *ROOT.iterdir())]
    return f"{type(error).__name__}: {error}".replace("\n", " ") + "".join(ours[-1:])


# ---------------------------------------------------------------------------------------- configuration


def check_configuration(case: Case) -> Finding:
    """All that `up` would configure the service with is usable; where each setting comes from."""
    from config import Settings
    from db import Database
    from errors import ConfigError
    from main import create_app

    case.environ = {**up.DEFAULTS, **configuration.read()}
    case.demo = not configuration.is_set(case.environ, "BASE_URL", "API_KEY")
    chosen = choose_database(case)
    fields = [name.upper() for name in Settings.model_fields if name != "environ"]
    others = [name for name in case.environ if is_setting(name)]
    case.sources = {name: source_of(name, chosen) for name in dict.fromkeys([*fields, *others])}
    case.stack.enter_context(environment(case.environ))
    try:
        case.settings = Settings.from_env(case.environ)
        case.settings.prompt()
        case.database = Database(case.settings)
        create_app(case.settings.model_copy(update={"toolsets": ()}))  # for the settings of its parts
    except ConfigError as error:
        named = [name for name in case.sources if re.search(rf"\b{name}\b", str(error))]
        mend = f"Mend {case.origin(*named)}; " if named else ""
        return fail(str(error), f"{mend}docs/configuration.md says what is expected.")
    except OSError as error:  # of a file, or of what should be certificates
        return fail(f"DB_SSL_CA is no file of certificates: {error.strerror}", f"Mend {case.origin('DB_SSL_CA')}.")
    case.stack.callback(case.database.close)
    finding = ok(told_sources(case.sources), *odd_lines(set(fields)), *hidden_values(case))
    return replace(finding, settings={name: told_setting(case, name) for name in case.sources})


def is_setting(name: str) -> bool:
    """Whether a variable is meant for the application."""
    return name in configuration.SETTINGS or name.startswith(configuration.PREFIXES)


def choose_database(case: Case) -> Mapping[str, str]:
    """As `up` chooses: what is configured, else the private server, which then brings the settings returned here."""
    if configuration.is_set(case.environ, "DB_HOST", "DB_SOCKET"):
        case.has_database = True
        return {}
    server = database.private_server()
    if not server.data.exists():
        return {}
    case.private = server
    if not server.running():
        return {}
    chosen = {**server.environment(), **database.NOTHING_ELSE}
    case.environ.update(chosen)
    case.has_database = True
    return chosen


@contextmanager
def environment(environ: Mapping[str, str]) -> Iterator[None]:
    """Have the process see what the service would see: variables for proxies, for instance, may stand in `.env`."""
    before = dict(os.environ)
    os.environ.update(environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def values_in_file() -> dict[str, str | None]:
    """What the file of settings says."""
    from dotenv import dotenv_values

    path = env_file()
    return dotenv_values(path, interpolate=False, encoding="utf-8") if path is not None else {}


def source_of(name: str, chosen: Mapping[str, str]) -> str:
    """Where the value of a setting comes from; an empty variable is none."""
    path = env_file()
    if chosen.get(name):
        return PRIVATE
    if name in os.environ:
        return ENVIRONMENT if os.environ[name].strip() else DEFAULT
    if path is not None and values_in_file().get(name):
        return shown(path)
    return DEV_UP if name in up.DEFAULTS else DEFAULT


def told_sources(sources: Mapping[str, str]) -> str:
    """`from .env: API_KEY, BASE_URL; from the environment: DB_HOST; the rest by default`."""
    texts = []
    for source in dict.fromkeys(sources.values()):
        if source != DEFAULT:
            names = ", ".join(name for name, its_source in sources.items() if its_source == source)
            texts.append(f"{FROM.get(source, f'from {source}')}: {names}")
    return "; ".join([*texts, "the rest by default"])


def told_setting(case: Case, name: str) -> dict[str, Any]:
    """One setting for programs: its source, and its value where that can be no secret."""
    from config import SECRETS

    told: dict[str, Any] = {"source": case.sources[name]}
    value = getattr(case.settings, name.lower(), None)
    if value is None or name.lower() in SECRETS or SECRET.search(name):
        return told | {"set": bool(case.environ.get(name, "").strip())}
    return told | {"value": value}


def odd_lines(fields: set[str]) -> list[tuple[str, str]]:
    """Lines of the file of settings that do not do what they seem to. Their values may be secret."""
    from dotenv.parser import parse_stream

    path = env_file()
    if path is None or not path.is_file():
        return []
    with path.open(encoding="utf-8") as file:
        bindings = list(parse_stream(file))
    broken = [one.original.line for one in bindings if one.error or (one.key and one.value is None)]
    hint = "Write it as NAME=value, with an ASCII `=`."
    odd = [(f"line {line} of {shown(path)} is no setting", hint) for line in broken]
    for name, times in Counter(one.key for one in bindings if one.key and one.value is not None).items():
        if times > 1:
            odd.append((f"{name} stands {times} times in {shown(path)}", f"Keep one {name}; the last one counts."))
        near = difflib.get_close_matches(name, fields, n=1, cutoff=0.85)
        if near and name not in fields and name not in configuration.SETTINGS:
            odd.append((f"{name} in {shown(path)} is no setting", f"If {near[0]} is meant, write it so."))
    return odd


def hidden_values(case: Case) -> list[tuple[str, str]]:
    """Settings in the file that an empty variable of the environment takes away."""
    path, there = env_file(), values_in_file()
    if path is None or case.private:
        return []
    hidden = [name for name in case.sources if case.environ.get(name) == "" and there.get(name)]
    odd = f"is empty in the environment, which hides its value in {shown(path)}"
    return [(f"{name} {odd}", f"Unset {name}.") for name in hidden]


# ---------------------------------------------------------------------------------------- network

SOCKETS = ("/run/mysqld/mysqld.sock", "/var/lib/mysql/mysql.sock", "/tmp/mysql.sock")  # where servers put theirs


def check_network(case: Case) -> Finding:
    """The database's address can be reached, and what answers there is a database."""
    if not case.has_database:
        return no_database_yet(case)
    try:
        client = connect(case.settings)
    except OSError as error:
        return unreachable(case, error)
    with closing(client):
        try:
            greeting = client.recv(256)
        except TimeoutError:
            hint = "Is it a database? Then it hangs, or is only starting."
            return fail(f"{case.where}: it takes the connection and says nothing", hint, *mend_place(case))
        except OSError:
            greeting = b""
    if not greeting:
        return fail(f"{case.where}: it takes the connection and hangs up", *mend_place(case))
    # The length of the packet in 3 bytes, its number, then the version of the protocol, or 255 for an error.
    if greeting[4:5] == b"\n":
        case.version = greeting[5:].partition(b"\0")[0].decode("ascii", "replace")
    elif greeting[4:5] != b"\xff":
        return fail(f"{case.where}: what answers there is no MySQL", *mend_place(case))
    return ok(case.where + ("; the checkout's private server" if case.private else ""))


def connect(settings: Settings) -> socket.socket:
    """A connection to the database's address, with its time limit. Raises OSError."""
    from db import CONNECT_TIMEOUT_S

    if not settings.db_socket:
        return socket.create_connection((settings.db_host, settings.db_port), CONNECT_TIMEOUT_S)
    if sys.platform == "win32":
        raise OSError("Windows has no unix sockets: use DB_HOST")
    client = socket.socket(socket.AF_UNIX)
    try:
        client.settimeout(CONNECT_TIMEOUT_S)
        client.connect(settings.db_socket)
    except BaseException:
        client.close()
        raise
    return client


def no_database_yet(case: Case) -> Finding:
    """The way of `up`: a private server, for which it takes, installs or fetches a program."""
    names = ("DB_PORT", "DB_USER", "DB_PASSWORD", "DB_NAME")
    vain = ", ".join(name for name in names if configuration.is_set(case.environ, name))
    hints = [f"Set DB_HOST or DB_SOCKET, too, if {vain} should count."] if vain else []
    if case.private is not None:
        found = "the private server is not running; `python3 -m dev up` starts it"
        hints.append("To look further now: `python3 -m dev db start`, then this again.")
        return Finding("warn", found, tuple(hints), ends=True)
    program = None if sys.platform == "win32" else mariadb.find_program()
    if program is not None:
        way = f"makes a private one with {program.name}"
    elif apt.may_install():
        way = "installs MariaDB and makes a private one"
    elif shutil.which("docker"):
        way = "tries Docker"
    else:
        own = "Or set DB_HOST, DB_PORT, DB_USER, DB_PASSWORD and DB_NAME for one of yours."
        found = "no database is configured, and there is no server program to make a private one"
        return fail(found, "Install MariaDB from 10.6 up or MySQL from 8.0 up, or Docker.", own)
    return Finding("warn", f"no database yet; `python3 -m dev up` {way}", tuple(hints), ends=True)


def unreachable(case: Case, error: OSError) -> Finding:
    """Which of the ways of not being reached it is."""
    ways: dict[type[OSError], str] = {
        FileNotFoundError: "there is no such socket file",
        ConnectionRefusedError: "connection refused, nothing listens there",
        socket.gaierror: "there is no host of this name",
        TimeoutError: "no answer, a timeout; a firewall, a VPN that is off or a wrong address do that",
    }
    what = next((text for kind, text in ways.items() if isinstance(error, kind)), error.strerror or str(error))
    return fail(f"{case.where}: {what}", *mend_place(case))


def mend_place(case: Case) -> tuple[str, ...]:
    """What to do about an address that does not lead to a database."""
    if case.private is not None:
        return (f"`python3 -m dev db stop`, then `start`; its log is {shown(case.private.log)}.",)
    names = ("DB_SOCKET",) if case.settings.db_socket else ("DB_HOST", "DB_PORT")
    there = ", ".join(path for path in SOCKETS if case.settings.db_socket and Path(path).exists())
    return (
        "Start the server (Linux: `systemctl start mysql` or `mariadb`; Windows: `net start MySQL80`).",
        f"Or mend {case.origin(*names)}." + (f" There is {there}." if there else ""),
        "Without DB_HOST and DB_SOCKET, `python3 -m dev up` brings a database of its own.",
    )


# ---------------------------------------------------------------------------------------- login and server

# What to do, by error number. It stands after the server's own words, which hold no secret.
LOGIN = {
    1045: "Check {origin}. In .env a value with #, quotes or spaces stands in '…'. An account also has a host that it "
    "may come from: the server names the one it saw.",
    1698: "This account gets in by the socket only, as the system's user of that name. Make another one: {account}",
    1044: "The account may not use {database}, or there is none of that name. As an administrator: {create} {grant}",
    1049: "Check DB_NAME, which is {database}, or make it: {create}",
    1130: "The server admits nobody from this machine. As an administrator: {account}",
    1040: "No connection is left: end programs that hold some, or raise max_connections of the server.",
    1203: "No connection is left for this account: end programs that hold some, or raise its limit on the server.",
    1226: "No connection is left for this account: end programs that hold some, or raise its limit on the server.",
    1129: "Too many broken connections came from here. As an administrator: FLUSH HOSTS.",
    1820: "The password has expired: log in with a client and use ALTER USER.",
    1862: "The password has expired. As an administrator: ALTER USER … IDENTIFIED BY '…'.",
    3118: "The account is locked. As an administrator: ALTER USER … ACCOUNT UNLOCK.",
    4151: "The account is locked. As an administrator: ALTER USER … ACCOUNT UNLOCK.",
    1251: "The driver cannot do this login method. As an administrator: ALTER USER … IDENTIFIED BY '…'.",
    2059: "The driver cannot do this login method. As an administrator: ALTER USER … IDENTIFIED BY '…', on MySQL "
    "IDENTIFIED WITH caching_sha2_password BY '…'.",
    3159: "The server wants TLS: let DB_SSL_CA name the file of the authority that signed its certificate.",
    2026: "The server offers no TLS, which DB_SSL_CA demands: switch it on there, or unset DB_SSL_CA.",
}
NEEDED = "SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, DROP, INDEX, REFERENCES"


def check_login(case: Case) -> Finding:
    """The account is let in, to the database."""
    import pymysql

    from db import error_number
    from errors import StoreUnavailable

    try:
        case.connection = case.database.connect()
        case.stack.enter_context(closing(case.connection))
        case.rows("SELECT 1")  # a password that has expired lets in, and no further
    except StoreUnavailable:  # let in, and too old for us: the next layer tells
        return ok(f"as {case.settings.db_user}")
    except pymysql.Error as error:
        number, text = error_number(error), str(error.args[-1])
        if isinstance(getattr(error, "original_exception", None), ssl.SSLError):
            hint = f"{case.origin('DB_SSL_CA')} has to hold who signed the server's certificate, and that DB_HOST."
            return fail(f"{case.where}: no TLS, {text}", hint)
        hint = LOGIN.get(number, "The server's log may say more.").format(
            origin=case.origin("DB_USER", "DB_PASSWORD"), database=case.settings.db_name, **for_administrators(case)
        )
        return fail(f"{case.where}: error {number}, {text}", hint)
    return ok(f"as {case.settings.db_user}")


def for_administrators(case: Case) -> dict[str, str]:
    """Statements for someone who may do more than our account: a database, a new account, more for the one there is."""
    name = case.settings.db_name.replace("`", "``")
    escaped = name.replace("_", r"\_")
    grant = f"GRANT {NEEDED} ON `{escaped}`.* TO"
    return {
        "create": f"CREATE DATABASE `{name}` CHARACTER SET utf8mb4;",
        "account": f"CREATE USER '{mariadb.USER}'@'…' IDENTIFIED BY '…'; {grant} '{mariadb.USER}'@'…';",
        "grant": f"{grant} '{case.settings.db_user}'@'…';",
    }


def check_server(case: Case) -> Finding:
    """The server is of a kind and a version that understands our statements."""
    from db import OLDEST, check_version
    from errors import StoreUnavailable

    try:
        check_version(case.version)
    except StoreUnavailable:
        oldest = " or ".join(f"{kind} {major}.{minor}" for kind, (major, minor) in OLDEST.items())
        own = "`python3 -m dev up` without DB_HOST brings one."
        return fail(f"{case.where}: {case.version} is too old", f"Use {oldest}, or newer; {own}")
    [(version, comment, most)] = case.rows("SELECT VERSION(), @@version_comment, @@max_connections")
    kind = "MariaDB" if "mariadb" in version.lower() else "MySQL"
    found, wanted = f"{kind} {version}, {comment.strip('()')}", case.settings.db_pool_size
    if most >= wanted:
        return ok(found)
    hint = f"Lower {case.origin('DB_POOL_SIZE')}, or raise max_connections of the server."
    return ok(found, (f"it takes {most} connections, and DB_POOL_SIZE is {wanted}", hint))


# ---------------------------------------------------------------------------------------- charset

SAMPLE = "中文 😀"
CHARSETS = """\
SELECT @@character_set_database, @@character_set_client, @@character_set_connection, @@character_set_results"""
NOT_UTF8MB4 = """\
SELECT table_name, column_name, character_set_name FROM information_schema.columns
WHERE table_schema = DATABASE() AND table_name IN ('conversations', 'messages')
  AND character_set_name NOT IN ('utf8mb4', 'ascii') ORDER BY 1, 2"""


def check_charset(case: Case) -> Finding:
    """Every character comes through: utf8mb4 on the connection, the columns and the database."""
    [(default, *sets)] = case.rows(CHARSETS)
    if set(sets) != {"utf8mb4"}:
        hint = "The server overrides what the client asks for: remove skip-character-set-client-handshake there."
        return fail(f"client, connection and results are {', '.join(sets)}, not utf8mb4", hint)
    [(back, seen)] = case.rows("SELECT %s, HEX(%s)", SAMPLE, SAMPLE)
    if back != SAMPLE or seen != SAMPLE.encode().hex().upper():
        return fail(f"{SAMPLE} came back as {back!r}", "Something between us and the server changes text: a proxy?")
    if rows := case.rows(NOT_UTF8MB4):
        columns = ", ".join(f"{table}.{column} ({charset})" for table, column, charset in rows)
        convert = "ALTER TABLE … CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;"
        return fail(f"not utf8mb4: {columns}", f"Save what is in these tables, then use another DB_NAME, or {convert}")
    found = f"{SAMPLE} comes back whole"
    if default == "utf8mb4":
        return ok(f"utf8mb4 on the connection and the database; {found}")
    name = case.settings.db_name.replace("`", "``")
    hint = f"Our tables name their own, others may not: ALTER DATABASE `{name}` CHARACTER SET utf8mb4;"
    return ok(found, (f"but the default of the database is {default}", hint))


# ---------------------------------------------------------------------------------------- privileges

# EXPLAIN wants the privilege of the statement and does not carry it out; that the table is absent is no hindrance.
PROBES = {
    "SELECT": "EXPLAIN SELECT 1 FROM {table}",
    "INSERT": "EXPLAIN INSERT INTO {table} () VALUES ()",
    "UPDATE": "EXPLAIN UPDATE {table} SET {column} = {column} WHERE 1 = 0",
    "DELETE": "EXPLAIN DELETE FROM {table} WHERE 1 = 0",
}
# Where not all of them are needed; rows of the last two go with those they belong to, by cascade.
ENOUGH = {"schema_migrations": ["SELECT"], "messages": ["SELECT", "INSERT"], "run_records": ["SELECT", "INSERT"]}
DENIED = {1044, 1142, 1143, 1227}
TO_CHANGE_TABLES = {"CREATE", "ALTER", "DROP", "INDEX", "REFERENCES"}
TOO_MUCH = {"SUPER", "FILE", "SHUTDOWN", "CREATE USER", "DROP"}  # on every database
EVEN_IF_READ_ONLY = {"SUPER", "READ_ONLY ADMIN", "READ ONLY ADMIN", "CONNECTION_ADMIN"}
GRANT = re.compile(r"GRANT (.+?) ON (?:\*|`((?:[^`]|``)+)`)\.(\*|`(?:[^`]|``)+`) TO ")


def check_privileges(case: Case) -> Finding:
    """The account may do what the service does, perhaps what `migrate` does, and not far more."""
    denied = [
        f"{privilege} on {table}"
        for table, columns in our_tables().items()
        for privilege in ENOUGH.get(table, PROBES)
        if is_denied(case, PROBES[privilege].format(table=table, column=columns[0]))
    ]
    user, statements = case.settings.db_user, for_administrators(case)
    if denied:
        return fail(f"{user} may not {', '.join(denied)}", f"As an administrator: {statements['grant']}")
    everywhere, here = granted(case)
    [(read_only,)] = case.rows("SELECT @@read_only")
    if str(read_only) not in ("0", "OFF") and not everywhere & EVEN_IF_READ_ONLY:
        return fail("the server is read-only", "It is a replica, or being cared for: use the one that takes writes.")
    may = "may" if TO_CHANGE_TABLES <= everywhere | here else "may not"
    found = f"{user} may read and write, and {may} change tables, as `migrate` does"
    if not everywhere & TOO_MUCH:
        return ok(found)
    own = f"Give the service an account of its own: {statements['account']}"
    return ok(found, ("but also far more, on every database", own))


def is_denied(case: Case, statement: str) -> bool:
    """Whether the server refuses a statement for want of a privilege, and for nothing else."""
    import pymysql

    from db import error_number, is_dead

    try:
        case.rows(statement)
    except pymysql.err.MySQLError as error:
        if is_dead(error):
            raise
        return error_number(error) in DENIED
    return False


def granted(case: Case) -> tuple[set[str], set[str]]:
    """The privileges on every database, and those on all tables of ours; by roles that are in force, too."""
    everywhere: set[str] = set()
    here: set[str] = set()
    for (line,) in case.rows("SHOW GRANTS"):
        grant = GRANT.match(line)
        if grant is None or grant[3] != "*":
            continue
        names = set(grant[1].split(", "))
        if names & {"ALL PRIVILEGES", "ALL"}:
            names |= TO_CHANGE_TABLES | TOO_MUCH | EVEN_IF_READ_ONLY
        if grant[2] is None:
            everywhere |= names
        elif fits(grant[2].replace("``", "`"), case.settings.db_name):
            here |= names
    return everywhere, here


def fits(pattern: str, name: str) -> bool:
    r"""Whether a database's name fits that of a grant, where % and _ stand for anything unless after a \."""
    wild = {"%": ".*", "_": "."}
    parts = re.findall(r"\\.|.", pattern, re.DOTALL)
    expression = "".join(wild.get(part) or re.escape(part[-1]) for part in parts)
    return re.fullmatch(expression, name, re.IGNORECASE) is not None


# ---------------------------------------------------------------------------------------- schema


def check_schema(case: Case) -> Finding:
    """The tables are there, are ours and as new as this checkout, and the largest turn fits into a packet."""
    from migrate import applied, migrations

    with case.connection.cursor() as cursor:
        done, lacking = applied(cursor), missing_columns(cursor)
    files = migrations()
    missing = [file.name for version, file in files.items() if version not in done or not done[version][2]]
    everywhere, here = granted(case)
    migrate = "`python3 -m dev migrate`"
    if not TO_CHANGE_TABLES <= everywhere | here:
        migrate += f" with an account that may change tables, which {case.settings.db_user} may not"
    if not done and lacking:
        hint = "Tables of another program may be in the way: use another DB_NAME, or rename them, then"
        return fail("; ".join(lacking), f"{hint} {migrate}.")
    if not done:
        hint = f"Make them: {migrate}; `python3 -m dev up` does it, too."
        return fail(f"no tables of ours in {case.settings.db_name}", hint)
    if missing:
        return fail(f"the tables lack {', '.join(missing)}", f"Bring them up to date: {migrate}.")
    if lacking:
        return fail("; ".join(lacking), "Somebody changed the tables: restore a backup, or use another DB_NAME.")
    if newer := [str(version) for version in done if version not in files]:
        odd = f"newer than this checkout, which has no migration {', '.join(newer)}"
        return ok(f"version {max(done)}", (odd, "Update the checkout: `git pull`."))
    return check_packet(case, f"version {max(done)}, up to date")


def our_tables() -> dict[str, list[str]]:
    """The tables of schema.sql with their columns."""
    from migrate import HERE, statements_of

    made = [re.match(r"CREATE TABLE IF NOT EXISTS (\w+)", text) for text in statements_of(HERE / "schema.sql")]
    return {one[1]: re.findall(r"^  ([a-z]\w*) +[A-Z]", one.string, re.MULTILINE) for one in made if one}


def missing_columns(cursor: Cursor) -> list[str]:
    """What our tables lack. Where there is no schema_migrations, those that are not there lack nothing."""
    cursor.execute("SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = DATABASE()")
    there: dict[str, list[str]] = {}
    for table, column in cursor.fetchall():
        there.setdefault(table, []).append(column)
    lacking = []
    for table, columns in our_tables().items():
        missing = [name for name in columns if name not in there.get(table, [])]
        if table in there and missing:
            lacking.append(f"the table {table} lacks {', '.join(missing)} (it has {', '.join(there[table])})")
        elif missing and "schema_migrations" in there:
            lacking.append(f"there is no table {table}")
    return lacking


def check_packet(case: Case, found: str) -> Finding:
    """Both messages of a turn go to the server in one statement; a character takes up to 4 bytes."""
    [(size,)] = case.rows("SELECT @@max_allowed_packet")
    needed = 4 * (case.settings.max_message_chars + case.settings.max_answer_chars) + 65_536
    if size >= needed:
        return ok(f"{found}; max_allowed_packet {size / 2**20:.0f} MiB is enough")
    mib = -(-needed // 2**20)
    return fail(
        f"max_allowed_packet is {size} bytes, and a turn may take {needed}",
        f"On the server: SET GLOBAL max_allowed_packet = {mib * 2**20}; and max_allowed_packet={mib}M in its file.",
        f"Or lower {case.origin('MAX_ANSWER_CHARS', 'MAX_MESSAGE_CHARS')}.",
    )


# ---------------------------------------------------------------------------------------- model

PATIENCE_S = 10.0  # for each answer; a chat has MODEL_TIMEOUT_S
KEEP_CHECKING = "Do not switch off the check of certificates."
HANGS_UP = "Is it https:// where BASE_URL says http://? A proxy, VPN or firewall may cut it, too."
CUT_OFF = "Something on the way cuts it: a proxy, a VPN that is off (or on), a firewall. Try another network."
OUR_OWN = "Is the clock right, and the host? For an authority of your own or your company's, set SSL_CERT_FILE."
LOCAL = "http://127.0.0.1"


def check_model(case: Case) -> Finding:
    """The model service is there, takes the key and has the model."""
    if case.demo:
        found = "the demo model, which `up` starts; BASE_URL, API_KEY and DEFAULT_MODEL bring a real one"
        return ok(found, *(("but not past a proxy", hint) for hint in proxy_hint(LOCAL)))
    if missing := case.settings.missing_for_model():
        return fail(f"{' and '.join(missing)} not set", "Set it in .env or the environment; .env.example shows how.")
    try:
        return asyncio.run(consult(case))
    except Exception as error:
        return no_model(case, error)


async def consult(case: Case) -> Finding:
    """Ask for the list of models, or one short question, by the way that the service goes."""
    from openai import AsyncOpenAI, DefaultAioHttpClient

    settings = case.settings
    limit_s = settings.model_timeout_s if case.ask else min(PATIENCE_S, settings.model_timeout_s)
    key, base_url = settings.api_key.get_secret_value(), settings.base_url or None
    http = DefaultAioHttpClient(timeout=limit_s)
    async with asyncio.timeout(3 * limit_s), http:
        client = AsyncOpenAI(api_key=key, base_url=base_url, timeout=limit_s, max_retries=0, http_client=http)
        url = shown_url(str(client.base_url))
        if case.ask:
            status, body = await chat(client, settings.default_model)
            if status != 404:
                return answered(case, url, body) if status == 200 else refused(case, url, status)
        status, body = await request(client, "/models")
        if status == 404:
            return await wrong_path(case, client, url)
        return listed(case, url, body) if status == 200 else refused(case, url, status)


async def request(client: AsyncOpenAI, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, bytes]:
    """Status and body of one exchange; POST when there is something to send."""
    import httpx2
    from openai import APIStatusError

    try:
        if body is None:
            response = await client.get(path, cast_to=httpx2.Response)
        else:
            response = await client.post(path, body=body, cast_to=httpx2.Response)
    except APIStatusError as error:
        response = error.response
    return response.status_code, response.content


async def chat(client: AsyncOpenAI, model: str) -> tuple[int, bytes]:
    """One question with an answer of one token; without that limit for models that know it by another name."""
    body: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": "Say OK."}]}
    status, answer = await request(client, "/chat/completions", {**body, "max_tokens": 1})
    return await request(client, "/chat/completions", body) if status == 400 else (status, answer)


def answered(case: Case, url: str, body: bytes) -> Finding:
    """Whether what came back with status 200 is an answer of a model."""
    try:
        json.loads(body)["choices"][0]["message"]["role"]
    except (ValueError, LookupError, TypeError):
        hint = f"Check {case.origin('BASE_URL')}: it usually ends with /v1."
        return fail(f"{url} answers, but not as a chat model does", hint)
    return ok(f"{case.settings.default_model} at {url} answers")


def listed(case: Case, url: str, body: bytes) -> Finding:
    """Whether what came back with status 200 is a list of models, and ours is in it."""
    model = case.settings.default_model
    try:
        names = [str(entry["id"]) for entry in json.loads(body)["data"]]
    except (ValueError, LookupError, TypeError):
        hint = f"Check {case.origin('BASE_URL')}: it usually ends with /v1."
        return fail(f"{url}/models is no list of models, another kind of service answers", hint)
    if model in names or model in [name.partition(":")[0] for name in names]:
        return ok(f"{url} has {model}")
    near = ", ".join(difflib.get_close_matches(model, names, n=3, cutoff=0.4))
    hint = f"Check {case.origin('DEFAULT_MODEL')}." + (f" Near it: {near}." if near else "")
    if case.ask:
        return fail(f"{url} has no model {model}", hint)
    complete = "Some lists are not complete; `--ask` tells for certain."
    return ok(url, (f"{model} is not on its list of {len(names)} models", f"{hint} {complete}"))


async def wrong_path(case: Case, client: AsyncOpenAI, url: str) -> Finding:
    """There is no list of models. What is wrong with the URL, if anything."""
    found, origin = f"{url}/models: not found (404)", case.origin("BASE_URL")
    if "/chat/completions" in url:
        return fail(found, f"Let {origin} end before /chat/completions.")
    status, _ = await request(client, "/chat/completions", {})  # asks nothing, and so is refused where there is one
    if status not in (404, 405):
        return ok(url, ("it has no list of models, so key and model were not tried", "`--ask` tries both."))
    status, _ = await request(client, "/v1/models")
    lacks = f"{origin} lacks /v1 at its end: {url}/v1."
    return fail(found, lacks if status != 404 else f"Check {origin}: it usually ends with /v1.")


def refused(case: Case, url: str, status: int) -> Finding:
    """What a status other than 200 and 404 means."""
    key = f"Is the key whole, still valid, and of this service? Check {case.origin('API_KEY', 'BASE_URL')}."
    ways = {
        401: ("the key is refused", key),
        403: ("the key is refused", f"{key} Or it may not be used from here, or not for this model."),
        402: ("the service wants to be paid", "Top up the account of this key."),
        407: ("the proxy wants a login", "Give the proxy's user and password in the variable."),
        429: ("too many requests, or the quota is spent", "Wait a little; else look at the account of this key."),
    }
    trouble = ("the service is in trouble", "Try later.") if status >= 500 else ("the request is refused", HANGS_UP)
    found, hint = ways.get(status, trouble)
    return fail(f"{url}: {found} ({status})", *proxy_hint(url), hint)


def no_model(case: Case, error: BaseException) -> Finding:
    """The service cannot be reached. The kinds of the errors beneath say why; the outermost is a timeout for all."""
    chain: list[BaseException] = []
    step: BaseException | None = error
    while step is not None and step not in chain:
        chain.append(step)
        step = step.__cause__ or step.__context__
    url = shown_url(case.settings.base_url or "https://api.openai.com/v1")
    hints, mend = proxy_hint(url), f"Mend {case.origin('BASE_URL')}, or start the service there."
    if type(error) in (ValueError, ImportError):  # before anything was sent
        return fail("a proxy variable cannot be used", *hints, "Unset it, or let it name an http:// proxy.")
    for one in reversed(chain):  # errors of the client are of this kind, too, without its particulars
        if isinstance(one, ssl.SSLError):
            return no_tls(url, one, hints)
    ways: list[tuple[type[BaseException], str, str]] = [
        (FileNotFoundError, "a file of certificates is not there", "Mend or unset SSL_CERT_FILE, SSL_CERT_DIR."),
        (socket.gaierror, "there is no host of this name", mend),
        (ConnectionRefusedError, "connection refused, nothing listens there", mend),
        (ConnectionError, "it takes the connection and hangs up", HANGS_UP),
        (TimeoutError, "no answer, a timeout", "A firewall, VPN or proxy may stand between; try another network."),
    ]
    for kind, found, hint in ways:
        if any(isinstance(one, kind) for one in chain):
            return fail(f"{url}: {found}", *hints, hint)
    return fail(f"{url}: the exchange broke ({type(chain[-1]).__name__})", *hints, HANGS_UP)


def no_tls(url: str, error: ssl.SSLError, hints: tuple[str, ...]) -> Finding:
    """Why there is no secure connection. The way out is never to switch the check of certificates off."""
    if isinstance(error, ssl.SSLCertVerificationError):
        found = f"the certificate is not trusted ({error.verify_message})"
        return fail(f"{url}: {found}", *hints, OUR_OWN, KEEP_CHECKING)
    reason = str(error.reason or error)
    if any(word in reason for word in ("WRONG_VERSION", "RECORD_LAYER", "HTTP_REQUEST")):
        return fail(f"{url}: no TLS is spoken there ({reason})", *hints, "Does BASE_URL have to begin with http://?")
    return fail(f"{url}: the TLS handshake breaks off ({reason})", *hints, CUT_OFF, KEEP_CHECKING)


def shown_url(url: str) -> str:
    """A URL without what may be secret."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}".rstrip("/")


def proxy_hint(url: str) -> tuple[str, ...]:
    """What to do about the proxy, where a URL is sent through one."""
    parts, proxies = urlsplit(url), getproxies()
    scheme = next((scheme for scheme in (parts.scheme, "all") if proxies.get(scheme)), None)
    if scheme is None or proxy_bypass(parts.hostname or ""):
        return ()
    name = next((name for name in os.environ if name.lower() == f"{scheme}_proxy"), "the system")
    proxy = proxies[scheme]
    where = shown_url(proxy if "://" in proxy else f"http://{proxy}")
    socks = " It has to be an http:// proxy: socks is not spoken here." if where.startswith("socks") else ""
    unset = f"start that, unset {name}, or set NO_PROXY={parts.hostname}"
    return (f"{name} sends this through the proxy {where}: {unset}.{socks}",)


# ---------------------------------------------------------------------------------------- tools


def check_tools(case: Case) -> Finding:
    """What TOOLSETS names can be registered, and the model is told of just those tools."""
    from errors import ConfigError
    from main import CAPABILITIES, build_runtime
    from runtime import BUILT_IN
    from tools import LEGAL_NAME

    known = ", ".join([*BUILT_IN, *CAPABILITIES])
    mend = f"{case.origin('TOOLSETS')} takes {known}, and import paths of modules with register(runtime)."
    try:
        runtime = build_runtime(case.settings)
    except ConfigError as error:
        return fail(str(error), mend)
    except Exception as error:
        return fail(f"the toolsets cannot be registered: {describe(error)}", f"Mend that. {mend}")
    registry = [tool.name for tool in runtime.tools]
    told = [str(schema["function"]["name"]) for schema in runtime.tools.schemas()]
    asyncio.run(runtime.close())
    if told != registry:
        return fail(f"the model is told of {told}, registered are {registry}", "Let each schema bear its tool's name.")
    if illegal := [name for name in told if not LEGAL_NAME.fullmatch(name)]:
        return fail(f"no legal names of functions: {', '.join(illegal)}", "Use letters, digits, _ and -, at most 64.")
    found = f"{', '.join(told) or 'none'} from {', '.join(case.settings.toolsets)}"
    if case.settings.max_tool_calls == 0:
        return ok(found, ("but MAX_TOOL_CALLS=0 forbids them", f"Raise {case.origin('MAX_TOOL_CALLS')}."))
    return ok(found)


# ---------------------------------------------------------------------------------------- text2sql


def check_text2sql(case: Case) -> Finding:
    """The database that may be asked in SQL, its policy and the rights of its account."""
    from dev import doctor_text2sql

    return doctor_text2sql.examine(case)


# ---------------------------------------------------------------------------------------- all of them


class Layer(NamedTuple):
    """needs: unless that one works, there is nothing to look at here. toolset: without it there is no such layer."""

    name: str
    check: Callable[[Case], Finding]
    needs: str = ""
    toolset: str = ""


LAYERS = (
    Layer("file", check_files),
    Layer("import", check_imports, "file"),
    Layer("configuration", check_configuration, "import"),
    Layer("network", check_network, "configuration"),
    Layer("login", check_login, "network"),
    Layer("server", check_server, "login"),
    Layer("charset", check_charset, "server"),
    Layer("privileges", check_privileges, "server"),
    Layer("schema", check_schema, "privileges"),
    Layer("model", check_model, "configuration"),
    Layer("tools", check_tools, "configuration"),
    Layer("text2sql", check_text2sql, "tools", "text2sql"),
)


def examine(case: Case) -> Iterator[tuple[str, Finding | None]]:
    """Each layer with what it shows; None where the one that it needs does not work."""
    ended: set[str] = set()
    for layer in LAYERS:
        if layer.toolset not in ("", *map(str.strip, case.environ.get("TOOLSETS", "").split(","))):
            continue
        finding = None if layer.needs in ended else look(layer, case)
        if finding is None or finding.ends:
            ended.add(layer.name)
        yield layer.name, finding


def look(layer: Layer, case: Case) -> Finding:
    """One layer; whatever goes wrong in looking is told as its failure."""
    try:
        finding = layer.check(case)
    except DevError as error:
        finding = fail(str(error).replace("\n", " "))
    except Exception as error:
        hint = "Run it again; if it stays so, the doctor itself is at fault."
        finding = fail(f"looking at it failed: {describe(error)}", hint)
    way_out = tuple(without_secrets(hint, case.environ) for hint in finding.way_out)
    return replace(finding, found=without_secrets(finding.found, case.environ), way_out=way_out)


def without_secrets(text: str, environ: Mapping[str, str]) -> str:
    """A last safeguard: no text of ours is made of secrets, but others' words may hold them."""
    for name, value in environ.items():
        secret = value.strip() if SECRET.search(name) else password_in(value) if name.endswith("URL") else ""
        if len(secret) >= 8:
            text = text.replace(secret, "…")
    return text


def password_in(url: str) -> str:
    """The password of a URL; empty if it has none."""
    try:
        return unquote(urlsplit(url.strip()).password or "")
    except ValueError:
        return ""


@contextmanager
def quiet() -> Iterator[None]:
    """Without the log of what we try: the findings say it."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def as_lines(name: str, finding: Finding) -> str:
    """A layer for people."""
    lines = [f"{finding.status:5} {name:14} {finding.found}", *(f"{'':20} - {hint}" for hint in finding.way_out)]
    return "\n".join(lines)


def verdict(failing: Sequence[str], unseen: Sequence[str], warned: bool) -> str:
    """The last lines for people."""
    lines = [f"Not looked at: {', '.join(unseen)}."] if unseen else []
    if failing:
        first = f" Begin with {failing[0]}." if len(failing) > 1 else ""
        lines.append(f"Where it fails: {', '.join(failing)}.{first}")
    else:
        lines.append("Nothing fails; see the warnings." if warned else "All is well.")
    return "\n".join(lines)


def as_json(findings: Mapping[str, Finding], failing: Sequence[str], unseen: Sequence[str]) -> str:
    """All of it for programs, as one object."""
    layers = []
    for name, finding in findings.items():
        layer = {"layer": name, "status": finding.status, "found": finding.found, "way_out": finding.way_out}
        layers.append(layer | ({"settings": finding.settings} if finding.settings else {}))
    report = {"ok": not failing, "failing": failing, "not_looked_at": unseen, "layers": layers}
    return json.dumps(report, ensure_ascii=False, indent=2)


def main(arguments: list[str]) -> int:
    """`dev doctor`. Exit status: 0 nothing fails, 1 something does."""
    parser = argparse.ArgumentParser(
        prog="python3 -m dev doctor", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    parser.add_argument("--ask", action="store_true", help="ask the model one short question, which may cost a little")
    options = parser.parse_args(arguments)
    findings: dict[str, Finding] = {}
    unseen: list[str] = []
    with ExitStack() as stack:
        stack.enter_context(quiet())
        for name, finding in examine(Case(options.ask, stack)):
            if finding is None:
                unseen.append(name)
                continue
            findings[name] = finding
            if not options.json:
                print(as_lines(name, finding), flush=True)
    failing = [name for name, finding in findings.items() if finding.status == "FAIL"]
    warned = any(finding.status == "warn" for finding in findings.values())
    print(as_json(findings, failing, unseen) if options.json else f"\n{verdict(failing, unseen, warned)}")
    return int(bool(failing))
