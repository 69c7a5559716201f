"""`python3 -m dev torture`: everything dies at any moment, and nothing that was acknowledged may be lost or doubled.

Some callers talk in a few conversations to several services on one private database server, with a model that often
fails. Meanwhile services, database and the connections between them are killed, frozen, cut and crowded, conversations
are deleted, rows and tables are locked. At the end everything is healed, and what the callers were told is held
against what MySQL holds.

The same seed gives the same faults in the same order, the same callers and the same model; what coincides does not
repeat itself exactly.
"""

import argparse
import contextlib
import http.client
import os
import random
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import pymysql

from config import Settings
from db import Database
from dev.common import LOCAL, ROOT, DevError, last_lines, say
from dev.locks import file_lock
from dev.mariadb import PrivateServer
from dev.ports import any_port
from dev.proxy import COMMIT, CuttableProxy
from dev.torture_callers import Caller, Journal, delete
from dev.torture_check import violations
from dev.torture_model import TortureModel
from migrate import migrate

FOLDER = LOCAL / "torture"
SERVICES = 3
CONVERSATIONS = 5
POOL_SIZE = 4
MAX_CONNECTIONS = 40
TURN_TIMEOUT_S = 5.0
HEALTHY_WITHIN_S = 60.0
CALM_TURNS = 10
# A COMMIT by the end of the statement before it, which goes over the wire right before: of a turn with a key, of one
# without, of anything, which mostly is a key that is claimed.
COMMITS = [b"state = 'running'\x07\0\0\0" + COMMIT, b")\x07\0\0\0" + COMMIT, COMMIT]
WEIGHT = 60  # rows that make a transaction heavier than a turn's: the server then gives up the turn

Environ = dict[str, str]
Connection = Any  # of pymysql, whose cursors are generic for some of its releases only


@dataclass(frozen=True)
class Options:
    seconds: float
    seed: int
    callers: int
    program: Path | None  # of the database server; None: the one that is found
    folder: Path


# The stage: one database server, some services, each with a way to the database of its own.


class Service:
    """One service: a process that comes and goes, on a port that stays, behind a proxy that stays."""

    def __init__(self, name: str, environ: Environ, database_port: int, folder: Path) -> None:
        self.name, self.port, self.log = name, any_port("127.0.0.1"), folder / f"{name}.log"
        self.log.unlink(missing_ok=True)
        self.proxy = CuttableProxy("127.0.0.1", database_port)
        self.environ = {**environ, "DB_PORT": str(self.proxy.port)}
        self.process: subprocess.Popen[bytes] | None = None
        self.up = False  # started and answering; nobody else is busy with it
        self.files_at_rest = 0

    def start(self) -> None:
        """Return when it answers. Raises DevError."""
        command = [sys.executable, "-m", "uvicorn", "main:app", "--port", str(self.port), "--no-access-log"]
        with self.log.open("ab") as log:
            # A session of its own: Ctrl-C is for us, and we decide when it ends.
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + HEALTHY_WITHIN_S
        while not self.answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise DevError(f"{self.name} did not start:\n{last_lines(self.log.read_text(errors='replace'))}")
            time.sleep(0.05)
        self.up = True

    def answers(self) -> bool:
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)) as connection:
            try:
                connection.request("GET", "/healthz")
                return connection.getresponse().status == 200
            except (OSError, http.client.HTTPException):
                return False

    def send(self, number: signal.Signals) -> None:
        if self.process and self.process.poll() is None:
            self.process.send_signal(number)

    def end(self, number: signal.Signals) -> None:
        """End it by a signal and wait; its connections end with it. By SIGKILL if it does not listen."""
        self.up = False
        if self.process is None:
            return
        self.send(number)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.send(signal.SIGKILL)
            self.process.wait()
            raise DevError(f"{self.name} did not end within 60 s of SIGTERM") from None

    def open_files(self) -> int:
        """How many file descriptors its process holds; 0 where the system does not tell."""
        folder = Path(f"/proc/{self.process.pid}/fd") if self.process else Path()
        return len(os.listdir(folder)) if sys.platform == "linux" else 0

    def close(self) -> None:
        with contextlib.suppress(DevError):
            self.send(signal.SIGCONT)
            self.end(signal.SIGKILL)
        self.proxy.close()


