"""`python3 -m dev.shop`: the sample as SQL, for a server of yours."""

import sys

from dev.shop.load import as_sql

sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
sys.stdout.write(as_sql())
