"""What a program's torch says of its GPUs and their memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from autotune.inside.readings import Readings
from autotune.machine.probes.torch_memory import SpareMemory, is_device_full, torch_gpus
from autotune.program.applied_config import AppliedConfig, ProgramTraits
from autotune.program.config import Config
from tests.gpu_fakes import FakeCuda, unused
from tests.made import A100, GIB, H100, make_profile

TRAITS = ProgramTraits("cuda")
TINY = replace(A100, memory_bytes=100)


def test_the_gpus_of_a_program_on_the_cpu_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """To ask for their properties would initialize CUDA, which takes memory and seconds."""
    for name in ("device_count", "get_device_properties", "memory_reserved"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: pytest.fail("CUDA was asked"))
    assert torch_gpus("cpu") == ()


@pytest.mark.parametrize("has_public_name", [True, False])
def test_caches_are_emptied_once_for_a_config_that_stays_and_each_has_a_peak_of_its_own(
    monkeypatch: pytest.MonkeyPatch, *, has_public_name: bool
) -> None:
    """A reset in each call of a stay would make all of them begin with memory that is taken."""
    cuda, readings = FakeCuda(monkeypatch, A100, H100), Readings()
    readings.trains_on("cuda")
    large, small = (
        AppliedConfig.as_written(Config({"batch_size": size}), make_profile()) for size in (64, 8)
    )
    if not has_public_name:
        monkeypatch.delattr(torch.accelerator, "empty_host_cache")
    took = []
    for configs, sizes in (
        ([large], (6 * GIB, 5 * GIB)),
        ([large], (6 * GIB, 5 * GIB)),
        ([small], (1 * GIB, 2 * GIB)),
        ([large, small], (6 * GIB, 5 * GIB)),
        ([small], (1 * GIB, 2 * GIB)),
    ):
        before = readings.activity()
        readings.begin(configs)
        cuda.fill(*sizes)
        memory = readings.taken((), 1, None).memory
        took.append((readings.activity() > before, memory.device_reserved_bytes))
    peaks = 6 * GIB, 6 * GIB, 2 * GIB, 6 * GIB, 2 * GIB
    assert cuda.emptied == ["device", "host"] * 3
    assert took == [*zip((True, False, True, True, True), peaks, strict=True)]


def test_a_device_is_full_where_torch_got_no_memory_or_next_to_none_is_left_to_this_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    FakeCuda(monkeypatch, unused(A100))
    assert not is_device_full(), "a program that never used CUDA is not asked"
    cuda = FakeCuda(monkeypatch, A100, unused(H100))
    cuda.others_bytes = [0, 80 * GIB]
    assert not is_device_full(), "others have filled another"
    cuda.others_bytes[0] = 40 * GIB - (2 << 20)
    assert is_device_full()
    cuda.others_bytes[0] = GIB
    assert not is_device_full()
    cuda.refused[0] = 3
    assert is_device_full()


def test_configs_but_the_programs_own_leave_memory_free_for_longer_batches_and_evaluations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where others use 6 bytes of 100, and a driver would take the host's memory for more than 94.

    The program as written may use all there is; what it has used is not taken from others. In a
    process that began under another config, that has used nothing.
    """
    written, other = (
        AppliedConfig(Config({"batch_size": size}), Config({"batch_size": 64}), TRAITS)
        for size in (64, 128)
    )
    for began, own, allowed, most in (
        (written, 60, 1.0, 90),
        (written, 93, 1.0, 93),
        (written, 40, 0.5, 50),
        (other, 93, 1.0, 90),
    ):
        cuda, readings = FakeCuda(monkeypatch, TINY, unused(H100)), Readings()
        cuda.others_bytes[0], cuda.shares[0] = 6, allowed
        readings.trains_on("cuda")
        spare = SpareMemory("cuda", is_as_written=began is written)
        cuda.reserved[0] = cuda.peaks[0] = own  # its first steps
        seen = list[AppliedConfig]()
        steps = [(written, own), (other, most)] * 2
        for config, size in steps if began is written else steps[1:]:
            spare.prepare()
            readings.begin([config])
            spare.switch(is_as_written=config is written)
            cuda.fill(size)
            is_first = config is written and not seen
            assert bool(cuda.limited) is not is_first, "a share of 1 is a limit, too"
            seen.append(config)
            assert readings.taken((), 1, None).memory.alloc_retries == 0
        if allowed == 1.0:
            with pytest.raises(torch.OutOfMemoryError):
                cuda.fill(most + 1)
        assert readings.taken((), 1, None).memory.alloc_retries == (allowed == 1.0)
        readings.begin([other])
        assert readings.taken((), 1, None).memory.alloc_retries == 0, "of each answer"
        spare.switch(is_as_written=True)
        assert cuda.shares == [allowed, 1.0]


def test_a_program_that_lives_in_the_hosts_memory_as_well_is_not_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cuda = FakeCuda(monkeypatch, TINY)
    cuda.peaks[0] = 120
    spare = SpareMemory("cuda", is_as_written=True)
    spare.prepare()
    spare.switch(is_as_written=False)
    assert not cuda.limited
