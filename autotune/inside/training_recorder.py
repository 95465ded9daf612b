"""Record what a program's first steps learn, so that two runs compare.

Both run under equal conditions (``seams/equal_conditions.py``). What cannot be recorded ends the
record, never the program.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, Concatenate, ParamSpec

import numpy
import torch
from torch import nn
from torch.utils._pytree import keystr, tree_flatten_with_path

from autotune.inside.data.nested import tensors_in
from autotune.inside.seams.autocast import unscaled
from autotune.inside.seams.rank_checks import parameters_of
from autotune.inside.seams.torch_settings import matmul_precision
from autotune.measurement.learning.training_trace import LAST_LOSSES, TracedStep, TrainingTrace
from autotune.program.rehearsal import TracePlan

MAX_VALUES = 24  # that are read of the weights after each step, and of the buffers
MOST_SHARDS = 8  # ranks among which a tensor may be shared out
MAX_RATES = 8
MAX_SAVED = 64
MAX_READ = 8  # saved objects of which values are read, and entries of each
SEED = 20_230_401
UNITS = 8  # in the last place, by which a weight is shaken: sums round by more than their terms
# Of the elements of a weight with few digits, one in 16 is shaken, by one unit
FEW_DIGITS, ONE_IN = 1e-4, 16
MAX_SHAKEN = 1 << 20  # elements of one tensor
REDUCED = {"high": 2.0**-10, "medium": 2.0**-8}  # what fp32 products round to: TF32, bfloat16
# A loss is the mean of many products, and the rounding errors of those cancel out for the most part
CANCELLING = 16.0
PLAIN = (bool, int, float, complex, str, bytes, type(None), numpy.generic)
P = ParamSpec("P")


def _guarded(
    note: Callable[Concatenate[TrainingRecorder, P], None],
) -> Callable[Concatenate[TrainingRecorder, P], None]:
    """Return a method that ends the record where it fails: on a tensor that holds no numbers."""

    def guarded(recorder: TrainingRecorder, /, *args: P.args, **kwargs: P.kwargs) -> None:
        if recorder.broken or recorder.is_full:
            return
        try:
            note(recorder, *args, **kwargs)
        except Exception as error:  # noqa: BLE001 - whatever it is, the program must go on
            recorder.broken = f"{type(error).__name__}: {error}".splitlines()[0]

    return guarded


class _Saves:
    """What the program saved with ``torch.save``."""

    def __init__(self) -> None:
        self.forms: list[int] = []
        self.values: list[tuple[int, tuple[tuple[float, ...], ...]]] = []

    def note(self, what: Any, steps: int) -> None:
        """Note an object that was saved after *steps* steps."""
        if len(self.forms) >= MAX_SAVED:
            return
        with suppress(Exception):  # whatever it is, the program must go on
            self.forms.append(zlib.crc32("\n".join(_form(what)).encode()))
        with suppress(Exception):
            if len(self.values) < MAX_READ:
                self.values.append((steps, tuple(_entries(what))))


class _Places:
    """Where the weights and buffers of a training are read, spread over all of them."""

    def __init__(self, models: Iterable[nn.Module], trained: Iterable[torch.Tensor]) -> None:
        models = [*models]
        weights = {id(w): w for w in trained if w.requires_grad}
        # What no optimizer trains may be changed by the model, as codebooks are
        frozen = [w for m in models for w in m.parameters() if not w.requires_grad]
        buffers = [b for m in models for b in m.buffers() if b.is_floating_point()]
        self.weights = _spread(list(weights.values()))
        self.buffers = _spread(buffers) + _spread([w for w in frozen if w.is_floating_point()])
        self.start = _read(self.weights)


class TrainingRecorder:
    """Traces the first steps; called on the program's main thread.

    Args:
        is_alone: Whether no other rank trains. The losses of several are those of their shares.
    """

    def __init__(
        self,
        models: Callable[[], Mapping[nn.Module, object]],
        optimizers: Callable[[], Sequence[torch.optim.Optimizer]],
        plan: TracePlan,
        *,
        is_alone: bool = True,
    ) -> None:
        self.broken = ""
        self._models, self._optimizers = models, optimizers
        self._plan, self._is_alone = plan, is_alone
        self._steps: list[TracedStep] = []
        self._rounding = 0.0
        # With the samples of their batches, by the optimizer whose step was held back; 0 for none
        self._losses: dict[int, list[tuple[float, int]]] = {0: []}
        self._batches: list[tuple[int, int]] = []  # checksums and samples
        self._shaken: dict[int, torch.Tensor] = {}  # kept, so that no other gets its id
        self._places: _Places | None = None
        self._saves = _Saves()

    @property
    def trace(self) -> TrainingTrace:
        """What was recorded so far."""
        return TrainingTrace(
            tuple(self._steps),
            self._rounding,
            () if self._places is None else self._places.start,
            tuple(checksum for checksum, _ in self._batches),
            len(self._shaken),
            self.broken,
            tuple(self._saves.forms),
            tuple(self._saves.values),
        )

    @property
    def is_full(self) -> bool:
        """Whether all steps of the plan are recorded."""
        return len(self._steps) >= self._plan.steps

    @property
    def is_over(self) -> bool:
        """Whether the program need not train any longer for the trace."""
        if self.is_full or not self._plan.ends:
            return self._plan.ends
        # Losses that are too large for the ceilings are hopeless
        count, ceilings = len(self._steps), self._plan.ceilings
        last = [step.loss for step in self._steps[-LAST_LOSSES:] if step.loss is not None]
        if not LAST_LOSSES < count <= len(ceilings) or len(last) < LAST_LOSSES:
            return False
        return not sum(last) / LAST_LOSSES <= ceilings[count - 1]

    @_guarded
    def batch_handed(self, batch: Any, samples: int) -> None:
        """Note a batch that the program takes to train on.

        Threads may take batches ahead, so they are numbered apart from the steps.
        """
        self._batches.append((_checksum(batch), max(1, samples)))

    @_guarded
    def forward_called(self) -> None:
        """Before a model's first call with gradients, shake its weights if asked to."""
        if torch.is_grad_enabled() and (self._plan.shakes or not self._rounding):
            self._begin([weight for model in self._models() for weight in model.parameters()])

    @_guarded
    def loss_seen(self, loss: torch.Tensor) -> None:
        """Note a tensor on which ``backward()`` is called."""
        if loss.is_cuda and torch.cuda.is_current_stream_capturing():
            self.broken = "the step is captured as a CUDA graph"
            return
        trained = [weight for model in self._models() for weight in model.parameters()]
        trained += parameters_of(self._optimizers())
        self._begin(trained)
        if self._places is None:
            self._places = _Places(self._models(), trained)
        if self._is_alone and loss.numel() == 1:
            samples = self._batches[-1][1] if self._batches else 1
            self._losses[0].append((float(unscaled(loss).detach()), samples))

    @_guarded
    def held(self, optimizer: torch.optim.Optimizer) -> None:
        """Note that a step is held back: its losses are for the next one of that optimizer.

        A program may step others in between, for other losses.
        """
        self._losses.setdefault(id(optimizer), []).extend(self._losses[0])
        self._losses[0] = []

    @_guarded
    def stepped(self, optimizer: torch.optim.Optimizer | None, epoch: int) -> None:
        """Note that a step has been made, by an optimizer or by hand (None)."""
        overflow = getattr(optimizer, "found_inf", None)
        if overflow is not None and float(overflow):
            return  # a fused optimizer is called, and leaves the weights as they are
        # Others may hold gradients of a step that is still to come
        trained = [] if optimizer is None else optimizer.param_groups
        theirs = {id(weight) for group in trained for weight in group["params"]}
        losses = [*self._losses.pop(id(optimizer), []), *self._losses[0]]
        self._losses[0] = []
        weight = sum(samples for _, samples in losses)
        places = [] if self._places is None else self._places.weights
        self._steps.append(
            TracedStep(
                sum(loss * samples for loss, samples in losses) / weight if weight else None,
                tuple(float(group["lr"]) for group in trained[:MAX_RATES] if "lr" in group),
                epoch,
                len(self._batches),
                _read(places),
                _read([] if self._places is None else self._places.buffers),
                _norm([w for w, _ in places if not theirs or id(w) in theirs]),
            )
        )

    def saved(self, what: Any) -> None:
        """Note an object that the program has saved."""
        self._saves.note(what, len(self._steps))

    def _begin(self, weights: Sequence[torch.Tensor]) -> None:
        if not self._rounding:
            self._rounding = _rounding(weights[0].device.type if weights else "cpu")
        if not self._plan.shakes:
            return
        with torch.no_grad():
            for weight in weights:
                if id(weight) not in self._shaken and _shake(weight, self._dice):
                    self._shaken[id(weight)] = weight

    @cached_property
    def _dice(self) -> torch.Generator:
        return torch.Generator().manual_seed(SEED + self._plan.shakes)


