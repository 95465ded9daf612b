"""Advice: what slows a program down or breaks it later, by what ``autotune doctor`` measured.

A member is a function from the report to advice, in ``MEMBERS``. Each kind is tried on a program
with its fault, and on the same program without it (``benchmarks/doctor.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from autotune.measurement.examination import LAUNCH_BOUND_SHARE, StepBreakdown
from autotune.measurement.limit import share_gain
from autotune.measurement.measurement import Measurement
from autotune.measurement.readings import RankLoad
from autotune.program.profile import Profile
from autotune.results.doctor_report import DoctorReport, growth_per_step
from autotune.results.wording import HOUR, format_duration, measured_duration, percent

# Below both, faster loading is not worth an edit: a share of waiting, a speedup with ready data
MIN_WAIT, MIN_GAIN = 0.15, 1.1
MIN_OPENS = 4.0  # files for an item: more than a sample with its label and metadata
MIN_PADDING = 0.15  # of the tokens; shuffled texts of like length have some percent
MANY_SHAPES = 8  # as many as torch.compile compiles anew before it gives up on them
MIN_SLOWER = 1.25  # a call of an operator; two readings of it differ by some percent
MIN_SYNC_SHARE = 0.05  # of a step; a single read of the loss takes less
MIN_LOST_SHARE = 0.10  # of a step that the other ranks wait for the slowest one
SOON_H = 7 * 24.0  # a training that lasts longer than this is rare
# Up to about 8,000 samples of ImageNet, a warm-up is enough (Goyal et al. 2017); beyond, rates per
# layer were needed (LARS: You et al. 2017; LAMB: You et al. 2020).
LARGE, VERY_LARGE = 2048, 8192
FEW_STEPS = 50  # in an epoch
PER_LAYER = frozenset({"LARS", "LAMB", "Lars", "Lamb", "FusedLAMB", "LARC"})
# By attribute of the settings: what is on, and how it is turned off
SWITCHES = {
    "deterministic_algorithms": (
        "Deterministic algorithms are on.",
        "Unless runs must be equal bit for bit: torch.use_deterministic_algorithms(False).",
    ),
    "anomaly_detection": (
        "Autograd's anomaly detection is on.",
        "Turn it off once the bug is found: torch.autograd.set_detect_anomaly(False).",
    ),
    "autograd_profiler": (
        "A profiler of torch records every operator, and needs ever more memory.",
        "Stop it after some steps, or give it a schedule.",
    ),
}
BINDING = (
    "Look for OMP_PROC_BIND, GOMP_CPU_AFFINITY, KMP_AFFINITY, taskset, or a call of "
    "os.sched_setaffinity"
)


@dataclass(frozen=True)
class Gain:
    """What following an advice gives at most.

    Attributes:
        most: As a speedup: 1.3 is 1.3 times the samples/s.
    """

    most: float
    basis: str


@dataclass(frozen=True)
class Advice:
    """One thing that is worth a change.

    Attributes:
        name: Names the kind, such as ``input-bound: waiting``; stays the same between versions.
        where: The program's line, such as ``train.py:41``; empty if there is no single one.
        gain: What it gives at most; None if it does not concern speed, or that is not known.
    """

    name: str
    problem: str
    evidence: str
    mend: str
    where: str = ""
    gain: Gain | None = None


def advise(report: DoctorReport) -> tuple[Advice, ...]:
    """Return all advice, the largest possible gain first, advice without a known gain last."""
    found = (advice for member in MEMBERS for advice in member(report))
    return tuple(sorted(found, key=lambda a: -(a.gain.most if a.gain is not None else 0.0)))


def input_bound(report: DoctorReport) -> Iterator[Advice]:
    """Say that the program waits for its data, and what loading an item takes."""
    wait = report.measurement.wait_share
    gain = None
    if report.breakdown.synthetic_data_throughput is not None:
        gain = Gain(report.data_gain, "with its data always ready: one batch again and again")
    is_idle = gain is not None and gain.most < MIN_GAIN
    if not report.profile.loaders or wait < MIN_WAIT or is_idle:
        return
    waits = f"It waits for data {percent(wait)} of the time"
    items = report.examination.items
    if items is None:
        yield Advice(
            "input-bound",
            "The program waits for its data.",
            f"{waits}. Its items were not loaded one by one, so the cause is not known.",
            "autotune search finds the best number of workers.",
            gain=gain,
        )
        return
    share = items.computing_share
    if share > 0.5:
        name, cause = "computing", "its items are computed for long"
        mend = (
            "Let more workers load in parallel; decode and resize once, before the training, and "
            "store the result; replace loops over elements by operations on arrays."
        )
    else:
        name, cause = "waiting", "its items wait for a disk, a network, a lock or another process"
        mend = (
            "Let more workers wait at the same time; copy the data to a local disk or into memory "
            "(/dev/shm) first."
        )
    parts = f"{percent(share)} computing, {percent(1 - share)} waiting"
    item = f"an item takes {measured_duration(items.item_s)}: {parts}"
    if items.opens >= 1:
        item += f"; it opens {items.opens:,.3g} files"
    if items.opens >= MIN_OPENS:
        mend += " Pack many small files into few large ones (tar shards, HDF5, LMDB, Parquet)."
    where = items.where or (items.within and f"{items.within}, in a library")
    if items.where and items.within:
        where = f"{items.where} (in {items.within})"
    problem = f"The program waits for its data: {cause}."
    yield Advice(f"input-bound: {name}", problem, f"{waits}; {item}.", mend, where, gain)


def launch_bound(report: DoctorReport) -> Iterator[Advice]:
    """Say that calling operators takes most of a step."""
    found, share = report.breakdown.operators, report.breakdown.launch_share
    if found is not None and share >= LAUNCH_BOUND_SHARE:
        yield Advice(
            "launch-bound",
            "The operators of a step are so small that calling them takes most of the time.",
            f"A step calls {found.per_step:,} operators, and each call costs the host about "
            f"{1e6 * found.call_s:.1f} µs: {percent(share)} of a step.",
            "Make batches larger, compile the model (torch.compile), and use fused or foreach "
            "optimizers; autotune search tries all of them. Read whole tensors at once (.tolist()) "
            "instead of their elements (.item()).",
            gain=Gain(share_gain(share), "if the calls cost nothing"),
        )


def slowed_launches(report: DoctorReport) -> Iterator[Advice]:
    """Say that workers slow the main thread's launches down; not seen on a GPU.

    On a CPU nothing is said: there, workers share the cores with what computes, and a search
    weighs one against the other.
    """
    found = report.breakdown.operators
    if found is None or found.call_while_loading_s is None or report.profile.device == "cpu":
        return
    slower = found.call_while_loading_s / found.call_s if found.call_s else 1.0
    share = min(1.0, slower * report.breakdown.launch_share)
    if slower < MIN_SLOWER or share < LAUNCH_BOUND_SHARE:
        return
    workers = sum(loader.num_workers for loader in report.profile.loaders)
    yield Advice(
        "slowed launches",
        "The loader's workers slow down the thread that launches the kernels.",
        f"A call of an operator costs the host {1e6 * found.call_while_loading_s:.1f} µs while the "
        f"{workers} workers load, {1e6 * found.call_s:.1f} µs while they rest; calls take "
        f"{percent(share)} of a step.",
        "Use fewer workers, which autotune search tries, or give the training process a core of "
        "its own (taskset).",
        gain=Gain(share_gain(share * (1 - 1 / slower)), "if calls cost what they do meanwhile"),
    )


def padding(report: DoctorReport) -> Iterator[Advice]:
    """Say that much of what is computed is padding."""
    batches = report.breakdown.batches
    if batches is None or batches.padding is None or batches.padding.share < MIN_PADDING:
        return
    found, gain = batches.padding, padding_gain(report.breakdown)
    memory = "Memory stays as it is: the longest samples still make the largest batch."
    if found.largest_share < 1 - MIN_PADDING:
        memory = f"The largest batch then has {percent(found.largest_share)} of its tokens now."
    yield Advice(
        "padding",
        f"{percent(found.share)} of the tokens in the batches are padding.",
        f"Seen in {batches.count} batches, by {found.seen_in}. Batches of samples of like length "
        f"would have {percent(found.sorted_share)} of the tokens. {memory}",
        "Let a batch sampler draw samples of like length (in transformers: group_by_length), and "
        "fill up to the longest sample of a batch. It changes which samples share a step.",
        gain=Gain(gain, "if computing takes as much less as there are fewer tokens"),
    )


def many_shapes(report: DoctorReport) -> Iterator[Advice]:
    """Say that cuDNN times its algorithms for each of many shapes; not seen on a GPU."""
    batches, profile = report.breakdown.batches, report.profile
    times = profile.device == "cuda" and profile.settings.cudnn == "benchmark"
    if batches is None or not times or batches.shapes < MANY_SHAPES:
        return
    yield Advice(
        "many shapes",
        "torch.backends.cudnn.benchmark is on, and the shape of the batches changes.",
        f"{batches.count} batches had {batches.shapes} shapes; each is timed anew.",
        "Turn it off (torch.backends.cudnn.benchmark = False), or give batches few sizes.",
    )


def padding_gain(breakdown: StepBreakdown) -> float:
    """Return the speedup if batches held samples of like length; 1.0 without padding."""
    if breakdown.batches is None or breakdown.batches.padding is None:
        return 1.0
    split, fewer = breakdown.split, 1 - breakdown.batches.padding.sorted_share
    return share_gain(fewer * (split.compute_s / split.step_s if split is not None else 1.0))


def host_reads(report: DoctorReport) -> Iterator[Advice]:
    """Say that the device idles because values of tensors are read on the host."""
    split = report.breakdown.split
    if split is None or split.sync_s < MIN_SYNC_SHARE * split.step_s:
        return
    share = split.sync_s / split.step_s
    took = measured_duration(share * report.measurement.step_s)
    yield Advice(
        "reads on the host",
        "In each step, values of tensors are read on the host: .item(), .cpu(), print(loss).",
        f"These calls take {took}, {percent(share)} of a step.",
        "Read whole tensors at once (.tolist()), or keep sums as tensors and read them every few "
        "steps.",
        gain=Gain(share_gain(share), "if the reads took no time"),
    )


def unsearched(
    profile: Profile, measurement: Measurement, breakdown: StepBreakdown
) -> Iterator[str]:
    """Yield what slows a program down that a search does not change, one sentence each."""
    for name, problem, mend in switches_left_on(profile):
        gain = switch_gain(name, measurement, breakdown)
        cost = "it slows each step" if gain is None else f"off gives {gain.most:.2f}x"
        yield f"{problem.rstrip('.')}: {cost}. {mend}"
    found = None if breakdown.batches is None else breakdown.batches.padding
    if found is not None and found.share >= MIN_PADDING:
        most = padding_gain(breakdown)
        yield (
            f"{percent(found.share)} of tokens are padding: sorting gives at most {most:.1f}x. "
            "Batches of samples of like length need less of it."
        )


def switch_gain(name: str, measurement: Measurement, breakdown: StepBreakdown) -> Gain | None:
    """Return what was measured with a switch off; None if it was not."""
    off, now = breakdown.without_anomaly_throughput, measurement.throughput.estimate
    if name != "anomaly_detection" or off is None or not now:
        return None
    return Gain(max(1.0, off.estimate / now), "measured with it off")


def switches_left_on(profile: Profile) -> Iterator[tuple[str, str, str]]:
    """Yield the switches that are on: attribute of the settings, what that means, the mend."""
    for name, (problem, mend) in SWITCHES.items():
        if getattr(profile.settings, name):
            yield name, problem, mend


def debug_switches(report: DoctorReport) -> Iterator[Advice]:
    """Say which switches are on that help to find bugs, and slow down each step."""
    for name, problem, mend in switches_left_on(report.profile):
        gain = switch_gain(name, report.measurement, report.breakdown)
        seen = "It was on while the program trained."
        yield Advice(f"left on: {name}", problem, seen, mend, gain=gain)


def data_parallel(report: DoctorReport) -> Iterator[Advice]:
    """Say that DataParallel is in use; source: PyTorch's documentation of ``nn.DataParallel``."""
    count = report.profile.model.replicas
    if count < 2:  # it only calls the model
        return
    yield Advice(
        "DataParallel",
        "The model is wrapped in nn.DataParallel: one Python process drives all GPUs, and weights "
        "are copied to each of them in every step.",
        f"The wrapper was seen in the model; it divides batches among {count} GPUs.",
        "'autotune search --tune devices' compares it with one GPU and with a process per GPU "
        "(DistributedDataParallel), on the script as it is.",
    )


