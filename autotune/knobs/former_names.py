"""Former names of knobs and spaces, and what to type now.

Names outlive versions in commands, in search spaces and in best.yaml files. A former name is an
error that says where its setting is now: a value of one knob can be part of another's.
"""

from __future__ import annotations

from collections.abc import Iterable

from autotune.errors import did_you_mean

DOCTOR = "is not searched any more; 'autotune doctor' tells if it is on"
# Until 0.1, November 2026
FORMER_KNOBS = {
    "num_workers": "is now part of workers",
    "persistent_workers": "is now part of workers, which are kept between epochs",
    "pin_memory": "is now part of pinning (off, non-blocking)",
    "non_blocking": "is now part of pinning (off, non-blocking)",
    "num_threads": "is now threads",
    "matmul_precision": "is now part of precision (medium)",
    "channels_last": "is now memory_format (contiguous, channels_last)",
    "cudnn_benchmark": "is now cudnn (default, benchmark)",
    "optimizer_implementation": "is now optimizer",
    "sdpa_backend": "is now attention",
    "compile_dynamic": "is now part of compile (default-dynamic)",
    "strategy": "is now part of devices (single, ddp-2)",
    "world_size": "is now part of devices (single, ddp-2)",
    "ddp_bucket_cap_mb": "is now part of ddp_options (small-buckets, large-buckets)",
    "ddp_gradient_as_bucket_view": "is now part of ddp_options (bucket-view)",
    "ddp_static_graph": "is now part of ddp_options (static-graph)",
    "fsdp_shard": "is now part of fsdp_options (whole)",
    "fsdp_reshard_after_forward": "is now part of fsdp_options (keep-gathered)",
    "fsdp_mixed_precision": "is now part of fsdp_options (bf16)",
    "fsdp_cpu_offload": "is now part of fsdp_options (cpu-offload)",
    "malloc": "is not searched any more; set LD_PRELOAD yourself",
    "zero_grad_to_none": "is not searched any more; zero_grad() without set_to_none=False does it",
    "deterministic_algorithms": DOCTOR,
    "anomaly_detection": DOCTOR,
    "autograd_profiler": DOCTOR,
}


def unknown_knob(name: str, known: Iterable[str], where: str = "") -> str:
    """Return what is wrong with the name of an unknown knob, as sentences.

    Args:
        where: Option or file that it stands in; empty if the message tells it elsewhere.
    """
    place = f" in {where}" if where else ""
    if name in FORMER_KNOBS:
        return f"{name}{place} {FORMER_KNOBS[name]}."
    return f"Unknown knob '{name}'{place}.{did_you_mean(name, known)}"
