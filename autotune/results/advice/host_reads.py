"""A line of the program reads tensors on the host in each step."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.results.advice.base import Advice, Gain, Readings, ms, share_gain

MIN_SHARE = 0.03  # of a step; less is not worth an edit


def host_reads(readings: Readings) -> Iterator[Advice]:
    """Name the lines whose reads take a noticeable share of a step."""
    step_s = readings.examination.step_s
    by_line: dict[str, list[int]] = {}
    reads = readings.examination.host_reads
    for number, one in enumerate(reads):
        by_line.setdefault(one.where, []).append(number)
    for where, numbers in by_line.items():
        its = [reads[number] for number in numbers]
        seconds, count = sum(one.step_s for one in its), sum(one.per_step for one in its)
        is_cpu = readings.profile.device == "cpu"
        if not is_cpu:  # waiting for work that is queued is not lost; idling of the device is
            split = readings.breakdown.split
            seconds = min(seconds, 0.0 if split is None else split.sync_s)
        share = seconds / step_s if step_s else 0.0
        if share < MIN_SHARE:
            continue
        means = "each is a call from Python" if is_cpu else "the device idles in this time"
        yield Advice(
            "reads on the host",
            f"In each step, tensors are read on the host by .{its[0].method}().",
            f"{count:,.3g} reads in a step take {ms(seconds)}, {share:.0%} of it; {means}.",
            "Read whole tensors at once (.tolist()), or keep sums as tensors and read them every "
            "few steps.",
            where=where,
            gain=Gain(share_gain(share), "if the reads took no time"),
        )
