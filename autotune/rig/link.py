"""Link: one end of the socket between the parent and a rig; sends and receives messages of wire."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

from autotune.rig.wire import FromRig, ToRig, decode, encode


class LinkClosed(ConnectionError):
    """The process at the other side of the wire has ended or closed it."""


class Link:
    """One side of the wire, for the parent as for the rig.

    Several threads may send at once; only one may receive.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._buffer = b""
        self._sending = threading.Lock()

    def send(self, message: ToRig | FromRig) -> None:
        """Send a message, and wait until the kernel has taken all of it.

        Raises:
            LinkClosed: when the other side has gone.
        """
        try:
            with self._sending:
                self._socket.sendall(encode(message))
        except OSError as error:
            raise LinkClosed(str(error)) from error

    def receive(self, timeout_s: float | None = None) -> ToRig | FromRig | None:
        """Return the next message, or None if no whole message came in time.

        Part of a message is kept for the next call.

        Raises:
            LinkClosed: when the other side has gone and all its messages are read.
            RigError: when a line is not a message.
        """
        while b"\n" not in self._buffer:
            self._socket.settimeout(timeout_s)
            try:
                chunk = self._socket.recv(1 << 16)
            except (TimeoutError, BlockingIOError):
                return None
            except OSError as error:
                raise LinkClosed(str(error)) from error
            finally:
                self._socket.settimeout(None)
            if not chunk:
                raise LinkClosed("end of stream")
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return decode(line)

    def messages(self) -> Iterator[ToRig | FromRig]:
        """Yield messages until the other side has gone; then end, without an error."""
        while True:
            try:
                message = self.receive()
            except LinkClosed:
                return
            if message is not None:
                yield message

    def close(self) -> None:
        """Close this side; the other one then receives ``LinkClosed``."""
        self._socket.close()
