"""What a terminal shows of a running search: the state that notebooks show, too."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

from autotune.integrations.progress import FollowingEvents, SearchProgress
from rich.console import Console as Output

from autotune.cli.live_view import LiveView
from autotune.knobs.space.space import ResolvedSpace
from autotune.program.config import Config
from autotune.results.record import TrialRecord
from tests.scripted import Script, begin


def shown(progress: SearchProgress) -> str:
    page = StringIO()
    Output(width=80, file=page).print(LiveView(progress))
    return page.getvalue()


class Watching(FollowingEvents):
    """Keeps what the terminal shows, each time that something happens."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def on_phase(self, name: str) -> None:
        super().on_phase(name)
        self.seen.append(shown(self.progress))

    def on_trial_start(self, config: Config, why: str, space: ResolvedSpace) -> None:
        super().on_trial_start(config, why, space)
        self.seen.append(shown(self.progress))

    def on_rounds(self, best: Config, speedup: float, space: ResolvedSpace) -> None:
        super().on_rounds(best, speedup, space)
        self.seen.append(shown(self.progress))

    def on_confirmation(self, candidate: TrialRecord, space: ResolvedSpace) -> None:
        super().on_confirmation(candidate, space)
        self.seen.append(shown(self.progress))


def test_the_view_follows_a_search_from_its_first_phase_to_its_end(tmp_path: Path) -> None:
    events = Watching()
    script = Script({"workers": {1: 1.5}})
    knobs = {"workers": (0, 1, 2), "batch_size": (64, 128)}
    result = begin(tmp_path, script, knobs).go_on(180.0, events)
    said = "\n".join(events.seen)
    phases = [said.index(phase) for phase in ("baseline", "searching", "confirming")]
    assert phases == sorted(phases)
    for words in ("━", "left", "now", "workers=1", "configs take turns", "why", "trials", "▁"):
        assert words in said
    assert all(len(line) <= 80 for text in events.seen for line in text.splitlines())
    best = events.progress.best
    assert best is not None
    assert best.changes == "workers=1", "the config that was confirmed"
    assert f"about {best.speedup:.2g}x  workers=1" in events.seen[-1]
    assert events.progress.is_over
    assert not shown(events.progress).count("now")
    assert result.best["workers"] == 1


def test_what_is_not_known_yet_is_left_out() -> None:
    progress = SearchProgress(speedups=[1.0])
    assert shown(progress).split() == ["starting"]
    assert progress.chart == "", "one trial is not a course"
    assert progress.spent_share == 0
    progress.speedups = [1.0, 1.5, 1.25]
    assert progress.chart == "▁█▄"
