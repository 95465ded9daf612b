"""The signed exchange between the ranks of a run: JSON values, authenticated by the run's key.

A group's store accepts writes from any process that can connect to it. Each value is therefore
stored with a message authentication code (HMAC-SHA256, RFC 2104) over its name and its text. A
value without a valid code, or with the code of another name or another key, is never parsed.

Covered: code and values from outside, entries that are swapped, entries of another run. Not
covered: an attacker who deletes entries or changes counters, which can stall the ranks but cannot
feed them values; what torch's own collectives send.
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

PATIENCE_S = 60.0  # wait for the signed value after an unsigned one was found
POLL_S = 0.02
CODE_LENGTH = 64  # of SHA-256 in hexadecimal digits
TUPLE = "tuple"


class SignedStore:
    """A store that returns only values signed by ranks of this run.

    Values may be None, bool, int, float, str, and lists and tuples of these. Single numbers of
    torch and NumPy are accepted too and come back as Python numbers.

    Args:
        key: Of the run. With an empty key the codes detect damage, but not forgery.
    """

    def __init__(self, plain: Store, key: str) -> None:
        self.plain = plain
        self._key = key

    def set(self, name: str, value: Any) -> None:
        """Store a value for all ranks under a name.

        Raises:
            TypeError: when the value is of a type that cannot be sent.
        """
        text = json.dumps(_as_json(value))
        self.plain.set(name, self._code(name, text.encode()) + text)

    def get(self, name: str) -> Any:
        """Wait for a value that a rank of this run has signed, and return it.

        Raises:
            RuntimeError: when the entry is still not validly signed after ``PATIENCE_S``.
        """
        until: float | None = None
        while True:
            entry = self._asked(lambda: self.plain.get(name))
            code, text = entry[:CODE_LENGTH], entry[CODE_LENGTH:]
            if hmac.compare_digest(code, self._code(name, text).encode()):
                return _from_json(json.loads(text))
            until = until or monotonic() + PATIENCE_S
            if monotonic() > until:
                raise RuntimeError(
                    f"the entry under '{name}' in the store of the ranks is signed "
                    "by none of them: another process writes there, or the ranks were started "
                    "with different keys. Start the training again, on a machine that you trust."
                )
            sleep(POLL_S)

    def gather(self, name: str, own: Any, rank: int, world_size: int) -> list[Any]:
        """Return the values of all ranks, by rank, when all are set; each name is used once."""
        self.set(f"{name}/{rank}", own)
        return [self.get(f"{name}/{number}") for number in range(world_size)]

    def add(self, name: str, amount: int) -> int:
        """Add to a counter and return its new value.

        The store itself adds, so ranks may call this at the same time. Counters are not signed.
        """
        return int(self._asked(lambda: self.plain.add(name, amount)))

    def delete_key(self, name: str) -> None:
        """Delete the value under a name."""
        self._asked(lambda: self.plain.delete_key(name))

    def _code(self, name: str, text: bytes) -> str:
        return hmac.new(self._key.encode(), f"{name}\0".encode() + text, "sha256").hexdigest()

    @staticmethod
    def _asked(ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except torch.distributed.DistNetworkError as error:
            raise RuntimeError("the first rank, which serves the ranks' store, has ended") from (
                error
            )


def _as_json(value: Any) -> Any:
    """Return a value as JSON can hold it; tuples become mappings, so that they stay tuples."""
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
        f"the ranks cannot send each other a value of type '{kind}': {value!r:.80}. They can send "
        "numbers, text, and lists and tuples of them. Leave devices out of the search."
    )


def _from_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_from_json(item) for item in value]
    return tuple(map(_from_json, value[TUPLE])) if isinstance(value, dict) else value
