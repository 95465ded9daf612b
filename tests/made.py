"""Builders of values for tests: one plausible value of each kind, and copies with changes."""

import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, cast

import numpy as np
from optuna.storages import InMemoryStorage

from autotune.knobs.space.space import ResolvedSpace, SearchSpace
from autotune.machine.hardware import Gpu, Hardware
from autotune.measurement.interval import Interval
from autotune.measurement.measurement import Measurement
from autotune.measurement.outcome import Ending
from autotune.measurement.rounds import Speeds
from autotune.program.applied_config import AppliedConfig, ProgramTraits
from autotune.program.config import Config, KnobValue
from autotune.program.lr import LrRule
from autotune.program.profile import (
    AllocatorFacts,
    LoaderFacts,
    LoopFacts,
    ModelFacts,
    OptimizerFacts,
    PrecisionFacts,
    Profile,
    RankFacts,
    TorchSettings,
)
from autotune.program.program import Program, ProgramKind
from autotune.results import bestfile
from autotune.results.bestfile import BestFile
from autotune.results.record import SearchInfo, SearchOptions, TrialRecord
from autotune.tuning.storage.record_storage import RecordStorage
from autotune.tuning.storage.search_dir import FILE
from autotune.tuning.storage.study import Study

GIB = 1 << 30
V100 = Gpu("Tesla V100-SXM2-16GB", "GPU-00000000-0000-0000-0000-000000000070", 16 * GIB, (7, 0))
A100 = Gpu("NVIDIA A100-SXM4-40GB", "GPU-00000000-0000-0000-0000-000000000080", 40 * GIB, (8, 0))
H100 = Gpu("NVIDIA H100 80GB HBM3", "GPU-00000000-0000-0000-0000-000000000090", 80 * GIB, (9, 0))

HARDWARE = Hardware(
    cpu_name="AMD EPYC 7B13",
    cpu_quota=2,
    cpu_flags=("avx512_bf16",),
    memory_bytes=16 * GIB,
    shm_bytes=8 * GIB,
    gpus=(),
    has_cxx_compiler=True,
    system="Linux 6.1",
    versions={"python": "3.11.7", "torch": "2.11.0"},
)

LOADER = LoaderFacts(
    dataset="TensorDataset",
    dataset_len=60_000,
    batch_size=64,
    num_workers=0,
    prefetch_factor=None,
    pin_memory=False,
    persistent_workers=False,
    sampler="RandomSampler",
    has_batch_sampler=False,
    iterable=False,
    drop_last=False,
)

PROGRAM = Program(
    kind=ProgramKind.SCRIPT,
    target="/home/user/train.py",
    source="/home/user/train.py",
    function="",
    args=("--epochs", "3"),
    cwd="/home/user",
    import_root="/home/user",
    fingerprint="f" * 64,
    name="train",
)

MACHINES = {
    "one core": replace(HARDWARE, cpu_quota=1, cpu_flags=()),
    "two cores": HARDWARE,
    "V100": replace(HARDWARE, cpu_quota=8, gpus=(V100,)),
    "A100": replace(HARDWARE, cpu_quota=12, gpus=(A100,)),
    "H100": replace(HARDWARE, cpu_quota=16, gpus=(H100,)),
    "two GPUs": replace(HARDWARE, cpu_quota=24, gpus=(A100, H100)),
}


def make_hardware(**changes: Any) -> Hardware:
    """Return a two-core machine without a GPU, with changes."""
    return replace(HARDWARE, **changes)


def make_loader(**changes: Any) -> LoaderFacts:
    """Return a loader of 60,000 samples in batches of 64 without workers, with changes."""
    return replace(LOADER, **changes)


def profile_with(profile: Profile, **changes: Any) -> Profile:
    """Return a profile with changes, of its fields or of those of its parts."""
    for name, part in vars(profile).items():
        own = {f.name for f in fields(part)} & changes.keys() if is_dataclass(part) else ()
        if own:
            changes[name] = replace(part, **{field: changes.pop(field) for field in own})
    return replace(profile, **changes)


PROFILE = Profile(
    device="cpu",
    loaders=(LOADER,),
    optimizers=(OptimizerFacts("SGD", ("SGD", "Optimizer"), (0.1,)),),
    model=ModelFacts(
        parameters=120_000,
        repeated_blocks=0,
        stages=0,
        conv2d_layers=2,
        convolutions=2,
        batch_norm_layers=0,
        channels_last=False,
        is_compiled=False,
    ),
    precision=PrecisionFacts(weights_dtype="float32", autocast=None, has_scaler=False),
    settings=TorchSettings(
        threads=2,
        cudnn="default",
        matmul_precision="highest",
        flush_denormal=False,
        deterministic_algorithms=False,
        anomaly_detection=False,
        autograd_profiler=False,
        attention=None,
    ),
    allocators=AllocatorFacts(mmap_threshold=None, cuda_alloc_conf=""),
    loop=LoopFacts(zero_grad_to_none=True),
    ranks=RankFacts(),
)


def make_profile(**changes: Any) -> Profile:
    """Return a small convolution net on the CPU with one such loader, with changes."""
    return profile_with(PROFILE, **changes)


def make_measurement(
    samples_per_s: float = 1000.0,
    *,
    wait_share: float = 0.1,
    spread_pct: float = 1.0,
    **changes: Any,
) -> Measurement:
    """Return a second of steps of 0.05 s at one rate, with changes."""
    interval, batch = make_interval(samples_per_s, spread_pct), round(samples_per_s / 20)
    return replace(Measurement(interval, 0.05, batch, batch, wait_share), **changes)


