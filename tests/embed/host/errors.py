"""The host's errors; named as one of our modules is."""

OWNED_BY = "host"


class NotSignedIn(Exception):
    """The host answers this one itself, everywhere."""
