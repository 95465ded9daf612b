"""Published peak FLOP/s of GPUs, and the share of the peak that a training step achieves.

Covered: whole NVIDIA GPUs in the table below, by the name that NVML reports.
Not covered: CPUs, MIG slices, vGPUs, laptop and export variants, and any other GPU that is not in
the table. These have no peak here, rather than that of a GPU with a similar name. A power cap or a
lowered clock is ignored: the share refers to the published peak.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple


class Peak(NamedTuple):
    """Peak dense FLOP/s of one GPU model as NVIDIA publishes it; None if it lacks such a unit.

    Attributes:
        name_pattern: Regular expression for all of NVML's device name after ``NVIDIA``, ``Tesla``
            or ``GeForce``. The whole name must match: an L4 is not an L40S, and an RTX 4090 is not
            an RTX 4090 D.
        fp32: CUDA cores.
        tf32: Tensor cores.
        bf16: Tensor cores with fp32 accumulation.
        fp16: Tensor cores with fp32 accumulation, which torch's mixed precision uses. GeForce cards
            run it at half the rate of fp16 accumulation, which advertisements quote.
    """

    name_pattern: str
    fp32: float
    tf32: float | None
    bf16: float | None
    fp16: float


# From NVIDIA's datasheet of each model at www.nvidia.com/en-us/data-center, and for cards without
# one from the whitepaper of their architecture: GA102 v2.1 (A6000, RTX 3090), Ada, appendix A (RTX
# 4090), RTX Blackwell, table 3 (RTX 5090). Figures with sparsity are halved.
PEAKS: tuple[Peak, ...] = (
    Peak(r"T4", 8.1e12, None, None, 65e12),
    Peak(r"V100-PCIE-(16|32)GB", 14e12, None, None, 112e12),
    Peak(r"V100-SXM2-(16|32)GB", 15.7e12, None, None, 125e12),
    Peak(r"V100S-PCIE-32GB", 16.4e12, None, None, 130e12),
    # SXM and PCIe have the same peaks; a 64 GB A100 is a custom part with more units.
    Peak(r"A100-(SXM4|PCIE)-(40|80)GB|A100 80GB PCIe", 19.5e12, 156e12, 312e12, 312e12),
    Peak(r"A10", 31.2e12, 62.5e12, 125e12, 125e12),
    Peak(r"A30", 10.3e12, 82e12, 165e12, 165e12),
    Peak(r"A40", 37.4e12, 74.8e12, 149.7e12, 149.7e12),
    Peak(r"RTX A6000", 38.7e12, 77.4e12, 154.8e12, 154.8e12),
    Peak(r"L4", 30.3e12, 60e12, 121e12, 121e12),
    Peak(r"L40", 90.5e12, 90.5e12, 181.05e12, 181.05e12),
    Peak(r"L40S", 91.6e12, 183e12, 362.05e12, 362.05e12),
    Peak(r"H100 80GB HBM3", 67e12, 494.5e12, 989.5e12, 989.5e12),
    Peak(r"H100 PCIe", 51e12, 378e12, 756.5e12, 756.5e12),
    Peak(r"H100 NVL", 60e12, 417.5e12, 835.5e12, 835.5e12),
    Peak(r"H200", 67e12, 494.5e12, 989.5e12, 989.5e12),
    Peak(r"H200 NVL", 60e12, 417.5e12, 835.5e12, 835.5e12),
    Peak(r"B200", 75e12, 1100e12, 2250e12, 2250e12),
    Peak(r"RTX 3090", 35.6e12, 35.6e12, 71e12, 71e12),
    Peak(r"RTX 4090", 82.6e12, 82.6e12, 165.2e12, 165.2e12),
    Peak(r"RTX 5090", 104.8e12, 104.8e12, 209.5e12, 209.5e12),
)


def peak_flops(gpu_name: str, dtype: str) -> float | None:
    """Return the published peak dense FLOP/s of a GPU.

    Args:
        gpu_name: As NVML reports it, such as "NVIDIA H100 80GB HBM3" or "Tesla T4".
        dtype: "fp32" (CUDA cores), "tf32", "bf16" or "fp16" (tensor cores, fp32 accumulation).

    Returns:
        FLOP/s; None if the GPU is not in the table or has no unit for this dtype. CPUs are not in
        it: their clock under load and their number of vector units are not in their names.
    """
    for peak in PEAKS:
        if re.fullmatch(rf"(NVIDIA )?((Tesla|GeForce) )?({peak.name_pattern})", gpu_name):
            flops: float | None = getattr(peak, dtype)
            return flops
    return None


def roofline_share(
    flops_per_step: float | None, step_s: float, gpu_names: Sequence[str], dtype: str
) -> float | None:
    """Return achieved over peak FLOP/s, for one process on its one GPU.

    Args:
        flops_per_step: Floating-point operations of one process in one step, a multiply-add counted
            as two; None if unknown.
        step_s: Wall time of one step in seconds, above 0.
        gpu_names: The GPUs of the run, as NVML reports them; empty on a CPU.
        dtype: The fastest type in which the step may multiply matrices. With "fp32" for a step
            whose convolutions run in tf32, which is torch's default, the share comes out too high.

    Returns:
        A share, normally 0 to 1. It is not clipped: a value above 1 shows that the FLOPs or the
        dtype given are wrong. None if the FLOPs or the peak are unknown, there is no GPU, or the
        GPUs differ in name.

    Raises:
        ValueError: *step_s* is not positive.
    """
    if step_s <= 0:
        raise ValueError(f"A step takes more than 0 s, not {step_s} s; pass the measured time")
    if flops_per_step is None or len(set(gpu_names)) != 1:
        return None
    peak = peak_flops(gpu_names[0], dtype)
    return None if peak is None else flops_per_step / step_s / peak
