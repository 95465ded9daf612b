"""The real command line on a scripted machine in real time: `python -m tests.cluster.scripted_cli`.

Everything is as users run it, but for the program's processes: what a rig would answer comes from a
script (tests/scripted.py), after the seconds that the script says. All seconds that a member of a
study counts pass ``SCRIPTED_SPEED`` times as fast: those of the search, of turns and starts, and of
the beats. So a search of five minutes takes half a minute at ten, and is as often disturbed by a
fault of six seconds as by one of a minute. Deadlines of the network stay as they are.

Variables: ``SCRIPTED_SPEED`` (1), ``SCRIPTED_SEED`` (0), ``SCRIPTED_OMEGA``: the standard deviation
by which the logarithm of a config's speedup differs from machine to machine (0.01), and
``SCRIPTED_HOST``: a name under which this process plays a host of its own.
"""

import os
import random
import socket
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import cast

from autotune import api
from autotune.cli.app import main
from autotune.machine import host_lock
from autotune.measurement.outcome import Ending
from autotune.program.config import Config
from autotune.results.record import SearchInfo
from autotune.rig.open_rig import ShouldStop
from autotune.sharing import liveness
from autotune.sharing.membership import Membership
from autotune.tuning import joining
from autotune.tuning.events import Events
from autotune.tuning.surroundings import THIS_MACHINE
from tests.made import make_profile
from tests.scripted import Script, ScriptedMachine, VirtualClock

SPEED = float(os.environ.get("SCRIPTED_SPEED", "1"))
SEED = int(os.environ.get("SCRIPTED_SEED", "0"))
OMEGA = float(os.environ.get("SCRIPTED_OMEGA", "0.01"))
LOOK_S = 0.05  # a process looks so often whether it shall go on


class FastClock(VirtualClock):
    """Goes ``SPEED`` times as fast as a real one; setting it sleeps until then."""

    @property
    def now_s(self) -> float:
        return monotonic() * SPEED

    @now_s.setter
    def now_s(self, until_s: float) -> None:
        sleep(max(0.0, until_s / SPEED - monotonic()))

    def __init__(self) -> None:
        """There is nothing to set: it is always now."""


@dataclass
class OfThisHost(Script):
    """A script whose speedups are a bit other ones on each host."""

    def rate(self, config: Config) -> float:
        of_this_host = random.Random(f"{socket.gethostname()} {sorted(config.items())}")
        factor = cast("float", 2.718281828 ** of_this_host.gauss(0.0, OMEGA))
        return super().rate(config) * factor


class MachineInRealTime(ScriptedMachine):
    """Runs a script in real seconds."""

    def __init__(self, script: Script, seed: int) -> None:
        super().__init__(script, seed)
        self.clock = FastClock()

    def pass_time(self, seconds: float, should_stop: ShouldStop) -> Ending | None:
        until = self.clock.now_s + seconds
        while (left_s := until - self.clock.now_s) > 0:
            sleep(min(left_s / SPEED, LOOK_S))
            if ending := should_stop():
                return ending
        return None


SCRIPT = OfThisHost(
    {
        "workers": {1: 1.2, 2: 1.3},
        "precision": {"bf16": 1.2},
        "malloc": {"jemalloc": 1.05, "thp": 1.1},
        "devices": {"ddp-2": 1.15},
        "threads": {1: 0.9},
    },
    profile=make_profile(),
    start_s=5.0,
    compile_s=4.0,
    step_s=0.5,  # rounds are few, so that the arithmetic of several members leaves time for them
    noise=0.03,
)


def play_a_host(name: str) -> None:
    """Let this process be one of another host than others of this machine."""
    vars(socket).update(gethostname=lambda: name)
    vars(host_lock).update(held=lambda _gpus: nullcontext())


def hurry() -> None:
    """Let beats, and what waits for them, pass as fast as the search's seconds."""
    join = joining.joined

    def by_a_real_clock(
        run: Path, head: SearchInfo, events: Events, _clock: object, *, resumes: bool = False
    ) -> AbstractContextManager[Membership]:
        return join(run, head, events, resumes=resumes)

    vars(liveness).update(BEAT_S=liveness.BEAT_S / SPEED)
    vars(api).update(joined=by_a_real_clock)


def begin() -> None:
    """Run the command line."""
    if name := os.environ.get("SCRIPTED_HOST"):
        play_a_host(name)
    seed = random.Random(f"{SEED} {socket.gethostname()}").getrandbits(32)
    machine = MachineInRealTime(SCRIPT, seed)
    hurry()
    for part, scripted in vars(machine.surroundings).items():
        vars(THIS_MACHINE)[part] = scripted  # frozen; as in tests/docs/project.py
    main()


if __name__ == "__main__":
    begin()
