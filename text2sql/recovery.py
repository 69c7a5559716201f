"""Recovery: may the model correct a statement that failed, or does the run end?

Decided by the server's error number or SQLSTATE, never by its text. What is not listed ends the run: a model that
tries on against a refusal only spends time and tokens.
"""

import sqlite3
from dataclasses import dataclass

from .refusal import Refused, dialect_hint

# Codes that more than the same statement again can mend.
CORRECTABLE = {
    "unknown_column": "Name a column that there is; describe_table lists them.",
    "unknown_table": "Name a table that there is; list_tables lists them.",
    "unknown_function": "Use a function that this database has.",
    "ambiguous_column": "Put the table or its alias before the column.",
    "grouping": "Every selected column that is not aggregated belongs into GROUP BY.",
    "syntax": "Correct the syntax.",
    "bad_value": "Correct the value or its type.",
    "timeout": "Ask for less: filter earlier, join fewer tables, aggregate over a shorter time.",
    "invalid_statement": "Correct the statement.",
}
ENDS = {
    "permission_denied": "the account may not do this",
    "database_scope": "it is outside the database that may be asked",
    "read_only": "the session may only read",
    "connection_failed": "the database cannot be reached",
    "unclassified": "the database failed in a way that no correction mends",
}

MYSQL = {
    "unknown_column": {1054, 1247},
    "unknown_table": {1146, 1109, 1051},
    "unknown_function": {1305, 1128, 1630},
    "ambiguous_column": {1052, 1060, 1066},
    "grouping": {1055, 1056, 1111, 1140},
    "syntax": {1064, 1149, 1065, 1248, 1235},
    "bad_value": {1292, 1365, 1366, 1411, 1525, 1582, 1690, 1264, 1210, 1267, 1270, 1271, 1273, 3141, 3143, 4037, 4038}
    | {1139, *range(3685, 3699)},  # patterns
    "invalid_statement": {1221, 1222, 1241, 1242, 1250, 1104, 1116, 3065, 3029, 1191, 4078, 1583, 1584, 1562, 3636},
    "timeout": {1969, 3024, 1317, 1028, 3699},
    "permission_denied": {1142, 1143, 1044, 1045, 1227, 1370, 1698},
    "database_scope": {1049, 1046},
    "read_only": {1792, 1290, 1836},
    "connection_failed": {2002, 2003, 2005, 2006, 2013, 1040, 1203, 1226, 1129, 1053, 1927},
}
POSTGRES = {  # by SQLSTATE, or its first two characters
    "unknown_column": {"42703"},
    "unknown_table": {"42P01"},
    "unknown_function": {"42883"},
    "ambiguous_column": {"42702", "42712", "42725"},
    "grouping": {"42803", "42P20"},
    "syntax": {"42601", "42P10", "42611", "42622"},
    "bad_value": {"22", "42804", "42846", "42P18", "42P08", "42P22"},
    "invalid_statement": {"21", "42P19", "42P21", "42P11", "0A"},
    "timeout": {"57014", "55P03", "54"},
    "permission_denied": {"42501", "28"},
    "database_scope": {"3D", "3F"},
    "read_only": {"25006"},
    "connection_failed": {"08", "57P", "53"},
}


@dataclass(frozen=True)
class Failure:
    """What went wrong with a statement. message: for the model; hint: what to do about it."""

    code: str
    message: str
    hint: str
    correctable: bool


def of_refusal(refused: Refused) -> Failure:
    """A statement that the guard refused. Another schema is not a slip: it ends the run."""
    if refused.code == "schema_not_allowed":
        return Failure("database_scope", refused.reason, ENDS["database_scope"], False)
    return Failure(refused.code, refused.reason, refused.hint or "Write the statement without it.", True)


def of_error(error: Exception, dialect: str, sql: str) -> Failure:
    """A statement that the database refused, or a database that does not answer."""
    code, message = classify(error, dialect)
    if code in CORRECTABLE:
        spelling = dialect_hint(sql, dialect) if code in ("syntax", "unknown_function") else ""
        return Failure(code, message, f"{CORRECTABLE[code]} {spelling}".strip(), True)
    return Failure(code, "The database did not carry it out", ENDS[code], False)


def classify(error: Exception, dialect: str) -> tuple[str, str]:
    """The code of a driver's error, and what the server says in one line."""
    if dialect == "mysql":
        number = error.args[0] if error.args and isinstance(error.args[0], int) else 0
        code = next((code for code, numbers in MYSQL.items() if number in numbers), "unclassified")
        if type(error).__name__ == "InterfaceError":
            code = "connection_failed"
        return code, first_line(str(error.args[1]) if len(error.args) > 1 else str(error))
    if dialect == "postgres":
        state = getattr(error, "sqlstate", None) or ""
        diagnosis = getattr(error, "diag", None)
        message = first_line(getattr(diagnosis, "message_primary", None) or "")  # its hint may name hidden columns
        if not state:
            return ("connection_failed" if type(error).__name__ == "OperationalError" else "unclassified"), message
        for size in (5, 3, 2):
            for code, states in POSTGRES.items():
                if state[:size] in states:
                    return code, message
        return "unclassified", message
    return of_sqlite(error), first_line(str(error))


def of_sqlite(error: Exception) -> str:
    """SQLite has one number for all that is wrong with a statement: the kinds of it are told by its words."""
    number = getattr(error, "sqlite_errorcode", None)
    base = number & 0xFF if isinstance(number, int) else None
    text = str(error)
    if base in (sqlite3.SQLITE_INTERRUPT, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return "timeout"
    if base in (sqlite3.SQLITE_AUTH, sqlite3.SQLITE_PERM):
        return "permission_denied"
    if base == sqlite3.SQLITE_READONLY:
        return "read_only"
    if base in (sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_RANGE):
        return "bad_value"
    if base is None or base == sqlite3.SQLITE_CANTOPEN:
        return "connection_failed" if "unable to open" in text else "unclassified"
    if base != sqlite3.SQLITE_ERROR:
        return "unclassified"
    known = {
        "no such column": "unknown_column",
        "no such table": "unknown_table",
        "no such function": "unknown_function",
    }
    known |= {"ambiguous": "ambiguous_column", "syntax error": "syntax", "misuse of aggregate": "grouping"}
    return next((code for words, code in known.items() if words in text), "invalid_statement")


def first_line(text: str) -> str:
    return text.strip().split("\n")[0][:300]


def number_of(error: Exception) -> str:
    """MySQL's number or the SQLSTATE of a driver's error, for the log; its text may hold values."""
    number = getattr(error, "sqlstate", None) or (error.args[0] if error.args else None)
    return str(number) if isinstance(number, int) or (isinstance(number, str) and len(number) == 5) else "-"
