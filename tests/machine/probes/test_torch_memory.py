"""What a program's torch says of its GPUs and their memory, over recorded readings."""

from __future__ import annotations

import pytest
import torch

from autotune.inside.readings import Readings
from autotune.machine.probes.torch_memory import is_device_full, torch_gpus
from autotune.program.applied_config import AppliedConfig, ProgramTraits
from autotune.program.config import Config
from tests.made import A100, H100, V100, make_profile
from tests.readings import MIG_GPU, torch_sees, unused

TRAITS = ProgramTraits("cuda")


def test_gpus_are_told_in_the_programs_order_with_nvmls_ids_and_whether_they_are_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for seen in ((unused(H100), A100, unused(V100)), (MIG_GPU,)):
        torch_sees(monkeypatch, *seen)
        assert torch_gpus("cuda") == seen


def test_the_gpus_of_a_program_on_the_cpu_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """To ask for their properties would initialize CUDA, which takes memory and seconds."""
    for name in ("device_count", "get_device_properties", "memory_reserved"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: pytest.fail("CUDA was asked"))
    assert torch_gpus("cpu") == ()


class CachingAllocator:
    """torch's allocator on two devices of 100 bytes: what a step takes stays in its cache.

    More than a share of a device is refused, after the cache was emptied; what is reserved already
    stays (c10/cuda/CUDACachingAllocator.cpp, alloc_block). Others, and CUDA itself, may use memory.
    Source: https://pytorch.org/docs/stable/notes/cuda.html#memory-management
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.taken, self.reserved, self.peaks, self.refused = 0, [0, 0], [0, 0], 0
        self.limits = 0
        self.retries, self.of_others, self.shares = 0, [0, 0], [1.0, 1.0]
        for name, act in (
            ("memory_reserved", lambda device: self.reserved[device]),
            ("mem_get_info", self.info),
            ("get_per_process_memory_fraction", lambda device: self.shares[device]),
            ("set_per_process_memory_fraction", self.limit),
        ):
            monkeypatch.setattr(torch.cuda, name, act)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        monkeypatch.setattr(torch.cuda, "empty_cache", self.empty)
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", self.forget)
        monkeypatch.setattr(torch.cuda, "memory_stats", self.stats)
        for name in ("max_memory_reserved", "max_memory_allocated"):
            monkeypatch.setattr(torch.cuda, name, self.peaks.__getitem__)

    def empty(self) -> None:
        self.reserved = [0, 0]

    def forget(self, device: int) -> None:
        self.peaks[device] = self.reserved[device]

    def info(self, device: int) -> tuple[int, int]:
        return 100 - self.reserved[device] - self.of_others[device], 100

    def limit(self, share: float, device: int) -> None:
        self.limits += 1
        self.shares[device] = share

    def stats(self, device: int) -> dict[str, int]:
        ooms = self.refused if device == 1 else 0
        return {
            "reserved_bytes.all.allocated": self.taken * (device == 0),
            "reserved_bytes.all.peak": self.peaks[device],
            "num_ooms": ooms,
            "num_alloc_retries": self.retries * (device == 0),
        }

    def step(self, *needed: int) -> None:
        for device, size in enumerate(needed):
            if size > max(self.reserved[device], 100 * self.shares[device]):
                self.retries += 1
                raise torch.OutOfMemoryError
            self.taken += max(0, size - self.reserved[device])
            self.reserved[device] = max(size, self.reserved[device])
            self.peaks[device] = max(self.peaks[device], size)


def test_the_cache_is_emptied_once_for_a_config_that_stays_and_each_has_a_peak_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A reset in each call of a stay would make all of them begin with memory that is taken."""
    allocator, readings = CachingAllocator(monkeypatch), Readings()
    readings.trains_on("cuda")
    large, small = (
        AppliedConfig.as_written(Config({"batch_size": size}), make_profile()) for size in (64, 8)
    )
    took = []
    for configs, sizes in (
        ([large], (60, 50)),
        ([large], (60, 50)),
        ([small], (7, 9)),
        ([large, small], (60, 50)),
        ([small], (7, 9)),
    ):
        before = readings.activity()
        readings.begin(configs)
        allocator.step(*sizes)
        memory = readings.taken((), 1, None).memory
        took.append((readings.activity() > before, memory.device_reserved_bytes))
    assert took == [(True, 60), (False, 60), (True, 9), (True, 60), (True, 9)]


def test_a_device_is_full_where_torch_got_no_memory_or_next_to_none_is_left_to_this_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    allocator = CachingAllocator(monkeypatch)
    free = 0
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free, 100))
    assert not is_device_full(), "a program that never used CUDA is not asked"
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert not is_device_full(), "others have filled it"
    allocator.step(60, 0)
    assert is_device_full()
    free = 50
    assert not is_device_full()
    allocator.refused = 3
    assert is_device_full()


def test_configs_but_the_programs_own_leave_memory_free_for_longer_batches_and_evaluations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where others use 6 bytes of 100, and a driver would take the host's memory for more than 94.

    The program as written may use all there is; what it has used is not taken from others.
    """
    written, other = (
        AppliedConfig(Config({"batch_size": size}), Config({"batch_size": 64}), TRAITS)
        for size in (64, 128)
    )
    for own, allowed, most in ((60, 1.0, 90), (93, 1.0, 93), (40, 0.5, 50)):
        allocator, readings = CachingAllocator(monkeypatch), Readings()
        allocator.of_others, allocator.shares = [6, 6], [allowed] * 2
        readings.trains_on("cuda")
        allocator.reserved[0] = allocator.peaks[0] = own  # its first steps
        for number, (config, size) in enumerate(2 * [(written, own), (other, most)]):
            readings.begin([config])
            readings.switched(config)
            allocator.step(size)
            assert bool(allocator.limits) is bool(number), "a share of 1 is a limit, too"
            memory = readings.taken((), 1, None).memory
            assert (memory.alloc_retries, memory.device_room_bytes) == (0, 94)
        if allowed == 1.0:
            with pytest.raises(torch.OutOfMemoryError):
                allocator.step(most + 1)
        assert readings.taken((), 1, None).memory.alloc_retries == (allowed == 1.0)
        readings.begin([other])
        assert readings.taken((), 1, None).memory.alloc_retries == 0, "of each answer"
        readings.switched(written)
        assert allocator.shares == [allowed] * 2


def test_no_limit_is_set_that_could_not_be_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch does not tell the program's own, or it lives in the host's memory as well."""
    other = AppliedConfig(Config({"batch_size": 8}), Config({"batch_size": 4}), TRAITS)
    for peak, is_told in ((120, True), (60, False)):
        allocator, readings = CachingAllocator(monkeypatch), Readings()
        allocator.peaks[0] = peak
        limit = "set_per_process_memory_fraction"
        monkeypatch.setattr(torch.cuda, limit, lambda *_: pytest.fail("a limit was set"))
        if not is_told:
            monkeypatch.delattr(torch.cuda, "get_per_process_memory_fraction")
        readings.trains_on("cuda")
        readings.switched(other)