def affinity(report: DoctorReport) -> Iterator[Advice]:
    """Say that the training process, or its workers together, are tied to few cores."""
    found = report.examination.affinity
    if found is None:
        return
    allowed = len(found.allowed)
    computes_here = report.profile.device == "cpu"
    waits = report.measurement.wait_share >= MIN_WAIT
    # A program that computes on a GPU may bind itself to the cores next to it
    if len(found.main) < allowed and (computes_here or waits):
        most = allowed / len(found.main)
        yield Advice(
            "affinity: training process",
            f"The training process is tied to {_counted(len(found.main))} of {allowed}.",
            f"The kernel lets it run on {_listed(found.main)} only.",
            f"{BINDING}, and remove it.",
            gain=Gain(
                most if computes_here else min(most, report.data_gain), "the number of cores"
            ),
        )
        return  # its workers inherit it
    used = sorted({core for cores in found.workers for core in cores})
    wanted = min(len(found.workers), allowed)
    if found.workers and len(used) < wanted:
        yield Advice(
            "affinity: workers",
            f"The {len(found.workers)} workers of the loader share {_counted(len(used))}.",
            f"The kernel lets them run on {_listed(used)} only.",
            f"{BINDING}; a worker_init_fn can undo it: "
            "os.sched_setaffinity(0, range(os.cpu_count())).",
            gain=Gain(
                min(wanted / len(used), report.data_gain),
                "the number of cores, at most as with data always ready",
            ),
        )


