"""Published peak FLOP/s of GPUs, and the share of the peak that a training step achieves.

Covered: whole NVIDIA GPUs in the table below, by the name that NVML reports.
Not covered: CPUs, MIG slices, vGPUs, laptop and export variants, and any other GPU that is not in
the table. These have no peak here, rather than that of a GPU with a similar name. A power cap or a
lowered clock is ignored: the share refers to the published peak.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Peak:
    """Peak dense FLOP/s of one GPU model as NVIDIA publishes it; None if it lacks such a unit.

    Attributes:
        name_pattern: Regular expression for all of NVML's device name after ``NVIDIA``, ``Tesla``
            or ``GeForce``. The whole name must match: an L4 is not an L40S, and an RTX 4090 is not
            an RTX 4090 D.
        fp32_flops: CUDA cores, FLOP/s.
        tf32_flops: Tensor cores, FLOP/s.
        bf16_flops: Tensor cores with fp32 accumulation, FLOP/s.
        fp16_flops: Tensor cores with fp32 accumulation, FLOP/s, which torch's mixed precision uses.
            GeForce cards run it at half the rate of fp16 accumulation, which advertisements quote.
        source: The publication, and how its figure was derived if that is not obvious.
    """

    name_pattern: str
    fp32_flops: float
    tf32_flops: float | None
    bf16_flops: float | None
    fp16_flops: float | None
    source: str

    def flops(self, dtype: str) -> float | None:
        """Return the peak of "fp32", "tf32", "bf16" or "fp16" in FLOP/s; None for others."""
        match dtype:
            case "fp32":
                return self.fp32_flops
            case "tf32":
                return self.tf32_flops
            case "bf16":
                return self.bf16_flops
            case "fp16":
                return self.fp16_flops
            case _:
                return None


_T4 = (
    "NVIDIA T4 datasheet, mixed precision FP16/FP32: https://www.nvidia.com/content/dam/en-zz/"
    "Solutions/Data-Center/tesla-t4/t4-tensor-core-datasheet-951643.pdf"
)
_V100 = (
    "NVIDIA V100 datasheet, tensor performance: https://images.nvidia.com/content/technologies/"
    "volta/pdf/volta-v100-datasheet-update-us-1165301-r5.pdf"
)
_A100 = (
    "NVIDIA A100 datasheet: https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/"
    "pdf/nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf"
)
_A10 = (
    "NVIDIA A10 datasheet: https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a10/"
    "pdf/a10-datasheet.pdf"
)
_A30 = (
    "NVIDIA A30 datasheet: https://www.nvidia.com/content/dam/en-zz/Solutions/data-center/"
    "products/a30-gpu/pdf/a30-datasheet.pdf"
)
_A40 = (
    "NVIDIA A40 datasheet: https://images.nvidia.com/content/Solutions/data-center/a40/"
    "nvidia-a40-datasheet.pdf"
)
_GA102 = (
    "NVIDIA Ampere GA102 GPU Architecture whitepaper v2.1: https://www.nvidia.com/content/PDF/"
    "nvidia-ampere-ga-102-gpu-architecture-whitepaper-v2.1.pdf"
)
_L4 = (
    "NVIDIA L4 product page, tensor figures with sparsity, halved: "
    "https://www.nvidia.com/en-us/data-center/l4/"
)
_L40 = (
    "NVIDIA L40 datasheet, the figures without sparsity: https://www.nvidia.com/content/dam/en-zz/"
    "Solutions/design-visualization/support-guide/NVIDIA-L40-Datasheet-January-2023.pdf"
)
_L40S = (
    "NVIDIA L40S datasheet, the figures without sparsity: "
    "https://resources.nvidia.com/en-us-l40s/l40s-datasheet-28413"
)
_H100 = (
    "NVIDIA H100 product page, tensor figures with sparsity, halved: "
    "https://www.nvidia.com/en-us/data-center/h100/"
)
_H100_PCIE = (
    "NVIDIA H100 datasheet, PCIe column, tensor figures with sparsity, halved: "
    "https://resources.nvidia.com/en-us-tensor-core/nvidia-tensor-core-gpu-datasheet"
)
_H200 = (
    "NVIDIA H200 product page, tensor figures with sparsity, halved: "
    "https://www.nvidia.com/en-us/data-center/h200/"
)
_B200 = (
    "NVIDIA Blackwell datasheet, one GPU of HGX B200, tensor figures with sparsity, halved: "
    "https://resources.nvidia.com/en-us-blackwell-architecture/datasheet"
)
_ADA = (
    "NVIDIA Ada GPU Architecture whitepaper, appendix A, FP32 accumulate: https://images.nvidia.com"
    "/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf"
)
_RTX_BLACKWELL = (
    "NVIDIA RTX Blackwell GPU Architecture whitepaper, table 3, FP32 accumulate: https://images."
    "nvidia.com/aem-dam/Solutions/geforce/blackwell/nvidia-rtx-blackwell-gpu-architecture.pdf"
)

PEAKS: tuple[Peak, ...] = (
    #    name, then FLOP/s in fp32, tf32, bf16, fp16
    Peak(r"T4", 8.1e12, None, None, 65e12, _T4),
    Peak(r"V100-PCIE-(16|32)GB", 14e12, None, None, 112e12, _V100),
    Peak(r"V100-SXM2-(16|32)GB", 15.7e12, None, None, 125e12, _V100),
    Peak(r"V100S-PCIE-32GB", 16.4e12, None, None, 130e12, _V100),
    # SXM and PCIe have the same peaks; a 64 GB A100 is a custom part with more units.
    Peak(r"A100-(SXM4|PCIE)-(40|80)GB|A100 80GB PCIe", 19.5e12, 156e12, 312e12, 312e12, _A100),
    Peak(r"A10", 31.2e12, 62.5e12, 125e12, 125e12, _A10),
    Peak(r"A30", 10.3e12, 82e12, 165e12, 165e12, _A30),
    Peak(r"A40", 37.4e12, 74.8e12, 149.7e12, 149.7e12, _A40),
    Peak(r"RTX A6000", 38.7e12, 77.4e12, 154.8e12, 154.8e12, _GA102),
    Peak(r"L4", 30.3e12, 60e12, 121e12, 121e12, _L4),
    Peak(r"L40", 90.5e12, 90.5e12, 181.05e12, 181.05e12, _L40),
    Peak(r"L40S", 91.6e12, 183e12, 362.05e12, 362.05e12, _L40S),
    Peak(r"H100 80GB HBM3", 67e12, 494.5e12, 989.5e12, 989.5e12, _H100),
    Peak(r"H100 PCIe", 51e12, 378e12, 756.5e12, 756.5e12, _H100_PCIE),
    Peak(r"H100 NVL", 60e12, 417.5e12, 835.5e12, 835.5e12, _H100),
    Peak(r"H200", 67e12, 494.5e12, 989.5e12, 989.5e12, _H200),
    Peak(r"H200 NVL", 60e12, 417.5e12, 835.5e12, 835.5e12, _H200),
    Peak(r"B200", 75e12, 1100e12, 2250e12, 2250e12, _B200),
    Peak(r"RTX 3090", 35.6e12, 35.6e12, 71e12, 71e12, _GA102),
    Peak(r"RTX 4090", 82.6e12, 82.6e12, 165.2e12, 165.2e12, _ADA),
    Peak(r"RTX 5090", 104.8e12, 104.8e12, 209.5e12, 209.5e12, _RTX_BLACKWELL),
)


def peak_flops(gpu_name: str, dtype: str) -> float | None:
    """Return the published peak dense FLOP/s of a GPU.

    Args:
        gpu_name: As NVML reports it, such as "NVIDIA H100 80GB HBM3" or "Tesla T4".
        dtype: "fp32" (CUDA cores), "tf32", "bf16" or "fp16" (tensor cores, fp32 accumulation).

    Returns:
        FLOP/s; None if the GPU is not in the table or has no unit for this dtype.
    """
    # There is no row for a CPU: its peak depends on its clock under load and on the width and
    # number of its vector units, which its name does not tell. There is no row for a MIG slice
    # ("... MIG 1g.5gb") either: it has only a part of the units.
    for peak in PEAKS:
        if re.fullmatch(rf"(NVIDIA )?((Tesla|GeForce) )?({peak.name_pattern})", gpu_name):
            return peak.flops(dtype)
    return None


def roofline_share(
    flops_per_step: float | None, step_s: float, gpu_names: Sequence[str], dtype: str
) -> float | None:
    """Return achieved over peak FLOP/s, for one process on its one GPU.

    Args:
        flops_per_step: Floating-point operations of one process in one step; None if unknown. A
            multiply-add counts as two. One process computes on one GPU, so the peak of one GPU is
            used however many equal GPUs the run has.
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
