"""The seam at gradient clipping where several ranks train: the norm is that of the whole model.

A strategy that shards a model replaces its parameters. A program may clip parameters that it took
before, and torch cannot compute one norm over sharded and plain parameters together. The seam
mends both, so that the program clips by the norm that it would have on one device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from weakref import ref

import torch
from torch import nn
from torch.nn import utils

from autotune.inside.hubs.patches import Patches, Seam
from autotune.inside.ranks.dtensor import is_sharded, whole


class ClippingSeam(Seam):
    """Clips the parameters that are trained, and returns their norm over all ranks.

    The distribution seam owns it, and reports replaced parameters when a model is first called.
    The replaced clipping functions run on the thread on which the program clips. The norm that they
    return is a plain tensor, as without ranks.
    """

    def __init__(self) -> None:
        self._replaced: dict[int, tuple[ref[nn.Parameter], nn.Parameter]] = {}
        self._patches = Patches()

    def replaced(
        self, before: Mapping[str, nn.Parameter], after: Mapping[str, nn.Parameter]
    ) -> None:
        """Note which parameters were replaced by which."""
        for name, old in before.items():
            # An id may be used again once its object is gone, so the reference proves whose it is.
            self._replaced[id(old)] = ref(old), after[name]

    def replacements(self, parameters: Iterable[nn.Parameter]) -> dict[nn.Parameter, nn.Parameter]:
        """Return the new parameter for each of these that was replaced; others are left out."""
        present = {p: self._replacement(p) for p in parameters}
        return {old: new for old, new in present.items() if new is not old}

    def install(self) -> None:
        """Replace ``clip_grad_norm_`` and ``clip_grad_value_`` of ``torch.nn.utils``."""
        self._patches.wrap(utils, "clip_grad_norm_", self._by_norm)
        self._patches.wrap(utils, "clip_grad_value_", self._by_value)

    def _by_norm(
        self, clip: Callable[..., Any], parameters: Any, max_norm: float, *args: Any, **kwargs: Any
    ) -> Any:
        present = self._present(parameters)
        shards = [p for p in present if is_sharded(p)]
        others = [p for p in present if not is_sharded(p)]
        if shards and others:  # torch cannot take one norm of both
            return _clip_both(clip, shards, others, max_norm, *args, **kwargs)
        return whole(clip(present, max_norm, *args, **kwargs))

    def _by_value(
        self, clip: Callable[..., Any], parameters: Any, *args: Any, **kwargs: Any
    ) -> None:
        clip(self._present(parameters), *args, **kwargs)

    def _present(self, parameters: Any) -> list[Any]:
        given: Iterable[Any] = parameters
        if isinstance(parameters, torch.Tensor):
            given = [parameters]
        return [self._replacement(parameter) for parameter in given]

    def _replacement(self, parameter: Any) -> Any:
        old, new = self._replaced.get(id(parameter), (None, None))
        return new if old is not None and old() is parameter else parameter


def _clip_both(
    clip: Callable[..., Any],
    shards: Sequence[Any],
    others: Sequence[Any],
    max_norm: float,
    norm_type: float = 2.0,
    **kwargs: Any,
) -> torch.Tensor:
    # An infinite limit clips nothing: these calls only compute the norms.
    norms = [whole(clip(part, math.inf, norm_type, **kwargs)) for part in (shards, others)]
    norm: torch.Tensor = torch.linalg.vector_norm(torch.stack(norms), norm_type)
    utils.clip_grads_with_norm_(shards, max_norm, norm)
    utils.clip_grads_with_norm_(others, max_norm, norm)
    return norm
