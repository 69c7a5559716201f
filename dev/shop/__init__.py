"""The sample shop: a small database to ask, with its policy.

Its tables and columns have Chinese and English names; some columns are private. `dev up --sample shop` loads it into
the private server (load.py); `python3 -m dev.shop > shop.sql` writes it as SQL for a server of yours. The tables are in
schema.sql, what may be read of them in policy.toml, and rows.py makes the rows.
"""
