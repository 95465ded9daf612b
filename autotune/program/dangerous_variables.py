"""Environment variables that load code or change what is run: a file may not set them by itself.

A best.yaml may come from somebody else. Covered: the variables below, by which the dynamic linker,
Python, shells, compilers, PyTorch and their like load what a value names, or look for programs and
compiled code. Not covered: variables that a program itself reads and trusts; all that a file sets
is shown before it is used.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from autotune.errors import UsageError


@dataclass(frozen=True)
class Danger:
    """A kind of variable that a file may not set.

    Attributes:
        reason: What such a variable does.
        patterns: Shell patterns of names, in capitals: some are read in small letters as well.
        harmless: Names that the patterns match and that do none of it.
    """

    reason: str
    patterns: tuple[str, ...]
    harmless: tuple[str, ...] = ()

    def covers(self, variable: str) -> bool:
        """Tell whether a variable is of this kind."""
        name = variable.upper()
        if name in self.harmless:
            return False
        return any(fnmatchcase(name, pattern) for pattern in self.patterns)


# Sources: the manuals ld.so(8), bash(1), git(1), ssh(1), perlrun(1); "Environment variables" of
# CPython, PyTorch, Triton, NCCL, CUDA, OpenMP 5 (tools), Node.js, OpenSSL and huggingface_hub.
DANGERS = (
    Danger("the dynamic linker loads or finds libraries by it", ("LD_*", "DYLD_*", "*_PRELOAD")),
    Danger(
        "the C library loads modules or changes its own checks by it",
        ("GCONV_PATH", "LOCPATH", "NLSPATH", "GETCONF_DIR", "GLIBC_TUNABLES", "HOSTALIASES"),
    ),
    Danger(
        "Python finds or runs modules by it",
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
        "packages are installed and found by it",
        ("PIP_*", "UV_*", "CONDA_*", "VIRTUAL_ENV", "PIPX_*", "POETRY_*"),
    ),
    Danger(
        "programs are found, or the files that they trust",
        ("PATH", "HOME", "SHELL", "XDG_*", "ZDOTDIR", "CDPATH", "TMPDIR", "TEMP", "TMP"),
    ),
    Danger(
        "shells run it, or read their commands by it",
        ("BASH_*", "BASHOPTS", "SHELLOPTS", "ENV", "IFS", "PS4", "PROMPT_COMMAND"),
    ),
    Danger(
        "other programs are started by it",
        ("GIT_*", "SSH_*", "SVN_*", "EDITOR", "VISUAL", "PAGER", "BROWSER", "LESSOPEN"),
    ),
    Danger(
        "other languages load code by it",
        (
            *("PERL5*", "PERLLIB", "RUBY*", "NODE_*", "LUA_*", "R_PROFILE*", "R_ENVIRON*"),
            *("CLASSPATH", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS"),
        ),
    ),
    Danger(
        "code is compiled by it, with the compiler, headers and options that it names",
        (
            *("CC", "CXX", "CPP", "NVCC*", "CUDAHOSTCXX", "CUDA_HOME", "CUDA_PATH", "*FLAGS"),
            *("ROCM_HOME", "ROCM_PATH", "HIP_PATH"),
            *("CPATH", "*_INCLUDE_PATH", "LIBRARY_PATH", "COMPILER_PATH", "GCC_EXEC_PREFIX"),
        ),
    ),
    Danger(
        "compiled code, pickles or modules are loaded from where it says",
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
        "libraries are loaded into the program by it, as tools or plug-ins",
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
        "downloads and their certificates are trusted by it",
        ("*_PROXY", "SSL_CERT_*", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
    ),
    Danger(
        "ranks meet, and load what they send each other, where it says",
        ("MASTER_ADDR", "MASTER_PORT", "PET_*", "TORCHELASTIC_*", "TORCH_ELASTIC_*"),
    ),
    Danger("autotune steers its own processes by it", ("AUTOTUNE_*",)),
)


def danger_of(variable: str) -> str | None:
    """Return what a variable does that a file may not do, or None."""
    return next((danger.reason for danger in DANGERS if danger.covers(variable)), None)


def dangerous(variables: Collection[str]) -> list[str]:
    """Return the variables that need to be allowed by name."""
    return [name for name in variables if danger_of(name) is not None]


def refuse_unless_allowed(
    variables: Mapping[str, str], allowed: Collection[str], source: str
) -> None:
    """Refuse variables that load code and that the user has not named.

    Args:
        variables: What a file sets.
        allowed: Names that the user has typed.
        source: The file.

    Raises:
        UsageError: with each of them, its value and reason, and how to allow it.
    """
    names = [name for name in dangerous(variables) if name not in allowed]
    if names:
        raise UsageError("\n".join(_refusal(variables, names, source)))


def _refusal(variables: Mapping[str, str], names: list[str], source: str) -> Iterator[str]:
    for name in names:
        yield f"{source} sets {name}={variables[name]!r}: {danger_of(name)}."
    yield (
        "A file from somebody else runs code that way. If you trust these values, name the "
        f"variables: --allow-env {','.join(names)}, or apply(..., allow_env={names}). If not, "
        "delete their lines under 'config'."
    )
