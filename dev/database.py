"""The database of a checkout: which one it is, its schema, the private server's commands, and a shell for SQL."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass

from dev import configuration
from dev.common import LOCAL, ROOT, DevError, say
from dev.mariadb import DATABASE, USER, PrivateServer
from dev.mariadb_program import NotInstalled
from dev.processes import exit_status

IMAGE = "mysql:8.4"
NOTHING_ELSE = {"DB_SOCKET": "", "DB_SSL_CA": ""}  # of a database that is ours, whatever `.env` says


@dataclass(frozen=True)
class Chosen:
    """A database to work with: what to call it, and the settings with which the application finds it."""

    label: str
    settings: Mapping[str, str]
    private: PrivateServer | None = None  # where it is the checkout's own server


def private_server() -> PrivateServer:
    """The checkout's own server, running or not."""
    return PrivateServer(LOCAL / "mariadb")


def choose(environ: Mapping[str, str], stack: ExitStack) -> Chosen:
    """The configured database, else a private one, else one in Docker, ready for use until `stack` is closed."""
    if configuration.is_set(environ, "DB_HOST", "DB_SOCKET"):
        return Chosen(f"{place(environ)}, as configured", {})
    try:
        return use_private_server(stack)
    except NotInstalled as reason:
        no_server = reason
    try:
        return use_container(stack)
    except NotInstalled as reason:
        raise DevError(
            "no database. One of these helps:\n"
            f"  - install a server: {no_server}\n"
            f"  - start Docker: {reason}\n"
            "  - name a MySQL (8.0 up) or MariaDB (10.6 up) of yours with DB_HOST, DB_PORT, DB_USER, DB_PASSWORD and\n"
            "    DB_NAME, in the environment or in .env"
        ) from None


def place(settings: Mapping[str, str]) -> str:
    """Where a database is, for people; without user and password."""
    where = settings.get("DB_SOCKET", "").strip() or f"{settings.get('DB_HOST')}:{settings.get('DB_PORT') or 3306}"
    return f"{where}, database {settings.get('DB_NAME') or DATABASE}"


def use_private_server(stack: ExitStack) -> Chosen:
    """Share the checkout's own server. Raises NotInstalled when there is no server program and no way to get one."""
    server = private_server()
    program = server.ensure_installed()
    stack.callback(server.leave)
    server.share()
    settings = {**server.environment(), **NOTHING_ELSE}
    folder = server.folder.relative_to(ROOT)
    return Chosen(f"private {program.name} at {place(settings)}; files and log in {folder}", settings, server)


def use_container(stack: ExitStack) -> Chosen:
    """MySQL in Docker until `stack` is closed. Raises NotInstalled when Docker does not answer."""
    from docker.errors import DockerException
    from testcontainers.community.mysql import MySqlContainer

    password = secrets.token_urlsafe(24)
    try:
        container = MySqlContainer(IMAGE, username=USER, password=password, root_password=password, dbname=DATABASE)
        say(f"Starting {IMAGE} in Docker (fetched first if need be) …")
        stack.enter_context(container)
    except (DockerException, OSError) as error:
        raise NotInstalled(f"Docker cannot run {IMAGE}: {error}") from None
    settings = {
        "DB_HOST": container.get_container_host_ip(),
        "DB_PORT": str(container.get_exposed_port(3306)),
        "DB_USER": USER,
        "DB_PASSWORD": password,
        "DB_NAME": DATABASE,
        **NOTHING_ELSE,
    }
    return Chosen(f"{IMAGE} in Docker at {place(settings)}; its data end with this command", settings)


def apply_schema(environ: Mapping[str, str], label: str) -> None:
    """Bring the tables to the current schema. Raises DevError when the database cannot be used."""
    import pymysql

    from config import Settings
    from db import Database
    from errors import ConfigError, TurnkeeperError
    from migrate import migrate as bring_up_to_date

    try:
        with closing(Database(Settings.from_env(environ))) as database:
            bring_up_to_date(database)
    except ConfigError as error:
        raise DevError(str(error)) from error
    except (TurnkeeperError, pymysql.Error, OSError) as error:
        raise DevError(f"the tables could not be made or brought up to date in {label}:\n    {error}") from error


def migrate() -> int:
    """`dev migrate`."""
    environ = configuration.read()
    with ExitStack() as stack:
        chosen = choose(environ, stack)
        apply_schema({**environ, **chosen.settings}, chosen.label)
    print(f"The schema is up to date: {chosen.label}")
    return 0


def main(action: str) -> int:
    """`dev db start|stop|status|shell`."""
    actions = {"start": start, "stop": stop, "status": status, "shell": shell}
    return actions[action]()


def start() -> int:
    """Start the private server, to run until `stop`."""
    server = private_server()
    server.start()
    server.keep_running(True)
    return status()


def stop() -> int:
    """Stop the private server, even while something uses it."""
    server = private_server()
    server.keep_running(False)
    if not server.running():
        print("The private database server is not running.")
        return 0
    if server.shared():
        say("Something that runs still uses it: it will find no database until `db start`.")
    server.stop()
    print("The private database server has stopped.")
    return 0


def status() -> int:
    """Tell how the private server is; exit status 3 when it is not running, as service managers have it."""
    server = private_server()
    configured = configuration.read()
    if configuration.is_set(configured, "DB_HOST", "DB_SOCKET"):
        say(f"Note: `up` uses {place(configured)}, as configured, and not this one.")
    pid = server.pid
    if pid is None:
        print("The private database server is not running.")
        return 3
    print(f"The private database server is running: pid {pid}, {place(server.environment())}")
    print(f"socket {server.socket}, log {server.log}")
    return 0


def shell() -> int:
    """SQL by hand: with the server's own client if it is installed, else with a small one of ours."""
    environ = configuration.read()
    with ExitStack() as stack:
        chosen = choose(environ, stack)
        say(f"{chosen.label}\n")
        settings = {**environ, **chosen.settings}
        client = shutil.which("mariadb") or shutil.which("mysql")
        if client is not None:
            return run_client(client, settings)
        from dev import sql_shell

        return sql_shell.main(settings)


def run_client(client: str, settings: Mapping[str, str]) -> int:
    """The client of MariaDB or MySQL, on the application's database with the application's account."""
    socket = settings.get("DB_SOCKET", "").strip()
    where = ["--socket", socket] if socket else ["--protocol=TCP", "--host", settings.get("DB_HOST", "127.0.0.1")]
    who = ["--port", settings.get("DB_PORT") or "3306", "--user", settings.get("DB_USER") or "root"]
    command = [client, *where, *who, "--default-character-set=utf8mb4", settings.get("DB_NAME") or DATABASE]
    # The password goes where other users of this machine cannot read it, which the command line is not.
    environ = {**os.environ, "MYSQL_PWD": settings.get("DB_PASSWORD", "")}
    # Ctrl-C is for the client: it ends a statement there, and must not end us, who clean up after it.
    signal.signal(signal.SIGINT, lambda *_: None)
    return exit_status(subprocess.run(command, env=environ, check=False).returncode)
