"""A link to a server that can be cut: what is sent then waits, as where a cable is pulled."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Relay:
    """Passes bytes on between clients and a server on this machine.

    Attributes:
        port: Where clients connect.
    """

    def __init__(self, to_port: int) -> None:
        self._to_port = to_port
        self._is_up = threading.Event()
        self._is_up.set()
        self._ends = False
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._start(self._accept)

    def cut(self) -> None:
        """Pass on nothing from now on, and take no new connection."""
        self._is_up.clear()

    def mend(self) -> None:
        """Pass on what has waited, and what comes."""
        self._is_up.set()

    def close(self) -> None:
        """End all connections."""
        self._ends = True
        self._is_up.set()
        for one in [self._listener, *self._open]:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in self._threads:
            thread.join()

    def _start(self, act: object, *given: socket.socket) -> None:
        thread = threading.Thread(target=act, args=given)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):  # it was closed
            while True:
                client, _ = self._listener.accept()
                self._is_up.wait()
                if self._ends:
                    client.close()
                    return
                try:
                    server = socket.create_connection(("127.0.0.1", self._to_port))
                except OSError:  # nobody serves there now
                    client.close()
                    continue
                self._open += [client, server]
                self._start(self._pass_on, client, server)
                self._start(self._pass_on, server, client)

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):  # one of them has ended
            while said := source.recv(1 << 16):
                self._is_up.wait()
                sink.sendall(said)
        for one in (source, sink):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


@contextmanager
def relay_to(port: int) -> Iterator[Relay]:
    """Provide a link to a server of this machine."""
    relay = Relay(port)
    try:
        yield relay
    finally:
        relay.close()
