"""`dev doctor`: goes through the layers, from the files up to the tools, and names the one that fails and the way out.

It looks and asks; nothing is changed, neither in the checkout nor in the database. Packages, and modules that need
them, are imported where they are used: one that is missing is something to be told of.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import NamedTuple

from dev.common import DevError
from dev.doctor.case import Case, Finding, fail
from dev.doctor.files import check_files, check_imports, describe
from dev.doctor.login import check_login, check_server
from dev.doctor.model import check_model
from dev.doctor.network import check_network
from dev.doctor.report import as_json, as_lines, verdict, without_secrets
from dev.doctor.settings import check_configuration
from dev.doctor.tables import check_charset, check_privileges, check_schema
from dev.doctor.text2sql import check_text2sql
from dev.doctor.toolsets import check_tools

DESCRIPTION = """\
Go through the layers of this checkout in order: file, import, configuration, network,
login, server, charset, privileges, schema, model, tools, and text2sql where that toolset
is on. Each gets a line; the layer that fails is named with the way out. It looks at what
`up` would use, and changes nothing."""


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


@contextmanager
def quiet() -> Iterator[None]:
    """Without the log of what we try: the findings say it."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


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
