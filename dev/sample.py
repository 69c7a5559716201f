"""`dev up --sample shop`: what the service is told, so that it can ask the sample."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping

from dev import configuration
from dev.common import ROOT, DevError, last_lines, say
from dev.database import Chosen
from dev.shop import load

INSTEAD = """\
the sample is loaded into the private server only, and {}. For a server of yours:
  - load it by an account that may: .venv/bin/python -m dev.shop | mysql …
  - make another that may only read it: GRANT SELECT ON {}.* TO …
  - name it: TOOLSETS=calculator,clock,text2sql TEXT2SQL_URL=mysql://… TEXT2SQL_POLICY={}"""


def refuse_elsewhere(environ: Mapping[str, str]) -> None:
    """Raise DevError where another database is configured."""
    if configuration.is_set(environ, "DB_HOST", "DB_SOCKET"):
        raise DevError(instead("DB_HOST or DB_SOCKET names another (unset it, or go on as follows)"))


def instead(reason: str) -> str:
    """Why the sample cannot be had, and the way out."""
    return INSTEAD.format(reason, load.DATABASE, load.POLICY)


def settings(environ: Mapping[str, str], toolsets: str, chosen: Chosen) -> dict[str, str]:
    """Load the sample; the settings that lead to it, but for those that the user has made. Raises DevError.

    toolsets: those of `up`, when nothing is set.
    """
    if chosen.private is None:
        raise DevError(instead(f"this is {chosen.label}"))
    url = load.load(chosen.private)
    if configuration.is_set(environ, "TEXT2SQL_URL"):
        say("Note: TEXT2SQL_URL is set, so that database is asked and not the sample.")
        return {}
    if "text2sql" not in (environ.get("TOOLSETS") or "text2sql"):
        say("Note: TOOLSETS is set and leaves text2sql out: add it to ask the sample.")
    ours = {"TOOLSETS": f"{toolsets},text2sql", "TEXT2SQL_URL": url, "TEXT2SQL_POLICY": str(load.POLICY)}
    return {name: value for name, value in ours.items() if not configuration.is_set(environ, name)}


def sync_catalogue(environ: Mapping[str, str]) -> None:
    """Store the sample's structure and our notes on it, where it is the sample that the service asks."""
    if environ.get("TEXT2SQL_POLICY") != str(load.POLICY):
        return
    command = [sys.executable, "-m", "text2sql", "sync", "--notes", str(load.NOTES)]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, encoding="utf-8")
    if done.returncode:
        say(f"Note: the catalogue of the sample could not be stored:\n{last_lines(done.stderr)}")
