"""Published peaks of GPUs, by the names that drivers report."""

import re

import pytest

from autotune.machine.hardware import PEAKS, peak_flops

# Device names as drivers report them, with the fp32 and fp16 peaks of that very GPU
REPORTED = [
    ("Tesla V100-SXM2-32GB", 15.7e12, 125e12),
    ("A100-SXM4-40GB", 19.5e12, 312e12),  # drivers before 470
    ("NVIDIA A100 80GB PCIe", 19.5e12, 312e12),
    ("NVIDIA RTX A6000", 38.7e12, 154.8e12),
    ("NVIDIA L40S", 91.6e12, 362.05e12),
    ("NVIDIA H100 80GB HBM3", 67e12, 989.5e12),
    ("NVIDIA H200 NVL", 60e12, 835.5e12),
    ("NVIDIA GeForce RTX 4090", 82.6e12, 165.2e12),
]
LOOK_ALIKES = [
    "NVIDIA GeForce RTX 4090 Laptop GPU",
    "NVIDIA RTX 6000 Ada Generation",
    "NVIDIA A10G",
    "NVIDIA H100",
    "NVIDIA GH200 480GB",
    "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
    "AMD Instinct MI300X",
    "",
]


def test_a_reported_name_finds_its_row_and_a_look_alike_none() -> None:
    for name, fp32, fp16 in REPORTED:
        assert (peak_flops(name, "fp32"), peak_flops(name, "fp16")) == (fp32, fp16), name
        bare = re.sub(r"^(NVIDIA )?((Tesla|GeForce) )?", "", name)
        rows = [peak.name_pattern for peak in PEAKS if re.fullmatch(peak.name_pattern, bare)]
        assert len(rows) == 1, name
    assert {peak_flops(name, "fp16") for name in LOOK_ALIKES} == {None}


def test_a_narrower_type_is_never_slower_and_no_sparse_figure_slipped_in() -> None:
    for peak in PEAKS:
        assert 1e12 < peak.fp32 < peak.fp16 < 1e16
        if peak.tf32 is None or peak.bf16 is None:  # before Ampere
            assert peak.tf32 is peak.bf16 is None
            continue
        assert peak.fp32 <= peak.tf32
        assert peak.bf16 == peak.fp16
        # 3 %: NVIDIA rounds the two figures separately (HGX B200 prints 2.2 and 4.5 PFLOPS).
        assert peak.bf16 / peak.tf32 == pytest.approx(2, rel=0.03)
