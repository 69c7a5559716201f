"""Writes the wheel: our flat modules as one package, `turnkeeper`.

In the checkout modules import one another flatly (`from config import Settings`); another backend has a `config` of its
own. So the wheel holds the same files below one name, and nothing of them is changed but their import lines, none of
which moves.
"""

import ast
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = "turnkeeper"
FOLDERS = ("access", "runs", "openai_api", "mcp_bridge", "text2sql", "ontology", "revenue", "workbench")
DATA = ("schema.sql", "migrations")


class BuildHook(BuildHookInterface[Any]):
    """Hatchling's hook; named in pyproject.toml."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Hand hatchling the package instead of the flat files."""
        self.made = Path(tempfile.mkdtemp(prefix="turnkeeper-wheel-"))
        write_package(Path(self.root), self.made / PACKAGE)
        build_data["force_include"][str(self.made / PACKAGE)] = PACKAGE

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """The wheel is written."""
        shutil.rmtree(self.made, ignore_errors=True)


def own_modules(root: Path) -> set[str]:
    """The names that are ours: the flat modules and the folders that are there."""
    return {file.stem for file in root.glob("*.py")} | {name for name in FOLDERS if (root / name).is_dir()}


def write_package(root: Path, package: Path) -> None:
    """Write our modules, folders and data below `package`."""
    own = own_modules(root)
    package.mkdir(parents=True)
    files = [*root.glob("*.py"), *(file for name in FOLDERS for file in (root / name).rglob("*.py"))]
    for file in files:
        place = package / file.relative_to(root)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(rewrite(file.read_text(encoding="utf-8"), own), encoding="utf-8")
    front = (root / "embed" / "package.py").read_text(encoding="utf-8")
    (package / "__init__.py").write_text(rewrite(front, own), encoding="utf-8")
    (package / "py.typed").touch()
    for name in FOLDERS:  # what a folder has beside Python: pages, notes, samples
        for file in (root / name).rglob("*"):
            if file.is_file() and file.suffix != ".py" and "__pycache__" not in file.parts:
                place = package / file.relative_to(root)
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, place)
    for name in DATA:
        copy = shutil.copytree if (root / name).is_dir() else shutil.copyfile
        copy(root / name, package / name)


def rewrite(source: str, own: set[str]) -> str:
    """`from config import X` -> `from turnkeeper.config import X`, for each absolute import of our own.

    Raises ValueError for an import that one line cannot say: several own modules at once, or a dotted one.
    """
    lines = source.splitlines(keepends=True)
    for node in ast.walk(ast.parse(source)):
        at = getattr(node, "lineno", 0) - 1
        if isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] in own:
            lines[at] = lines[at].replace("from ", f"from {PACKAGE}.", 1)
        elif isinstance(node, ast.Import) and any(name.name.split(".")[0] in own for name in node.names):
            if len(node.names) > 1 or "." in node.names[0].name:
                raise ValueError(f"line {node.lineno}: import one own module a line, without dots")
            lines[at] = lines[at].replace("import ", f"from {PACKAGE} import ", 1)
    return "".join(lines)
