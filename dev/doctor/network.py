"""The layer `network`: the database's address leads to a database, or to the way to one."""

from __future__ import annotations

import shutil
import socket
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from dev import apt, configuration, mariadb_program
from dev.doctor.case import Case, Finding, fail, ok
from dev.doctor.files import shown

if TYPE_CHECKING:
    from config import Settings

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
    program = None if sys.platform == "win32" else mariadb_program.find_program()
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
