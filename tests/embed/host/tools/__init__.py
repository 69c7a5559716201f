"""The host's tools; named as one of our modules is."""

from tools.stock import in_stock

OWNED_BY = "host"

__all__ = ["in_stock"]
