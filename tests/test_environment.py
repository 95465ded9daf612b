"""Variables of a best.yaml: those that tune are shown, all others are refused unless named."""

import subprocess
import sys
from pathlib import Path

import pytest

from autotune.errors import UsageError
from autotune.knobs import launch_plan_for, registry
from autotune.knobs.space.tuning_variables import unlisted
from autotune.program.applied_config import ProgramTraits
from autotune.program.config import KnobValue
from autotune.program.flags import AS_WRITTEN, Flag
from autotune.program.program import LaunchPlan
from autotune.results.bestfile import BestFile
from tests.made import BASELINE, make_best
from tests.results.test_bestfile import edit, faults_of
from tests.rigging import run_command

pytestmark = pytest.mark.slow

EVIL = "/tmp/evil.so"
TUNES = """
KMP_BLOCKTIME OMP_NUM_THREADS MALLOC_ARENA_MAX PYTORCH_CUDA_ALLOC_CONF CUDA_VISIBLE_DEVICES
NVIDIA_TF32_OVERRIDE NCCL_ALGO PYTHONHASHSEED CUBLAS_WORKSPACE_CONFIG TORCHINDUCTOR_MAX_AUTOTUNE
TOKENIZERS_PARALLELISM ONEDNN_MAX_CPU_ISA FSDP_TRANSFORMER_CLS_TO_WRAP FSDP_STATE_DICT_TYPE
"""
# They load code, name files to write or read, send data elsewhere, or are not known at all
OTHERS = """
LD_PRELOAD LD_LIBRARY_PATH DYLD_INSERT_LIBRARIES GLIBC_TUNABLES PATH PYTHONPATH PYTHONSTARTUP
PYTHONBREAKPOINT BASH_ENV HOME GIT_SSH_COMMAND CUDA_INJECTION64_PATH CC CXX TRITON_CACHE_DIR
TORCH_EXTENSIONS_DIR OMP_TOOL_LIBRARIES HF_MODULES_CACHE HF_HOME NCCL_NET_PLUGIN MASTER_ADDR
https_proxy OPENSSL_CONF AUTOTUNE_RIG XDG_CACHE_HOME TMPDIR
AWS_CONFIG_FILE KUBECONFIG IMAGEIO_FFMPEG_EXE PYSPARK_PYTHON SDL_DYNAMIC_API GIO_EXTRA_MODULES
NUMBA_CUDA_DRIVER TCL_LIBRARY LOKY_PICKLER RAY_ADDRESS NLTK_DATA SCIKIT_LEARN_DATA
NCCL_DEBUG_FILE NCCL_TOPO_FILE SSLKEYLOGFILE KMP_CPUINFO_FILE MKL_VERBOSE_OUTPUT_FILE
OMP_NUM_THREADS_ omp_num_threads FLAVOUR HF_HUB_OFFLINE
"""


def with_values(flags: dict[str, Flag] | None = None, **values: KnobValue) -> BestFile:
    """A best.yaml whose baseline has nothing of these; names get their dollar by ``env_``."""
    config = {name.replace("env_", "$"): value for name, value in values.items()}
    return make_best(config={**BASELINE, **config}, traits=ProgramTraits("cpu", flags=flags or {}))


def test_variables_that_tune_may_be_set_and_no_others() -> None:
    assert unlisted(TUNES.split()) == []
    assert unlisted(OTHERS.split()) == sorted(OTHERS.split())


@pytest.mark.parametrize("name", registry())
def test_what_a_setting_of_autotune_sets_is_a_variable_that_tunes(name: str) -> None:
    knob = registry()[name]
    own: dict[type, tuple[KnobValue, ...]] = {bool: (False, True), int: (knob.minimum, 4)}
    for value in own.get(knob.value_type, knob.choices):
        assert unlisted(knob.launch(value, LaunchPlan((), ".")).env) == []