def _form(what: Any) -> Iterator[str]:
    """Yield the place and kind of each object in nested containers, but for plain values.

    Of a tensor also what must fit to load it again.
    """
    for path, leaf in tree_flatten_with_path(what)[0]:
        if isinstance(leaf, torch.Tensor):
            yield f"{keystr(path)} {type(leaf).__name__} {tuple(leaf.shape)} {leaf.dtype}"
        elif isinstance(leaf, nn.Module):
            its = f"{keystr(path)} {type(leaf).__name__}"
            yield from (its + form for form in _form(leaf.state_dict()))
        elif not isinstance(leaf, PLAIN):
            yield f"{keystr(path)} {type(leaf).__name__}"


def _entries(what: Any) -> Iterator[tuple[float, ...]]:
    """Yield some values of each entry of what is saved: of the model, of its average, and so on."""
    is_one = not isinstance(what, Mapping) or any(
        isinstance(v, torch.Tensor) for v in what.values()
    )
    for entry in [what] if is_one else [*what.values()][:MAX_READ]:
        held = entry.state_dict() if isinstance(entry, nn.Module) else entry
        yield _read(_spread([t for t in tensors_in(held) if t.is_floating_point()]))


def _checksum(batch: Any) -> int:
    found = 0
    for tensor in tensors_in(batch):
        whole = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        found = zlib.crc32(whole.numpy().data, found)
    return found


