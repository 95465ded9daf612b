from __future__ import annotations

import os
from dataclasses import replace

import pytest

from autotune.errors import UsageError
from autotune.inside.processes.meetings import under_way_s
from autotune.inside.ranks.group import Group, hide_launcher, rank_of, take_device
from autotune.machine.hardware import cpu_quota
from autotune.program.program import LaunchPlan
from autotune.rig.torchrun_plan import (
    Nodes,
    first_host,
    nodes_of,
    trust_note,
    with_hash_seed,
    with_ranks,
)
from tests.gpu_fakes import FakeNvml
from tests.made import A100

SLURM = {
    "SLURM_NNODES": "2",
    "SLURM_NTASKS": "2",
    "SLURM_PROCID": "1",
    "SLURM_NODEID": "1",
    "SLURM_JOB_ID": "4711",
    "SLURM_JOB_NODELIST": "gpu[03-04]",
}


def test_ranks_of_one_machine_share_its_cores_and_are_started_without_torchrun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    plan = with_ranks(LaunchPlan(("python", "train.py"), ".", ranks=2))
    assert plan.argv[-3:] == ("--", "python", "train.py")
    assert plan.argv[2:6] == ("-m", "autotune.rig.local_ranks", "--ranks", "2")
    assert plan.env["OMP_NUM_THREADS"] == str(max(1, cpu_quota() // 2))


def test_processes_that_must_agree_hash_text_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    for users, seed in (("7", "7"), ("random", "0"), ("", "0")):
        monkeypatch.setenv("PYTHONHASHSEED", users)
        assert with_hash_seed(LaunchPlan((), ".")).env["PYTHONHASHSEED"] == seed
        assert with_ranks(LaunchPlan((), ".", ranks=2)).env["PYTHONHASHSEED"] == seed


def test_nodes_are_passed_on_to_torchrun_and_who_can_reach_them_is_said() -> None:
    numbered = Nodes(2, 1, "first:29400").options
    assert " ".join(numbered).endswith(
        "--rdzv-backend static --rdzv-endpoint first:29400 --rdzv-id autotune --node-rank 1"
    )
    assert "c10d" in Nodes(2, None, "first:29400").options
    plan = with_ranks(LaunchPlan(("python", "train.py"), ".", ranks=4), Nodes(2, 1, "first:29400"))
    assert plan.argv[2:4] == ("-m", "torch.distributed.run")
    assert plan.argv[-5:] == ("--nproc-per-node", "4", "--no-python", "python", "train.py")
    assert trust_note(Nodes(), {}) is None
    note = str(trust_note(Nodes(2, 0, "first:29400"), {}))
    assert "Nodes meet at first:29400 over the network" in note
    assert "set AUTOTUNE_RANKS_KEY to one secret on all nodes" in note
    signed = str(trust_note(Nodes(2, 0, "first:29400"), {"AUTOTUNE_RANKS_KEY": "of all"}))
    assert "not signed" not in signed
    for nodes, said in (((2, 0, ""), "--rdzv-endpoint"), ((2, 2, "a:1"), "--node-rank 2 is out")):
        with pytest.raises(UsageError, match=said):
            Nodes(*nodes)


def test_a_slurm_step_says_which_nodes_train() -> None:
    assert nodes_of(SLURM) == Nodes(2, 1, "gpu03:30211", "slurm-4711")
    assert nodes_of({}) == Nodes()
    assert nodes_of({k: v for k, v in SLURM.items() if k != "SLURM_PROCID"}) == Nodes()
    assert nodes_of({**SLURM, "SLURM_NNODES": "1"}) == Nodes()
    per_rank = {**SLURM, "SLURM_NTASKS": "16", "SLURM_JOB_CPUS_PER_NODE": "32(x2)"}
    with pytest.raises(UsageError, match="srun --ntasks-per-node=1 --cpus-per-task=32 autotune"):
        nodes_of(per_rank)
    for nodes, first in {
        "gpu[03-05,9],login": "gpu03",
        "a,b": "a",
        "rack[1-2]-node": "rack1-node",
        "x[4,9]": "x4",
    }.items():
        assert first_host(nodes) == first


@pytest.mark.parametrize(
    ("visible", "replicas", "devices"),
    [
        *((None, 0, "1"), ("4,6", 1, "6"), ("GPU-aa, GPU-bb", 0, "GPU-bb")),
        ("MIG-11,MIG-22", 1, "MIG-22"),
        # all that the program counts, where nn.DataParallel uses some
        *((None, 2, "1,2,3,0"), (None, 5, "1,2,3,4,0"), ("4,6,GPU-aa", 2, "6,GPU-aa,4")),
    ],
)
def test_each_rank_sees_its_share_of_the_visible_devices(
    visible: str | None, replicas: int, devices: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeNvml([replace(A100, uuid=f"GPU-{number}") for number in range(4)]).install(monkeypatch)
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    group = Group(rank=4, local_rank=1, world_size=6, local_world_size=3)
    take_device(group, environment, replicas)
    assert environment["CUDA_VISIBLE_DEVICES"] == devices
    for too_few in ("3", ""):
        with pytest.raises(UsageError, match="Rank 1 has no GPU"):
            take_device(group, {"CUDA_VISIBLE_DEVICES": too_few}, replicas)


def test_a_program_does_not_see_the_launcher() -> None:
    own = {"PATH": "/bin", "GROUP_NAME": "students"}
    environment = {"RANK": "1", "TORCHELASTIC_RUN_ID": "x", "MASTER_PORT": "1", **own}
    environment["AUTOTUNE_RANKS_KEY"] = "secret"
    assert rank_of(environment) == 1
    hide_launcher(environment)
    assert environment == own
    assert rank_of({"RANK": "7"}) == 0, "what a user exports is no launcher"
    assert rank_of(os.environ) == 0


def test_collectives_that_overlap_are_counted_once() -> None:
    s = 10**9
    assert under_way_s([(0, s), (s // 2, 2 * s), (3 * s, 4 * s), (3 * s, 4 * s)]) == 3.0
    assert under_way_s([]) == 0.0
