"""Keys: read from API_KEYS or a TOML file, kept as hashes, compared in constant time.

    [[key]]
    name = "shop"                       # letters, digits, . _ - ; owns what is stored
    hash = "sha256:9f86d0…"             # of the key; `python3 -m dev key shop` makes one
    may = ["users", "edit", "statistics"]

Two entries of one name are one caller with two keys: list the new one beside the old one, and take the old one away
when nobody uses it any more.
"""

import hashlib
import hmac
import re
import secrets
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from errors import ConfigError

NAME = re.compile(r"[A-Za-z0-9._-]{1,40}")
HASH = re.compile(r"sha256:[0-9a-f]{64}")
RIGHTS = frozenset({"users", "edit", "statistics"})
SHORTEST = 12  # characters of a key


@dataclass(frozen=True)
class Key:
    """One key. may: what it may beside using the service: act for `users`, `edit`, see `statistics`."""

    name: str
    hash: str
    may: frozenset[str] = frozenset()


def hash_of(key: str) -> str:
    """What is kept of a key. Keys are long and random, so one round is enough."""
    return "sha256:" + hashlib.sha256(key.encode()).hexdigest()


def new_key() -> str:
    """A key that nobody guesses."""
    return "tk-" + secrets.token_urlsafe(32)


class Keys:
    """All keys of a service."""

    def __init__(self, keys: Iterable[Key]) -> None:
        self._keys = tuple(keys)

    def find(self, presented: str) -> Key | None:
        """The key that was presented, or None; always takes the same time."""
        given = hash_of(presented)
        found = None
        for key in self._keys:
            if hmac.compare_digest(given, key.hash):
                found = key
        return found

    @classmethod
    def read(cls, text: str, file: str) -> Self | None:
        """The keys of API_KEYS and API_KEYS_FILE; None where neither is set. Raises ConfigError, no key in it."""
        if not text and not file:
            return None
        keys = [*keys_in_text(text), *(keys_in_file(Path(file)) if file else [])]
        if not keys:
            raise ConfigError("API_KEYS and API_KEYS_FILE hold no key; unset them to serve this machine only")
        hashes = [key.hash for key in keys]
        if len(set(hashes)) < len(hashes):
            raise ConfigError("API_KEYS or API_KEYS_FILE lists the same key twice")
        return cls(keys)


def keys_in_text(text: str) -> list[Key]:
    """`name:key,name:key`. Raises ConfigError that tells the place, not the key."""
    keys = []
    for number, entry in enumerate((part.strip() for part in text.split(",") if part.strip()), 1):
        name, colon, key = entry.partition(":")
        if not colon or not NAME.fullmatch(name):
            raise ConfigError(f"API_KEYS, entry {number}: it should be name:key, the name of letters, digits, . _ -")
        if len(key) < SHORTEST or not all("!" <= character <= "~" for character in key):
            raise ConfigError(f"API_KEYS, entry {number}: a key has at least {SHORTEST} visible ASCII characters")
        keys.append(Key(name, hash_of(key)))
    return keys


def keys_in_file(file: Path) -> list[Key]:
    """The keys of a TOML file. Raises ConfigError that names the entry."""
    try:
        entries = tomllib.loads(file.read_text(encoding="utf-8")).get("key", [])
    except (OSError, ValueError) as error:
        raise ConfigError(f"API_KEYS_FILE cannot be read as TOML: {type(error).__name__}") from error
    if not isinstance(entries, list):
        raise ConfigError("API_KEYS_FILE: each key is a table [[key]]")
    return [key_of(number, entry) for number, entry in enumerate(entries, 1)]


def key_of(number: int, entry: Any) -> Key:
    """One [[key]] of the file."""
    where = f"API_KEYS_FILE, key {number}"
    if not isinstance(entry, dict) or not set(entry) <= {"name", "hash", "may"}:
        raise ConfigError(f"{where}: it has name, hash and may, nothing else; a key itself is never written down")
    name, hashed, may = entry.get("name"), entry.get("hash"), entry.get("may", [])
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ConfigError(f"{where}: name has letters, digits, . _ - only, at most 40")
    if not isinstance(hashed, str) or not HASH.fullmatch(hashed):
        raise ConfigError(f"{where}: hash should be sha256: and 64 hexadecimal digits; `python3 -m dev key` makes one")
    if not isinstance(may, list) or not RIGHTS.issuperset(may):
        raise ConfigError(f"{where}: may lists some of {', '.join(sorted(RIGHTS))}")
    return Key(name, hashed, frozenset(may))
