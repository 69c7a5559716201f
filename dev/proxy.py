"""A small TCP proxy whose connections can be cut, delayed, frozen and refused: faults between service and database.

    with CuttableProxy("127.0.0.1", 3306) as proxy:
        proxy.cut_reply_to(COMMIT)       # it is done on the server, and the client never hears of it
        ...                              # connect to 127.0.0.1, port proxy.port

A fault waits for the next bytes from a client that contain its pattern, also across two reads, and happens once.
Patterns are looked for in what goes over the wire, so the connection must not be encrypted.
"""

import contextlib
import selectors
import socket
import struct
import threading
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self

READ_BYTES = 65536
LONGEST_PATTERN = 1024
COMMIT = b"\x03COMMIT"  # with the byte that stands before every statement: `READ COMMITTED` is something else
Kind = Literal["cut_reply", "cut_before", "delay_reply"]


@dataclass(eq=False)
class Fault:
    kind: Kind
    pattern: bytes
    seconds: float = 0.0


class CuttableProxy:
    """See the module. Counters: `connections` accepted so far, `cuts` made so far (one for each connection cut)."""

    def __init__(self, target_host: str, target_port: int) -> None:
        self.target = (target_host, target_port)
        self.connections = 0
        self.cuts = 0
        self._changed = threading.Condition()
        self._frozen = False
        self._closed = False
        self._faults: list[Fault] = []
        self._links: set[Link] = set()
        self._held: set[Link] = set()
        self._listener: socket.socket | None = None
        self._accepting: threading.Thread | None = None
        self._port = 0
        self.accept()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    @property
    def port(self) -> int:
        return self._port

    @property
    def open_connections(self) -> int:
        with self._changed:
            return len(self._links)

    @property
    def armed(self) -> int:
        """How many faults still wait for their pattern."""
        with self._changed:
            return len(self._faults)

    def close(self) -> None:
        """Close the port and end every connection."""
        self.refuse()
        self._closed = True
        self._end_links(counted=False)

    # Faults ------------------------------------------------------------------------

    def cut_reply_to(self, pattern: bytes) -> None:
        """Forward what contains `pattern`, wait for the server's reply, swallow it and reset both sides. Once."""
        self._arm(Fault("cut_reply", pattern))

    def cut_before(self, pattern: bytes) -> None:
        """Reset both sides when the client sends `pattern`; the server never gets it whole. Once."""
        self._arm(Fault("cut_before", pattern))

    def delay_reply_to(self, pattern: bytes, seconds: float) -> None:
        """Forward what contains `pattern`, and hold the reply back for so long, or until `release`. Once."""
        self._arm(Fault("delay_reply", pattern, seconds))

    @property
    def held(self) -> int:
        """How many replies are held back: the server has done what was sent to it."""
        with self._changed:
            return len(self._held)

    def release(self) -> None:
        """Let the replies go that are held back."""
        with self._changed:
            self._held.clear()
            self._changed.notify_all()

    def disarm(self) -> None:
        """Forget the faults that have not happened yet."""
        with self._changed:
            self._faults.clear()

    def freeze(self) -> None:
        """Forward nothing in either direction until `thaw`; connections stay, and new ones are accepted."""
        with self._changed:
            self._frozen = True

    def thaw(self) -> None:
        with self._changed:
            self._frozen = False
            self._changed.notify_all()

    def cut_all(self) -> None:
        """Reset every open connection, on both sides. New ones are accepted."""
        self._end_links(counted=True)

    def refuse(self) -> None:
        """Close the listening socket: new connections are refused. Open ones stay."""
        with self._changed:
            listener, self._listener = self._listener, None
            accepting, self._accepting = self._accepting, None
        if listener and accepting:
            with contextlib.suppress(OSError):  # wakes the accepting thread where shutdown can
                listener.shutdown(socket.SHUT_RDWR)
            accepting.join(5)
            listener.close()

    def accept(self) -> None:
        """Listen (again), on the same port."""
        with self._changed:
            if self._listener:
                return
            self._listener = socket.create_server(("127.0.0.1", self._port), backlog=512)
            self._listener.settimeout(0.2)
            self._port = self._listener.getsockname()[1]
            self._accepting = threading.Thread(target=self._accept_from, args=[self._listener], daemon=True)
            self._accepting.start()

    # Inside ------------------------------------------------------------------------

    def _arm(self, fault: Fault) -> None:
        if not 0 < len(fault.pattern) <= LONGEST_PATTERN:
            raise ValueError(f"a pattern has 1 to {LONGEST_PATTERN} bytes")
        with self._changed:
            self._faults.append(fault)

    def _accept_from(self, listener: socket.socket) -> None:
        while self._listener is listener:
            try:
                client, _ = listener.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            with self._changed:
                self.connections += 1
            threading.Thread(target=self._serve, args=[client], daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(self.target, timeout=10)
        except OSError:
            reset(client)
            return
        link = Link(self, client, server)
        with self._changed:
            self._links.add(link)
            link.ended = self._closed
        try:
            link.run()
        finally:
            with self._changed:
                self._links.discard(link)
                self._changed.notify_all()

    def _end_links(self, counted: bool) -> None:
        """Reset all links and wait until they are gone."""
        with self._changed:
            ending = list(self._links)
            for link in ending:
                link.end(counted)
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._links.intersection(ending), 5)

    def match(self, seen: bytes, new: int) -> Fault | None:
        """Take the first fault whose pattern ends within the last `new` bytes of `seen`."""
        with self._changed:
            for fault in self._faults:
                if fault.pattern in seen[max(0, len(seen) - new - len(fault.pattern) + 1) :]:
                    self._faults.remove(fault)
                    return fault
        return None

    def count_cut(self) -> None:
        with self._changed:
            self.cuts += 1
            self._changed.notify_all()

    def wait(self, link: "Link") -> None:
        """Wait while frozen; less if the link is ended from outside."""
        with self._changed:
            self._changed.wait_for(lambda: link.ended or not self._frozen)

    def hold(self, link: "Link", seconds: float) -> None:
        """Wait for so long; less if the link is released, or ended from outside."""
        with self._changed:
            self._held.add(link)
            self._changed.wait_for(lambda: link.ended or link not in self._held, seconds)
            self._held.discard(link)


