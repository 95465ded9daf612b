"""Trains a small net for some epochs, with one habit that a setting would change the training of.

``planted.py HABIT`` has the habit; ``planted.py HABIT --sound`` does the same so that no setting
changes anything. The habits are the classes of ``planted_data.py``, ``planted_model.py``,
``planted_loss.py`` and ``planted_step.py``: ``block draws`` is ``BlockDraws``.
"""

import argparse

import planted_data
import planted_loss
import planted_model
import planted_step
import torch
from planted_loop import Source, Training

THEMES = (planted_data, planted_model, planted_loss, planted_step)
HABITS = {name: kind for theme in THEMES for name, kind in vars(theme).items()}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("habit")
    parser.add_argument("--sound", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    kind, planted = HABITS[options.habit.title().replace(" ", "")], not options.sound
    if not issubclass(kind, Training):
        part = "source" if issubclass(kind, Source) else "block"
        kind = type("Planted", (Training,), {part: kind})
    kind(planted).run()


if __name__ == "__main__":
    main()
