"""Compare what a model puts out in evaluation under a config with what it does as written.

Threads, precision and memory layout act on the whole process, so they act in evaluation too. Each
output is computed twice, from the same weights and the same batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from autotune.inside.data.feed import tensors_in
from autotune.inside.steering import Steering
from autotune.knobs import registry
from autotune.program.applied_config import AppliedConfig
from autotune.program.config import KnobValue
from autotune.program.evaluation import EvaluationOutputs

# Knobs that change how a model computes and can be changed between two calls. A compiled model
# stays compiled.
ACTING = (
    "precision",
    "matmul_precision",
    "channels_last",
    "num_threads",
    "flush_denormal",
    "sdpa_backend",
)
BATCHES = 2
# Units in the last place of the formats. Outputs of trained nets under bf16 were 1-4 of its units
# apart from those of fp32; sums in another order, which fp32 shows too, stay far below 1e-4.
UNITS: Mapping[tuple[str, KnobValue], float] = {
    ("precision", "bf16"): 2.0**-8,
    ("precision", "fp16"): 2.0**-11,
    ("precision", "tf32"): 2.0**-11,
    ("matmul_precision", "medium"): 2.0**-8,
    ("matmul_precision", "high"): 2.0**-11,
}
ROUNDINGS, LEAST = 8, 1e-4


class OutputComparison:
    """Compares the first outputs of an evaluation; ``ForwardSeam.evaluated`` calls it.

    Args:
        applied: The config and the program as written.
        steering: Applies knobs in this process.
    """

    def __init__(self, applied: AppliedConfig, steering: Steering) -> None:
        self._steering = steering
        self._own = applied.baseline
        elsewhere = {*applied.traits.flags, *applied.traits.program_knobs}
        self.changes = {
            knob: value
            for knob, value in applied.changes().items()
            if knob in ACTING and knob not in elsewhere
        }
        units = [UNITS.get(item, 0.0) for item in (*applied.config.items(), *self._own.items())]
        self._explained = max(LEAST, ROUNDINGS * max(units, default=0.0))
        self._batches = 0
        self._apart, self._norm = 0.0, 0.0

    def __call__(self, again: Callable[[], Any], output: Any) -> None:
        """Compute an output again as written, and add how far the two are apart."""
        if self._batches == BATCHES or not self.changes:
            return
        self._batches += 1
        devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
        with torch.random.fork_rng(devices):
            self._apply({knob: self._own[knob] for knob in self.changes})
            try:
                own = again()
            except RuntimeError:  # such as too little memory for two outputs
                self._batches = BATCHES
                return
            finally:
                self._apply(self.changes)
        for one, other in zip(tensors_in(output), tensors_in(own), strict=False):
            if one.is_floating_point() and one.shape == other.shape:
                self._apart += float((one.double() - other.double()).square().sum())
                self._norm += float(other.double().square().sum())

    def _apply(self, values: Mapping[str, KnobValue]) -> None:
        # Weights that change their layout must stay tensors that can be trained
        with torch.inference_mode(mode=False):
            for knob, value in values.items():
                registry()[knob].apply(value, self._steering)

    @property
    def found(self) -> EvaluationOutputs | None:
        """How far the outputs were apart; None if nothing was compared."""
        if not self._norm or not math.isfinite(self._apart):
            return None
        apart = math.sqrt(self._apart / self._norm)
        return EvaluationOutputs(self.changes, apart, self._explained, self._batches)
