"""A result as the model reads it: columns as a list, rows as lists, compact JSON, and a word if something was cut."""

import datetime
import decimal
import json
import math
from collections.abc import Callable, Sequence
from typing import Any

SAFE_INTEGER = 2**53 - 1  # larger ones change their last digits wherever numbers are doubles
MAX_CELL_CHARS = 2_000

Cell = Callable[[Any], Any]


def number(value: Any) -> Any:
    """What JSON can hold exactly stays what it is; everything else becomes text."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return value if abs(value) <= SAFE_INTEGER else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, decimal.Decimal):
        return format(value, "f") if value.is_finite() else str(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return binary(value)
    if isinstance(value, (datetime.date, datetime.time)):
        return str(value)  # ISO 8601, with a space before the time
    return str(value)


def binary(value: Any) -> Any:
    """Bytes as hexadecimal digits."""
    if value is None:
        return None
    data = value.encode() if isinstance(value, str) else bytes(value[: MAX_CELL_CHARS // 2])
    whole = len(value)
    return "0x" + data.hex() + (f"… ({whole} bytes)" if whole > len(data) else "")


def bit(value: Any) -> Any:
    """A BIT column as a number."""
    return number(int.from_bytes(value, "big")) if isinstance(value, (bytes, bytearray)) else number(value)


class Table:
    """Rows as they come, until there are enough."""

    def __init__(self, columns: Sequence[str], cells: Sequence[Cell], max_rows: int, max_bytes: int) -> None:
        self.columns, self.cells = list(columns), list(cells)
        self.max_rows, self.max_bytes = max_rows, max_bytes
        self.rows: list[list[Any]] = []
        self.truncated = ""
        self._bytes = len(encoded(self.columns))

    def add(self, row: Sequence[Any]) -> bool:
        """Take one more row; False once there are enough."""
        if len(self.rows) >= self.max_rows:
            self.truncated = f"only the first {self.max_rows} rows are given; ask for fewer, or let the database add up"
            return False
        cut = False
        values = []
        for cell, value in zip(self.cells, row, strict=True):
            long = isinstance(value, (str, bytes, bytearray)) and len(value) > MAX_CELL_CHARS
            cut = cut or long
            shown = (
                f"{value[:MAX_CELL_CHARS]}… ({len(value)} characters)"
                if long and isinstance(value, str)
                else cell(value)
            )
            values.append(shown)
        self._bytes += len(encoded(values)) + 1
        if self._bytes > self.max_bytes:
            self.truncated = f"only {len(self.rows)} rows fit; ask for fewer rows or columns"
            return False
        self.rows.append(values)
        if cut:
            self.truncated = f"values longer than {MAX_CELL_CHARS} characters are cut"
        return True

    def as_text(self) -> str:
        """The result as compact JSON, in its own characters."""
        return self._text(self.rows, self.truncated)

    def for_model(self, max_rows: int, max_bytes: int) -> str:
        """The same with the first rows only, one at least, and a word about the others."""
        size, shown = len(encoded(self.columns)), 0
        for row in self.rows[:max_rows]:
            size += len(encoded(row)) + 1
            if shown and size > max_bytes:
                break
            shown += 1
        if shown == len(self.rows):
            return self.as_text()
        given = f"you are given the first {shown} of {len(self.rows)} rows; ask for fewer, or let the database add up"
        return self._text(self.rows[:shown], f"{given}; {self.truncated}" if self.truncated else given)

    def _text(self, rows: list[list[Any]], truncated: str) -> str:
        body: dict[str, Any] = {"columns": self.columns, "rows": rows, "row_count": len(self.rows)}
        body["truncated"] = bool(truncated)
        if truncated:
            body["note"] = f"truncated: {truncated}"
        return encoded(body).decode()


def encoded(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
