"""The host's settings; named as one of ours is."""

import json
import os

ASSISTANT = json.loads(os.environ["ASSISTANT"])  # what the host passes on, as fields of turnkeeper.Settings
OWNED_BY = "host"
