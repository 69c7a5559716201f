"""The host's database; named as one of ours is."""

OWNED_BY = "host"


class Database:
    """Nothing that ours could work with."""
