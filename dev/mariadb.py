"""A private database server: MariaDB, or MySQL where only that is installed, in a folder of its own.

It serves this machine only, reads no configuration file, needs no rights and no account of the system, and keeps the
server's own promises about durability: what is committed survives a crash. Standard library only, but for `admin`.

    server = PrivateServer(Path("somewhere"))
    server.ensure_installed()
    server.start()                  # makes the data the first time; well under a second with MariaDB
    server.environment()            # {"DB_HOST": "127.0.0.1", "DB_PORT": ...}
    server.stop()

In the folder: `data`, the server's own; `run`, made anew at each start; `server.log`; `server.json`, where it was
started last; `accounts.json`, the passwords, readable by the owner only.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dev.common import DevError, last_lines, say
from dev.locks import file_lock, open_lock, share_lock, try_lock
from dev.mariadb_processes import CHILDREN, command_line, has_ended, other_processes
from dev.mariadb_program import (
    MARIADB_ONLY,
    MYSQL_ONLY,
    SIZES,
    NotInstalled,
    Program,
    ensure_installed,
    identify,
    system_tables,
)
from dev.ports import can_listen, lasting_port

if sys.platform != "win32":
    import pwd

if TYPE_CHECKING:
    import pymysql

USER = "turnkeeper"
DATABASE = "agent_demo"
SOCKET_PATH_LIMIT = 103  # bytes, on every system we know
READY_WITHIN_S = 60.0


class PrivateServer:
    """One server in one folder. Any number of these, in any number of processes, may speak of the same folder."""

    def __init__(
        self, folder: Path, port: int | None = None, *, program: Path | None = None, options: Sequence[str] = ()
    ) -> None:
        """
        folder: made when missing; deleted by whoever wants the data gone, while the server is stopped.
        port: of 127.0.0.1; without one, the last one is kept or a free one chosen.
        program: another server program than the one that would be found.
        options: more options for the server, such as `--max-connections=5`; they count from the next start.
        """
        self.folder = Path(folder).absolute()
        self.data = self.folder / "data"
        self.log = self.folder / "server.log"
        self._run = self.folder / "run"
        self._pid_file = self._run / "pid"
        self._state_file = self.folder / "server.json"
        self._accounts_file = self.folder / "accounts.json"
        self._keep_file = self.folder / "keep-running"
        self._wanted_port = port
        self._wanted_program = program
        self._options = tuple(options)
        self._program: Program | None = None
        self._in_use: int | None = None

    # What it is and whether it runs

    def ensure_installed(self) -> Program:
        """Find the server program, or install it. Raises NotInstalled when neither can be done."""
        if self._program is None:
            if self._wanted_program is None:
                self._program = ensure_installed()
            else:
                self._program = identify(self._wanted_program)
            if self._program is None:
                raise NotInstalled(f"{self._wanted_program} is no database server")
        return self._program

    @property
    def pid(self) -> int | None:
        """The live server's process id. A pid file alone proves nothing: after a crash it may name any process."""
        noted: list[int] = []
        with suppress(OSError, ValueError):
            noted.append(int(self._pid_file.read_text("ascii")))
        ours = f"--datadir={self.data}"
        # Whoever started the server may have died before noting it, so the other processes are looked at, too.
        return next((pid for pid in (*noted, *other_processes()) if ours in command_line(pid)), None)

    def running(self) -> bool:
        """Whether the server's process lives; a frozen one does."""
        return self.pid is not None

    @property
    def port(self) -> int:
        """The port of 127.0.0.1 on which it serves or served last. Raises DevError before the first start."""
        return int(self._state()["port"])

    @property
    def socket(self) -> Path:
        """Its unix socket. Raises DevError before the first start."""
        return Path(self._state()["socket"])

    def environment(self) -> dict[str, str]:
        """The settings with which the application finds the server. Raises DevError before the first start."""
        return {
            "DB_HOST": "127.0.0.1",
            "DB_PORT": str(self.port),
            "DB_USER": USER,
            "DB_PASSWORD": self._accounts()[USER],
            "DB_NAME": DATABASE,
        }

    def admin(self) -> pymysql.Connection[Any]:
        """A connection as root, by the socket, which is root's only way in; with autocommit. The caller closes it."""
        import pymysql

        from db import open_connection

        connection = pymysql.connect(
            unix_socket=str(self.socket),
            user="root",
            password=self._accounts()["root"],
            charset="utf8mb4",
            autocommit=True,
            connect_timeout=10,
            defer_connect=True,
        )
        open_connection(connection)
        return connection

    # Starting and stopping

    def bootstrap(self) -> None:
        """Make the data, once. Broken off, it begins anew the next time."""
        program = self.ensure_installed()
        with self._alone() as lock:
            self._bootstrap(program, lock)

    def start(self) -> None:
        """Return when the server answers, whoever started it. Raises DevError with the server's own words."""
        program = self.ensure_installed()
        with self._alone() as lock:
            pid = self.pid
            if pid is not None:
                self._insist_on_port()
                self.thaw()
                self._wait_until_ready(pid)
            else:
                self._bootstrap(program, lock)
                self._launch(program)

    def stop(self, patience_s: float = 30.0) -> None:
        """Shut down in order, and with SIGKILL after `patience_s`. Does nothing when it is not running."""
        with self._alone():
            self._stop(patience_s)

    def kill(self) -> None:
        """End it as a crash would: SIGKILL. Returns when it is gone."""
        pid = self.pid
        if pid is not None:
            self._end(pid, signal.SIGKILL, 10.0)

    def freeze(self) -> None:
        """Stop it from doing anything, while its connections stay open: a server that hangs."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen server go on."""
        self._signal(signal.SIGCONT)

    # Using it together: the last one to leave stops it

    def share(self) -> None:
        """Start it, and keep it running until `leave` or the end of this process."""
        if self._in_use is None:
            self._in_use = open_lock(self.folder / "in-use")
            share_lock(self._in_use)
        self.start()

    def leave(self) -> None:
        """The counterpart of `share`: stop the server, unless others share it or it was asked to keep running."""
        if self._in_use is None:
            return
        with self._alone():
            os.close(self._in_use)
            self._in_use = None
            if not self._keep_file.exists() and not self.shared():
                self._stop(10.0)

    def shared(self) -> bool:
        """Whether anybody is between `share` and `leave`; those who died do not count."""
        handle = open_lock(self.folder / "in-use")
        try:
            return not try_lock(handle)
        finally:
            os.close(handle)

    def keep_running(self, keep: bool) -> None:
        """Whether it goes on when the last one has left."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if keep:
            self._keep_file.touch()
        else:
            self._keep_file.unlink(missing_ok=True)

    # Inside

    @contextmanager
    def _alone(self) -> Iterator[int]:
        """One process at a time makes, starts or stops this server. Yields the lock's handle."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with file_lock(self.folder / "lock") as lock:
                yield lock
        except PermissionError as error:
            whose = f"{error.filename} belongs to another user"
            raise DevError(f"{whose}: go on as that user, or remove {self.folder}") from error

    def _state(self) -> dict[str, Any]:
        return self._read_json(self._state_file, "has not been started yet")

    def _accounts(self) -> dict[str, str]:
        return self._read_json(self._accounts_file, "has lost its passwords: remove the folder to begin anew")

    def _read_json(self, path: Path, missing: str) -> dict[str, Any]:
        try:
            content: dict[str, Any] = json.loads(path.read_text("utf-8"))
        except FileNotFoundError:
            raise DevError(f"the private database server in {self.folder} {missing}") from None
        return content

    def _account(self) -> pwd.struct_passwd | None:
        """Whose rights the server gets when we are root; None: our own.

        The owner of the data; for new data `mysql`, the account that distributions have for it, if it can get here.
        """
        if sys.platform == "win32" or os.geteuid() != 0:
            return None
        try:
            if self.data.exists():
                return pwd.getpwuid(self.data.stat().st_uid)
            account = pwd.getpwnam("mysql")
            return account if may_enter(account, self.folder) else pwd.getpwuid(0)
        except KeyError:
            return pwd.getpwuid(0)

    def _give(self, path: Path) -> None:
        """Let the server's account own `path`."""
        account = self._account()
        if account is not None and sys.platform != "win32":
            os.chown(path, account.pw_uid, account.pw_gid)

    def _command(self, program: Program, data: Path) -> list[str]:
        """What bootstrap and server have in common."""
        account = self._account()
        return [
            str(program.path),
            "--no-defaults",  # has to be the first
            *([] if account is None else [f"--user={account.pw_name}"]),
            f"--datadir={data}",
            f"--tmpdir={self._run}",
            "--character-set-server=utf8mb4",
            *SIZES,
            *(MARIADB_ONLY if program.flavour == "MariaDB" else MYSQL_ONLY),
        ]

    def _bootstrap(self, program: Program, lock: int) -> None:
        if self.data.exists():
            return
        say(f"Making a private {program.name} in {self.folder} …")
        # Written before the data are there and never after, so that the two always agree.
        accounts = {"root": secrets.token_urlsafe(24), USER: secrets.token_urlsafe(24)}
        write_private(self._accounts_file, json.dumps(accounts))
        new = self.data.with_name("data.new")
        shutil.rmtree(new, ignore_errors=True)
        self._renew_run_folder()
        new.mkdir(mode=0o700)
        self._give(new)
        if program.flavour == "MariaDB":
            self._bootstrap_mariadb(program, new, account_statements(accounts), lock)
        else:
            self._bootstrap_mysql(program, new, account_statements(accounts), lock)
        new.rename(self.data)

    def _bootstrap_mariadb(self, program: Program, new: Path, accounts: Sequence[str], lock: int) -> None:
        """What mariadb-install-db does, without the programs of the client package that it needs."""
        begin = ["CREATE DATABASE mysql;", "USE mysql;", "SET @auth_root_socket = NULL;"]
        only_local_root = [
            "DELETE FROM global_priv WHERE Host <> 'localhost';",
            "DELETE FROM proxies_priv WHERE Host <> 'localhost';",
            "FLUSH PRIVILEGES;",
        ]
        parts = [
            "\n".join(begin).encode(),
            *(path.read_bytes() for path in system_tables(program)),
            "\n".join([*only_local_root, *accounts, ""]).encode(),
        ]
        command = [*self._command(program, new), "--bootstrap", "--log-warnings=0"]
        self._run_bootstrap(command, b"\n".join(parts), lock)

    def _bootstrap_mysql(self, program: Program, new: Path, accounts: Sequence[str], lock: int) -> None:
        statements = self._run / "accounts.sql"
        write_private(statements, "\n".join([*accounts, ""]))
        self._give(statements)
        command = [*self._command(program, new), "--initialize-insecure", f"--init-file={statements}"]
        self._run_bootstrap(command, b"", lock)
        statements.unlink()

    def _run_bootstrap(self, command: list[str], statements: bytes, lock: int) -> None:
        """The child inherits the lock: if we are killed, the next one waits until it has let go of the folder."""
        result = subprocess.run(
            command,
            input=statements,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=[lock],
            check=False,
        )
        if result.returncode != 0:
            output = last_lines(result.stdout.decode("utf-8", "replace"))
            raise DevError(f"the data of the private database server could not be made ({command[0]} says):\n{output}")

    def _renew_run_folder(self) -> None:
        """An empty `run`. Nothing in it may outlive the server: sockets and locks of a dead one hinder the next."""
        shutil.rmtree(self._run, ignore_errors=True)
        if self._state_file.exists() and self.socket.parent != self._run:
            shutil.rmtree(self.socket.parent, ignore_errors=True)
        self._run.mkdir(mode=0o700)
        self._give(self._run)

    def _new_socket(self) -> Path:
        """A path that is short enough for a unix socket: in `run`, or in a new private folder for temporary files."""
        path = self._run / "s.sock"
        for parent in (None, tempfile.gettempdir(), "/tmp"):
            if parent is not None:
                folder = Path(tempfile.mkdtemp(prefix="turnkeeper-", dir=parent))
                self._give(folder)
                path = folder / "s.sock"
            if str(path).isascii() and len(str(path)) <= SOCKET_PATH_LIMIT:
                return path
        raise DevError(f"no folder with a path short enough for a unix socket: {path} is too long")

    def _launch(self, program: Program) -> None:
        """Start the process, on another port if another program was quicker to take the one we chose."""
        for attempt in range(3):
            self._renew_run_folder()
            port = self._choose_port()
            pid = self._spawn(program, port)
            try:
                self._wait_until_ready(pid)
                return
            except DevError:
                self._end(pid, signal.SIGKILL, 10.0)
                if self._wanted_port is not None or attempt == 2 or can_listen("127.0.0.1", port):
                    raise

    def _choose_port(self) -> int:
        if self._wanted_port is not None:
            if not can_listen("127.0.0.1", self._wanted_port):
                raise DevError(f"port {self._wanted_port}, wanted for the private database server, is in use")
            return self._wanted_port
        if self._state_file.exists() and can_listen("127.0.0.1", self.port):
            return self.port
        return lasting_port()

    def _spawn(self, program: Program, port: int) -> int:
        """Start the process; its id."""
        path = self._new_socket()
        write_private(self._state_file, json.dumps({"port": port, "socket": str(path), "server": program.name}))
        command = [
            *self._command(program, self.data),
            f"--socket={path}",
            f"--pid-file={self._run / 'server.pid'}",  # the server removes it some time before it ends: we use our own
            f"--port={port}",
            "--bind-address=127.0.0.1",
            "--skip-name-resolve",  # and so nobody gets in as `somebody@localhost` but through the socket
            *self._options,
        ]
        with self.log.open("ab") as log:
            # A session of its own: Ctrl-C in our terminal is for us, and we decide when the server ends.
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder, start_new_session=True
            )
        CHILDREN[process.pid] = (process, command)
        self._pid_file.write_text(f"{process.pid}\n", "ascii")
        return process.pid

    def _insist_on_port(self) -> None:
        if self._wanted_port not in (None, self.port):
            raise DevError(f"the server in {self.folder} already runs, on port {self.port}: stop it first")

    def _wait_until_ready(self, pid: int) -> None:
        deadline = time.monotonic() + READY_WITHIN_S
        while not self._answers():
            if has_ended(pid):
                raise DevError(f"the private database server ended at once; {self._log_tail()}")
            if time.monotonic() > deadline:
                raise DevError(f"the private database server does not answer; {self._log_tail()}")
            time.sleep(0.01)

    def _answers(self) -> bool:
        """Whether the server greets who connects, which it does when it is ready for statements."""
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(1.0)
            try:
                client.connect(str(self.socket))
                return client.recv(1) != b""
            except OSError:
                return False

    def _log_tail(self) -> str:
        return f"the end of {self.log}:\n{last_lines(self.log.read_text('utf-8', 'replace'))}"

    def _signal(self, number: signal.Signals) -> None:
        pid = self.pid
        if pid is not None:
            os.kill(pid, number)

    def _stop(self, patience_s: float) -> None:
        pid = self.pid
        if pid is None:
            return
        os.kill(pid, signal.SIGCONT)  # a frozen process does not hear that it should end
        if not self._end(pid, signal.SIGTERM, patience_s):
            say(f"The database server (pid {pid}) does not stop: killing it.")
            self._end(pid, signal.SIGKILL, 10.0)
        self._renew_run_folder()

    def _end(self, pid: int, number: signal.Signals, patience_s: float) -> bool:
        """Send a signal and wait until its files are closed, too. Whether that came in time."""
        with suppress(ProcessLookupError):
            os.kill(pid, number)
        deadline = time.monotonic() + patience_s
        while not has_ended(pid):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        CHILDREN.pop(pid, None)
        return True