def test_all_variables_of_a_file_are_told_at_once_with_value_and_mend(tmp_path: Path) -> None:
    best = with_values(env_LD_PRELOAD=EVIL, env_PYTHONPATH="/tmp/evil", env_KMP_BLOCKTIME="0")
    with pytest.raises(UsageError) as refusal:
        best.use(tmp_path / "best.yaml")
    first, second, mend = str(refusal.value).splitlines()
    assert first == f"{tmp_path}/best.yaml sets LD_PRELOAD='{EVIL}'."
    assert "PYTHONPATH='/tmp/evil'" in second
    assert "--allow-env LD_PRELOAD,PYTHONPATH" in mend
    with pytest.raises(UsageError, match="PYTHONPATH"):
        best.use(tmp_path / "best.yaml", ["LD_PRELOAD"])


@pytest.fixture
def path(workplace: Path) -> Path:
    best = make_best(config={**BASELINE, "$LD_PRELOAD": EVIL, "$FLAVOUR": "sweet"})
    (workplace / "best.yaml").write_text(best.text(), encoding="utf-8")
    (workplace / "train.py").write_text("import os\nprint('ran', os.environ.get('FLAVOUR'))\n")
    return workplace / "best.yaml"


def test_apply_and_run_refuse_a_file_that_loads_code_unless_it_is_allowed_to(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLAVOUR", "sour")
    code = (
        "import autotune, os\n"
        "try:\n    autotune.apply('best.yaml')\n"
        "except autotune.errors.UsageError as error:\n    print(error)\n"
        "print(os.environ['FLAVOUR'])\n"
        "autotune.apply('best.yaml', allow_env=['FLAVOUR', 'LD_PRELOAD'])\n"
        "print(os.environ['FLAVOUR'])\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "best.yaml sets LD_PRELOAD" in done.stdout, done.stderr
    assert "apply(..., allow_env=['FLAVOUR', 'LD_PRELOAD'])" in done.stdout
    assert done.stdout.endswith("\nsour\nsweet\n")
    assert "autotune: best.yaml sets environment variables: LD_PRELOAD" in done.stderr
    done = run_command("run", "best.yaml", "train.py")
    assert done.returncode == 2
    assert f"best.yaml sets LD_PRELOAD='{EVIL}'" in done.stderr
    assert "ran" not in done.stdout
    options = ["--allow-env", "PATH", "--allow-env", "FLAVOUR,LD_PRELOAD", "--print-command"]
    done = run_command("run", *options, "best.yaml", "train.py")
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stderr.split())
    assert f"best.yaml sets environment variables: LD_PRELOAD={EVIL} FLAVOUR=sweet" in said
    assert f"LD_PRELOAD={EVIL}" in done.stdout


def test_what_a_file_passes_is_shown_but_not_what_stays_as_it_is(tmp_path: Path) -> None:
    flags = {
        "--hidden": Flag("--hidden", value="64"),
        "batch_size": Flag("--bs", value=64, takes="int"),
        "keyword.deep": Flag("keyword.deep", value=False, takes="bool"),
    }
    config: dict[str, KnobValue] = {"--hidden": "128", "batch_size": 96, "keyword.deep": True}
    best = with_values(flags, **config, env_LD_PRELOAD=EVIL, env_A="two\x1b[2J")
    assert best.use(tmp_path / "best.yaml", ["$LD_PRELOAD", "A"]) == [
        f"best.yaml sets environment variables: LD_PRELOAD={EVIL} A='two\\x1b[2J'",
        "best.yaml passes to the program: --bs=96 --hidden=128 deep=true",
    ]
    plan = launch_plan_for(best.applied, LaunchPlan((), "."))
    assert plan.args == ("--bs=96", "--hidden=128")
    assert with_values(env_LD_PRELOAD=AS_WRITTEN).use(tmp_path / "best.yaml") == []


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("$A=B: c", "is not an environment variable: 'A=B' is not a valid name"),
        ('$A: "b\\0c"', "takes text without NUL characters"),
        ("cuda_allocator: backend:evil", "setting 'cuda_allocator' takes default or "),
    ],
)
def test_a_value_that_cannot_be_passed_is_a_fault(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "best.yaml"
    path.write_text(make_best().text(), encoding="utf-8")
    edit(path, "  workers: 2\n", f"  workers: 2\n  {line}\n")
    (fault,) = faults_of(path)
    assert said in fault
