"""Trains a small net for some epochs, with one habit that a setting would change the training of.

``planted.py HABIT`` has the habit; ``planted.py HABIT --sound`` does the same so that no setting
changes anything. The habits are in ``planted_data.py``, ``planted_model.py``, ``planted_loss.py`` and
``planted_step.py``.
"""

import argparse

import planted_data
import planted_loss
import planted_model
import planted_step
import torch
from planted_loop import Source, Training

THEMES = (planted_data, planted_model, planted_loss, planted_step)
HABITS = {"none": Training} | {name: kind for theme in THEMES for name, kind in theme.HABITS.items()}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("habit", choices=HABITS)
    parser.add_argument("--sound", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    kind, planted = HABITS[options.habit], not options.sound
    parts = {"source": kind} if issubclass(kind, Source) else {"block": kind}
    training = kind if issubclass(kind, Training) else type("Planted", (Training,), parts)
    training(planted).run()


if __name__ == "__main__":
    main()
