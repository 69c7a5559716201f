"""The server program of this machine: which one there is, how it is installed, and what it is started with."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from dev import apt
from dev.common import DevError

PACKAGES = ("mariadb-server-core", "mariadb-server-core-10.6")  # the second is Ubuntu 22.04's name for it
OLDEST = {"MariaDB": (10, 6), "MySQL": (8, 0)}
PLACES = (
    "/usr/sbin",
    "/usr/local/sbin",
    "/usr/libexec",
    "/opt/homebrew/opt/mariadb/bin",
    "/usr/local/opt/mariadb/bin",
    "/usr/local/mysql/bin",
)
SYSTEM_TABLES = ("system_tables", "performance_tables", "system_tables_data")

# Small and quick for one developer. Only sizes, and nothing that a crash could notice.
SIZES = (
    "--performance-schema=OFF",
    "--innodb-buffer-pool-size=64M",
    "--innodb-log-buffer-size=2M",
    "--key-buffer-size=64K",
    "--table-open-cache=400",
    "--table-definition-cache=400",
    "--max-connections=200",
)
MARIADB_ONLY = (
    "--innodb-log-file-size=32M",
    "--innodb-data-file-path=ibdata1:4M:autoextend",
    "--innodb-temp-data-file-path=ibtmp1:4M:autoextend",
    "--innodb-autoextend-increment=4",
    "--aria-pagecache-buffer-size=8M",
)
MYSQL_ONLY = (
    "--loose-innodb-redo-log-capacity=64M",
    "--disable-log-bin",
    "--loose-mysqlx=OFF",
    "--secure-file-priv=NULL",  # its default is a folder that need not exist
)


class NotInstalled(DevError):
    """There is no server program here that could be used."""


@dataclass(frozen=True)
class Program:
    """A server program of this machine."""

    path: Path
    flavour: str  # MariaDB or MySQL
    version: str

    @property
    def name(self) -> str:
        return f"{self.flavour} {self.version}"

    @property
    def usable(self) -> bool:
        """Whether it is new enough for our statements."""
        return tuple(int(part) for part in self.version.split(".")[:2]) >= OLDEST[self.flavour]


def identify(path: str | Path) -> Program | None:
    """Ask a program what it is; None if it is no database server or does not run."""
    try:
        answer = subprocess.run([path, "--no-defaults", "--version"], capture_output=True, text=True, check=False)
    except OSError:
        return None
    version = re.search(r"Ver (\d+\.\d+\.\d+)", answer.stdout)
    if answer.returncode != 0 or version is None:
        return None
    return Program(Path(path), "MariaDB" if "MariaDB" in answer.stdout else "MySQL", version[1])


def find_program() -> Program | None:
    """The server program to use: the one that the variable MARIADBD names, else the first installed usable one."""
    if named := os.environ.get("MARIADBD"):
        program = identify(named)
        if program is None or not program.usable:
            raise DevError(f"MARIADBD names {named}, which is no MariaDB from 10.6 up and no MySQL from 8.0 up")
        return program
    search = os.pathsep.join([os.environ.get("PATH", os.defpath), *PLACES])
    for name in ("mariadbd", "mysqld"):
        path = shutil.which(name, path=search)
        program = identify(path) if path else None
        if program is not None and program.usable:
            return program
    return None


def real_mysql() -> Program | None:
    """A usable MySQL, not MariaDB: what TURNKEEPER_MYSQLD names, else the mysqld of this machine if it is one."""
    path = os.environ.get("TURNKEEPER_MYSQLD") or shutil.which("mysqld", path=os.environ.get("PATH", os.defpath))
    program = identify(path) if path else None
    return program if program is not None and program.flavour == "MySQL" and program.usable else None


def ensure_installed() -> Program:
    """The server program to use, installed first if there is none and we may. Raises NotInstalled."""
    if sys.platform == "win32":
        raise NotInstalled("a private database server needs unix sockets and signals, which Windows lacks")
    program = find_program()
    if program is None and apt.may_install():
        try:
            apt.install(*PACKAGES)
        except DevError as error:
            raise NotInstalled(str(error)) from None
        program = find_program()
    if program is None:
        raise NotInstalled(
            "no MariaDB from 10.6 up and no MySQL from 8.0 up is installed\n"
            "    Debian, Ubuntu: apt-get install --no-install-recommends mariadb-server-core (as root)\n"
            "    Fedora: dnf install mariadb-server    macOS: brew install mariadb"
        )
    return program


def system_tables(program: Program) -> list[Path]:
    """The SQL that ships with MariaDB and makes its own tables. Raises DevError when it is not there."""
    prefix = program.path.resolve().parent.parent
    folders = [prefix / "share" / "mariadb", prefix / "share" / "mysql", prefix / "share"]
    for folder in (*folders, Path("/usr/share/mariadb"), Path("/usr/share/mysql")):
        for family in ("mariadb", "mysql"):
            paths = [folder / f"{family}_{part}.sql" for part in SYSTEM_TABLES]
            if all(path.is_file() for path in paths):
                return paths
    raise DevError(f"{program.path} has no mariadb_system_tables.sql near it: its package is incomplete")
