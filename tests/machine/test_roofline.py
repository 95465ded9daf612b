import re

import pytest

from autotune.machine.hardware import PEAKS, Peak, peak_flops, roofline_share

H100 = "NVIDIA H100 80GB HBM3"

# Device names as drivers report them, and the published fp32 and fp16 peaks of that very GPU.
REPORTED = [
    ("Tesla T4", 8.1e12, 65e12),
    ("Tesla V100-PCIE-16GB", 14e12, 112e12),
    ("Tesla V100-PCIE-32GB", 14e12, 112e12),
    ("Tesla V100-SXM2-16GB", 15.7e12, 125e12),
    ("Tesla V100-SXM2-32GB", 15.7e12, 125e12),
    ("Tesla V100S-PCIE-32GB", 16.4e12, 130e12),
    ("A100-SXM4-40GB", 19.5e12, 312e12),  # drivers before 470
    ("NVIDIA A100-SXM4-40GB", 19.5e12, 312e12),
    ("NVIDIA A100-SXM4-80GB", 19.5e12, 312e12),
    ("NVIDIA A100-PCIE-40GB", 19.5e12, 312e12),
    ("NVIDIA A100 80GB PCIe", 19.5e12, 312e12),
    ("NVIDIA A10", 31.2e12, 125e12),
    ("NVIDIA A30", 10.3e12, 165e12),
    ("NVIDIA A40", 37.4e12, 149.7e12),
    ("NVIDIA RTX A6000", 38.7e12, 154.8e12),
    ("NVIDIA L4", 30.3e12, 121e12),
    ("NVIDIA L40", 90.5e12, 181.05e12),
    ("NVIDIA L40S", 91.6e12, 362.05e12),
    (H100, 67e12, 989.5e12),
    ("NVIDIA H100 PCIe", 51e12, 756.5e12),
    ("NVIDIA H100 NVL", 60e12, 835.5e12),
    ("NVIDIA H200", 67e12, 989.5e12),
    ("NVIDIA H200 NVL", 60e12, 835.5e12),
    ("NVIDIA B200", 75e12, 2250e12),
    ("GeForce RTX 3090", 35.6e12, 71e12),
    ("NVIDIA GeForce RTX 3090", 35.6e12, 71e12),
    ("NVIDIA GeForce RTX 4090", 82.6e12, 165.2e12),
    ("NVIDIA GeForce RTX 5090", 104.8e12, 209.5e12),
]

LOOK_ALIKES = [
    "NVIDIA GeForce RTX 4090 Laptop GPU",
    "NVIDIA GeForce RTX 4090 D",
    "NVIDIA RTX 6000 Ada Generation",
    "NVIDIA A10G",
    "NVIDIA A100-SXM-64GB",
    "NVIDIA A40-48Q",
    "NVIDIA H100",
    "NVIDIA GH200 480GB",
    "Tesla V100-SXM2-32GB-LS",
    "",
    "AMD Instinct MI300X",
    "Intel(R) Xeon(R) Platinum 8480C",
    "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
]


@pytest.mark.parametrize(("name", "fp32_flops", "fp16_flops"), REPORTED)
def test_a_reported_name_finds_its_own_row(name: str, fp32_flops: float, fp16_flops: float) -> None:
    assert peak_flops(name, "fp32") == fp32_flops
    assert peak_flops(name, "fp16") == fp16_flops


@pytest.mark.parametrize("name", LOOK_ALIKES)
def test_a_name_outside_the_table_has_no_peak(name: str) -> None:
    assert peak_flops(name, "fp16") is None


@pytest.mark.parametrize("peak", PEAKS, ids=lambda peak: peak.name_pattern)
def test_a_narrower_type_is_never_slower_and_no_sparse_figure_slipped_in(peak: Peak) -> None:
    assert 1e12 < peak.fp32 < peak.fp16 < 1e16
    if peak.tf32 is None or peak.bf16 is None:  # before Ampere
        assert peak.tf32 is peak.bf16 is None
        return
    assert peak.fp32 <= peak.tf32
    assert peak.bf16 == peak.fp16
    # 3 %: NVIDIA rounds the two figures separately (HGX B200 prints 2.2 and 4.5 PFLOPS).
    assert peak.bf16 / peak.tf32 == pytest.approx(2, rel=0.03)


def test_the_share_is_achieved_over_the_peak_of_one_gpu_and_not_clipped() -> None:
    assert roofline_share(98.95e12, 0.2, [H100], "bf16") == pytest.approx(0.5)
    assert roofline_share(98.95e12, 0.2, [H100] * 8, "bf16") == pytest.approx(0.5)
    assert roofline_share(134e12, 1.0, [H100], "fp32") == pytest.approx(2.0)


def test_every_row_is_found_by_a_reported_name_and_no_name_by_two_rows() -> None:
    found: set[str] = set()
    for name, _, _ in REPORTED:
        bare = re.sub(r"^(NVIDIA )?((Tesla|GeForce) )?", "", name)
        rows = [peak.name_pattern for peak in PEAKS if re.fullmatch(peak.name_pattern, bare)]
        assert len(rows) == 1, name
        found.update(rows)
    assert found == {peak.name_pattern for peak in PEAKS}


@pytest.mark.parametrize(
    ("flops_per_step", "gpu_names", "dtype"),
    [
        (None, [H100], "bf16"),
        (1e12, [], "bf16"),
        (1e12, ["Tesla T4"], "bf16"),
        (1e12, [H100, "NVIDIA H100 PCIe"], "bf16"),
    ],
)
def test_the_share_is_unknown_where_a_part_of_it_is(
    flops_per_step: float | None, gpu_names: list[str], dtype: str
) -> None:
    assert roofline_share(flops_per_step, 0.1, gpu_names, dtype) is None


@pytest.mark.parametrize("step_s", [0.0, -1.0])
def test_a_step_of_no_time_is_refused(step_s: float) -> None:
    with pytest.raises(ValueError, match="more than 0 s"):
        roofline_share(1e12, step_s, [H100], "bf16")
