"""PyMySQL connections, one for each database thread; transactions; which errors may be tried again.

PyMySQL blocks, so everything here runs in threads of the database's own: stuck tools cannot take them away, and the
number of threads is the number of connections. `await database.run(load_history, …)` is how the rest gets in.
"""

import asyncio
import contextlib
import contextvars
import logging
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar

import pymysql
from pymysql.cursors import Cursor

from config import Settings
from errors import ConfigError, StoreUnavailable, TurnkeeperError

log = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")
Connection: TypeAlias = "pymysql.connections.Connection[Cursor]"

CONNECT_TIMEOUT_S = 3.0
READ_TIMEOUT_S = 10.0  # also bounds the login: without it a frozen server holds connect() for ever
CHECK_AFTER_IDLE_S = 1.0  # a connection that lay idle for longer is pinged before it is used
CLOSE_AFTER_IDLE_S = 240.0  # and after this long replaced, before anything between us and the server forgets it
MAX_QUEUE_S = 10.0  # work that has waited this long for a thread is given up
RETRY_S = 5.0  # how long a save is tried again

# The session is ours, whatever the server's defaults and its `init_connect` are. The second line: a server that was set
# otherwise would keep a DELETE uncommitted, leave messages without their conversation, or give us half a history.
SESSION = (
    "SET SESSION time_zone='+00:00', wait_timeout=600, innodb_lock_wait_timeout=3, lock_wait_timeout=5, "
    "autocommit=1, completion_type=0, foreign_key_checks=1, sql_select_limit=18446744073709551615, "
    "sql_mode='STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION'"
)
ISOLATION = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE"
OLDEST = {"MariaDB": (10, 6), "MySQL": (8, 0)}

# Error numbers, never texts. Dead: gone away, lost, shutting down, killed while idle or under way.
DEAD = {2006, 2013, 2055, 1053, 1152, 1158, 1159, 1160, 1161, 1927, 3169, 4031}
CONFLICT = {1205, 1213, 1020, 3101}  # lock wait, deadlock, snapshot, group replication
NO_CONNECTION = {2002, 2003, 1040, 1203, 1226, 1047, 1129}


class CommitLost(TurnkeeperError):
    """The connection died after COMMIT was sent: only a look at the tables tells whether it happened."""


def error_number(error: BaseException) -> int:
    """MySQL's number of a driver error. A connection that is dead already says `InterfaceError(0, '')`: 2006."""
    number = error.args[0] if error.args else 0
    if isinstance(error, pymysql.err.InterfaceError):
        return 2006
    return number if isinstance(number, int) else 0


def is_dead(error: BaseException) -> bool:
    """Whether the connection cannot be used any more, and what was not committed is undone."""
    return error_number(error) in DEAD


def may_try_again(error: BaseException) -> bool:
    """Whether the same transaction, run again from its beginning, may succeed."""
    return error_number(error) in DEAD | CONFLICT | NO_CONNECTION


def check_version(reported: str) -> None:
    """Raise StoreUnavailable for a server too old for our statements. reported: `8.4.3`, `10.11.19-MariaDB-…`."""
    kind = "MariaDB" if "mariadb" in reported.lower() else "MySQL"
    text = reported.removeprefix("5.5.5-") if kind == "MariaDB" else reported  # an old prefix for old clients
    found = re.match(r"(\d+)\.(\d+)", text)
    version = (int(found[1]), int(found[2])) if found else (0, 0)
    if version < OLDEST[kind]:
        oldest = ".".join(map(str, OLDEST[kind]))
        log.error("the database server is %s %s; Turnkeeper needs %s %s or later", kind, text, kind, oldest)
        raise StoreUnavailable


