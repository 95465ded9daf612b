"""torchrun: the line that starts the script with the config's ranks and variables."""

from __future__ import annotations

import shlex

from autotune.errors import UsageError
from autotune.program.devices import ranks_in, strategy_in
from autotune.results.bestfile import BestFile
from autotune.results.exporters.base import Export, Exporter, beyond_knobs, changes
from autotune.results.exporters.env_file import all_variables, variables

WRAPS = "the script must wrap it itself; 'autotune run' does that"


class Torchrun(Exporter):
    """Writes one line for a shell."""

    name = "torchrun"
    file_name = "train.sh"
    tool = "torchrun"

    def export(self, best: BestFile) -> Export:
        """Return the line.

        Raises:
            UsageError: The program is a function, which torchrun cannot start.
        """
        words = program_words(best)
        ranks = best.program.ranks or ranks_in(best.config)
        line = ["torchrun", "--standalone", "--nproc-per-node", str(ranks), *words]
        set_ = [f"{name}={value}" for name, value in all_variables(best).items()]
        left_out = {
            f"{knob}={value}": "torchrun has no option for it"
            for knob, value in changes(best).items()
            if knob not in variables(best) and not (knob == "devices" and ranks > 1)
        }
        if ranks > 1 and strategy_in(best.config, "own") != "own":
            left_out["the model"] = WRAPS
        return Export(shlex.join([*set_, *line]) + "\n", left_out | beyond_knobs(best))


def program_words(best: BestFile) -> list[str]:
    """Return the script or module with its arguments, without what starts them.

    Raises:
        UsageError: The program is a function.
    """
    words = shlex.split(best.program.command)
    while words and ("=" in words[0] or words[0] in {"python", "python3", "-u"}):
        words = words[1:]
    if words[:1] == ["torchrun"] or "accelerate" in words[:1]:
        script = next((n for n, word in enumerate(words) if word.endswith(".py")), None)
        if script is None:
            raise UsageError(f"The line '{best.program.command}' names no script.")
        words = words[script:]
    if not words or not (words[0].endswith(".py") or words[0] == "-m"):
        raise UsageError(
            f"'{best.program.command}' is not a script that a launcher can start. "
            "'autotune run' trains it."
        )
    return words
