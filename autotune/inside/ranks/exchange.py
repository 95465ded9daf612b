"""Exchange: what the ranks of a run tell each other, as JSON that is signed with the run's key.

The store of a group takes what anybody writes who can connect to it. So each value goes with a
message authentication code (HMAC-SHA256, RFC 2104) over its name and its text, and what is not
signed so, or was signed for another name or by another key, is never read.

Covered: code and values from outside, entries that are swapped, entries of another run. Not
covered: what somebody takes away or counts wrong, which can hold up the ranks but tells them
nothing; what torch's own collectives send.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Callable
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

import numpy
import torch

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

PATIENCE_S = 60.0  # for the right value, once something that is not signed lies in its place
POLL_S = 0.02
DIGEST = "sha256"
CODE_LENGTH = 64  # of the code in hexadecimal digits
TUPLE = "tuple"


class SignedStore:
    """A store of which only what this run's ranks have signed is read.

    Values are None, bool, int, float, str, lists and tuples of them, and single numbers of torch
    and numpy, which become Python's.

    Args:
        plain: The store beneath; torch's own process groups meet there.
        key: Of the run; without one, codes only tell damage.
        place: Name of the part of the store that *plain* is.
    """

    def __init__(self, plain: Store, key: str, place: str = "") -> None:
        self.plain = plain
        self._key = key
        self._place = place

    def within(self, name: str) -> SignedStore:
        """Return a part of this store with names of its own."""
        from torch.distributed import PrefixStore  # type: ignore[attr-defined]

        return SignedStore(PrefixStore(name, self.plain), self._key, f"{self._place}{name}/")

    def set(self, name: str, value: Any) -> None:
        """Tell all ranks a value.

        Raises:
            TypeError: when it is of a type that cannot be told.
        """
        text = json.dumps(_as_json(value))
        self.plain.set(name, self._code(name, text.encode()) + text)

    def get(self, name: str) -> Any:
        """Return a value as soon as one is there that a rank of this run has signed.

        Raises:
            RuntimeError: when what is there goes on being none, or the first rank has gone.
        """
        until: float | None = None
        while (opened := self._opened(name, self._asked(lambda: self.plain.get(name)))) is None:
            until = until or monotonic() + PATIENCE_S
            if monotonic() > until:
                raise RuntimeError(
                    f"what lies under '{self._place}{name}' in the store of the ranks is signed "
                    "by none of them: another process writes there, or the ranks were started "
                    "with different keys. Start the training again, on a machine that you trust."
                )
            sleep(POLL_S)
        return opened[0]

    def look(self, name: str) -> Any:
        """Return a value if it is there by now and signed by a rank of this run, else None."""
        if not self._asked(lambda: self.plain.check([name])):
            return None
        opened = self._opened(name, self._asked(lambda: self.plain.get(name)))
        return None if opened is None else opened[0]

    def gather(self, name: str, own: Any, rank: int, world_size: int) -> list[Any]:
        """Return what all ranks tell under a name, by rank; waits until all have done so."""
        self.set(f"{name}/{rank}", own)
        return [self.get(f"{name}/{number}") for number in range(world_size)]

    def add(self, name: str, amount: int) -> int:
        """Count, and return the count; it is the store's own, and signed by nobody."""
        return int(self._asked(lambda: self.plain.add(name, amount)))

    def delete_key(self, name: str) -> None:
        """Take away what is under a name."""
        self._asked(lambda: self.plain.delete_key(name))

    def _code(self, name: str, text: bytes) -> str:
        signed = f"{self._place}{name}\0".encode() + text
        return hmac.new(self._key.encode(), signed, DIGEST).hexdigest()

    def _opened(self, name: str, entry: bytes) -> tuple[Any] | None:
        """Return the value of an entry, None for one that is not signed."""
        code, text = entry[:CODE_LENGTH], entry[CODE_LENGTH:]
        if not hmac.compare_digest(code, self._code(name, text).encode()):
            return None
        return (_from_json(json.loads(text)),)

    @staticmethod
    def _asked(ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except torch.distributed.DistNetworkError as error:
            raise RuntimeError("the first rank has ended, and with it what the ranks share") from (
                error
            )


def _as_json(value: Any) -> Any:
    if isinstance(value, numpy.generic) or (isinstance(value, torch.Tensor) and value.ndim == 0):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if type(value) is list:
        return [_as_json(item) for item in value]
    if type(value) is tuple:
        return {TUPLE: [_as_json(item) for item in value]}
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    raise TypeError(
        f"the ranks cannot tell each other a value of type '{kind}': {value!r:.80}. They can tell "
        "numbers, text, and lists and tuples of them. Leave strategy and world_size out of the "
        "search."
    )


def _from_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_from_json(item) for item in value]
    if isinstance(value, dict):
        return tuple(_from_json(item) for item in value[TUPLE])
    return value
