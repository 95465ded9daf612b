"""Layers under equal conditions: dropouts that drop nothing, BatchNorm of each rank's share.

The signatures of dropouts are torch's, and their bodies are in the part of Python that
``torch.jit.script`` compiles, because programs script models that drop out.
"""
# ruff: noqa: A002, ARG001, FBT001, FBT002, PLR0913, PLR0917, UP045 - as torch.jit needs it

from collections.abc import Callable
from typing import Any, Optional

from torch import Tensor, empty_like
from torch.nn import functional

from autotune.inside.hubs.patches import Patches

NAMES = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")


def _undropped(original: Callable[..., Tensor], default: bool) -> Callable[..., Tensor]:

    def dropout(
        input: Tensor, p: float = 0.5, training: bool = default, inplace: bool = False
    ) -> Tensor:
        return original(input, 0.0, training, inplace)

    return dropout


_attention = functional.scaled_dot_product_attention


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Optional[Tensor] = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Optional[float] = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Return the attention with none of its weights dropped."""
    return _attention(
        query, key, value, attn_mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa
    )


UNDROPPED: dict[str, Any] = {
    name: _undropped(getattr(functional, name), not name.endswith("alpha_dropout"))
    for name in NAMES
} | {"scaled_dot_product_attention": scaled_dot_product_attention}


def undrop() -> None:
    """Have torch's dropouts drop nothing, in this process for good."""
    for name, undropped in UNDROPPED.items():
        # As they are: torch.jit.script cannot read the StandIn of a function written in C
        setattr(functional, name, undropped)


def normalise_shares(count: int) -> None:
    """Have BatchNorm see what each of several ranks would see, and gather the first rank's."""
    original = functional.batch_norm

    def batch_norm(
        input: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        *options: Any,
        **named: Any,
    ) -> Tensor:
        rest = (weight, bias, training, *options)
        if not training or len(input) < count:
            return original(input, running_mean, running_var, *rest, **named)
        shares = [
            original(input[rank::count], *kept, *rest, **named)
            for rank, kept in enumerate(
                [(running_mean, running_var), *[(None, None)] * (count - 1)]
            )
        ]
        output = empty_like(input, dtype=shares[0].dtype)
        for rank, share in enumerate(shares):
            output[rank::count] = share
        return output

    Patches().replace(functional, "batch_norm", batch_norm)
