"""Snippet: the lines of Python that make the changes, to be put into the script by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from autotune.program.config import KnobValue
from autotune.results.bestfile import BestFile
from autotune.results.exporters.base import (
    LOADER,
    Export,
    Exporter,
    beyond_knobs,
    changes,
    loader_options,
)

# M_TRIM_THRESHOLD and M_MMAP_MAX of glibc's malloc.h
_MALLOPT = "import ctypes; libc = ctypes.CDLL(None); libc.mallopt(-1, -1); libc.mallopt(-4, 0)"
LINES: Mapping[str, Callable[[KnobValue], str]] = {
    "threads": lambda v: f"torch.set_num_threads({v})",
    "interop_threads": lambda v: f"torch.set_num_interop_threads({v})  # before any work",
    "flush_denormal": lambda v: f"torch.set_flush_denormal({v})",
    "keep_freed_memory": lambda v: _MALLOPT if v else "",
    "cudnn": lambda v: f"torch.backends.cudnn.benchmark = {v == 'benchmark'}",
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
        loader = {name: v for own in loader_options(best).values() for name, v in own.items()}
        if (method := changed.pop("worker_start_method", None)) is not None:
            loader["multiprocessing_context"] = method
        if loader:
            options = ", ".join(f"{name}={value!r}" for name, value in loader.items())
            lines.append(f"LOADER = dict({options})  # DataLoader(dataset, …, **LOADER)")
        for knob, value in changed.items():
            if knob in LOADER:
                continue
            line = _line(knob, value, best)
            if line:
                lines.append(line)
            else:
                left_out[f"{knob}={value}"] = "it takes more than a line; 'autotune run' does it"
        return Export("\n".join(lines) + "\n", left_out | beyond_knobs(best))


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
        case "precision", "tf32" | "medium":
            how = "high" if value == "tf32" else "medium"
            line = f"torch.set_float32_matmul_precision({how!r})"
        case "memory_format", "channels_last":
            line = "FORMAT = dict(memory_format=torch.channels_last)"
            use = "model.to(**FORMAT), images.to(**FORMAT)"
        case "compile", mode if mode != "off":
            dynamic = ", dynamic=True" if str(mode).endswith("-dynamic") else ""
            line = f"COMPILE = dict(mode={str(mode).removesuffix('-dynamic')!r}{dynamic})"
            use = "model = torch.compile(model, **COMPILE)"
        case "optimizer", how if how in OPTIMIZER:
            line, use = f"OPTIMIZER = dict({OPTIMIZER[how]})", "the optimizer's own arguments"
        case _:
            pass
    return f"{line}  # {use}" if use else line
