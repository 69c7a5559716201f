"""Working on this checkout: `python3 -m dev --help`. Not part of the service, and nothing in the service imports it."""

import sys

# Checked here, in words that any Python can read, because nothing else in this folder can be loaded by an old one.
if sys.version_info < (3, 11):  # noqa: UP036
    sys.exit(
        "This needs Python 3.11 or newer; %s is Python %d.%d. Try python3.11, python3.12 or newer instead."  # noqa: UP031
        % (sys.executable, sys.version_info[0], sys.version_info[1])
    )
