"""The seam at gradient clipping where several ranks train: the norm is that of the whole model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from weakref import ref

import torch
from torch import nn
from torch.nn import utils

from autotune.inside.ranks.dtensor import is_sharded, whole
from autotune.inside.seams.base import Patches, Seam


class ClippingSeam(Seam):
    """Clips the parameters that are trained, and returns their norm over all ranks as plain number.

    Where a strategy puts parameters in the place of the model's, a program may still hold the old
    ones: it is the new ones that have gradients.
    """

    def __init__(self) -> None:
        self._replaced: dict[int, tuple[ref[nn.Parameter], nn.Parameter]] = {}
        self._patches = Patches()

    def replaced(
        self, before: Mapping[str, nn.Parameter], after: Mapping[str, nn.Parameter]
    ) -> None:
        """Note which parameters have come in the place of which, by their names."""
        for name, old in before.items():
            self._replaced[id(old)] = ref(old), after[name]

    def replacements(self, parameters: Iterable[nn.Parameter]) -> dict[nn.Parameter, nn.Parameter]:
        """Return what has come in the place of those that are no longer trained."""
        present = {p: self._replacement(p) for p in parameters}
        return {old: new for old, new in present.items() if new is not old}

    def install(self) -> None:
        """Begin to act."""
        by_norm, by_value = utils.clip_grad_norm_, utils.clip_grad_value_
        seam = self

        def clip_grad_norm_(parameters: Any, max_norm: float, *args: Any, **kwargs: Any) -> Any:
            present = seam._present(parameters)
            shards = [p for p in present if is_sharded(p)]
            others = [p for p in present if not is_sharded(p)]
            if shards and others:  # torch takes no norm of both together
                return _clip_both(by_norm, shards, others, max_norm, *args, **kwargs)
            return whole(by_norm(present, max_norm, *args, **kwargs))

        def clip_grad_value_(parameters: Any, *args: Any, **kwargs: Any) -> None:
            by_value(seam._present(parameters), *args, **kwargs)

        self._patches.replace(utils, "clip_grad_norm_", clip_grad_norm_)
        self._patches.replace(utils, "clip_grad_value_", clip_grad_value_)

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
    """Clip sharded and whole parameters by their common norm, and return it."""
    norms = [whole(clip(part, math.inf, norm_type, **kwargs)) for part in (shards, others)]
    norm: torch.Tensor = torch.linalg.vector_norm(torch.stack(norms), norm_type)
    utils.clip_grads_with_norm_(shards, max_norm, norm)
    utils.clip_grads_with_norm_(others, max_norm, norm)
    return norm
