"""One storage for the lines of several machines: in memory, whatever address a page names.

PostgreSQL, gRPC, Slurm and Ray themselves are started by ``make cluster`` (``tests/cluster``). Here
a line of a page is read, joins a study and searches in virtual time; an executor's submission is
the member's line, run at once.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

import optuna
import pytest
from typer.testing import CliRunner

from autotune.cli.app import app
from autotune.cli.executors import MEMBERS, Submission
from autotune.cli.executors.base import Executor
from autotune.cli.executors.kubernetes import Kubernetes
from autotune.cli.executors.slurm import Slurm
from autotune.machine import host_lock
from autotune.tuning import joining

WORDS = {"--storage", "--serve", "--executor"}  # of a line that is about several machines


@contextmanager
def one_storage() -> Iterator[None]:
    """Let every address be one storage, serve nothing, and hold no lock: tests run side by side."""
    storage = optuna.storages.InMemoryStorage()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(joining, "open_store", lambda _address: storage)
        patch.setattr(joining, "served", lambda *_: nullcontext())
        patch.setattr(host_lock, "held", lambda _gpus: nullcontext())
        for one in MEMBERS.values():
            if one is not Kubernetes:  # which starts nothing
                patch.setattr(one, "submit", _submit)
                patch.setattr(one, "unfinished", lambda _executor: ())
        yield


def _submit(executor: Executor, line: Sequence[str], count: int) -> Submission:
    """Run the line of one member, as the executor would on another machine."""
    if isinstance(executor, Slurm):
        assert executor.script(line, count).splitlines()[-1].startswith("srun --cpus-per-task=")
    done = CliRunner().invoke(app, [*line[line.index("search") :]])
    assert done.exit_code == 0, done.output
    return Submission(("the one that was started",))
