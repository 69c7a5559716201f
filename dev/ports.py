"""TCP ports of this machine: is one free, and which one is."""

from __future__ import annotations

import errno
import os
import secrets
import socket

from dev.common import DevError

# Below the range from which the system takes the local ends of outgoing connections (32768 and up on Linux, 49152
# elsewhere): a port remembered from here is still free after a restart.
LASTING_PORTS = range(20000, 32000)


def can_listen(host: str, port: int) -> bool:
    """Whether a server could listen there now. Raises DevError when `host` or `port` can never be listened on."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, proto) as probe:
            if os.name == "posix":  # as servers do there: connections that are still closing do not count
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)
    except socket.gaierror as error:
        raise DevError(f"--host {host} is not an address of this machine: {error.strerror}") from None
    except PermissionError:
        raise DevError(f"port {port} may not be opened by this user: choose one from 1024 up with --port") from None
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            raise DevError(f"--host {host} is not an address of this machine") from None
        return False
    return True


def lasting_port() -> int:
    """A free loopback port that is likely to be free tomorrow, too."""
    for _ in range(200):
        port = secrets.choice(LASTING_PORTS)  # not from numbers that a test has seeded
        if can_listen("127.0.0.1", port):
            return port
    raise DevError("no free port was found between 20000 and 32000 on 127.0.0.1")


def any_port(host: str) -> int:
    """A port that is free now, chosen by the system."""
    family, kind, proto, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, proto) as probe:
        probe.bind(address)
        port: int = probe.getsockname()[1]
        return port
