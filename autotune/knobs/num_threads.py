"""The knob ``num_threads``: PyTorch's intra-op threads in the training process.

Source: PyTorch documentation, ``torch.set_num_threads`` and "CPU threading and TorchScript
inference".
"""

from __future__ import annotations

from autotune.knobs.base import Here, ProcessSwitch
from autotune.program.domain import Domain, NotOffered


class NumThreads(ProcessSwitch):
    """Number of threads per CPU operator; fewer leave cores to the loader's workers.

    More threads speed up large operators. Small operators lose more to starting and joining threads
    than they gain, and threads beyond the free cores slow each other down.

    It acts by ``torch.set_num_threads``, with the next operator.
    """

    name = "num_threads"
    value_type = int
    minimum = 1

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return the cores, one less, and the halvings of both.

        One less leaves a core for the worker or the thread that loads the next batch.
        """
        if here.profile.device != "cpu":
            return NotOffered(f"the model computes on the {here.profile.device} device")
        if here.hardware.cpu_quota == 1:
            return NotOffered("there is one core")
        # Halvings cover the range in few trials; one core less leaves room for loading.
        counts = {
            start >> halvings
            for start in (here.hardware.cpu_quota, here.hardware.cpu_quota - 1)
            for halvings in range(start.bit_length())
        }
        return Domain(tuple(sorted(counts)))