def memory_growth(report: DoctorReport) -> Iterator[Advice]:
    """Say when memory will be full, if it grows steadily."""
    if (growth := report.examination.growth) is None:
        return
    on_device = growth_per_step(growth.device_bytes, growth.steps) > 0
    readings = growth.device_bytes if on_device else growth.host_bytes
    if not (grown := growth_per_step(readings, growth.steps)):
        return
    left = report.hardware.capacity_bytes(on_device=on_device) - readings[-1]
    hours = left / grown * report.measurement.step_s / HOUR
    if hours > SOON_H:
        return
    yield Advice(
        "memory growth",
        f"The {'GPU memory' if on_device else 'memory of the host'} grows with each step.",
        f"It grew by {size(grown)} a step, in stretches of "
        f"{growth.steps} steps. At this pace it is full in {format_duration(hours * HOUR)}.",
        "Keep numbers of past steps, not tensors with their graphs: losses.append(loss.item()), "
        "total += loss.detach(). Look for a list, dict or cache that the loop or the data set adds "
        "to. Workers copy the pages of Python objects that they read, which arrays avoid.",
    )


def stragglers(report: DoctorReport) -> Iterator[Advice]:
    """Name the slowest rank, and whether its loading or its computing is slow.

    It has to be the slowest each time: other programs slow now this rank and now that.
    """
    found = [_slowest(m.ranks) for m in (report.measurement, *report.again)]
    slow = [one for one in found if one is not None]
    if len(slow) < len(found) or len({load.rank for load, _, _ in slow}) > 1:
        return
    slowest, others, usual_s = slow[len(slow) // 2]
    work_s = slowest.own_s or 0.0
    lost_s = work_s - usual_s
    waits_longer = slowest.wait_s - median(load.wait_s for load in others)
    what = "loading its data" if waits_longer > lost_s / 2 else "computing"
    yield Advice(
        "straggler",
        f"Rank {slowest.rank} is slower than the others, and all of them wait for it.",
        "Without communication, and without waiting for a core, its step takes "
        f"{measured_duration(work_s)}, that of the others {measured_duration(usual_s)}; it spends "
        f"the difference on {what}.",
        "Give all ranks the same work: samples of equal length, the same files, no logging or "
        "evaluation on one rank alone; look for another process on its device or cores.",
        gain=Gain(slowest.step_s / (slowest.step_s - lost_s), "if it were as fast as the others"),
    )


def _slowest(ranks: Sequence[RankLoad]) -> tuple[RankLoad, list[RankLoad], float] | None:
    """Return the slowest rank, the others and the seconds of their step.

    None if nobody waits for it, or that is not known.
    """
    work_s = {load.rank: load.own_s for load in ranks if load.own_s is not None}
    if len(ranks) < 2 or len(work_s) < len(ranks):
        return None
    slowest = max(ranks, key=lambda load: work_s[load.rank])
    others = [load for load in ranks if load is not slowest]
    usual_s = median(work_s[load.rank] for load in others)
    lost_s = work_s[slowest.rank] - usual_s
    return (slowest, others, usual_s) if lost_s >= MIN_LOST_SHARE * slowest.step_s else None


def large_batch(report: DoctorReport) -> Iterator[Advice]:
    """Say that a large batch trains at its full rate from the first step on."""
    profile = report.profile
    samples = report.measurement.samples_per_step
    families = {name for optimizer in profile.optimizers for name in optimizer.families}
    if samples < LARGE or families & PER_LAYER:
        return
    loader = profile.training_loader
    steps = loader.dataset_len / samples if loader is not None and loader.dataset_len else None
    is_extreme = samples >= VERY_LARGE or (steps is not None and steps < FEW_STEPS)
    if not is_extreme or (_warms_up(profile) and samples < VERY_LARGE):
        return
    few = f", so an epoch has {steps:,.0f} steps" if steps is not None else ""
    warm = "" if _warms_up(profile) else " and the learning rate has no warm-up"
    yield Advice(
        "large batch",
        "Steps are so large that training may need a warm-up, or rates per layer.",
        f"A step takes {samples:,.0f} samples{few}{warm}.",
        "Warm the learning rate up over the first epochs; beyond about 8,000 samples try LARS or "
        "LAMB.",
    )


def _warms_up(profile: Profile) -> bool:
    """Return whether rates are below those that the program set."""
    return any(
        now < initial
        for optimizer in profile.optimizers
        for now, initial in zip(optimizer.lrs, optimizer.initial_lrs, strict=False)
    )


MEMBERS: tuple[Callable[[DoctorReport], Iterator[Advice]], ...] = (
    *(input_bound, launch_bound, slowed_launches, padding, host_reads, debug_switches),
    *(many_shapes, data_parallel, affinity, memory_growth, stragglers, large_batch),
)


def size(count: float) -> str:
    """Return bytes with a unit that fits: ``512 B``, ``3.4 KiB``, ``2.1 GiB``."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:,.3g} {unit}"
        count /= 1024
    return f"{count:,.3g} GiB"


def _counted(cores: int) -> str:
    return "one core" if cores == 1 else f"{cores} cores"


def _listed(cores: Sequence[int]) -> str:
    return f"core {cores[0]}" if len(cores) == 1 else f"cores {', '.join(map(str, cores))}"
