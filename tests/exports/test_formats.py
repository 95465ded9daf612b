"""Exports, each read back by the tool that it is written for."""

import json
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.errors import UsageError
from autotune.exports import Export, format_named, formats
from autotune.knobs import registry
from autotune.knobs.space.spacefile import load
from autotune.program.config import KnobValue
from autotune.program.profile import OptimizerFacts
from autotune.results import bestfile
from autotune.results.bestfile import BestFile, MadeOn
from tests.made import A100, make_hardware, make_loader, make_profile
from tests.rigging import write_best

BEFORE: dict[str, KnobValue] = {
    "workers": 0, "pinning": "off", "threads": 2, "batch_size": 16, "precision": "fp32",
    "memory_format": "contiguous", "cudnn": "default", "optimizer": "for-loop", "compile": "off",
    "devices": "single", "accumulation_steps": 1, "activation_checkpointing": "off",
    "prefetch_factor": 2, "fsdp_options": "default", "sync_batchnorm": False,
}  # fmt: skip


TRAINS = "train.py --lr 0.1"


def made(
    tmp_path: Path,
    command: str = TRAINS,
    before: Mapping[str, KnobValue] = BEFORE,
    **changes: KnobValue,
) -> BestFile:
    """Return a best.yaml with changes to a program that has the other value of each."""
    path = tmp_path / "best.yaml"
    baseline = {knob: before[knob] for knob in changes}
    write_best(path, baseline, make_loader(batch_size=16), "", "cpu", **changes)
    return bestfile.read(path).model_copy(update={"program": command})


def exported(name: str, best: BestFile) -> Export:
    return format_named(name).export(best, Path("best.yaml"))


@pytest.mark.parametrize("name", formats())
def test_no_export_sets_a_variable_that_the_user_has_not_allowed(name: str, tmp_path: Path) -> None:
    best = made(tmp_path).model_copy(update={"config": {"$LD_PRELOAD": "/evil.so", "$A": "1"}})
    how = format_named(name)
    if not how.applies_all:
        export = how.export(best, tmp_path / "best.yaml")
        assert "evil" not in export.text
        assert "$LD_PRELOAD=/evil.so" in export.left_out
        return
    by_line = made(tmp_path, "env LD_PRELOAD=/evil.so python -u train.py --lr=0.1")
    for file, allowed in ((best, ()), (best, ("A",)), (by_line, ())):
        with pytest.raises(UsageError, match="sets LD_PRELOAD="):
            how.export(file, tmp_path / "best.yaml", allowed)
    line = how.export(best, Path("my best.yaml"), ("A", "LD_PRELOAD")).text.splitlines()[-1]
    typed = " autotune run --allow-env A,LD_PRELOAD 'my best.yaml' -- train.py"
    assert line.startswith(f"srun --cpus-per-task={best.made_on.cores}{typed}")


@pytest.mark.parametrize("name", formats())
def test_no_change_is_dropped_silently(name: str, tmp_path: Path) -> None:
    """It changes what is written, or it is listed with the reason."""
    one = format_named(name)
    assert {*one.renamed, *one.by_value, *one.left_out} <= {*registry()}
    plain = exported(name, made(tmp_path))
    assert not plain.left_out
    space = load("full").resolve(make_hardware(), make_profile())
    knobs = {k: domain for k, domain in space.domains.items() if len(domain.values) > 1}
    assert len(knobs) > 12
    for knob, domain in knobs.items():
        own = space.baseline[knob]
        value = next(v for v in domain.values if v != own)
        export = exported(name, made(tmp_path, TRAINS, {knob: own}, **{knob: value}))
        is_said = export.text != plain.text or name == "sbatch"  # which runs best.yaml itself
        assert is_said is (f"{knob}={value}" not in export.left_out), (knob, value, export)


