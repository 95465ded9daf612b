"""Whichever command is ended in whatever way: files, processes and memory are as they were.

``make pictures`` runs all of them; ``make test`` those of a search that is told to end. Of a search
that ends by itself or is killed, test_search.py shows the same.
"""

import signal

import pytest

from tests.made import make_loader
from tests.rigging import write_best
from tests.world import FOLDER, LATER_S, LEAVES, RECORD, Command, search, world

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

# What the program writes itself when it trains for real; the last folder torch makes for every
# program that has an optimizer
OWN = (
    f"{FOLDER}/out", f"{FOLDER}/notes.txt", "home/history", "home/.cache/torch", "tmp/mine-",
    "tmp/torchinductor_",
)  # fmt: skip
RESUME = Command(("resume",), ": workers\n", may=RECORD, has_result=True)
COMPARE = ("compare", "--budget", "60s", "written", "two.yaml", "train.py", *LEAVES)
COMMANDS = {
    "search": search("60s"),
    "resume": RESUME,
    "doctor": Command(("doctor", "train.py", *LEAVES), tries_folder=True),
    "dry run": Command(("search", "--dry-run", "train.py", *LEAVES), steps=2),
    "compare": Command(COMPARE),
    "run": Command(("run", "two.yaml", "train.py", "40"), may=OWN),
}
ENDS = {
    "by itself": None,
    "Ctrl-C": signal.SIGINT,
    "SIGTERM": signal.SIGTERM,
    "kill -9": signal.SIGKILL,
}
IN_THE_SUITE = {("search", "Ctrl-C"), ("search", "SIGTERM")}
CASES = [
    pytest.param(*case, marks=() if case in IN_THE_SUITE else pytest.mark.pictures)
    for case in ((name, end) for name in COMMANDS for end in ENDS)
]


@pytest.mark.parametrize(("name", "end"), CASES)
def test_nothing_differs_and_nothing_is_left(name: str, end: str) -> None:
    command, sent = COMMANDS[name], ENDS[end]
    with world() as here:
        if command is RESUME:
            here.end(COMMANDS["search"], signal.SIGKILL)
        if "two.yaml" in command.words:
            loader = make_loader(dataset="SlowItems", dataset_len=192, batch_size=16)
            write_best(here.folder / "two.yaml", {"workers": 0}, loader, workers=1)
        ended = here.end(command, sent, LATER_S if sent is signal.SIGKILL else 0.0)
    assert not ended.faults, "\n".join([*ended.faults, ended.said[-800:]])
