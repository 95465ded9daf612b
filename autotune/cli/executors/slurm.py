"""``slurm``: the line as a job array of Slurm, submitted by ``sbatch``.

The batch script is read from stdin and holds the line, Slurm's options and nothing else; passwords
reach the job in its environment, which sbatch passes on (``--export=ALL``, its default). ``srun``
takes ``--cpus-per-task`` from its own line: since Slurm 22.05 it does not inherit it from the job
(release notes, "srun will no longer read in SLURM_CPUS_PER_TASK"). Two minutes before the job's
time is over, USR1 reaches the job's steps, and the worker finishes its turn and leaves.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Collection, Sequence
from typing import ClassVar

from autotune.cli.executors.base import Executor, OptionParser, Submission
from autotune.errors import UsageError

ASK_S = 60  # how long Slurm's commands may take; slurmctld itself times out at 10 s by default
BEFORE_END_S = 120  # a turn, its results and the end of the program take less
# -M is no option of ours, but squeue would have to be asked there as well
REFUSED = (
    ("--array", "-a"), ("--wrap",), ("--signal",), ("--ntasks", "-n"), ("--nodes", "-N"),
    ("--clusters", "-M"),
)  # fmt: skip
# The "STATE CODES" of squeue from which no job goes on; one that it no longer knows has ended, too
ENDED = {
    None, "COMPLETED", "CANCELLED", "PREEMPTED", "TIMEOUT",
    "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE",
}  # fmt: skip


class Slurm(Executor):
    """Submits one job array."""

    name: ClassVar[str] = "slurm"
    usage: ClassVar[str] = "'slurm --cpus-per-task=8 --gres=gpu:1 --partition=gpu --time=60'"

    def __init__(self, options: str) -> None:
        """Take options of ``sbatch``; ``--cpus-per-task`` has to be among them."""
        parser = OptionParser(Slurm)
        parser.add_argument("--cpus-per-task", "-c", type=int)
        for names in REFUSED:
            parser.add_argument(*names, dest=names[0])
        self._options = parser.words(options)
        given = vars(parser.parse_known_args(self._options)[0])
        if own := next((one for (one, *_) in REFUSED if given[one] is not None), None):
            parser.error(
                f"{own} cannot be set: --workers says how many jobs there are, each has one node "
                "and one task of this cluster, and USR1 asks it to leave"
            )
        self._cores = given["cpus_per_task"]
        if self._cores is None:
            parser.error("without a number of cores, Slurm gives each worker one")

    def script(self, line: Sequence[str], count: int) -> str:
        """Return the batch script of the whole array."""
        return (
            "#!/bin/bash\n"
            "#SBATCH --job-name=autotune\n"
            f"#SBATCH --array=1-{count}\n"
            "#SBATCH --nodes=1\n"
            "#SBATCH --ntasks=1\n"
            "#SBATCH --requeue\n"
            "#SBATCH --open-mode=append\n"
            f"#SBATCH --signal=USR1@{BEFORE_END_S}\n"
            f"srun --cpus-per-task={self._cores} {shlex.join(line)}\n"
        )

    def submit(self, line: Sequence[str], count: int) -> Submission:
        said = _asked(["sbatch", "--parsable", *self._options], self.script(line, count))
        self._job = job = said.strip().splitlines()[-1].partition(";")[0]  # JOB, or JOB;CLUSTER
        self._handles = tuple(f"job {job}_{number}" for number in range(1, count + 1))
        return Submission(
            self._handles,
            f"'scancel --signal=USR1 {job}' lets them finish their turn and leave; "
            f"'scancel {job}' ends them at once.",
        )

    def unfinished(self) -> Collection[str] | None:
        try:
            said = _asked(
                ["squeue", "--noheader", "--array", "--states=all", f"--jobs={self._job}",
                 "--format=%i %T"]
            )  # fmt: skip
        except UsageError as error:
            if "Invalid job id" not in str(error):  # of another error nothing follows
                return None
            said = ""
        states = dict(one.split(maxsplit=1) for one in said.splitlines())
        return [one for one in self._handles if states.get(one.removeprefix("job ")) not in ENDED]


def _asked(command: Sequence[str], text: str = "") -> str:
    """Run a command of Slurm and return what it prints.

    Raises:
        UsageError: It is missing, fails, or does not answer; the message has its own words.
    """
    try:
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=ASK_S, check=False
        )
    except OSError as error:
        raise UsageError(f"'{command[0]}' cannot be started: {error.strerror}.") from None
    except subprocess.TimeoutExpired:
        raise UsageError(f"{command[0]} has not answered for {ASK_S} s.") from None
    if done.returncode:
        raise UsageError(f"{command[0]} refuses: {' '.join(done.stderr.split())}")
    return done.stdout
