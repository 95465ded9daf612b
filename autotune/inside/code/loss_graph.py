"""Read from the autograd graph what a loss is the sum of.

If each rank computes a loss that is a mean over its samples, the mean of the ranks' losses is the
loss of the whole batch. That does not hold for a sum over samples, nor for a mean over the samples
that a mask or a class weight leaves. The graph shows which of these a loss is, whatever functions
the program calls. It is read at the beginning of a backward pass. Few nodes are read, and no values
on the device except a gradient that the program passes.

Not covered: a root of a mean, a comparison of the samples of one batch, losses whose functions
define their own backward, and compiled ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isclose, prod
from typing import Any

import torch

MAX_NODES = 2000  # read from the loss on; a penalty may be a sum over some hundred parameters
MAX_OF_PARAMETERS = 16  # nodes between a penalty and its parameter

# Names of autograd's nodes, without "Backward0". Those of PASSING add, select or rearrange numbers.
PASSING = {
    *("Add", "Sub", "Rsub", "Neg", "Clone", "Alias", "ToCopy", "View", "UnsafeView", "Reshape"),
    *("Squeeze", "Unsqueeze", "Expand", "Stack", "Cat", "Select", "Unbind", "Permute"),
}
# Each number of the result comes from one number of each input.
ELEMENTWISE = PASSING | {"Mul", "Div", "T", "Transpose"}
# Applied to a mean or a sum, these give neither a mean nor a sum.
CURVES = {
    *("Sqrt", "Rsqrt", "Pow", "Exp", "Log", "Log1P", "Logsumexp", "Reciprocal", "Tanh", "Sigmoid"),
    *("Softplus", "Relu", "Abs", "Clamp", "ClampMin", "ClampMax", "Maximum", "Minimum"),
    *("LinalgVectorNorm", "Norm"),
}
WITHIN = {"Sum", "Mean", "Mm", "Slice"}
SPREADS = {"Std", "Var", "StdMean", "VarMean"}


@dataclass(frozen=True)
class Term:
    """A sum or a mean over samples that the loss contains, times a constant.

    Attributes:
        node: The node that computes its gradient.
        count: The number that the sum is divided by; None for a plain sum.
        is_sum_if_constant: The count is a number that the program divides by and that may not be a
            count of samples. If it is the same on all ranks, the term is taken for a sum.
    """

    node: Any
    count: float | torch.Tensor | None
    is_sum_if_constant: bool = False


@dataclass
class Reading:
    """What the graph of a loss shows.

    Attributes:
        terms: Its sums and means. Their order depends on the program alone, so it is the same on
            all ranks.
    """

    terms: list[Term] = field(default_factory=list)


@dataclass(frozen=True)
class _Factors:
    """The constants that a scalar was multiplied or divided by on its way to the loss.

    Attributes:
        numbers: Factors.
        counts: Divisors, which may be counts of samples.
    """

    numbers: tuple[float, ...] = ()
    counts: tuple[float | torch.Tensor, ...] = ()

    def times(self, value: Any) -> _Factors:
        """Return these factors with one more; a factor such as 1/32 is noted as the divisor 32."""
        number = _number(value)
        if number is None:
            return self
        number = abs(number)
        if 0 < number < 1 and isclose(1 / number, round(1 / number), rel_tol=1e-6):
            return _Factors(self.numbers, (*self.counts, float(round(1 / number))))
        return _Factors((*self.numbers, number), self.counts)

    def divided(self, value: Any) -> _Factors:
        """Return these factors with one more divisor, if its value is known."""
        is_tensor = isinstance(value, torch.Tensor) and not _is_wrapped(value)
        count = value.detach() if is_tensor else _number(value)
        return self if count is None else _Factors(self.numbers, (*self.counts, count))


def read(loss: torch.Tensor, samples: int | None = None, grad: Any = None) -> Reading:
    """Return the terms that a loss is the sum of.

    Args:
        loss: The tensor on which the program computes gradients.
        samples: The number of samples in the model's input; None if unknown.
        grad: The gradient that the program begins its backward pass with; None for a scalar's 1.

    Returns:
        The reading. A loss with several elements is one term if *grad* is all ones.
    """
    reading = Reading()
    if loss.grad_fn is None:
        return reading
    if loss.numel() > 1:  # one loss per sample
        if grad is not None and bool((grad == 1).all()):
            reading.terms.append(Term(loss.grad_fn, None))
        return reading
    todo: list[tuple[Any, _Factors]] = [(loss.grad_fn, _Factors())]
    seen: set[Any] = set()
    while todo and len(seen) < MAX_NODES:
        node, factors = todo.pop()
        if node not in seen:
            seen.add(node)
            todo += _visit(node, factors, reading, samples)
    return reading


def _visit(
    node: Any, factors: _Factors, reading: Reading, samples: int | None
) -> list[tuple[Any, _Factors]]:
    """Note a scalar if it is a term; otherwise return the scalars that it is computed from."""
    kind, inputs = _kind(node), _inputs(node)
    if prod(_shape(node)) != 1:
        return []
    # a list of losses that the program stacked before it added or averaged them
    if kind in {"Sum", "Mean"} and _is_a_list_of_scalars(inputs):
        return [(part, factors) for part in _inputs(inputs[0])]
    if kind in {"Sum", "Mean"} or hasattr(node, "_saved_reduction"):
        _note_term(node, kind, factors, reading, samples)
        return []
    if kind in {"Mul", "Div"}:
        return _visit_product(node, factors)
    return [(part, factors) for part in inputs] if kind in PASSING else []


def _is_a_list_of_scalars(inputs: list[Any]) -> bool:
    """Return whether a sum or mean goes over scalars that the program has stacked."""
    return bool(inputs) and _kind(inputs[0]) == "Stack" and len(_shape(inputs[0])) == 1


def _visit_product(node: Any, factors: _Factors) -> list[tuple[Any, _Factors]]:
    """Return the scalar factor of a product with a constant or with parameters.

    Nothing of a product or quotient of two values that depend on data.
    """
    kind, inputs = _kind(node), _inputs(node)
    if kind == "Mul" and len(inputs) == 1:
        return [(inputs[0], factors.times(_constant_of(node)))]
    if len(inputs) == 1 and node.next_functions[0][0] is not None:
        return [(inputs[0], factors.divided(node._saved_other))]  # noqa: SLF001 - autograd's own
    others = [part for part in inputs if not _is_of_parameters(part)]
    if len(others) < 2 and (kind == "Mul" or others == inputs[:1]):
        return [(part, factors) for part in others]
    return []


def _note_term(
    node: Any, kind: str, factors: _Factors, reading: Reading, samples: int | None
) -> None:
    """Add a term for a sum or a mean over samples, with the number that it is divided by."""
    if kind in {"Sum", "Mean"}:
        if _is_of_parameters(node):
            return
        at = _over_samples(node)
        if _kind(at) in SPREADS:
            return
        sizes = at._saved_self_sym_sizes  # noqa: SLF001
        whole = prod(sizes[n] for n in _dims(at, len(sizes)))
        is_mean, own = _kind(at) == "Mean", float(whole)
    else:
        sizes = (node._saved_target if "Nll" in kind else node._saved_self).shape  # noqa: SLF001
        is_mean, whole = node._saved_reduction == 1, prod(sizes)  # noqa: SLF001
        own = node._saved_total_weight if "Nll" in kind else float(whole)  # noqa: SLF001
    batch = samples or (sizes[0] if sizes else 1)
    natural = {sizes[0] if sizes else 1, whole, batch}
    if is_mean and batch > 1 and batch in factors.numbers and not natural & {*_floats(factors)}:
        is_mean = False  # the program multiplies the mean by the batch size
        factors = _Factors()
    reading.terms.append(_term(node, own if is_mean else None, natural, factors))


def _floats(factors: _Factors) -> list[float]:
    return [count for count in factors.counts if isinstance(count, float)]


def _term(
    node: Any, count: float | torch.Tensor | None, natural: set[int], factors: _Factors
) -> Term:
    """Return a term with the number that it is divided by.

    A mean divides by its own count. For a sum, a divisor that is a tensor was computed by the
    program, so it is a count. A plain number is a count if it equals a natural one; any other
    number above 1 may be a count or a constant.

    Args:
        node: The node of the term.
        count: What a mean divides by; None for a sum.
        natural: The possible counts of samples or elements that the term is made of.
        factors: The program's own factors and divisors.
    """
    if count is not None:
        return Term(node, count)
    tensors = [c for c in factors.counts if isinstance(c, torch.Tensor)]
    if tensors:
        return Term(node, tensors[0])
    if own := [c for c in _floats(factors) if c in natural]:
        return Term(node, own[0])
    numbers = [c for c in _floats(factors) if c > 1]
    return Term(node, numbers[0], is_sum_if_constant=True) if numbers else Term(node, None)


def _over_samples(node: Any) -> Any:
    """Return the node that reduces the first dimension, following a chain of reductions downwards.

    A program may reduce other dimensions after the first one. Without such a node, return *node*.
    """
    at = node
    for _ in range(8):
        below = _inputs(at)
        if not below:
            return node
        at = below[0]
        kind = _kind(at)
        if kind in {"Sum", "Mean"} | SPREADS:
            if 0 in _dims(at, len(_shape_before(at))):
                return at
        elif kind not in ELEMENTWISE | CURVES:
            return node
    return node


def _is_of_parameters(node: Any) -> bool:
    """Return whether a node is computed from parameters alone, such as an L2 penalty."""
    before, leaves = _shape_before(node), _leaves(node)
    if leaves and all(leaf.shape == before or leaf.numel() == 1 for leaf in leaves):
        return True  # computed number by number
    todo, seen = [node], {node}
    while todo:
        part = todo.pop()
        if "AccumulateGrad" in part.name():
            continue
        if len(seen) > MAX_NODES or not _takes_no_data(part):
            return False
        new = [p for p in _inputs(part) if p not in seen]
        seen.update(new)
        todo += new
    return True


def _takes_no_data(node: Any) -> bool:
    """Return whether a node has no inputs besides constants and tensors that need gradients.

    Data that is added leaves no trace in the graph, but makes the result larger than its inputs.
    """
    kind, inputs = _kind(node), _inputs(node)
    if not inputs or kind not in ELEMENTWISE | CURVES | WITHIN:
        return False
    if kind == "Mm":
        return len(inputs) == 2
    if len(inputs) < 2 and kind in {"Mul", "Div"}:
        others = (getattr(node, f"_saved_{name}", None) for name in ("self", "other"))
        if any(isinstance(other, torch.Tensor) and other.numel() > 1 for other in others):
            return False
    return bool(prod(_shape(node)) <= sum(prod(_shape(part)) for part in inputs))


def _leaves(node: Any) -> list[torch.Tensor]:
    """Return the parameters that a node is computed from.

    Empty if the graph below it is too large, or if a branch ends without a parameter.
    """
    todo, seen, leaves = [node], {node}, []
    while todo:
        part = todo.pop()
        if "AccumulateGrad" in part.name():
            leaves.append(part.variable)
            continue
        new = [p for p in _inputs(part) if p not in seen]
        seen.update(new)
        todo += new
        if not _inputs(part) or len(seen) > MAX_OF_PARAMETERS:
            return []
    return leaves


def _shape_before(node: Any) -> Any:
    """Return the shape of a node's input if it saved that; otherwise the shape of its output."""
    if hasattr(node, "_saved_self_sym_sizes"):
        return torch.Size(node._saved_self_sym_sizes)  # noqa: SLF001
    saved = getattr(node, "_saved_self", None)
    return saved.shape if isinstance(saved, torch.Tensor) else _shape(node)


