"""Loss graph: what a loss is the sum of, read where a backward pass begins.

A loss that is a mean over samples is the mean of the ranks' means. Others are not: a sum over
samples, a mean over as many of them as a mask or a class weight leaves, a root of a mean, or what
compares the samples of one batch. Autograd's graph tells which it is, whatever functions the
program calls, and a few nodes of it are read without a look at what is computed on the device.

Not covered: losses of functions that bring a backward of their own, and compiled ones.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from math import isclose, prod
from typing import Any

import torch

MAX_NODES = 2000  # of the head of a graph: penalties are a sum over some hundred parameters
MAX_COMPARED = 400  # between a loss and what modules have put out
MAX_OF_PARAMETERS = 16  # between a penalty and its parameter
MAX_ORDERED = 4096  # targets that are looked at

PASSING = {
    *("Add", "Sub", "Rsub", "Neg", "Clone", "Alias", "ToCopy", "View", "UnsafeView", "Reshape"),
    *("Squeeze", "Unsqueeze", "Expand", "Stack", "Cat", "Select", "Unbind", "Permute"),
}
ELEMENTWISE = PASSING | {"Mul", "Div", "T", "Transpose"}
CURVES = {
    *("Sqrt", "Rsqrt", "Pow", "Exp", "Log", "Log1P", "Logsumexp", "Reciprocal", "Tanh", "Sigmoid"),
    *("Softplus", "Relu", "Abs", "Clamp", "ClampMin", "ClampMax", "Maximum", "Minimum"),
    *("LinalgVectorNorm", "Norm"),
}
TURNED = {"T", "Transpose", "Permute"}
WITHIN = {"Sum", "Mean", "Mm", "Slice"}
PRODUCTS = {"Mm", "Bmm", "Addmm", "Addbmm", "Baddbmm", "Linear", "MkldnnLinear"}
NLL = {"NllLoss", "NllLoss2D"}
SPREADS = {"Std", "Var", "StdMean", "VarMean"}


@dataclass(frozen=True)
class Term:
    """A sum or a mean over samples, of which the loss takes a constant part.

    Attributes:
        node: Computes its gradient.
        count: What the sum is divided by; None for a sum.
        is_sum_if_constant: The count is a number of the program's that may be no count at all.
    """

    node: Any
    count: float | torch.Tensor | None
    is_sum_if_constant: bool = False


@dataclass
class Reading:
    """What a graph tells.

    Attributes:
        terms: In an order that depends on the program alone.
        curve: What makes the loss no sum of terms; empty where nothing does.
        is_known: All that it consists of is known.
    """

    terms: list[Term] = field(default_factory=list)
    curve: str = ""
    is_known: bool = True


@dataclass(frozen=True)
class _Factors:
    """Numbers by which something was multiplied on its way to the loss; what it was divided by."""

    numbers: tuple[float, ...] = ()
    counts: tuple[float | torch.Tensor, ...] = ()

    def times(self, value: Any) -> _Factors:
        number = _number(value)
        if number is None:
            return self
        number = abs(number)
        if 0 < number < 1 and isclose(1 / number, round(1 / number), rel_tol=1e-6):
            return _Factors(self.numbers, (*self.counts, float(round(1 / number))))
        return _Factors((*self.numbers, number), self.counts)

    def divided(self, value: Any) -> _Factors:
        is_tensor = isinstance(value, torch.Tensor) and not _is_wrapped(value)
        count = value.detach() if is_tensor else _number(value)
        return self if count is None else _Factors(self.numbers, (*self.counts, count))


def read(loss: torch.Tensor, samples: int | None = None, grad: Any = None) -> Reading:
    """Read what a loss is the sum of.

    Args:
        loss: On which the program computes gradients.
        samples: In the model's input, None where that is not known.
        grad: With what the program begins its backward pass, None for a scalar's 1.
    """
    reading = Reading()
    if loss.grad_fn is None:
        return reading
    if loss.numel() > 1:  # the losses of all samples, each as it is
        if grad is not None and bool((grad == 1).all()):
            reading.terms.append(Term(loss.grad_fn, None))
        reading.is_known = False
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
    """Note what a scalar is; return what it is made of, if that is more scalars."""
    kind, inputs = _kind(node), _inputs(node)
    if prod(_shape(node)) != 1:
        reading.is_known = False
        return []
    if kind in {"Sum", "Mean"} and _is_a_list_of_scalars(inputs):
        return [(part, factors) for part in _inputs(inputs[0])]
    if kind in {"Sum", "Mean"} or hasattr(node, "_saved_reduction"):
        _note_term(node, kind, factors, reading, samples)
        return []
    if kind in {"Mul", "Div"}:
        return _visit_product(node, factors, reading)
    if kind in PASSING:
        return [(part, factors) for part in inputs]
    if kind not in CURVES:
        reading.is_known = reading.is_known and "AccumulateGrad" in kind
    elif not _is_of_parameters(node):
        reading.curve = f"{kind.lower()} of a mean or a sum"
    return []


def _is_a_list_of_scalars(inputs: list[Any]) -> bool:
    return bool(inputs) and _kind(inputs[0]) == "Stack" and len(_shape(inputs[0])) == 1


def _visit_product(node: Any, factors: _Factors, reading: Reading) -> list[tuple[Any, _Factors]]:
    """Return the scalar that is multiplied or divided by a number, or by a parameter's."""
    kind, inputs = _kind(node), _inputs(node)
    if kind == "Mul" and len(inputs) == 1:
        return [(inputs[0], factors.times(_constant_of(node)))]
    if len(inputs) == 1 and node.next_functions[0][0] is not None:
        return [(inputs[0], factors.divided(node._saved_other))]  # noqa: SLF001 - autograd's own
    others = [part for part in inputs if not _is_of_parameters(part)]
    if len(others) < 2 and (kind == "Mul" or others == inputs[:1]):
        return [(part, factors) for part in others]
    reading.curve = "a product of two means" if kind == "Mul" else "a quotient of two sums"
    return []


