"""torch's dropouts, which drop nothing.

Their signatures are torch's, and their bodies are in the part of Python that ``torch.jit.script``
compiles, because programs script models that drop out.
"""
# ruff: noqa: A002, ARG001, FBT001, FBT002, PLR0913, PLR0917, UP045 - as torch.jit needs it

from typing import Optional

from torch import Tensor
from torch.nn import functional

_dropout = functional.dropout
_dropout1d = functional.dropout1d
_dropout2d = functional.dropout2d
_dropout3d = functional.dropout3d
_alpha_dropout = functional.alpha_dropout
_feature_alpha_dropout = functional.feature_alpha_dropout
_attention = functional.scaled_dot_product_attention


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Return the input with none of its elements dropped."""
    return _dropout(input, 0.0, training, inplace)


def dropout1d(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """Return the input with none of its channels dropped."""
    return _dropout1d(input, 0.0, training, inplace)


def dropout2d(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """Return the input with none of its channels dropped."""
    return _dropout2d(input, 0.0, training, inplace)


def dropout3d(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """Return the input with none of its channels dropped."""
    return _dropout3d(input, 0.0, training, inplace)


def alpha_dropout(
    input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Tensor:
    """Return the input with none of its elements dropped."""
    return _alpha_dropout(input, 0.0, training, inplace)


def feature_alpha_dropout(
    input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Tensor:
    """Return the input with none of its channels dropped."""
    return _feature_alpha_dropout(input, 0.0, training, inplace)


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


UNDROPPED = (
    dropout,
    dropout1d,
    dropout2d,
    dropout3d,
    alpha_dropout,
    feature_alpha_dropout,
    scaled_dot_product_attention,
)
