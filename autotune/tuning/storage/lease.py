"""The lease of a run: only one process at a time works on it."""

from __future__ import annotations

import socket

import psutil

from autotune.errors import RunDirectoryError
from autotune.results.record import Lease


def take(held: Lease | None, *, force: bool = False) -> Lease:
    """Return a lease for this process.

    Args:
        held: The lease that the run has now; None if it is free.
        force: Take over the lease of a holder on another host, because from here nobody can see
            whether it still runs. A living process of this host keeps it.

    Raises:
        RunDirectoryError: when another living process holds it.
    """
    own = Lease(socket.gethostname(), psutil.Process().pid, psutil.Process().create_time())
    if held is None or held == own or not _is_alive(held):
        return own
    holder = f"Another autotune (process {held.pid} on {held.host}) works on this run."
    if held.host == own.host:
        raise RunDirectoryError(f"{holder} Wait for it, or end it: kill {held.pid}")
    if not force:
        raise RunDirectoryError(
            f"{holder} Wait for it or end it; if that machine or container is gone, take "
            "the run over: autotune resume --force"
        )
    return own


def _is_alive(lease: Lease) -> bool:
    if lease.host != socket.gethostname():
        return True  # processes of another host cannot be seen from here
    try:
        # Process ids are reused, so the start time must agree as well
        holder = psutil.Process(lease.pid)
        # One that nobody has waited for yet keeps its number, and works no more
        has_ended = holder.status() in {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}
        return not has_ended and abs(holder.create_time() - lease.started) < 1.0
    except psutil.NoSuchProcess:
        return False
