"""Snippet: the lines of Python that make the changes, to be put into the script by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from autotune.program.config import KnobValue
from autotune.results.bestfile import BestFile
from autotune.results.exporters.base import Export, Exporter, beyond_knobs, changes

LOADER = (
    "num_workers",
    "batch_size",
    "pin_memory",
    "persistent_workers",
    "prefetch_factor",
    "in_order",
)
OTHER_LOADER = {"worker_start_method": "multiprocessing_context"}
# M_TRIM_THRESHOLD and M_MMAP_MAX of glibc's malloc.h
_MALLOPT = "import ctypes; libc = ctypes.CDLL(None); libc.mallopt(-1, -1); libc.mallopt(-4, 0)"
LINES: Mapping[str, Callable[[KnobValue], str]] = {
    "num_threads": lambda v: f"torch.set_num_threads({v})",
    "interop_threads": lambda v: f"torch.set_num_interop_threads({v})  # before any work",
    "flush_denormal": lambda v: f"torch.set_flush_denormal({v})",
    "keep_freed_memory": lambda v: _MALLOPT if v else "",
    "matmul_precision": lambda v: f"torch.set_float32_matmul_precision({v!r})",
    "cudnn_benchmark": lambda v: f"torch.backends.cudnn.benchmark = {v}",
    "deterministic_algorithms": lambda v: f"torch.use_deterministic_algorithms({v})",
    "anomaly_detection": lambda v: f"torch.autograd.set_detect_anomaly({v})",
}
OPTIMIZER: Mapping[KnobValue, str] = {
    "fused": "fused=True",
    "foreach": "foreach=True",
    "for-loop": "foreach=False",
}
DTYPES: Mapping[KnobValue, str] = {"bf16": "torch.bfloat16", "fp16": "torch.float16"}


class Snippet(Exporter):
    """Writes Python that can be run as it stands, with comments where its names are used."""

    name = "snippet"
    file_name = "autotune_snippet.py"
    tool = "a snippet"

    def export(self, best: BestFile) -> Export:
        """Return the lines; of each change without any, why."""
        changed = changes(best)
        lines, left_out = ["import torch", ""], dict[str, str]()
        loader = {OTHER_LOADER.get(k, k): v for k, v in changed.items() if k in _LOADER_KNOBS}
        if loader:
            options = ", ".join(f"{name}={value!r}" for name, value in loader.items())
            lines.append(f"LOADER = dict({options})  # DataLoader(dataset, …, **LOADER)")
        for knob, value in changed.items():
            if knob in _LOADER_KNOBS:
                continue
            line = _line(knob, value, best)
            if line:
                lines.append(line)
            else:
                left_out[f"{knob}={value}"] = "it takes more than a line; 'autotune run' does it"
        return Export("\n".join(lines) + "\n", left_out | beyond_knobs(best))


_LOADER_KNOBS = {*LOADER, *OTHER_LOADER}


def _line(knob: str, value: KnobValue, best: BestFile) -> str:
    """Return the line that makes a change; empty if there is no single one."""
    line, use = "", ""
    match knob, value:
        case name, _ if name in LINES:
            line = LINES[knob](value)
        case "precision", "bf16" | "fp16":
            line = f"AUTOCAST = dict(device_type={best.program.device!r}, dtype={DTYPES[value]})"
            scaled = "; scale the loss by torch.amp.GradScaler" if value == "fp16" else ""
            use = f"with torch.autocast(**AUTOCAST): around the model's call{scaled}"
        case "precision", "tf32":
            line = "torch.set_float32_matmul_precision('high')"
        case "channels_last", True:
            line = "FORMAT = dict(memory_format=torch.channels_last)"
            use = "model.to(**FORMAT), images.to(**FORMAT)"
        case "compile", mode if mode != "off":
            line = f"COMPILE = dict(mode={mode!r})"
            use = "model = torch.compile(model, **COMPILE)"
        case "optimizer_implementation", how if how in OPTIMIZER:
            line, use = f"OPTIMIZER = dict({OPTIMIZER[how]})", "the optimizer's own arguments"
        case _:
            pass
    return f"{line}  # {use}" if use else line