def may_enter(account: pwd.struct_passwd, folder: Path) -> bool:
    """Whether an account can walk down to `folder`, as far as the permission bits tell."""
    if sys.platform == "win32":
        return False
    groups = set(os.getgrouplist(account.pw_name, account.pw_gid))
    for step in (folder, *folder.parents):
        found = step.stat()
        if found.st_uid == account.pw_uid:
            bit = stat.S_IXUSR
        elif found.st_gid in groups:
            bit = stat.S_IXGRP
        else:
            bit = stat.S_IXOTH
        if not found.st_mode & bit:
            return False
    return True


def write_private(path: Path, text: str) -> None:
    """Write a file that nobody else may read, whole or not at all."""
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    new.replace(path)


def account_statements(passwords: dict[str, str]) -> list[str]:
    """One statement a line: our database, its account, and root who gets a password and keeps to the socket."""
    statements = [f"CREATE DATABASE `{DATABASE}` CHARACTER SET utf8mb4;"]
    escaped = DATABASE.replace("_", r"\_")  # a bare _ would grant every database whose name fits the pattern
    for host in ("127.0.0.1", "localhost", "::1"):
        statements.append(f"CREATE USER '{USER}'@'{host}' IDENTIFIED BY '{passwords[USER]}';")
        statements.append(f"GRANT ALL ON `{escaped}`.* TO '{USER}'@'{host}';")
    statements.append(f"ALTER USER 'root'@'localhost' IDENTIFIED BY '{passwords['root']}';")
    return statements