class Database:
    """Threads with a connection each. Nothing is opened before the first use. Building one raises ConfigError."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.size = settings.db_pool_size
        self._threads = ThreadPoolExecutor(self.size, thread_name_prefix="database")
        self.waiting = self.busy = 0  # how much work waits for a thread, and how many threads are at work
        self._counting = threading.Lock()
        self._mine = threading.local()
        self._open: set[Connection] = set()
        self._tls = self._tls_context()

    # ------------------------------------------------------------------------------------ from the event loop

    async def run(self, function: Callable[Concatenate["Database", P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `function(self, *args)` in a database thread. Driver errors become StoreUnavailable.

        Cancelling the caller does not stop the thread: what must not be lost is awaited to its end.
        """
        work = self._work(function, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def wait(self, function: Callable[Concatenate["Database", P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The same for another thread, such as a tool's, which waits for it."""
        return self._threads.submit(self._work(function, *args, **kwargs)).result()

    def _work(
        self, function: Callable[Concatenate["Database", P], T], *args: P.args, **kwargs: P.kwargs
    ) -> Callable[[], T]:
        """What a database thread is to do, counted as waiting from now on. What it logs is tied to who asked for it."""
        given_up_at, context = time.monotonic() + MAX_QUEUE_S, contextvars.copy_context()
        self._count(waiting=1)

        def work() -> T:
            self._count(waiting=-1, busy=1)
            try:
                if time.monotonic() > given_up_at:
                    log.error("the database is too slow: no thread was free for %d s", MAX_QUEUE_S)
                    raise StoreUnavailable
                return context.run(lambda: self.call(function, *args, **kwargs))
            finally:
                self._count(busy=-1)

        return work

    def _count(self, waiting: int = 0, busy: int = 0) -> None:
        with self._counting:
            self.waiting += waiting
            self.busy += busy

    def call(self, function: Callable[Concatenate["Database", P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The same in the calling thread, for programs without an event loop."""
        try:
            return function(self, *args, **kwargs)
        except (pymysql.Error, CommitLost, OSError) as error:
            log.error("database: %s failed: %s %s", function.__name__, type(error).__name__, error.args)
            raise StoreUnavailable from error

    def close(self) -> None:
        """Let what is under way end, then close every connection. Used again, it opens new ones."""
        self._threads.shutdown(wait=True)
        self._threads = ThreadPoolExecutor(self.size, thread_name_prefix="database")
        while self._open:
            self._discard(self._open.pop())

    # ------------------------------------------------------------------------------------ in a database thread

    @contextlib.contextmanager
    def cursor(self) -> Iterator[Cursor]:
        """A cursor for single statements, each its own transaction. A dead connection is thrown away."""
        connection = self._connection()
        try:
            with connection.cursor() as cursor:
                yield cursor
        except BaseException as error:
            # After an answer of the server, even a refusal, the connection is in step; else it may not be.
            in_step = isinstance(error, pymysql.Error | TurnkeeperError) and not is_dead(error) and connection.open
            if not in_step:
                self._discard(connection)
            raise
        self._mine.used_at = time.monotonic()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Cursor]:
        """All statements or none. Raises CommitLost when nobody can say which."""
        with self.cursor() as cursor:
            connection = cursor.connection
            connection.begin()
            try:
                yield cursor
            except BaseException:
                # The first error counts; a rollback that fails too only says that the connection is dead.
                with contextlib.suppress(pymysql.Error):
                    connection.rollback()
                raise
            try:
                connection.commit()
            except pymysql.Error as error:
                if not is_dead(error):
                    raise
                raise CommitLost(*error.args) from error

    def read(self, statement: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """The rows of one SELECT. A connection that turns out to be dead is replaced once."""
        for last_try in (False, True):
            try:
                with self.cursor() as cursor:
                    cursor.execute(statement, values or None)  # an empty tuple would make every % a format
                    return list(cursor.fetchall())
            except pymysql.Error as error:
                if last_try or not is_dead(error):
                    raise
        raise AssertionError("unreachable")

    def again(self, work: Callable[[bool], T]) -> T:
        """`work(commit_lost)`, from its beginning and for some seconds, until nothing temporary keeps it from success.

        commit_lost: whether the reply to a COMMIT of an earlier try was lost, so that it may be done already.
        Raises StoreUnavailable when the time is up.
        """
        commit_lost = False
        last: Exception | None = None
        for _ in self.attempts():
            try:
                return work(commit_lost)
            except CommitLost as error:
                commit_lost, last = True, error
            except pymysql.Error as error:
                if not may_try_again(error):
                    raise
                last = error
        raise StoreUnavailable from last

    def attempts(self) -> Iterator[int]:
        """0, 1, 2 … for as long as trying again makes sense, with growing pauses between."""
        end, pause_s = time.monotonic() + RETRY_S, 0.02
        for attempt in range(1_000):
            yield attempt
            if time.monotonic() + pause_s > end:
                return
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, 1.0)

    # ------------------------------------------------------------------------------------ connections

    def _connection(self) -> Connection:
        """This thread's connection, known to be alive a moment ago, or a new one."""
        connection: Connection | None = getattr(self._mine, "connection", None)
        if connection is not None:
            idle_s = time.monotonic() - self._mine.used_at
            if connection.open and idle_s < CLOSE_AFTER_IDLE_S and (idle_s < CHECK_AFTER_IDLE_S or alive(connection)):
                return connection
            self._discard(connection)
        self._mine.connection = connection = self.connect()
        self._mine.used_at = time.monotonic()
        self._open.add(connection)
        return connection

    def _discard(self, connection: Connection) -> None:
        self._open.discard(connection)
        if getattr(self._mine, "connection", None) is connection:
            self._mine.connection = None
        with contextlib.suppress(pymysql.Error, OSError):
            connection.close()

    def connect(self, read_timeout_s: float = READ_TIMEOUT_S) -> Connection:
        """A new connection with our session settings. Raises pymysql.Error or StoreUnavailable."""
        settings = self.settings
        connection: Connection = pymysql.connect(
            host=settings.db_host,
            port=settings.db_port,
            unix_socket=settings.db_socket or None,
            user=settings.db_user,
            password=settings.db_password.get_secret_value(),
            database=settings.db_name,
            charset="utf8mb4",
            collation="utf8mb4_bin",
            autocommit=True,  # no transaction is left open, so no connection keeps an old snapshot
            connect_timeout=CONNECT_TIMEOUT_S,
            read_timeout=read_timeout_s,
            write_timeout=read_timeout_s,
            ssl_disabled=True,
            defer_connect=True,
        )
        if self._tls is not None:
            # PyMySQL makes a context for each connection (20 ms of CPU) unless TLS is required; we want one context
            # and TLS whenever the server offers it.
            connection.ssl, connection.ctx = True, self._tls  # type: ignore[attr-defined]
            connection._ssl_required = bool(settings.db_ssl_ca)  # type: ignore[attr-defined]
        try:
            open_connection(connection)
        except RuntimeError as error:  # a login method that PyMySQL cannot do
            raise pymysql.err.OperationalError(2059, str(error)) from error
        try:
            check_version(connection.get_server_info())  # type: ignore[no-untyped-call]
            with connection.cursor() as cursor:
                cursor.execute(SESSION)
                cursor.execute(ISOLATION)
        except BaseException:
            connection.close()
            raise
        return connection

    def _tls_context(self) -> ssl.SSLContext | None:
        """One context for all connections; none where the way to the server does not leave this machine."""
        settings = self.settings
        if settings.db_ssl_ca:
            try:
                return ssl.create_default_context(cafile=settings.db_ssl_ca)
            except OSError as error:  # an error of TLS is one, too
                raise ConfigError(f"DB_SSL_CA is no file of certificates (PEM): {error.strerror}") from error
        if settings.db_socket or settings.db_host in ("127.0.0.1", "localhost", "::1"):
            return None
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context


def open_connection(connection: Connection) -> None:
    """Connect what was made with `defer_connect`. Raises pymysql.Error.

    A socket file that leads nowhere costs nothing: PyMySQL would leave its socket open until the collector comes by.
    """
    path, reached = connection.unix_socket, None
    if path:
        reached = socket.socket(socket.AF_UNIX)
        try:
            reached.settimeout(connection.connect_timeout)
            reached.connect(path)
        except OSError as error:
            reached.close()
            raise pymysql.err.OperationalError(2002, f"Can't connect to MySQL server by {path!r} ({error})") from error
        connection._secure = True  # type: ignore[attr-defined]  # as PyMySQL says of the socket that it makes itself
    connection.connect(reached)


def alive(connection: Connection) -> bool:
    """Whether the server still answers on this connection."""
    try:
        connection.ping(reconnect=False)
    except (pymysql.Error, OSError):
        return False
    return True
