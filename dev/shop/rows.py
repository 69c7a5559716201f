"""The rows of the sample shop: made up, and the same wherever and whenever they are made."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, TypeVar

Item = TypeVar("Item")
Row = tuple[Any, ...]

SEED = 20240101
FIRST_DAY, DAYS = date(2024, 1, 1), 731  # two years, the first a leap year
CUSTOMERS, ORDERS, CLERKS = 240, 1500, 24

CATEGORIES = (("茶叶", "tea"), ("文具", "stationery"), ("厨具", "kitchen"), ("零食", "snacks"), ("家居", "home"), ("户外", "outdoor"))  # fmt: skip  # noqa: E501
PRODUCTS = (  # title, category, price in yuan
    ("龙井茶 100g", 1, 128), ("普洱茶饼", 1, 210), ("茉莉花茶", 1, 56), ("铁观音 250g", 1, 168), ("紫砂壶", 1, 399),
    ("钢笔 Pelican", 2, 89), ("方格笔记本", 2, 18), ("彩色铅笔 24 色", 2, 45), ("书签套装", 2, 12), ("毛笔", 2, 36),
    ("铸铁锅", 3, 329), ("竹砧板", 3, 68), ("不锈钢筷 10 双", 3, 29), ("厨师刀", 3, 188), ("蒸笼", 3, 75),
    ("牛轧糖", 4, 32), ("山楂片", 4, 15), ("坚果礼盒", 4, 99), ("凤梨酥", 4, 48), ("辣条", 4, 6),
    ("羊毛毯", 5, 259), ("香薰蜡烛", 5, 79), ("陶瓷花瓶", 5, 118), ("Desk lamp", 5, 149), ("抱枕", 5, 59),
    ("帐篷", 6, 499), ("登山杖", 6, 139), ("保温瓶", 6, 88), ("Picnic basket", 6, 165), ("头灯", 6, 72),
)  # fmt: skip
CITIES = "上海 上海 上海 北京 北京 杭州 杭州 成都 成都 广州 武汉 西安 Singapore".split()
STORES = (("外滩店", "上海"), ("徐汇店", "上海"), ("王府井店", "北京"), ("西湖店", "杭州"), ("春熙路店", "成都"))
FAMILY, GIVEN = "李王张刘陈杨赵黄周吴", "伟芳娜敏静磊洋勇艳杰娟涛明超霞平刚桂英华"
OTHERS = "Ada Grace Alan Edsger Barbara Tove Linus".split()
REASONS = "质量问题 质量问题 尺寸不符 不喜欢 不喜欢 不喜欢 物流破损 发错货".split()
CENT = Decimal("0.01")


class Chance:
    """Chance that every Python has alike: only `Random.random` is promised to stay as it is."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def below(self, end: int) -> int:
        return int(self._random.random() * end)

    def one_of(self, items: Sequence[Item]) -> Item:
        return items[self.below(len(items))]


def tables() -> Iterator[tuple[str, list[Row]]]:
    """Each table with its rows, in an order that the foreign keys permit."""
    chance = Chance(SEED)
    yield "categories", [(at, *names) for at, names in enumerate(CATEGORIES, 1)]
    yield (
        "products",
        [
            (at, title, category, Decimal(price), (Decimal(price) * (50 + chance.below(25)) / 100).quantize(CENT))
            for at, (title, category, price) in enumerate(PRODUCTS, 1)
        ],
    )
    yield "customers", [customer(at, chance) for at in range(1, CUSTOMERS + 1)]
    yield "门店", [(at, *store, date(2019 + at % 4, 1 + at, 3 * at)) for at, store in enumerate(STORES, 1)]
    yield "店员", [
        (at, name(chance), 1 + at % len(STORES), date(2020 + chance.below(4), 1 + chance.below(12), 1),
         Decimal(5000 + 100 * chance.below(60)), phone(chance))
        for at in range(1, CLERKS + 1)
    ]  # fmt: skip
    orders, items, returns = sales(chance)
    yield "orders", orders
    yield "order_items", items
    yield "退货", returns


def name(chance: Chance) -> str:
    if not chance.below(12):
        return chance.one_of(OTHERS)
    return chance.one_of(FAMILY) + "".join(chance.one_of(GIVEN) for _ in range(1 + chance.below(2)))


def phone(chance: Chance) -> str:
    """A number that belongs to nobody: no network has 100."""
    return f"100{chance.below(10**8):08d}"


def customer(at: int, chance: Chance) -> Row:
    born = date(1955, 1, 1) + timedelta(days=chance.below(18_000))
    id_card = f"000000{born:%Y%m%d}{chance.below(10**4):04d}"  # no place has the number 000000
    joined = date(2022, 1, 1) + timedelta(days=chance.below(700))
    return at, name(chance), chance.one_of(CITIES), phone(chance), id_card, joined


def sales(chance: Chance) -> tuple[list[Row], list[Row], list[Row]]:
    """Orders in the order of their time, their items, and what of them came back."""
    orders: list[Row] = []
    items: list[Row] = []
    returns: list[Row] = []
    midnight = datetime.combine(FIRST_DAY, datetime.min.time())
    for at in range(1, ORDERS + 1):
        day = (at - 1) * DAYS // ORDERS
        placed = midnight + timedelta(days=day, hours=9 + chance.below(12), minutes=chance.below(60))
        status = "cancelled" if not chance.below(25) else "paid"
        store = None if chance.below(3) else 1 + min(chance.below(len(STORES)), chance.below(len(STORES)))
        orders.append((at, 1 + chance.below(CUSTOMERS), store, placed, status))
        for product in sorted({1 + chance.below(len(PRODUCTS)) for _ in range(1 + chance.below(3))}):
            price = (Decimal(PRODUCTS[product - 1][2]) * (100 if chance.below(4) else 90) / 100).quantize(CENT)
            quantity = 1 + chance.below(4)
            items.append((at, product, quantity, price))
            back = placed.date() + timedelta(days=3 + chance.below(12))
            if status == "paid" and not chance.below(20) and back < FIRST_DAY + timedelta(days=DAYS):
                pieces = 1 + chance.below(quantity)
                reason = chance.one_of(REASONS)
                returns.append((len(returns) + 1, at, product, pieces, price * pieces, reason, back))
    return orders, items, returns
