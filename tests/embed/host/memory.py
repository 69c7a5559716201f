"""What the host remembers; named as one of our modules is."""

OWNED_BY = "host"
SEEN: list[str] = []  # errors that the host's own handlers were given
STARTED: list[str] = []  # what has begun with the application
