"""SLURM: a batch script that trains with the config on one node, by ``autotune run``."""

from __future__ import annotations

from shlex import quote, split

from autotune.program.devices import ranks_in
from autotune.results.bestfile import BestFile
from autotune.results.exporters.base import Export, Exporter

TEMPLATE = """\
#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task={cores}
#SBATCH --mem={memory_gib}G
{gpus}#SBATCH --output=%x-%j.log
# Add --time, --partition and --account as your cluster asks for them.
set -euo pipefail
srun autotune run {path} -- {command}
"""


class Sbatch(Exporter):
    """Writes a batch script, which applies all of best.yaml."""

    name = "sbatch"
    file_name = "train.sbatch"
    tool = "sbatch"

    def export(self, best: BestFile) -> Export:
        """Return the script: it asks for the cores, GPUs and memory of the search's machine."""
        machine = best.hardware
        gpus = ranks_in(best.config) if machine.gpus else 0
        script = TEMPLATE.format(
            name="autotune",
            cores=machine.cpu_quota,
            memory_gib=max(1, machine.memory_bytes >> 30),
            gpus=f"#SBATCH --gpus-per-node={gpus}\n" if gpus else "",
            path="best.yaml",
            command=" ".join(map(quote, split(best.program.command))),
        )
        return Export(script)