def make_interval(estimate: float, spread_pct: float = 1.0) -> Interval:
    """Return an interval that reaches *spread_pct* percent to both sides."""
    return Interval(estimate, estimate * (1 - spread_pct / 100), estimate * (1 + spread_pct / 100))


def make_record(
    config: Mapping[str, KnobValue], outcome: float | Ending = 1.0, why: str = "a test"
) -> TrialRecord:
    """Return the record of a config with this speedup over 1,000 samples/s, or with an ending."""
    record = TrialRecord(Config(config), why, None, None, None, 1, 2.5)
    if isinstance(outcome, Ending):
        return replace(record, ending=outcome)
    measurement = make_measurement(1000 * outcome)
    return replace(record, measurement=measurement, speedup=make_interval(outcome))


def make_speeds(speedups: Mapping[Config, float], error: float = 0.01) -> Speeds:
    """Return what rounds show of configs, the first of which is the baseline.

    The turns of the baseline are common to all: half of the variance.
    """
    configs, means = tuple(speedups), np.log(np.array([*speedups.values()]))
    covariance = error**2 / 2 * (1.0 + np.eye(len(configs)))
    covariance[0, :] = covariance[:, 0] = 0.0
    return Speeds(configs, means, covariance)


def make_space(
    knobs: Sequence[str] | Mapping[str, tuple[KnobValue, ...] | None], **changes: Any
) -> SearchSpace:
    """Return a search space of these knobs; without values each offers what fits."""
    values = knobs if isinstance(knobs, Mapping) else dict.fromkeys(knobs)
    return replace(SearchSpace("test", values), **changes)


def configs_of(space: ResolvedSpace, at: Config) -> set[Config]:
    """Return each canonical config without conflicts that has the restart values of *at*."""
    live = [n for n in space.domains if n not in space.restart]
    every = product(*(space.domains[n].values for n in live))
    configs = {space.canonical(at.replace(**dict(zip(live, one, strict=True)))) for one in every}
    return {config for config in configs if not space.conflicts(config)}


def make_head(space: SearchSpace, **changes: Any) -> SearchInfo:
    """Return the head of a three-minute search on the two-core machine, with changes."""
    head = SearchInfo(PROGRAM, space, SearchOptions(180.0), HARDWARE, "2025-01-01T12:00:00+00:00")
    return replace(head, **changes)


def make_applied(config: Mapping[str, KnobValue], **changes: Any) -> AppliedConfig:
    """Return a config over a baseline of batch size 64, with changes of it or of its traits."""
    applied = AppliedConfig(
        config=Config(config),
        baseline=Config({"batch_size": 64}),
        traits=ProgramTraits("cpu", LOADER),
        lr_rule=LrRule.LINEAR,
    )
    return changed(applied, **changes)


def changed(applied: AppliedConfig, **changes: Any) -> AppliedConfig:
    """Return an applied config with changes of it or of the program's traits."""
    traits = {name: changes.pop(name) for name in vars(applied.traits) if name in changes}
    return replace(applied, traits=replace(applied.traits, **traits), **changes)


def commit(folder: Path) -> None:
    """Commit all files of a folder; the first time it becomes a repository."""
    author = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    for words in (("init", "-q"), ("add", "--all"), (*author, "commit", "-qm", "Changes")):
        subprocess.run(["git", *words], cwd=folder, check=True)


BASELINE: dict[str, KnobValue] = {
    "workers": 0,
    "batch_size": 64,
    "precision": "fp32",
    "memory_format": "contiguous",
    "compile": "off",
}


CHANGES: dict[str, KnobValue] = {
    "workers": 2,
    "precision": "bf16",
    "memory_format": "channels_last",
}


def make_best(**changes: Any) -> BestFile:
    """Return a best.yaml of a search that found three changes, with changes.

    ``config``, ``baseline``, ``traits`` and ``lr_rule`` are those of the applied config, and those
    of the program are its fields; others are fields of the file.
    """
    applied = AppliedConfig(
        config=Config(changes.pop("config", {**BASELINE, **CHANGES})),
        baseline=Config(changes.pop("baseline", BASELINE)),
        traits=changes.pop("traits", ProgramTraits("cpu", LOADER, ("hidden",))),
        lr_rule=changes.pop("lr_rule", LrRule.LINEAR),
    )
    about = {
        "speedup": Interval(estimate=1.42, low=1.38, high=1.46),
        "made_on": bestfile.MadeOn.on(replace(HARDWARE, gpus=(A100,))),
        "search": bestfile.SearchSection(
            date="2025-01-01T12:00:00+00:00", folder=".autotune/train", digest="f" * 12
        ),
    }
    return BestFile.of(applied, PROGRAM, **about).model_copy(update=changes)


def storage_in(directory: Path) -> RecordStorage:
    """Return the storage in a directory."""
    return RecordStorage(directory / FILE)


class MemoryStorage(InMemoryStorage):
    """Stands for a ``RecordStorage``: one in a file takes longer than a search in virtual time."""

    def exchange(self, study: int, name: str, change: Callable[[str], str]) -> None:
        old = json.dumps(self.get_study_user_attrs(study)[name])
        self.set_study_user_attr(study, name, json.loads(change(old)))


def storage_in_memory() -> RecordStorage:
    """Return a new one of these."""
    return cast("RecordStorage", MemoryStorage())


@cache
def memory_of(_directory: Path) -> RecordStorage:
    """Return the one that stands for a directory."""
    return storage_in_memory()


def make_study(directory: Path, space: SearchSpace, options: SearchOptions | None = None) -> Study:
    """Return a new study in the memory that stands for a directory."""
    head = make_head(space, options=options or SearchOptions(180.0))
    return Study.create(memory_of(directory), "autotune", head)
