"""``ray``: the line as tasks of a Ray cluster, one on each node.

Each task starts the command line and waits for it; no object of autotune is sent. STRICT_SPREAD
puts every task on a node of its own. Tasks end with their driver, this process. Everyone can read
the variables of a task, so none is passed on: members have the environment of ``ray start``.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import psutil

from autotune.cli.executors.base import Executor, OptionParser, Submission
from autotune.errors import UsageError

PLACED_S = 30  # a cluster with room places a group in about a second
NO_CLUSTER = "No Ray cluster can be used; 'ray start --head' starts one, RAY_ADDRESS names one"


class Ray(Executor):
    """Starts one task a node."""

    name: ClassVar[str] = "ray"
    usage: ClassVar[str] = "'ray --cpus=8 --gpus=1'"

    def __init__(self, options: str) -> None:
        """Take how many cores and GPUs of its node each task claims, by default one core."""
        parser = OptionParser(Ray)
        parser.add_argument("--cpus", type=int, default=1)
        parser.add_argument("--gpus", type=int, default=0)
        self._wanted = parser.parse_args(parser.words(options))
        self._ray: Any = None  # the module
        self._tasks: dict[str, Any] = {}

    def submit(self, line: Sequence[str], count: int) -> Submission:
        try:
            ray, util = import_module("ray"), import_module("ray.util")
            # On the cluster that RAY_ADDRESS names, or that runs on this machine
            ray.init(address="auto", log_to_driver=True, logging_level="warning")
        except ImportError:
            raise UsageError("Ray is missing: pip install 'autotune-torch[ray]'") from None
        except (ConnectionError, RuntimeError, ValueError) as error:  # such as another version
            raise UsageError(f"{NO_CLUSTER}: {' '.join(str(error).split())}") from None
        self._ray = ray
        room = {"CPU": self._wanted.cpus, "GPU": self._wanted.gpus}
        group = util.placement_group([room] * count, strategy="STRICT_SPREAD")
        if not group.wait(PLACED_S):
            util.remove_placement_group(group)
            free = f"{room['CPU']} cores and {room['GPU']} GPUs free"
            raise UsageError(f"{count} workers need {count} nodes with {free}: see 'ray status'.")
        member = ray.remote(num_cpus=room["CPU"], num_gpus=room["GPU"], max_retries=0)(run)
        for number in range(count):
            place = util.scheduling_strategies.PlacementGroupSchedulingStrategy(group, number)
            placed = member.options(scheduling_strategy=place)
            self._tasks[f"task {number + 1}"] = placed.remote([*line], str(Path.cwd()), room["GPU"])
        return Submission(tuple(self._tasks), outlives_us=False)

    def unfinished(self) -> list[str]:
        # What has ended are also tasks whose node is gone, or has no such folder
        ended, _ = self._ray.wait([*self._tasks.values()], num_returns=len(self._tasks), timeout=0)
        return [handle for handle, task in self._tasks.items() if task not in ended]

    def password_note(self) -> str:
        return "AUTOTUNE_STORAGE and PGPASSFILE are for the workers as they were at 'ray start'."


def run(line: list[str], folder: str, gpus: int) -> int:
    """Run a line in a folder of the node, and return its exit status; a task of Ray.

    Its environment is the one in which ``ray start`` ran, that of this process's parent: in a task,
    Ray sets OMP_NUM_THREADS, and hides all GPUs where the task claims none.
    """
    variables = psutil.Process(os.getppid()).environ()
    if gpus:
        variables["CUDA_VISIBLE_DEVICES"] = os.environ["CUDA_VISIBLE_DEVICES"]
    # Ray ends this process when the driver has gone, but none that it has started
    ends_with_us = ("setpriv", "--pdeathsig=TERM", "--", *line)
    with subprocess.Popen(ends_with_us, cwd=folder, env=variables) as member:
        try:
            return member.wait()
        finally:  # Ray may ask this process to end before; ``run`` would kill the member then
            member.terminate()
