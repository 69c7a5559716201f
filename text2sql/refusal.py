"""What the guard says of a statement that may not run: Refused, and how a dialect spells what belongs to another."""

import re


class Refused(Exception):
    """The statement may not run. code: a word for programs; hint: what could be done instead."""

    def __init__(self, code: str, reason: str, hint: str = "") -> None:
        super().__init__(reason)
        self.code, self.reason, self.hint = code, reason, hint


SPELLINGS: dict[str, list[tuple[str, str]]] = {
    "mysql": [
        (r"\bSELECT\s+TOP\b", "MySQL has LIMIT n at the end instead of TOP n."),
        (r"\bDATE_TRUNC\b", "MySQL has DATE_FORMAT(d, '%Y-%m-01') instead of DATE_TRUNC."),
        (r"\bTO_CHAR\b", "MySQL has DATE_FORMAT(d, '%Y-%m') instead of TO_CHAR."),
        (r"\bSTRFTIME\b", "MySQL has DATE_FORMAT(d, '%Y') instead of STRFTIME."),
        (r"::", "MySQL has CAST(x AS type) instead of x::type."),
        (r"\bILIKE\b", "MySQL has LIKE, which ignores case already, instead of ILIKE."),
        (r"\bFULL\s+(OUTER\s+)?JOIN\b", "MySQL has no FULL JOIN: UNION a LEFT JOIN and a RIGHT JOIN."),
        (r'"', 'MySQL quotes names with `backticks`; "double quotes" make a string.'),
    ],
    "postgres": [
        (r"`", 'PostgreSQL quotes names with "double quotes", not backticks.'),
        (r"\bSELECT\s+TOP\b", "PostgreSQL has LIMIT n at the end instead of TOP n."),
        (r"\bIFNULL\b", "PostgreSQL has COALESCE instead of IFNULL."),
        (r"\bDATE_FORMAT\b", "PostgreSQL has TO_CHAR(d, 'YYYY-MM') instead of DATE_FORMAT."),
        (r"\bSTRFTIME\b", "PostgreSQL has TO_CHAR(d, 'YYYY') instead of STRFTIME."),
        (r"\bGROUP_CONCAT\b", "PostgreSQL has STRING_AGG(x, ',') instead of GROUP_CONCAT."),
    ],
    "sqlite": [
        (r"\bSELECT\s+TOP\b", "SQLite has LIMIT n at the end instead of TOP n."),
        (r"\b(DATE_FORMAT|TO_CHAR|DATE_TRUNC)\b", "SQLite has STRFTIME('%Y-%m', d) for parts of a date."),
        (r"\bEXTRACT\b|\b(YEAR|MONTH|DAY)\s*\(", "SQLite has STRFTIME('%Y', d) for parts of a date."),
        (r"::", "SQLite has CAST(x AS type) instead of x::type."),
        (r"\bILIKE\b", "SQLite has LIKE, which ignores case of ASCII letters, instead of ILIKE."),
    ],
}


def dialect_hint(sql: str, dialect: str) -> str:
    """How this dialect spells what stands in the statement and belongs to another."""
    return " ".join(hint for pattern, hint in SPELLINGS[dialect] if re.search(pattern, sql, re.I))


def too_complex(reason: str) -> Refused:
    """The refusal of a statement that would keep us or its server busy."""
    return Refused("too_complex", reason, "Write it more simply.")


def first_line(error: Exception) -> str:
    """What the parser says, without its picture of the place."""
    return re.sub(r"\x1b\[\d*m", "", str(error)).splitlines()[0][:200]