class Stage:
    """Everything that is tortured."""

    def __init__(self, server: PrivateServer, model: TortureModel, folder: Path) -> None:
        self.server, self.model = server, model
        kept = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "SYSTEMROOT", "VIRTUAL_ENV")
        # Nothing else of the caller's environment: its keys and limits would be tortured too.
        self.environ = {name: os.environ[name] for name in kept if name in os.environ}
        self.environ |= {"ENV_FILE": "", "API_KEY": "torture", "DEFAULT_MODEL": "torture", "BASE_URL": model.base_url}
        self.environ |= {"DB_POOL_SIZE": str(POOL_SIZE), "TURN_TIMEOUT_S": str(TURN_TIMEOUT_S)}
        self.environ |= {"TRACE_RETENTION_DAYS": "7"}  # runs are recorded, too
        self.environ |= {"MODEL_TIMEOUT_S": "2", "TOOL_TIMEOUT_S": "2", **server.environment()}
        self.name = self.environ["DB_NAME"]
        self.make_tables()
        self.services = [Service(f"service-{n + 1}", self.environ, server.port, folder) for n in range(SERVICES)]

    @property
    def ports(self) -> list[int]:
        return [service.port for service in self.services]

    def make_tables(self) -> None:
        """Our tables, empty, and one that only makes transactions heavy."""
        with self.root() as ask:
            ask(f"DROP DATABASE IF EXISTS `{self.name}`")
            ask(f"CREATE DATABASE `{self.name}` CHARACTER SET utf8mb4")
            ask(f"CREATE TABLE `{self.name}`.ballast (id INT AUTO_INCREMENT PRIMARY KEY, n INT) ENGINE=InnoDB")
        database = Database(Settings.from_env(self.environ))
        try:
            migrate(database)
        finally:
            database.close()

    @contextmanager
    def root(self) -> Iterator[Callable[[str], Sequence[Sequence[Any]]]]:
        """Statements as root, past every proxy."""
        with closing(self.server.admin()) as connection, connection.cursor() as cursor:
            cursor.execute("SET time_zone = '+00:00'")

            def ask(statement: str) -> Sequence[Sequence[Any]]:
                cursor.execute(statement)
                rows: Sequence[Sequence[Any]] = cursor.fetchall()
                return rows

            yield ask

    def query(self, statement: str) -> Sequence[Sequence[Any]]:
        """One statement in the service's database."""
        with self.root() as ask:
            ask(f"USE `{self.name}`")
            return ask(statement)

    def connect(self) -> Connection:
        """A connection of the service's account, past every proxy."""
        return pymysql.connect(
            host="127.0.0.1",
            port=self.server.port,
            user=self.environ["DB_USER"],
            password=self.environ["DB_PASSWORD"],
            database=self.name,
            connect_timeout=3,
            read_timeout=10,
            init_command="SET SESSION innodb_lock_wait_timeout = 2, lock_wait_timeout = 4",
        )

    def restart_database(self) -> None:
        self.server.start()
        for service in self.services:
            service.proxy.target = ("127.0.0.1", self.server.port)

    def connections(self) -> list[int]:
        """The connections of the service's account."""
        with self.root() as ask:
            return [int(row[0]) for row in ask("SHOW PROCESSLIST") if row[1] == self.environ["DB_USER"]]

    def close(self) -> None:
        for service in self.services:
            service.close()


# The tormentor.


