"""What earlier versions had on the command line, and what to type now.

An old word is refused with one line, so that no script changes its meaning unseen. A program's own
options of these names stand after the program and are its own.
"""

from __future__ import annotations

from autotune.tuning.search_request import GONE

COMMANDS = {
    "dashboard": "optuna-dashboard sqlite:///.autotune/SEARCH/study.db",
    "env": "autotune doctor --report",
    "knobs": "autotune search --dry-run PROGRAM",
    "log": "autotune export --to mlflow (or wandb, tensorboard)",
    "measure": "autotune doctor PROGRAM",
    "report": "autotune show --html (or --md)",
    "runs": "autotune show --list",
}
OPTIONS = {
    **{f"--{name.replace('_', '-')}": typed for name, (typed, _) in GONE.items()},
    "--format": "--html or --md",
}
