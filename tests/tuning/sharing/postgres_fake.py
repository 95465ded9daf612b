"""A server that speaks as much of PostgreSQL's protocol as it takes to refuse, or to stand still.

https://www.postgresql.org/docs/current/protocol-message-formats.html
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Thread

ENCRYPTION = {80877103, 80877104}  # SSLRequest, GSSENCRequest


@contextmanager
def postgres(refusal: tuple[str, str] | None) -> Iterator[int]:
    """Serve on a free port, and yield it.

    Args:
        refusal: SQLSTATE and text with which each client is refused; None admits it, and answers
            to nothing that it asks.
    """
    with socket.create_server(("127.0.0.1", 0)) as door:
        thread = Thread(target=_serve, args=(door, refusal))
        thread.start()
        try:
            yield door.getsockname()[1]
        finally:
            door.shutdown(socket.SHUT_RDWR)
            thread.join()


def _serve(door: socket.socket, refusal: tuple[str, str] | None) -> None:
    clients = []
    with suppress(OSError):
        while True:
            client, _ = door.accept()
            clients.append(client)
            with suppress(ConnectionError):
                while _begun_with(client) in ENCRYPTION:
                    client.sendall(b"N")
                client.sendall(_admitted() if refusal is None else _refused(*refusal))
                if refusal is not None:
                    client.close()
    for client in clients:
        client.close()


def _begun_with(client: socket.socket) -> int:
    size, code = struct.unpack("!ii", client.recv(8, socket.MSG_WAITALL))
    if size > 8:
        client.recv(size - 8, socket.MSG_WAITALL)
    return int(code)


def _message(kind: bytes, content: bytes) -> bytes:
    return kind + struct.pack("!i", len(content) + 4) + content


def _refused(state: str, text: str) -> bytes:
    fields = {"S": "FATAL", "V": "FATAL", "C": state, "M": text}
    return _message(b"E", b"".join(f"{k}{v}\0".encode() for k, v in fields.items()) + b"\0")


def _admitted() -> bytes:
    settings = {"server_version": "15.12", "client_encoding": "UTF8", "integer_datetimes": "on"}
    told = (_message(b"S", f"{k}\0{v}\0".encode()) for k, v in settings.items())
    return _message(b"R", struct.pack("!i", 0)) + b"".join(told) + _message(b"Z", b"I")
