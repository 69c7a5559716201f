"""What the demo model knows of the sample shop: a few questions, the SQL for each, and how to tell the rows.

As with arithmetic it never makes up a result: every name and number of an answer stands in the rows that `run_sql`
returned, and what the database refused or did not find is told as that.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Rows = list[list[Any]]


@dataclass(frozen=True)
class Known:
    """One question. attempts: the SQL, and what is sent where the one before failed. {} in it: what `when` reads.

    columns: how many a row has. tell: the answer in Chinese and English, from the period asked for and the rows, of
    which there is one at least.
    """

    asks: re.Pattern[str]
    attempts: tuple[str, ...]
    columns: int
    tell: Callable[[str, Rows], tuple[str, str]]


def asks(*forms: str) -> re.Pattern[str]:
    """A question with any of these, each in the order of its words."""
    return re.compile("|".join(form.replace(" … ", ".*") for form in forms), re.I)


SALES = (
    "SELECT {column}, SUM(i.quantity) AS pieces, SUM(i.quantity * i.unit_price) AS yuan FROM orders o "
    "JOIN order_items i ON i.order_id = o.id{joins} WHERE o.status = 'paid'{when} GROUP BY {column} "
    "ORDER BY {order} LIMIT {most}"
)


def sales(column: str, joins: str, order: str, most: int) -> str:
    """Sales for each value of a column."""
    return SALES.format(column=column, joins=joins, order=order, most=most, when="{}")


NEWEST = "(SELECT DATE_FORMAT(MAX(placed_at), '%Y-%m-01') FROM orders)"
MONTH = "DATE_FORMAT(o.placed_at, '%Y-%m')"
BY_STORE = " JOIN `门店` s ON s.`编号` = o.store_id"

KNOWN = (
    Known(
        asks("城市 … (顾客|客户) … 最多", "(顾客|客户)最多 … 城市", "(city|cities) … most customers"),
        ("SELECT city, COUNT(*) AS customers FROM customers GROUP BY city ORDER BY customers DESC, city LIMIT 3",),
        2,
        lambda _, rows: (
            f"顾客最多的城市是{rows[0][0]}，有 {rows[0][1]} 位顾客。{next_chinese(rows)}",
            f"{rows[0][0]} has the most customers: {rows[0][1]}.{next_english(rows)}",
        ),
    ),
    Known(
        asks(
            "(卖得|销量) … (最好|最多|最高) … 商品",
            "商品 … (卖得|销量) … (最好|最多|最高)",
            "best.?sell(er|ing)",
            "product … sold … most",
        ),
        (sales("p.title", " JOIN products p ON p.id = i.product_id", "pieces DESC, p.title", 3),),
        3,
        lambda period, rows: (
            f"{in_chinese(period)}卖得最好的商品是{rows[0][0]}，卖出 {rows[0][1]} 件，销售额 {rows[0][2]} 元。"
            f"{next_chinese(rows)}",
            f"The best-selling product {in_english(period)} is {rows[0][0]}: {rows[0][1]} pieces for {rows[0][2]} "
            f"yuan.{next_english(rows)}",
        ),
    ),
    Known(  # a slip of the pen at first: the column is 名称, as the refusal says
        asks(
            "店 … (销售额|业绩|卖得) … (最高|最多|最好)", "(store|shop|branch) … (highest|most|best) … (sales|revenue)"
        ),
        (sales("s.`名字`", BY_STORE, "yuan DESC", 3), sales("s.`名称`", BY_STORE, "yuan DESC", 3)),
        3,
        lambda period, rows: (
            f"{in_chinese(period)}销售额最高的门店是{rows[0][0]}，{rows[0][2]} 元（{rows[0][1]} 件）。",
            f"The store with the highest sales {in_english(period)} is {rows[0][0]}: {rows[0][2]} yuan for "
            f"{rows[0][1]} pieces.",
        ),
    ),
    Known(
        asks("每个?月 … 销售额", "monthly (sales|revenue)", "(sales|revenue) … (each|per|by) month"),
        (sales(MONTH, "", MONTH, 24),),
        3,
        lambda period, rows: (
            f"{in_chinese(period)}每个月的销售额（元）：" + "，".join(f"{row[0]} {row[2]}" for row in rows) + "。",
            f"Monthly sales {in_english(period)}, in yuan: " + ", ".join(f"{row[0]} {row[2]}" for row in rows) + ".",
        ),
    ),
    Known(
        asks("退货 … 原因", "reason … (returns?|returned|sent back)", "why … (returned|sent back)"),
        (
            "SELECT `原因`, COUNT(*) AS `次数`, SUM(`金额`) AS `退款` FROM `退货` GROUP BY `原因` "
            "ORDER BY `次数` DESC, `原因` LIMIT 3",
        ),
        3,
        lambda _, rows: (
            f"最常见的退货原因是{rows[0][0]}：{rows[0][1]} 次，共退 {rows[0][2]} 元。{next_chinese(rows)}",
            f"The most common reason for returns is {rows[0][0]}: {rows[0][1]} times, {rows[0][2]} yuan."
            f"{next_english(rows)}",
        ),
    ),
    Known(  # the policy hides it
        asks("(顾客|客户) … (手机号|电话)", "phone … customers?", "customers?'? phone"),
        ("SELECT name, phone FROM customers ORDER BY id LIMIT 3",),
        2,
        lambda _, rows: (listed(rows), listed(rows)),
    ),
)


def next_chinese(rows: Rows) -> str:
    """Those after the first."""
    return f"其次是{'、'.join(f'{row[0]}（{row[1]}）' for row in rows[1:])}。" if rows[1:] else ""


def next_english(rows: Rows) -> str:
    """Those after the first."""
    return f" Next: {', '.join(f'{row[0]} ({row[1]})' for row in rows[1:])}." if rows[1:] else ""


def listed(rows: Rows) -> str:
    """Rows as they are."""
    return "; ".join(" ".join(map(str, row)) for row in rows)


def when(question: str) -> tuple[str, str]:
    """The period that is asked for, and the condition that says so: a year, the last month there is, or all."""
    if year := re.search(r"(?<!\d)20\d\d(?!\d)", question):
        first, after = f"{year[0]}-01-01", f"{int(year[0]) + 1}-01-01"
        return year[0], f" AND o.placed_at >= '{first}' AND o.placed_at < '{after}'"
    if re.search(r"上个?月|最近一个月|last month|latest month", question, re.I):
        return "month", f" AND o.placed_at >= {NEWEST}"
    return "", ""


def in_chinese(period: str) -> str:
    return {"": "到目前为止", "month": "在有订单的最近一个月里，"}.get(period, f"{period} 年")


def in_english(period: str) -> str:
    return {"": "of all time", "month": "of the last month that has orders"}.get(period, f"of {period}")


def known(question: str) -> Known | None:
    """The question, if it is one of those known here."""
    return next((one for one in KNOWN if one.asks.search(question)), None) if len(question) < 400 else None


def next_sql(one: Known, question: str, observed: Sequence[str]) -> str | None:
    """What to send now; None when it is time to answer."""
    if observed and (result(one, observed[-1]) is not None or not correctable(observed[-1])):
        return None
    if len(observed) >= len(one.attempts):
        return None
    return one.attempts[len(observed)].replace("{}", when(question)[1])


def answer(one: Known, question: str, observed: str) -> tuple[str, str]:
    """What the last observation says, in Chinese and English."""
    rows = result(one, observed)
    if rows is None:
        reason = str(body_of(observed).get("error") or observed)[:300]
        return f"查不到，数据库的回答是：{reason}", f"That is not to be had. The database answered: {reason}"
    if not rows:
        return "查过了，没有符合条件的记录。", "I looked: there are no such rows."
    return one.tell(when(question)[0], rows)


def body_of(observed: str) -> dict[str, Any]:
    """The JSON object of an observation; empty if it is none."""
    try:
        body = json.loads(observed, parse_float=str)
    except (ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}


def result(one: Known, observed: str) -> Rows | None:
    """The rows of an observation, if it has such as this question gives."""
    rows = body_of(observed).get("rows")
    fits = isinstance(rows, list) and all(isinstance(row, list) and len(row) == one.columns for row in rows)
    return rows if fits else None


def correctable(observed: str) -> bool:
    recovery = body_of(observed).get("recovery")
    return isinstance(recovery, dict) and recovery.get("action") == "correct_sql"