def _dims(node: Any, count: int) -> list[int]:
    """Return the dimensions that a reduction goes over, all of them if it names none."""
    dims = getattr(node, "_saved_dim", None)
    if dims is None or dims == ():
        return list(range(count))
    dims = dims if isinstance(dims, (tuple, list)) else (dims,)
    # torch saves negative dimensions as unsigned 64-bit numbers
    return [d if d < count else (d - (1 << 64)) % max(count, 1) for d in dims]


def _kind(node: Any) -> str:
    """Return the name of the forward operation, such as ``Mul`` for ``MulBackward0``.

    Functions with the program's own backward keep their whole name, which matches none of the sets.
    """
    name, _, number = str(node.name()).partition("Backward")
    return name if number.isdigit() else str(node.name())


def _inputs(node: Any) -> list[Any]:
    return [part for part, _ in node.next_functions if part is not None]


def _shape(node: Any) -> Any:
    """Return the shape of a node's output, or of the parameter that it accumulates into."""
    if "AccumulateGrad" in node.name():
        return node.variable.shape
    return node._input_metadata[0].shape  # noqa: SLF001 - of its output


def _constant_of(node: Any) -> Any:
    """Return the constant that a product saved; None if there is none."""
    other = getattr(node, "_saved_other", None)
    return other if other is not None else getattr(node, "_saved_self", None)


def _number(value: Any) -> float | None:
    """Return the value of a number in host memory; None for everything else.

    Reading a number on a device would wait for the device.
    """
    if isinstance(value, torch.Tensor):
        return float(value) if value.numel() == 1 and value.device.type == "cpu" else None
    return float(value) if isinstance(value, int | float) else None


def _is_wrapped(value: torch.Tensor) -> bool:
    """Return whether a tensor wraps a Python number, whose type gives way to any tensor's type."""
    if value.dim() or value.device.type != "cpu":
        return False
    small = torch.int8 if not value.is_floating_point() else torch.float16
    other = torch.zeros((), dtype=small)
    return value.dtype is not small and torch.result_type(value, other) is small
