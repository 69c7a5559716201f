"""What the doctor says, for people and for programs, without secrets."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from urllib.parse import unquote, urlsplit

from dev.doctor.case import SECRET, Finding


def without_secrets(text: str, environ: Mapping[str, str]) -> str:
    """A last safeguard: no text of ours is made of secrets, but others' words may hold them."""
    for name, value in environ.items():
        secret = value.strip() if SECRET.search(name) else password_in(value) if name.endswith("URL") else ""
        if len(secret) >= 8:
            text = text.replace(secret, "…")
    return text


def password_in(url: str) -> str:
    """The password of a URL; empty if it has none."""
    try:
        return unquote(urlsplit(url.strip()).password or "")
    except ValueError:
        return ""


def as_lines(name: str, finding: Finding) -> str:
    """A layer for people."""
    lines = [f"{finding.status:5} {name:14} {finding.found}", *(f"{'':20} - {hint}" for hint in finding.way_out)]
    return "\n".join(lines)


def verdict(failing: Sequence[str], unseen: Sequence[str], warned: bool) -> str:
    """The last lines for people."""
    lines = [f"Not looked at: {', '.join(unseen)}."] if unseen else []
    if failing:
        first = f" Begin with {failing[0]}." if len(failing) > 1 else ""
        lines.append(f"Where it fails: {', '.join(failing)}.{first}")
    else:
        lines.append("Nothing fails; see the warnings." if warned else "All is well.")
    return "\n".join(lines)


def as_json(findings: Mapping[str, Finding], failing: Sequence[str], unseen: Sequence[str]) -> str:
    """All of it for programs, as one object."""
    layers = []
    for name, finding in findings.items():
        layer = {"layer": name, "status": finding.status, "found": finding.found, "way_out": finding.way_out}
        layers.append(layer | ({"settings": finding.settings} if finding.settings else {}))
    report = {"ok": not failing, "failing": failing, "not_looked_at": unseen, "layers": layers}
    return json.dumps(report, ensure_ascii=False, indent=2)
