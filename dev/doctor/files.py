"""The layers `file` and `import`: the modules and the settings are there, can be read and can be imported."""

from __future__ import annotations

import ast
import difflib
import importlib
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from dev.common import ROOT
from dev.doctor.case import Case, Finding, fail, ok

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
    ours = [
        f" ({shown(path)}, line {line})"
        for path, line in frames
        if path.is_relative_to(ROOT) and "site-packages" not in path.parts
    ]
    return f"{type(error).__name__}: {error}".replace("\n", " ") + "".join(ours[-1:])