class Tormentor:
    """Does one thing after the other to the stage, in three lanes: machines die while tables are locked."""

    def __init__(self, stage: Stage, seed: int, conversations: Sequence[str], journal: Journal) -> None:
        self.stage, self.seed, self.conversations, self.journal = stage, seed, conversations, journal
        self.did: Counter[str] = Counter()
        self.over = threading.Event()
        self.until = 0.0
        self._busy: list[threading.Thread] = []  # services on their way back
        machines = [
            (4, self.kill_service),
            (1, self.restart_service),
            (2, self.freeze_service),
            (3, self.kill_database),
            (2, self.freeze_database),
        ]
        ways = [
            (2, self.refuse_connections),
            (3, self.cut_connections),
            (6, self.lose_commit_replies),
            (6, self.cut_before_commit),
            (3, self.lose_other_replies),
        ]
        tables = [
            (4, self.kill_connections),
            (2, self.exhaust_connections),
            (5, self.provoke_deadlock),
            (3, self.hold_conversation),
            (2, self.hold_keys),
            (2, self.lock_tables),
            (4, self.delete_conversation),
            (4, self.end_leases),
        ]
        self.lanes = {"machines": machines, "ways": ways, "tables": tables}

    def run(self, until: float) -> None:
        """Return when it is over and everything is healed. Raises what a lane raised."""
        self.until = until
        lanes = [threading.Thread(target=self.torment, args=[name], name=name) for name in self.lanes]
        try:
            for lane in lanes:
                lane.start()
            for lane in lanes:
                while lane.is_alive():
                    lane.join(0.2)
        finally:
            self.over.set()
            for thread in [*lanes, *self._busy]:
                thread.join()
        self.heal()

    def torment(self, lane: str) -> None:
        chance = random.Random(f"{self.seed} {lane}")
        weights, faults = zip(*self.lanes[lane], strict=True)
        while time.monotonic() < self.until and not self.over.is_set():
            [fault] = chance.choices(faults, weights)
            try:
                fault(chance)
                self.did[fault.__name__] += 1
            except (pymysql.Error, OSError):  # the database is away at this moment, or the other lane was quicker
                self.did[f"{fault.__name__} in vain"] += 1
            except Exception as error:
                self.journal.complain(f"{fault.__name__}: {type(error).__name__}: {error}")
            self.over.wait(chance.uniform(0.0, 1.0))

    def heal(self) -> None:
        """Everything runs and answers again."""
        self.stage.server.thaw()
        self.stage.restart_database()
        for service in self.stage.services:
            service.proxy.disarm()
            service.proxy.accept()
            if not service.up:
                service.start()

    def pick(self, chance: random.Random) -> Service:
        return chance.choice(self.stage.services)

    # Machines: the services and the database server

    def kill_service(self, chance: random.Random, number: signal.Signals = signal.SIGKILL) -> None:
        service, pause_s = self.pick(chance), chance.uniform(0.0, 1.0)
        if not service.up:
            return
        assert service.process
        if service.process.poll() is not None:
            self.journal.complain(f"{service.name} ended by itself with {service.process.returncode}")
        service.up = False

        def come_back() -> None:
            try:
                service.end(number)
                service.proxy.cut_all()  # what the system does to the connections of a process that is gone
                self.over.wait(pause_s)
                service.start()
            except DevError as error:
                self.journal.complain(str(error))

        thread = threading.Thread(target=come_back, name=f"{service.name} comes back")
        thread.start()
        self._busy = [*(one for one in self._busy if one.is_alive()), thread]

    def restart_service(self, chance: random.Random) -> None:
        self.kill_service(chance, signal.SIGTERM)

    def freeze_service(self, chance: random.Random) -> None:
        service = self.pick(chance)
        service.send(signal.SIGSTOP)
        self.over.wait(chance.uniform(0.2, 3.0))
        service.send(signal.SIGCONT)

    def kill_database(self, chance: random.Random) -> None:
        self.stage.server.kill()
        self.over.wait(chance.choice([0.0, 0.0, 0.5, 2.0]))
        self.stage.restart_database()

    def freeze_database(self, chance: random.Random) -> None:
        self.stage.server.freeze()
        self.over.wait(chance.uniform(0.2, 3.0))
        self.stage.server.thaw()

    # Ways between them

    def refuse_connections(self, chance: random.Random) -> None:
        proxy = self.pick(chance).proxy
        proxy.refuse()
        if chance.random() < 0.5:
            proxy.cut_all()
        self.over.wait(chance.uniform(0.1, 2.0))
        proxy.accept()

    def cut_connections(self, chance: random.Random) -> None:
        self.pick(chance).proxy.cut_all()

    def lose_commit_replies(self, chance: random.Random) -> None:
        proxy = self.pick(chance).proxy
        for _ in range(chance.randint(1, 4)):
            proxy.cut_reply_to(chance.choice(COMMITS))

    def cut_before_commit(self, chance: random.Random) -> None:
        proxy = self.pick(chance).proxy
        for _ in range(chance.randint(1, 4)):
            proxy.cut_before(chance.choice(COMMITS))

    def lose_other_replies(self, chance: random.Random) -> None:
        words = [b"INSERT INTO", b"UPDATE", b"SELECT", b"DELETE", b"BEGIN", b"SELECT run_id", b"state = 'done'"]
        proxy = self.pick(chance).proxy
        chance.choice([proxy.cut_reply_to, proxy.cut_before])(chance.choice(words))

    # Tables and connections

    def kill_connections(self, chance: random.Random) -> None:
        numbers = self.stage.connections()
        with self.stage.root() as ask:
            for number in numbers:
                if chance.random() < 0.7:
                    with contextlib.suppress(pymysql.Error):  # it has ended meanwhile
                        ask(f"KILL {number}")

    def exhaust_connections(self, chance: random.Random) -> None:
        with ExitStack() as ours:
            before = self.stage.connections()
            with self.stage.root() as ask, contextlib.suppress(pymysql.Error):
                for number in before:
                    ask(f"KILL {number}")
            with contextlib.suppress(pymysql.Error):  # until there is no more room
                for _ in range(MAX_CONNECTIONS):
                    ours.enter_context(closing(self.stage.connect()))
            self.over.wait(chance.uniform(0.2, 2.0))

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """A cursor in a transaction of our own, which leaves nothing."""
        with closing(self.stage.connect()) as connection, connection.cursor() as cursor:
            connection.begin()
            yield cursor
            connection.rollback()

    def deadlocks(self) -> int:
        [[count]] = self.stage.query(
            "SELECT count FROM information_schema.innodb_metrics WHERE name = 'lock_deadlocks'"
        )
        return int(count)

    def provoke_deadlock(self, chance: random.Random) -> None:
        """We hold the place of the next messages and want the conversation's row; a turn goes the other way."""
        name, before = chance.choice(self.conversations), self.deadlocks()
        with self.transaction() as cursor:
            cursor.execute("INSERT INTO ballast (n) VALUES " + ", ".join(["(1)"] * chance.choice([1, WEIGHT])))
            cursor.execute(
                "SELECT m.id FROM messages AS m WHERE m.conversation_id = %s AND m.id > 2 * "
                "(SELECT turns FROM conversations WHERE conversation_id = %s) FOR UPDATE",
                (name, name),
            )
            self.over.wait(chance.uniform(0.05, 0.5))
            with contextlib.suppress(pymysql.err.OperationalError):  # this time it is us
                cursor.execute("UPDATE conversations SET title = 'x' WHERE conversation_id = %s", (name,))
        self.did["deadlocks"] += max(self.deadlocks() - before, 0)

    def hold_conversation(self, chance: random.Random) -> None:
        with self.transaction() as cursor:
            name = chance.choice(self.conversations)
            cursor.execute("SELECT id FROM conversations WHERE conversation_id = %s FOR UPDATE", (name,))
            self.over.wait(chance.uniform(0.2, 4.0))

    def hold_keys(self, chance: random.Random) -> None:
        with self.transaction() as cursor:
            cursor.execute("SELECT name FROM idempotency_keys WHERE state = 'running' FOR UPDATE")
            self.over.wait(chance.uniform(0.2, 2.0))

    def lock_tables(self, chance: random.Random) -> None:
        """Every connection of every pool is taken, by work that waits."""
        with closing(self.stage.connect()) as connection, connection.cursor() as cursor:
            cursor.execute("LOCK TABLES conversations WRITE, messages WRITE, idempotency_keys WRITE")
            self.over.wait(chance.uniform(0.2, 2.0))

    def delete_conversation(self, chance: random.Random) -> None:
        delete(self.stage.ports, chance.choice(self.conversations), chance, self.journal, self.until + 60)

    def end_leases(self, chance: random.Random) -> None:
        """Time passes for the keys: those of turns that must have ended, or of all, the living ones too."""
        end_leases(self.stage, all_of_them=chance.random() < 0.3)


