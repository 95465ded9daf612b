"""Environment variables that load code or redirect programs, and that need the user's consent.

A best.yaml may come from somebody else, and it may set environment variables. Through the variables
below it could run that person's code: the dynamic linker, Python, shells, compilers, PyTorch and
other tools load what their values name.

Covered: variables through which these tools load code, find programs or read compiled code. Not
covered: variables that the user's program itself reads and trusts. Everything that a file sets is
shown before it is used.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from autotune.errors import UsageError


@dataclass(frozen=True)
class Danger:
    """A kind of environment variable that a file may not set without the user's consent.

    Attributes:
        patterns: Shell patterns for the names, in capitals. Names are compared in capitals because
            some variables, such as ``http_proxy``, are also read in lower case.
        harmless: Names that match a pattern but cannot load code.
    """

    reason: str
    patterns: tuple[str, ...]
    harmless: tuple[str, ...] = ()


# Sources: the manuals ld.so(8), bash(1), git(1), ssh(1), perlrun(1); "Environment variables" of
# CPython, PyTorch, Triton, NCCL, CUDA, OpenMP 5 (tools), Node.js, OpenSSL and huggingface_hub.
# Whole families are matched by pattern, as tools add such variables over time. A harmless variable
# that is matched costs the user one --allow-env.
DANGERS = (
    Danger("it tells the dynamic linker what to load", ("LD_*", "DYLD_*", "*_PRELOAD")),
    Danger(
        "it makes the C library load modules or change its own checks",
        ("GCONV_PATH", "LOCPATH", "NLSPATH", "GETCONF_DIR", "GLIBC_TUNABLES", "HOSTALIASES"),
    ),
    Danger(
        "it changes which modules Python finds or runs",
        ("PYTHON*",),
        harmless=(
            "PYTHONHASHSEED",
            "PYTHONMALLOC",
            "PYTHONUNBUFFERED",
            "PYTHONDONTWRITEBYTECODE",
            "PYTHON_GIL",
            "PYTHON_JIT",
            "PYTHON_CPU_COUNT",
        ),
    ),
    Danger(
        "it changes where packages are installed and found",
        ("PIP_*", "UV_*", "CONDA_*", "VIRTUAL_ENV", "PIPX_*", "POETRY_*"),
    ),
    Danger(
        "it changes which programs are found, or which files they trust",
        ("PATH", "HOME", "SHELL", "XDG_*", "ZDOTDIR", "CDPATH", "TMPDIR", "TEMP", "TMP"),
    ),
    Danger(
        "it makes shells run code, or changes how they read commands",
        ("BASH_*", "BASHOPTS", "SHELLOPTS", "ENV", "IFS", "PS4", "PROMPT_COMMAND"),
    ),
    Danger(
        "it names other programs to start",
        ("GIT_*", "SSH_*", "SVN_*", "EDITOR", "VISUAL", "PAGER", "BROWSER", "LESSOPEN"),
    ),
    Danger(
        "it makes programs in other languages load code",
        (
            *("PERL5*", "PERLLIB", "RUBY*", "NODE_*", "LUA_*", "R_PROFILE*", "R_ENVIRON*"),
            *("CLASSPATH", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS"),
        ),
    ),
    Danger(
        "it names the compiler, headers or options with which code is compiled",
        (
            *("CC", "CXX", "CPP", "NVCC*", "CUDAHOSTCXX", "CUDA_HOME", "CUDA_PATH", "*FLAGS"),
            *("ROCM_HOME", "ROCM_PATH", "HIP_PATH"),
            *("CPATH", "*_INCLUDE_PATH", "LIBRARY_PATH", "COMPILER_PATH", "GCC_EXEC_PREFIX"),
        ),
    ),
    Danger(
        "it says from where compiled code, pickles or modules are loaded",
        (
            *("*_CACHE_DIR", "*_CACHE_PATH", "*_CACHE_HOME", "*REMOTE_CACHE*", "*REDIS*"),
            *("TORCH_HOME", "TORCH_EXTENSIONS_DIR", "TORCHINDUCTOR_*PATH", "TORCHINDUCTOR_*DIR"),
            *("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "HF_DATASETS_TRUST_REMOTE_CODE"),
            "TRITON_CACHE_MANAGER",
            *("TRITON_HOME", "TRITON_*DIR", "TRITON_*PATH", "TRITON_*OVERRIDE*"),
            *("HF_*HOME", "HF_*CACHE", "HF_ENDPOINT", "HUGGINGFACE_HUB_CACHE"),
            *("TRANSFORMERS_CACHE", "PYTORCH_TRANSFORMERS_CACHE", "PYTORCH_PRETRAINED_BERT_CACHE"),
            *("NUMBA_*DIR", "KERAS_HOME", "MPLCONFIGDIR", "IPYTHONDIR", "JUPYTER_*"),
        ),
    ),
    Danger(
        "it loads libraries into the program, as tools or plug-ins",
        (
            *("*_PLUGIN", "*_PLUGINS", "*_PLUGIN_*", "*_INJECTION*", "NVBIT*", "NSYS_*"),
            *("OMP_TOOL*", "INTEL_LIBITTNOTIFY*", "INTEL_JIT_PROFILER*", "KMP_TOOL_LIBRARIES"),
            *("HSA_TOOLS_LIB", "ROCP_TOOL*", "ROCPROFILER_*", "OCL_ICD_*", "VK_*"),
            *("OMPI_*", "UCX_MODULE_*", "FI_PROVIDER_PATH", "I_MPI_*", "NCCL_CONF_FILE"),
            *("OPENSSL_*", "SASL_PATH", "GI_TYPELIB_PATH", "QT_*PATH", "GTK_MODULES"),
            *("MPLBACKEND", "MATPLOTLIBRC", "COVERAGE_PROCESS_START", "GDK_PIXBUF_MODULE_FILE"),
            *("PJRT_*LIBRARY*", "TPU_LIBRARY_PATH", "LIBVA_DRIVERS_PATH", "VDPAU_DRIVER_PATH"),
        ),
    ),
    Danger(
        "it changes which downloads and certificates are trusted",
        ("*_PROXY", "SSL_CERT_*", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
    ),
    Danger(
        "it says where ranks meet and load what they send each other",
        ("MASTER_ADDR", "MASTER_PORT", "PET_*", "TORCHELASTIC_*", "TORCH_ELASTIC_*"),
    ),
    Danger("it controls autotune's own processes", ("AUTOTUNE_*",)),
)


def danger_of(variable: str) -> str | None:
    """Return why a file may not set a variable, as a clause; None if it may."""
    name = variable.upper()
    for danger in DANGERS:
        is_of_kind = any(fnmatchcase(name, pattern) for pattern in danger.patterns)
        if is_of_kind and name not in danger.harmless:
            return danger.reason
    return None


def dangerous(variables: Collection[str]) -> list[str]:
    """Return those of the given variables that the user has to allow by name."""
    return [name for name in variables if danger_of(name) is not None]


def refuse_unless_allowed(
    variables: Mapping[str, str], allowed: Collection[str], source: str
) -> None:
    """Raise an error if a file sets dangerous variables that the user has not allowed by name."""
    names = [name for name in dangerous(variables) if name not in allowed]
    if not names:
        return
    refused = "\n".join(
        f"{source} sets {name}={variables[name]!r}, which autotune refuses: {danger_of(name)}."
        for name in names
    )
    raise UsageError(
        f"{refused}\nA file from somebody else could run code in this way. If you trust these "
        f"values, name the variables: --allow-env {','.join(names)}, or apply(..., "
        f"allow_env={names}). If not, delete their lines under 'config'."
    )