class Link:
    """One connection, client to proxy and proxy to server. One thread moves the bytes, one packet at a time."""

    def __init__(self, proxy: CuttableProxy, client: socket.socket, server: socket.socket) -> None:
        self.proxy, self.client, self.server = proxy, client, server
        self.ended = False  # from outside, to be reset
        self.counted = False
        self.tail = b""  # the end of what the client has sent, for patterns across two reads
        self.on_reply: Fault | None = None
        for side in (client, server):
            side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            side.settimeout(0.2)  # for sending; reading waits in the selector

    def end(self, counted: bool) -> None:
        """Called from another thread: wakes the selector; the thread of this link does the rest."""
        self.ended, self.counted = True, counted
        for side in (self.client, self.server):
            with contextlib.suppress(OSError):
                side.shutdown(socket.SHUT_RD)

    def run(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self.client, selectors.EVENT_READ)
            selector.register(self.server, selectors.EVENT_READ)
            going = not self.ended or self.cut(counted=False)
            while going:
                ready = [key.fileobj for key, _ in selector.select()]
                self.proxy.wait(self)
                going = all(self.move(side) for side in ready)

    def move(self, side: object) -> bool:
        """Move what has come from one side; False when the connection is over."""
        if self.ended:
            return self.cut(self.counted)
        source = self.client if side is self.client else self.server
        try:
            data = source.recv(READ_BYTES)
        except OSError:
            return self.cut(counted=False)
        if self.ended:
            return self.cut(self.counted)
        if side is self.server and self.on_reply:
            fault, self.on_reply = self.on_reply, None
            if fault.kind == "cut_reply":
                return self.cut(counted=True)
            self.proxy.hold(self, fault.seconds)
        if not data:
            self.client.close()
            self.server.close()
            return False
        if side is self.client and self.check(data):
            return self.cut(counted=True)
        return self.send(self.server if side is self.client else self.client, data)

    def check(self, data: bytes) -> bool:
        """Look for the pattern of a fault in what the client sends; True if it must not be forwarded."""
        seen = self.tail + data
        fault = self.proxy.match(seen, len(data))
        self.tail = seen[-LONGEST_PATTERN:]
        if fault and fault.kind != "cut_before":
            self.on_reply = fault
        return fault is not None and fault.kind == "cut_before"

    def send(self, target: socket.socket, data: bytes) -> bool:
        left = memoryview(data)
        while left:
            if self.ended:
                return self.cut(self.counted)
            try:
                left = left[target.send(left) :]
            except TimeoutError:
                continue
            except OSError:
                return self.cut(counted=False)
        return True

    def cut(self, counted: bool) -> bool:
        if counted:
            self.proxy.count_cut()
        reset(self.client)
        reset(self.server)
        return False


def reset(side: socket.socket) -> None:
    """Close with RST: what is on its way is lost, and the other side sees an error, not an end."""
    with contextlib.suppress(OSError):
        side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    side.close()
