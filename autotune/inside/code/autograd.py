"""Recognise calls that autograd or torch.func makes, which are not the program's own."""

from __future__ import annotations

import torch


def is_in_backward() -> bool:
    """Return whether this thread is running part of a backward pass.

    Autograd runs parts of it on threads that it starts itself.
    """
    return torch._C._current_graph_task_id() != -1  # noqa: SLF001


def is_transforming() -> bool:
    """Return whether this thread is inside a transform of torch.func, such as grad or vmap.

    Checks of what modules do skip such calls.
    """
    return torch._C._functorch.peek_interpreter_stack() is not None  # noqa: SLF001
