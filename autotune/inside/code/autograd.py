"""Autograd's own calls: what it runs within a backward pass or a transform is PyTorch's."""

from __future__ import annotations

import torch


def is_in_backward() -> bool:
    """Tell whether this thread runs part of a backward pass, as autograd's own threads do."""
    return torch._C._current_graph_task_id() != -1  # noqa: SLF001


def is_transforming() -> bool:
    """Tell whether this thread is within a transform of torch.func, such as grad or vmap."""
    return torch._C._functorch.peek_interpreter_stack() is not None  # noqa: SLF001