def test_a_learning_rate_is_told_about(tmp_path: Path) -> None:
    best = made(tmp_path, batch_size=32)
    facts = replace(best.facts, optimizers=(OptimizerFacts("SGD", ("SGD",), (0.1,)),))
    best = best.model_copy(update={"facts": facts})
    for name in ("hf", "lightning", "snippet"):
        assert "multiply it by 2" in exported(name, best).left_out["learning rate"]


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing` is deprecated")  # until version 6
def test_hugging_face_reads_its_arguments(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    best = made(
        tmp_path, workers=2, batch_size=32, accumulation_steps=2, precision="bf16",
        prefetch_factor=4, pinning="blocking",
        activation_checkpointing="all",
    )  # fmt: skip
    path = tmp_path / "arguments.json"
    content = json.loads(exported("hf", best).text)
    path.write_text(json.dumps({**content, "output_dir": str(tmp_path), "use_cpu": True}))
    parser = transformers.HfArgumentParser(transformers.TrainingArguments)
    (found,) = parser.parse_json_file(str(path))
    assert found.per_device_train_batch_size == 32
    assert found.gradient_accumulation_steps == 2
    assert (found.bf16, found.fp16) == (True, False)
    assert (found.dataloader_num_workers, found.dataloader_prefetch_factor) == (2, 4)
    assert found.dataloader_persistent_workers
    assert content["dataloader_pin_memory"] is True  # which it drops on a CPU
    assert found.gradient_checkpointing


def test_accelerate_reads_its_file(tmp_path: Path) -> None:
    config_args = pytest.importorskip("accelerate.commands.config.config_args")

    def read(**changes: Any) -> Any:
        path = tmp_path / "accelerate.yaml"
        path.write_text(exported("accelerate", made(tmp_path, **changes)).text)
        return config_args.load_config_from_file(str(path))

    found = read(precision="bf16", devices="fsdp-2", fsdp_options="keep-gathered+cpu-offload")
    assert (found.mixed_precision, found.num_processes) == ("bf16", 2)
    assert str(found.distributed_type).endswith("FSDP")
    assert found.fsdp_config == {
        "fsdp_version": 2, "fsdp_reshard_after_forward": False, "fsdp_offload_params": True,
    }  # fmt: skip
    assert found.use_cpu is True
    ranks = read(devices="own-2")
    assert (str(ranks.distributed_type).rpartition(".")[2], ranks.num_processes) == ("MULTI_CPU", 2)


@pytest.mark.filterwarnings("ignore:The `srun` command is available")  # where Slurm is installed
def test_lightning_takes_its_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # as Lightning sets it
    pytest.importorskip("lightning")
    from lightning.pytorch import Trainer

    best = made(tmp_path, precision="bf16", accumulation_steps=2, cudnn="benchmark")
    arguments = yaml.safe_load(exported("lightning", best).text)["trainer"]
    trainer = Trainer(**arguments, logger=False, enable_checkpointing=False)
    assert trainer.precision == "bf16-mixed"
    assert trainer.accumulate_grad_batches == 2
    own = yaml.safe_load(exported("lightning", made(tmp_path, devices="own-2")).text)["trainer"]
    assert (own["strategy"], own["devices"]) == ("auto", 2)
    for precision, word in (("tf32", "high"), ("medium", "medium")):
        export = exported("lightning", made(tmp_path, precision=precision))
        (why,) = export.left_out.values()
        assert f"set_float32_matmul_precision('{word}')" in why, "Trainer takes no such precision"


def test_deepspeed_gets_its_stage_and_the_line_that_starts_its_ranks(tmp_path: Path) -> None:
    best = made(
        tmp_path, batch_size=32, accumulation_steps=2, precision="bf16", devices="fsdp-4",
        fsdp_options="keep-gathered+cpu-offload",
    )  # fmt: skip
    export = exported("deepspeed", best)
    found = json.loads(export.text)
    assert found["train_micro_batch_size_per_gpu"] == 32
    assert found["gradient_accumulation_steps"] == 2
    assert (found["bf16"]["enabled"], found["fp16"]["enabled"]) == (True, False)
    assert found["zero_optimization"] == {"stage": 3}, "one of two options alone is another config"
    assert export.besides == {"devices=fsdp-4": "start it by: deepspeed --num_gpus 4"}
    assert export.sentences == [
        "Left out: fsdp_options=keep-gathered+cpu-offload (it has no such option).",
        "Besides: devices=fsdp-4 (start it by: deepspeed --num_gpus 4).",
    ]
    alone = exported("deepspeed", made(tmp_path, devices="fsdp-2", fsdp_options="cpu-offload"))
    assert json.loads(alone.text)["zero_optimization"] == {
        "stage": 3, "offload_param": {"device": "cpu"}, "offload_optimizer": {"device": "cpu"},
    }  # fmt: skip
    back = made(tmp_path, before={"devices": "own-2"}, devices="single")
    started = "start it by: deepspeed --num_gpus 1"
    assert exported("deepspeed", back).besides == {"devices=single": started}


def test_sbatch_is_a_shell_script_with_directives(tmp_path: Path) -> None:
    best = made(tmp_path, command="train.py --name 'a b'", workers=2)
    path = tmp_path / "train.sbatch"
    path.write_text(exported("sbatch", best).text)
    subprocess.run(["bash", "-n", str(path)], check=True)
    directives = dict(
        line.removeprefix("#SBATCH --").split("=", maxsplit=1)
        for line in path.read_text().splitlines()
        if line.startswith("#SBATCH")
    )
    assert int(directives["cpus-per-task"]) == best.made_on.cores
    assert directives["nodes"] == "1"
    assert "gpus-per-node" not in directives
    line = path.read_text().splitlines()[-1]
    assert shlex.split(line)[-3:] == ["train.py", "--name", "a b"]
    starts = f"srun --cpus-per-task={directives['cpus-per-task']} autotune run best.yaml --"
    for command, last in (
        ("-- -u train.py", f"{starts} -u train.py"),
        ("train.py\nrm -rf ~", f"{starts} train.py rm -rf '~'"),
    ):
        text = exported("sbatch", made(tmp_path, command=command)).text
        assert text.splitlines()[1] == "# Written by autotune export from best.yaml"
        assert text.splitlines()[-1] == last
    two = MadeOn.on(make_hardware(gpus=(A100, A100)))
    for devices, gpus in (("single", 2), ("data_parallel", 2), ("ddp-2", 2)):
        on_gpus = made(tmp_path, devices=devices).model_copy(update={"made_on": two})
        assert f"--gpus-per-node={gpus}\n" in exported("sbatch", on_gpus).text


@pytest.mark.usefixtures("warm_starts")
def test_a_snippet_runs_and_sets_what_it_says(tmp_path: Path) -> None:
    best = made(
        tmp_path, workers=2, batch_size=32, threads=1, precision="bf16",
        memory_format="channels_last", compile="default",
    )  # fmt: skip
    check = """
from torch.utils.data import DataLoader
loader = DataLoader(range(64), **LOADER)
with torch.autocast(**AUTOCAST):
    dtype = (torch.ones(2, 2) @ torch.ones(2, 2)).dtype
print(loader.num_workers, loader.batch_size, torch.get_num_threads(), dtype, COMPILE, FORMAT)
"""
    text = exported("snippet", best).text
    assert "GradScaler" not in text
    assert "GradScaler" in exported("snippet", made(tmp_path, precision="fp16")).text
    done = subprocess.run(
        [sys.executable, "-c", text + check], check=True, capture_output=True, text=True
    )
    assert done.stdout.split() == [
        "2", "32", "1", "torch.bfloat16", "{'mode':", "'default'}",
        "{'memory_format':", "torch.channels_last}",
    ]  # fmt: skip
