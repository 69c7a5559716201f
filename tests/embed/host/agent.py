"""The host's agents are people; named as one of our modules is."""

import db

OWNED_BY = "host"
AGENTS = ["Mei", "Jonas"]
DATABASE = db.Database()