def end_leases(stage: Stage, all_of_them: bool) -> None:
    """Keys that are still running count as left behind. all_of_them: even where the turn may well be under way."""
    over = "" if all_of_them else " AND leased_until < NOW(6) + INTERVAL 60 SECOND"  # what is added to a turn's time
    stage.query("UPDATE idempotency_keys SET leased_until = NOW(6) - INTERVAL 1 SECOND WHERE state = 'running'" + over)


# The play.


class Torture:
    """One torture from beginning to end."""

    def __init__(self, stage: Stage, options: Options) -> None:
        self.stage, self.options = stage, options
        self.journal = Journal()
        self.conversations = [f"torture-{n}" for n in range(CONVERSATIONS)]
        self.tormentor = Tormentor(stage, options.seed, self.conversations, self.journal)
        self.callers = [
            Caller(f"caller-{n}", options.seed, stage.ports, self.conversations, self.journal)
            for n in range(options.callers)
        ]
        self.calm_conversations: set[str] = set()

    def run(self) -> list[str]:
        """What was found to be wrong."""
        for service in self.stage.services:
            service.start()
            self.ask_calmly(service)
        for service, files in zip(self.stage.services, self.files_at_rest(), strict=True):
            service.files_at_rest = files
        until = time.monotonic() + self.options.seconds
        asking = [threading.Thread(target=one.keep_asking, args=[until], daemon=True) for one in self.callers]
        try:
            for thread in asking:
                thread.start()
            self.tormentor.run(until)
            self.wait_for(asking)
        finally:
            for caller in self.callers:
                caller.aborted.set()
        self.settle()
        found = [*self.journal.complaints, *self.check_machines()]
        return found + violations(self.journal, {*self.conversations, *self.calm_conversations}, self.stage.query)

    def wait_for(self, asking: Sequence[threading.Thread]) -> None:
        """Everything is healthy, so every caller gets its answer; the leases of the dead have ended."""
        self.stage.model.calm = True
        while any(thread.is_alive() for thread in asking):
            end_leases(self.stage, all_of_them=False)
            time.sleep(0.5)

    def settle(self) -> None:
        """A key left behind by a request that its caller gave up can be used: it is used."""
        end_leases(self.stage, all_of_them=True)
        left = {name for (name,) in self.stage.query("SELECT name FROM idempotency_keys WHERE state = 'running'")}
        patient = Caller("heir", self.options.seed, self.stage.ports, self.conversations, self.journal)
        for asked in [asked for asked in self.journal.asked if asked.key in left]:
            self.journal.count("key left behind, used again")
            patient.insist(asked)

    def ask_calmly(self, service: Service) -> None:
        """Some turns that nothing disturbs: at rest afterwards, a service holds what it always holds."""
        calm, self.stage.model.calm = self.stage.model.calm, True
        name = f"calm-{service.name}-{len(self.calm_conversations)}"
        self.calm_conversations.add(name)
        caller = Caller(name, self.options.seed, [service.port], [name], self.journal)
        for _ in range(CALM_TURNS):
            if caller.ask(name, with_key=True).outcome != "acknowledged":
                self.journal.complain(f"{service.name} does not answer though nothing disturbs it")
        self.stage.model.calm = calm

    def files_at_rest(self) -> list[int]:
        """The open files of each service once the model has let go of idle connections."""
        time.sleep(2.0)
        return [service.open_files() for service in self.stage.services]

    def check_machines(self) -> list[str]:
        """Nothing has piled up: connections, files; no defect stands in a log."""
        for service in self.stage.services:
            self.ask_calmly(service)
        found = []
        for service, files in zip(self.stage.services, self.files_at_rest(), strict=True):
            # Since its first rest it may have opened the rest of its pool, each connection a file.
            if files > service.files_at_rest + POOL_SIZE + 2:
                found.append(f"{service.name} has {files} open files; at rest it had {service.files_at_rest}")
            if (open_now := service.proxy.open_connections) > POOL_SIZE:
                found.append(f"{service.name} has {open_now} database connections; its pool has {POOL_SIZE}")
            log = service.log.read_text(encoding="utf-8", errors="replace")
            if "Traceback" in log:
                found.append(f"{service.name} logged a defect:\n{last_lines(log[log.index('Traceback') :][:2000], 30)}")
        if (count := len(self.stage.connections())) > SERVICES * POOL_SIZE:
            found.append(f"the server has {count} connections of {SERVICES} pools of {POOL_SIZE}")
        return found

    def report(self, found: Sequence[str], server: str) -> str:
        """All of it in some lines."""
        counts = self.journal.counts
        tries = {name.removeprefix("try: "): n for name, n in counts.items() if name.startswith("try: ")}
        ends = {name: n for name, n in counts.items() if not name.startswith("try: ")}
        lines = [
            f"{server}, {self.options.seconds:.0f} s, {SERVICES} services, {len(self.callers)} callers",
            f"faults   {listed(self.tormentor.did)}; conversations deleted {len(self.journal.deletions)}; "
            f"connections cut {sum(service.proxy.cuts for service in self.stage.services)}",
            f"model    {listed(self.stage.model.did)}",
            f"tries    {sum(tries.values())}: {listed(tries)}",
            f"turns    {len(self.journal.asked)}: {listed(ends)}",
            *(f"WRONG    {text}" for text in found[:50]),
            f"{len(found)} violations" if found else "no violation",
        ]
        return "\n".join(lines)


