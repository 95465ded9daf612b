from __future__ import annotations

import linecache
from pathlib import Path
from types import SimpleNamespace

from autotune.inside.seams.trainers import TrainersSeam
from tests.watching import profile_of

STEP = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train_step(batch):
    x, y = batch
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
"""
BY_STEPS = {
    "batches = cycle(loader)\nfor step in range(200):\n    train_step(next(batches))": (
        "for step in range(200)"
    ),
    """
max_steps = 200
def batches():
    while True:
        for batch in loader:
            yield batch
def main():
    steps = 0
    feed = batches()
    while steps < max_steps:
        train_step(next(feed))
        steps += 1
main()
""": "while steps < max_steps",
    """
step = 0
while True:
    for batch in loader:
        train_step(batch)
        step += 1
        if step >= 200:
            sys.exit()
        if step > 150:
            break
    if step > 150:
        break
""": "if step > 150: break",
    """
def aside(first=1, second=2, /, third=3, *, fourth, fifth=5):
    pass
def train(most=200):
    done = 0
    for epoch in range(1000):
        for batch in loader:
            train_step(batch)
            done += 1
            if done == most:
                return
train()
""": "if done == most: return",
    """
done = 0
while done < 200:
    for batch in loader:
        train_step(batch)
        done += 1
""": "while done < 200",
    "for epoch in range(9):\n    for batch in islice(loader, 10):\n        train_step(batch)": (
        "for batch in islice(loader, 10)"
    ),
    "for _, batch in zip(range(99), cycle(loader)):\n    train_step(batch)": (
        "for (_, batch) in zip(range(99), cycle(loader))"
    ),
    """
parser = argparse.ArgumentParser()
parser.add_argument("--max-steps", type=int, default=24)
args = parser.parse_args()
class Trainer:
    global_step = 0
    def step(self, batch):
        train_step(batch)
        self.global_step += 1
trainer = Trainer()
for epoch in count():
    for batch in loader:
        trainer.step(batch)
        if trainer.global_step >= args.max_steps:
            break
""": "if trainer.global_step >= args.max_steps: break",
}
BY_DATA = (
    "for epoch in range(10):\n    for batch in loader:\n        train_step(batch)",
    "for epoch in range(10):\n    for i, batch in enumerate(loader):\n        train_step(batch)",
    """
for epoch in range(10):
    batches = iter(loader)
    for i in range(len(loader)):
        train_step(next(batches))
""",
    """
per_epoch = len(loader)
for epoch in range(10):
    batches = iter(loader)
    for i in range(per_epoch):
        train_step(next(batches))
""",
    """
parser = argparse.ArgumentParser()
parser.add_argument("--max_train_steps", type=int, default=None)
args = parser.parse_args()
if args.max_train_steps is None:
    args.max_train_steps = 3 * len(loader)
completed = 0
for epoch in range(3):
    for batch in loader:
        train_step(batch)
        completed += 1
        if completed >= args.max_train_steps:
            break
""",
    """
epoch, seen, patience = 0, 0, 0
while epoch < 10 and seen < 10_000:
    for batch in loader:
        train_step(batch)
        seen += len(batch[0])
        patience += 1
        if seen < 0:
            patience = 0
        if patience > 500:
            break
    epoch += 1
    if epoch >= 9:
        break
""",
)


def test_a_loop_that_makes_a_number_of_steps_is_told_by_its_own_line(tmp_path: Path) -> None:
    for loop, said in BY_STEPS.items():
        linecache.clearcache()
        found = profile_of(tmp_path, STEP + loop).bounded_by_steps
        file, _, text = found.partition(": ")
        assert text == said, loop
        line = int(file.removeprefix("train.py:"))
        source = (tmp_path / "train.py").read_text().splitlines()[line - 1]
        assert said.split()[0] in source, (said, source)


def test_a_loop_that_its_data_end_is_not_said_to_make_a_number_of_steps(tmp_path: Path) -> None:
    for loop in BY_DATA:
        linecache.clearcache()
        assert profile_of(tmp_path, STEP + loop).bounded_by_steps == "", loop


def test_a_flag_counts_only_where_the_loop_cannot_be_read(tmp_path: Path) -> None:
    flag = """
parser = argparse.ArgumentParser()
parser.add_argument("--max-steps", type=int, default=24)
args = parser.parse_args()
"""
    by_data = flag + BY_DATA[0]
    assert profile_of(tmp_path, STEP + by_data).bounded_by_steps == ""
    hidden = flag + "exec('for epoch in range(9):\\n    for batch in loader: train_step(batch)')"
    assert profile_of(tmp_path, STEP + hidden).bounded_by_steps == "--max-steps 24"


class OfLightning:
    """A trainer with the attributes of Lightning's."""

    def __init__(self, max_steps: int, max_epochs: int | None) -> None:
        self.max_steps, self.max_epochs = max_steps, max_epochs
        self.accumulate_grad_batches = 1


class OfHuggingFace:
    """A trainer with the attributes of Hugging Face's."""

    def __init__(self, max_steps: int) -> None:
        self.args = SimpleNamespace(max_steps=max_steps, num_train_epochs=3.0)


def test_a_trainer_that_was_told_how_many_steps_to_make_is_bounded_by_them() -> None:
    for trainer, said in (
        (OfLightning(200, -1), "max_steps=200 of its OfLightning"),
        (OfLightning(-1, 3), ""),
        (OfLightning(200, 3), ""),  # whichever ends first
        (OfHuggingFace(200), "max_steps=200 of its OfHuggingFace"),
        (OfHuggingFace(-1), ""),
    ):
        seam = TrainersSeam(endless=True)
        seam._begins(trainer, "lightning")
        assert seam.bound == said
