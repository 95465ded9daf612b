"""Charts of the report: each takes figures and returns a drawing."""

from __future__ import annotations

import math
from collections.abc import Sequence

from autotune.measurement.interval import Interval
from autotune.measurement.outcome import Outcome
from autotune.report.figures import Moment, Point, Process, Steps
from autotune.report.svg import WIDTH, Drawing, Scale, stairs
from autotune.results.contribution import Contribution
from autotune.results.wording import times

LEFT, RIGHT = 34.0, WIDTH - 12.0
ROW, BAR = 34.0, 16.0
PARTS = ("data wait", "host to device", "compute", "optimizer", "sync calls", "Python and launch")
KINDS = {name: f"part{number}" for number, name in enumerate(PARTS)} | {"everything else": "part2"}
NAMED = 8  # changes with a bar each; a drawing of more cannot be read


def step_bars(steps: Steps) -> Drawing:
    """Draw where the time of a step goes, with the ceilings as lines."""
    longest = max(*(bar.total_ms for bar in steps.bars), *steps.ceilings.values(), 0.0)
    parts = list(dict.fromkeys(name for bar in steps.bars for name in bar.parts))
    bottom = 8 + ROW * len(steps.bars)
    legend = bottom + 24 + 12 * len(steps.ceilings)
    drawing = Drawing(legend + 14 * math.ceil(len(parts) / 2), "Milliseconds of a step by part")
    scale = Scale(0.0, 1.05 * longest, 14, RIGHT)
    drawing.horizontal_axis(scale, bottom, 4, " ms")
    for number, bar in enumerate(steps.bars):
        top, done = 8 + ROW * number, 0.0
        drawing.text(4, top + 8, f"{bar.name}: {bar.total_ms:,.3g} ms", "strong")
        for name, ms in bar.parts.items():
            tip = f"{name}: {ms:,.3g} ms, {ms / bar.total_ms:.0%}"
            x = scale(done)
            drawing.box(x, top + 12, scale(done + ms) - x, BAR, KINDS.get(name, "part5"), tip)
            done += ms
    for number, (name, ms) in enumerate(steps.ceilings.items()):
        drawing.line(scale(ms), 4, scale(ms), bottom, "ceiling")
        drawing.text(4, bottom + 24 + 12 * number, f"┆ {name}: {ms:,.3g} ms", "ceiling-label")
    for number, name in enumerate(parts):
        x, y = 4 + WIDTH / 2 * (number % 2), legend + 14 * (number // 2)
        drawing.box(x, y, 9, 9, KINDS.get(name, "part5"))
        drawing.text(x + 13, y + 8, name)
    return drawing


def proof(processes: Sequence[Process], speedup: Interval, each_is: str) -> Drawing:
    """Draw what each process has shown, and the interval that they amount to together."""
    ratios = [bound for one in processes for bound in (one.speedup.low, one.speedup.high)]
    ratios += [speedup.low, speedup.high, 1.0]
    scale = Scale(0.95 * min(ratios), 1.05 * max(ratios), LEFT, RIGHT, is_log=True)
    bottom = 22.0 + 16 * len(processes)
    drawing = Drawing(bottom + 31, "The speedup in each process of the claim")
    middle = (scale(speedup.low), scale(speedup.high))
    drawing.box(middle[0], 10, middle[1] - middle[0], bottom - 10, "band", times(speedup))
    drawing.horizontal_axis(scale, bottom, 10, "x")
    drawing.line(scale(1.0), 10, scale(1.0), bottom, "one")
    drawing.line(scale(speedup.estimate), 10, scale(speedup.estimate), bottom, "estimate")
    for place, one in enumerate(processes):
        y = 22.0 + 16 * place
        drawing.line(scale(one.speedup.low), y, scale(one.speedup.high), y, "whisker")
        what = "the process of the search" if one.is_of_search else each_is
        drawing.dot(scale(one.speedup.estimate), y, "process", f"{what}: {times(one.speedup)}")
        drawing.text(2, y + 3, f"no. {one.number}")
    drawing.dot(8, bottom + 24, "process")
    drawing.text(15, bottom + 27, f"{each_is}, with its own error")
    return drawing


def waterfall(contributions: Sequence[Contribution], speedup: Interval) -> Drawing:
    """Draw what each change gives, on a scale of equal ratios, with intervals."""
    shown = sorted(contributions, key=lambda one: -one.gain.estimate)[:NAMED]
    bounds = [b for one in shown for b in (one.gain.low, one.gain.high)]
    scale = Scale(
        min(0.9, 0.97 * min(bounds, default=1.0)),
        1.05 * max([speedup.high, *bounds]),
        6,
        RIGHT,
        is_log=True,
    )
    bottom = 6.0 + 30 * (len(shown) + 1)
    drawing = Drawing(bottom + 18, "What each change gives on top of the others")
    drawing.horizontal_axis(scale, bottom, 4, "x")
    drawing.line(scale(1.0), 4, scale(1.0), bottom, "one")
    for number, one in enumerate(shown):
        label = f"{one.knob} {one.before} → {one.after}: {times(one.gain)}"
        _gain(drawing, scale, 6.0 + 30 * number, one.gain, label, "gain")
    _gain(drawing, scale, 6.0 + 30 * len(shown), speedup, f"together: {times(speedup)}", "total")
    return drawing


def _gain(
    drawing: Drawing, scale: Scale, top: float, gain: Interval, label: str, kind: str
) -> None:
    ends = sorted((scale(1.0), scale(gain.estimate)))
    drawing.text(6, top + 9, label, "strong" if kind == "total" else "label")
    drawing.box(ends[0], top + 13, ends[1] - ends[0], 9, kind, label)
    drawing.line(scale(gain.low), top + 17.5, scale(gain.high), top + 17.5, "whisker")


def progress(moments: Sequence[Moment]) -> Drawing:
    """Draw the best speedup of the trials one by one, and each trial as a tick."""
    drawing = Drawing(150, "Best speedup after each trial")
    best = [moment.best for moment in moments]
    across = Scale(0.0, max(4.0, len(moments) - 1.0), LEFT, RIGHT)
    up = Scale(min(1.0, *best) - 0.02, 1.05 * max(1.0, *best), 112, 8)
    drawing.vertical_axis(up, LEFT, RIGHT, "x")
    drawing.horizontal_axis(across, 128, 112)
    course = [(across(number), up(moment.best)) for number, moment in enumerate(moments)]
    drawing.path([*stairs(course)], "progress")
    for number, moment in enumerate(moments):
        x, kind = across(number), "ok" if moment.outcome is Outcome.OK else "failed"
        drawing.box(x - 0.7, 117, 1.4, 9, kind, f"trial {number}: {moment.outcome}")
    return drawing


def memory_and_speed(points: Sequence[Point], limit_gib: float) -> Drawing:
    """Draw configs by peak memory and speedup; a dashed line is the limit if it is near."""
    sizes, speeds = [p.gib for p in points], [p.speedup for p in points]
    reach = max(sizes) - min(sizes) or 0.1 * max(sizes)
    has_limit = limit_gib < max(sizes) + reach
    most = limit_gib if has_limit else max(sizes)
    across = Scale(max(0.0, min(sizes) - 0.1 * reach), most + 0.1 * reach, LEFT, RIGHT)
    up = Scale(0.95 * min(speeds), 1.05 * max(speeds), 128, 10)
    drawing = Drawing(162, "Configs by peak memory and speedup")
    drawing.vertical_axis(up, LEFT, RIGHT, "x")
    drawing.horizontal_axis(across, 132, 8, " GiB")
    if has_limit:
        drawing.line(across(limit_gib), 8, across(limit_gib), 132, "ceiling")
    ordered = sorted(points, key=lambda p: p.gib)
    front = [(across(p.gib), up(p.speedup)) for p in ordered if p.kind in {"front", "best"}]
    drawing.path(front, "front-line")
    for point in sorted(points, key=lambda p: p.kind == "best"):
        tip = f"{point.changes}: {point.speedup:.2f}x, {point.gib:.2f} GiB"
        radius = 5.0 if point.kind == "best" else 3.0
        drawing.dot(across(point.gib), up(point.speedup), point.kind, tip, radius)
    for number, (kind, text) in enumerate(
        (("best", "best"), ("baseline", "as written"), ("front", "no other beats it in both"))
    ):
        x = (6, 62, 146)[number]
        drawing.dot(x, 156, kind)
        drawing.text(x + 7, 159, text)
    return drawing