def listed(counts: dict[str, int]) -> str:
    """`a 3, b 2`, the most frequent first."""
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    return ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in ordered)


def torture(options: Options) -> int:
    """Exit status: 0 if nothing was wrong."""
    server = PrivateServer(
        options.folder / "server", program=options.program, options=[f"--max-connections={MAX_CONNECTIONS}"]
    )
    name = server.ensure_installed().name
    server.stop()  # what a torture that was killed may have left
    with ExitStack() as cleanup:
        cleanup.callback(server.stop)
        server.start()
        model = TortureModel(options.seed)
        cleanup.callback(model.close)
        stage = Stage(server, model, options.folder)
        cleanup.callback(stage.close)
        say(f"Torturing {name} for {options.seconds:.0f} s, seed {options.seed} …")
        play = Torture(stage, options)
        found = play.run()
        print(play.report(found, name))
    again = f"--minutes {options.seconds / 60:g} --seed {options.seed} --callers {options.callers}"
    print(f"again    python3 -m dev torture {again}" + (f" --mysqld {options.program}" if options.program else ""))
    return int(bool(found))


def stop_on_sigterm(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def read_options(arguments: Sequence[str]) -> Options:
    parser = argparse.ArgumentParser(
        prog="python3 -m dev torture", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=1.0, help="how long everything is tormented (1)")
    parser.add_argument("--seed", type=int, help="the seed of an earlier torture, to do it again")
    parser.add_argument("--callers", type=int, default=12, help="how many ask at once (12)")
    parser.add_argument("--mysql", action="store_true", help="on the MySQL that TURNKEEPER_MYSQLD names")
    parser.add_argument("--mysqld", type=Path, metavar="PATH", help="on this server program")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the server lives (.local/torture)")
    given = parser.parse_args(arguments)
    program = given.mysqld
    if given.mysql and program is None:
        if not os.environ.get("TURNKEEPER_MYSQLD"):
            raise DevError("--mysql needs TURNKEEPER_MYSQLD, the path of a mysqld program; or give --mysqld PATH")
        program = Path(os.environ["TURNKEEPER_MYSQLD"])
    seed = secrets.randbelow(1_000_000) if given.seed is None else given.seed
    flavour = "mysql" if program else "mariadb"  # the data of one are of no use to the other
    return Options(given.minutes * 60, seed, given.callers, program, given.folder.absolute() / flavour)


def main(arguments: Sequence[str]) -> int:
    """Torture and report. 0 when nothing was wrong, else 1. Raises DevError."""
    options = read_options(arguments)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, stop_on_sigterm)
    with file_lock(options.folder / "torture.lock", "Waiting for another torture …"):
        return torture(options)