def _note_term(
    node: Any, kind: str, factors: _Factors, reading: Reading, samples: int | None
) -> None:
    """Note what a mean or a sum over samples is divided by, all in all."""
    if kind in {"Sum", "Mean"}:
        if _is_of_parameters(node):
            return
        at = _over_samples(node)
        if _kind(at) in SPREADS:
            reading.curve = f"{_kind(at).lower()} over samples"
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
        is_mean = False  # a mean times the batch
        factors = _Factors()
    reading.terms.append(_term(node, own if is_mean else None, natural, factors))


def _floats(factors: _Factors) -> list[float]:
    return [count for count in factors.counts if isinstance(count, float)]


def _term(
    node: Any, count: float | torch.Tensor | None, natural: set[int], factors: _Factors
) -> Term:
    """Return a term with all that it is multiplied by and divided by.

    Args:
        node: Of the term.
        count: What a mean is divided by by itself.
        natural: How many samples, or numbers, it is made of.
        factors: Of the program.
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


def compared(loss: torch.Tensor, outputs: Collection[Any], samples: int | None) -> str:
    """Return by what a loss compares samples of one batch, empty where it does not.

    Args:
        loss: On which the program computes gradients.
        outputs: Nodes of what modules with parameters have put out: where the loss begins.
        samples: In the model's input.
    """
    if loss.grad_fn is None or not samples or samples < 2:
        return ""
    for node in _above(loss.grad_fn, outputs):
        if outputs and (found := _comparison(node, samples)):  # else all lies within the model
            return found
        if _kind(node) in NLL and _counts_up(node._saved_target) and not _is_of_classes(node):  # noqa: SLF001
            return f"cross entropy whose targets are 0 to {len(node._saved_target) - 1} in order"  # noqa: SLF001
    return ""


def _comparison(node: Any, samples: int) -> str:
    kind, inputs, shape = _kind(node), _inputs(node), tuple(_shape(node))
    if kind not in {"Mm", "Bmm", "Cdist"} or len(inputs) < 2:
        return ""
    if prod(shape[:-2]) != 1 or any(_is_made_of_parameters(part) for part in inputs):
        return ""  # a product for each sample, or with weights
    if kind == "Cdist":
        return f"distances of {shape} pairs"
    first, second = node._saved_self, node._saved_mat2  # noqa: SLF001
    over = first.shape[-1] if _kind(inputs[1]) not in TURNED else None
    if not _is_of_pairs(shape[-2:], over, samples):
        return ""
    return f"the product of two outputs, {tuple(first.shape)} by {tuple(second.shape)}"


def _is_of_pairs(shape: tuple[int, ...], over: int | None, samples: int) -> bool:
    """Tell whether a product is one of each sample by each, or a sum over samples.

    One side alone tells nothing: scores of samples by classes, or of pixels by the parts of one
    image, are as long as it happens. A sample may have two views, each with a row.

    Args:
        shape: Of the product.
        over: What it sums over; None where its second factor was turned, whose rows are kept.
        samples: In the model's input.
    """
    views = (samples, 2 * samples)
    whole = [size % samples == 0 for size in shape]
    if all(whole):
        return shape[0] == shape[1] or min(shape) in views
    return over in views and not any(whole)


def _is_of_classes(node: Any) -> bool:
    """Tell whether scores are a product with weights, so that their columns are classes."""
    at = node
    for _ in range(MAX_OF_PARAMETERS):
        below = _inputs(at)
        if _kind(at) in PRODUCTS:
            return any(_is_made_of_parameters(part) for part in below)
        if not below or _kind(at) not in ELEMENTWISE | CURVES | NLL | {"LogSoftmax"}:
            return False
        at = below[0]
    return False


def _counts_up(target: torch.Tensor) -> bool:
    """Tell whether each sample is a class of its own, as pairs of one batch are numbered."""
    if target.dim() != 1 or not 4 <= len(target) <= MAX_ORDERED:
        return False
    return torch.equal(target, torch.arange(len(target), device=target.device, dtype=target.dtype))


def _above(root: Any, outputs: Collection[Any]) -> Iterator[Any]:
    """Yield the nodes between a loss and what modules have put out."""
    todo, seen = [root], {root}
    while todo and len(seen) < MAX_COMPARED:
        node = todo.pop()
        if node not in outputs:
            yield node
            new = [part for part in _inputs(node) if part not in seen]
            seen.update(new)
            todo += new


def _over_samples(node: Any) -> Any:
    """Return the node that goes over samples: the first dimension may be gone before the others."""
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
    """Tell whether a node computes with nothing but parameters."""
    before, leaves = _shape_before(node), _leaves(node)
    if leaves and all(leaf.shape == before or leaf.numel() == 1 for leaf in leaves):
        return True  # number by number
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
    """Tell whether nothing but what needs gradients goes into a node, and numbers.

    What is added leaves no trace in a graph, but more numbers than there were.
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