def _rounding(device: str) -> float:
    """Return by how much losses round, relative, in the precision of the matrix products."""
    if torch.is_autocast_enabled(device):
        return torch.finfo(torch.get_autocast_dtype(device)).eps / CANCELLING
    least = torch.finfo(torch.float32).eps
    if torch.get_default_dtype() is torch.float32:
        precision = matmul_precision(device)
        return REDUCED.get(precision, least * CANCELLING) / CANCELLING
    return max(torch.finfo(torch.get_default_dtype()).eps, least)


def _shake(weight: torch.Tensor, dice: torch.Generator) -> bool:
    """Move a weight by some units in its last place; return whether that could be done."""
    if not _is_plain(weight) or not weight.is_floating_point():
        return False
    weight = weight.data  # autograd would refuse a backward pass for which it has kept the weight
    if weight.layout is not torch.strided or weight.is_meta or not weight.numel():
        return False
    if weight.dim():
        weight = weight[: max(1, MAX_SHAKEN * weight.shape[0] // weight.numel())]
    eps = torch.finfo(weight.dtype).eps
    signs = torch.empty(weight.shape, dtype=torch.int8).random_(0, 2, generator=dice) * 2 - 1
    units = UNITS
    if eps > FEW_DIGITS:
        units = 1
        chosen = torch.empty(weight.shape, dtype=torch.int8).random_(0, ONE_IN, generator=dice)
        signs *= chosen == 0
    weight.mul_(1 + units * eps * signs.to(weight.device, weight.dtype))
    return True


def _spread(tensors: Sequence[torch.Tensor]) -> list[tuple[torch.Tensor, int]]:
    """Return places in tensors, at most ``MAX_VALUES``, the same number of each.

    They lie in the first rows, which the first of several ranks holds where rows are shared out.
    """
    plain = [t for t in tensors if t.numel() and (_is_plain(t) or hasattr(t, "to_local"))]
    if len(plain) > MAX_VALUES:
        plain = [plain[n * len(plain) // MAX_VALUES] for n in range(MAX_VALUES)]
    each = max(1, MAX_VALUES // max(1, len(plain)))
    places = []
    for tensor in plain:
        first = max(1, tensor.numel() // MOST_SHARDS)
        places += [(tensor, n * first // min(each, first)) for n in range(min(each, first))]
    return places


def _is_plain(tensor: torch.Tensor) -> bool:
    return type(tensor) in {torch.Tensor, nn.Parameter}


def _read(places: list[tuple[torch.Tensor, int]]) -> tuple[float, ...]:
    """Return the values at some places, indexed as the program sees them.

    Of complex numbers, the magnitude.
    """
    found = []
    with torch.no_grad():
        for tensor, number in places:
            # a DTensor, of which this rank holds a part
            whole: Any = tensor.to_local() if hasattr(tensor, "to_local") else tensor
            index = numpy.unravel_index(number, tuple(tensor.shape)) if tensor.dim() else ()
            value = whole[tuple(map(int, index))].item()
            found.append(float(abs(value) if isinstance(value, complex) else value))
    return tuple(found)


def _norm(weights: Sequence[torch.Tensor]) -> float | None:
    gradients = {id(w): w.grad for w in weights if w.grad is not None and _is_plain(w)}
    if not gradients:
        return None
    norms = [
        float(torch.linalg.vector_norm(g.coalesce().values() if g.is_sparse else g))
        for g in gradients.values()
    ]
    return math.hypot(*norms)
