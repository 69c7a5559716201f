"""A server that tells everybody the same, whatever they say."""

import contextlib
import socket
import threading
from collections.abc import Iterator


def accepted(listener: socket.socket) -> Iterator[socket.socket]:
    """Who connects, until the listener is shut down."""
    with contextlib.suppress(OSError):
        while True:
            yield listener.accept()[0]


@contextlib.contextmanager
def server_that_says(first: bytes, *then: bytes, hang_up: bool = False) -> Iterator[int]:
    """A port where everybody is told `first` and, whenever they have said something, one more of `then`."""
    with socket.create_server(("127.0.0.1", 0)) as listener, contextlib.ExitStack() as stack:

        def serve() -> None:
            for client in accepted(listener):
                stack.enter_context(client)
                with contextlib.suppress(OSError):
                    client.sendall(first)
                    for answer in then:
                        client.recv(4096)
                        client.sendall(answer)
                    if hang_up:
                        client.recv(4096)
                        client.close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield int(listener.getsockname()[1])
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