def _is_made_of_parameters(node: Any) -> bool:
    """Tell whether a matrix is a parameter, turned or normalized."""
    return bool(_leaves(node, ELEMENTWISE | CURVES))


def _leaves(node: Any, kinds: Collection[str] | None = None) -> list[torch.Tensor]:
    """Return the leaves that a few nodes lead to; none where there are more nodes, or others.

    Args:
        node: Where to begin.
        kinds: Of nodes on the way, None for any.
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
        is_other = kinds is not None and _kind(part) not in kinds
        if is_other or not _inputs(part) or len(seen) > MAX_OF_PARAMETERS:
            return []
    return leaves


def _shape_before(node: Any) -> Any:
    """Return the shape of what a node takes, as far as it tells."""
    if hasattr(node, "_saved_self_sym_sizes"):
        return torch.Size(node._saved_self_sym_sizes)  # noqa: SLF001
    saved = getattr(node, "_saved_self", None)
    return saved.shape if isinstance(saved, torch.Tensor) else _shape(node)


def _dims(node: Any, count: int) -> list[int]:
    dims = getattr(node, "_saved_dim", None)
    if dims is None or dims == ():
        return list(range(count))
    dims = dims if isinstance(dims, (tuple, list)) else (dims,)
    # torch keeps negative ones as unsigned numbers of 64 bits
    return [d if d < count else (d - (1 << 64)) % max(count, 1) for d in dims]


def _kind(node: Any) -> str:
    """Return what computes forward; functions of the program's own keep their whole name."""
    name, _, number = str(node.name()).partition("Backward")
    return name if number.isdigit() else str(node.name())


def _inputs(node: Any) -> list[Any]:
    return [part for part, _ in node.next_functions if part is not None]


def _shape(node: Any) -> Any:
    if "AccumulateGrad" in node.name():
        return node.variable.shape
    return node._input_metadata[0].shape  # noqa: SLF001 - of what it has put out


def _constant_of(node: Any) -> Any:
    other = getattr(node, "_saved_other", None)
    return other if other is not None else getattr(node, "_saved_self", None)


def _number(value: Any) -> float | None:
    """Return a number that lies in this machine's memory; one on a device would be waited for."""
    if isinstance(value, torch.Tensor):
        return float(value) if value.numel() == 1 and value.device.type == "cpu" else None
    return float(value) if isinstance(value, int | float) else None


def _is_wrapped(value: torch.Tensor) -> bool:
    """Tell whether a tensor stands for a number of Python's: its type yields to any other."""
    if value.dim() or value.device.type != "cpu":
        return False
    small = torch.int8 if not value.is_floating_point() else torch.float16
    other = torch.zeros((), dtype=small)
    return value.dtype is not small and torch.result_type(value, other) is small
