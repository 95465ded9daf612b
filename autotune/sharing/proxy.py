"""Proxy: Optuna's gRPC server over a storage of ours, for machines that have no database server.

Optuna's ``run_grpc_proxy_server`` is not called: it returns never, and gRPC lets two servers
share a port, of which each would answer some of the calls. So its service, from private modules of
Optuna (``optuna.storages._grpc``), is added to a server that can be stopped and that has its port
alone. The server has neither encryption nor passwords, as Optuna's has none.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from ipaddress import ip_address
from typing import Any

from autotune.errors import UsageError
from autotune.sharing.store import missing, quiet_grpc

LOOPBACK = "127.0.0.1"
THREADS = 10  # as many as Optuna's own server has


def warning(host: str) -> str:
    """Return what a user must know about serving on an address; empty on loopback."""
    if _is_loopback(host):
        return ""
    return (
        "Anyone who reaches this port can write to the study: the proxy knows neither passwords "
        "nor encryption. Serve in a network that you trust, or use PostgreSQL."
    )


@contextmanager
def serve(storage: Any, host: str = LOOPBACK, port: int = 0) -> Iterator[int]:
    """Serve a study until the block ends.

    Args:
        storage: Optuna's storage of it.
        host: The address to listen on; by default only this machine reaches it.
        port: The port; 0 takes a free one.

    Yields:
        The port.

    Raises:
        UsageError: The port is in use, the address is not this machine's, or the library is not
            installed.
    """
    try:
        with quiet_grpc():
            import grpc
            from optuna.storages._grpc.auto_generated import api_pb2_grpc
            from optuna.storages._grpc.servicer import OptunaStorageProxyService
    except ImportError as error:
        raise missing("--serve", "grpc") from error
    logging.getLogger("grpc").setLevel(logging.CRITICAL)  # who asked is told of a fault
    with ThreadPoolExecutor(THREADS, "autotune-serve") as threads:
        server = grpc.server(threads, options=[("grpc.so_reuseport", 0)])
        service = OptunaStorageProxyService(storage)
        api_pb2_grpc.add_StorageServiceServicer_to_server(service, server)
        try:
            taken = _listen(server, host, port)
            server.start()
            yield taken
        finally:
            server.stop(None).wait()


def _listen(server: Any, host: str, port: int) -> int:
    address = f"[{host}]" if ":" in host else host
    try:
        taken: int = server.add_insecure_port(f"{address}:{port}")
    except RuntimeError:
        taken = 0
    if not taken:
        raise UsageError(
            f"--serve cannot listen on {address}:{port}: the port is in use, or the address is "
            "none of this machine's. Choose another port, or for 'autotune resume' free this one."
        )
    return taken


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
