"""Environment variables that a file may set: those that tune, by their exact names.

A best.yaml, a search space or a record of a search may come from somebody else. Through its
variables it could run that person's code, overwrite files or send data away: the dynamic linker,
Python, shells, compilers and many libraries obey variables, and no list of those that are bad is
complete. So all others need the user's consent, by name. There are no patterns: ``OMP_*`` would
admit ``OMP_TOOL_LIBRARIES``, which loads a library.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from autotune.errors import UsageError

# None of them names a file, a program, a library or a host.
BY_SOURCE = {
    'OpenMP 5.2, "Environment Variables"': (
        "OMP_NUM_THREADS OMP_DYNAMIC OMP_PROC_BIND OMP_PLACES OMP_WAIT_POLICY OMP_SCHEDULE "
        "OMP_STACKSIZE OMP_THREAD_LIMIT OMP_MAX_ACTIVE_LEVELS OMP_NESTED"
    ),
    'GNU libgomp manual, "Environment Variables"; LLVM OpenMP, "Runtime/Design"': (
        "GOMP_CPU_AFFINITY GOMP_SPINCOUNT GOMP_STACKSIZE KMP_AFFINITY KMP_BLOCKTIME KMP_HW_SUBSET "
        "KMP_LIBRARY KMP_TPAUSE"
    ),
    "The guides of oneMKL, OpenBLAS, BLIS, NumExpr and Numba, on threads": (
        "MKL_NUM_THREADS MKL_DYNAMIC MKL_DOMAIN_NUM_THREADS MKL_CBWR MKL_ENABLE_INSTRUCTIONS "
        "MKL_THREADING_LAYER OPENBLAS_NUM_THREADS OPENBLAS_CORETYPE GOTO_NUM_THREADS "
        "BLIS_NUM_THREADS NUMEXPR_NUM_THREADS NUMEXPR_MAX_THREADS NUMBA_NUM_THREADS"
    ),
    "oneDNN: CPU Dispatcher Control, Primitive Cache; the CPU guide of PyTorch": (
        "ONEDNN_MAX_CPU_ISA DNNL_MAX_CPU_ISA ONEDNN_CPU_ISA_HINTS DNNL_CPU_ISA_HINTS "
        "ONEDNN_PRIMITIVE_CACHE_CAPACITY DNNL_PRIMITIVE_CACHE_CAPACITY ONEDNN_DEFAULT_FPMATH_MODE "
        "DNNL_DEFAULT_FPMATH_MODE LRU_CACHE_CAPACITY ATEN_CPU_CAPABILITY"
    ),
    "mallopt(3)": (
        "MALLOC_ARENA_MAX MALLOC_ARENA_TEST MALLOC_MMAP_MAX_ MALLOC_MMAP_THRESHOLD_ "
        "MALLOC_TOP_PAD_ MALLOC_TRIM_THRESHOLD_"
    ),
    'CUDA programming guide, "CUDA Environment Variables"; cuBLAS and cuDNN documentation': (
        "CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER CUDA_DEVICE_MAX_CONNECTIONS CUDA_LAUNCH_BLOCKING "
        "CUDA_MODULE_LOADING CUDA_CACHE_DISABLE CUDA_CACHE_MAXSIZE CUDA_SCALE_LAUNCH_QUEUES "
        "CUBLAS_WORKSPACE_CONFIG CUBLASLT_WORKSPACE_SIZE NVIDIA_TF32_OVERRIDE"
    ),
    'PyTorch, "CUDA semantics", "Torch Environment Variables" and torch/_inductor/config.py': (
        "PYTORCH_CUDA_ALLOC_CONF PYTORCH_ALLOC_CONF PYTORCH_NO_CUDA_MEMORY_CACHING "
        "TORCH_CUDNN_V8_API_DISABLED TORCH_CUDNN_V8_API_LRU_CACHE_LIMIT "
        "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE TORCH_BLAS_PREFER_CUBLASLT TORCH_LINEAR_FLATTEN_3D "
        "TORCHINDUCTOR_COMPILE_THREADS TORCHINDUCTOR_COORDINATE_DESCENT_TUNING "
        "TORCHINDUCTOR_FREEZING TORCHINDUCTOR_LAYOUT_OPTIMIZATION TORCHINDUCTOR_MAX_AUTOTUNE "
        "TORCHINDUCTOR_MAX_AUTOTUNE_GEMM TORCHINDUCTOR_MAX_AUTOTUNE_POINTWISE"
    ),
    'PyTorch, "ProcessGroupNCCL Environment Variables"': (
        "TORCH_NCCL_ASYNC_ERROR_HANDLING TORCH_NCCL_AVOID_RECORD_STREAMS TORCH_NCCL_BLOCKING_WAIT "
        "TORCH_NCCL_CUDA_EVENT_CACHE TORCH_NCCL_HIGH_PRIORITY TORCH_NCCL_USE_COMM_NONBLOCKING"
    ),
    'NCCL, "Environment Variables", without those that name files, plugins or interfaces': (
        "NCCL_ALGO NCCL_PROTO NCCL_NTHREADS NCCL_BUFFSIZE NCCL_MIN_NCHANNELS NCCL_MAX_NCHANNELS "
        "NCCL_MIN_CTAS NCCL_MAX_CTAS NCCL_NCHANNELS_PER_NET_PEER NCCL_P2P_DISABLE NCCL_P2P_LEVEL "
        "NCCL_P2P_DIRECT_DISABLE NCCL_SHM_DISABLE NCCL_SOCKET_NTHREADS NCCL_NSOCKS_PERTHREAD "
        "NCCL_CROSS_NIC NCCL_IB_DISABLE NCCL_IB_QPS_PER_CONNECTION NCCL_IB_SPLIT_DATA_ON_QPS "
        "NCCL_NET_GDR_LEVEL NCCL_NET_GDR_READ NCCL_NVLS_ENABLE NCCL_CUMEM_ENABLE NCCL_LAUNCH_MODE "
        "NCCL_GRAPH_REGISTER NCCL_LOCAL_REGISTER"
    ),
    'CPython, "Command line and environment"': (
        "PYTHONHASHSEED PYTHONMALLOC PYTHONUNBUFFERED PYTHONDONTWRITEBYTECODE PYTHON_GIL "
        "PYTHON_JIT PYTHON_CPU_COUNT"
    ),
    "Hugging Face tokenizers, and rayon, by which they use several cores; datasets": (
        "TOKENIZERS_PARALLELISM RAYON_NUM_THREADS HF_DATASETS_IN_MEMORY_MAX_SIZE"
    ),
    'What "accelerate launch" hands on: prepare_multi_gpu_env() of accelerate/utils/launch.py': (
        "ACCELERATE_USE_CPU ACCELERATE_MIXED_PRECISION ACCELERATE_GRADIENT_ACCUMULATION_STEPS "
        "ACCELERATE_DYNAMO_BACKEND ACCELERATE_DYNAMO_MODE ACCELERATE_DYNAMO_USE_FULLGRAPH "
        "ACCELERATE_DYNAMO_USE_DYNAMIC ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION "
        "ACCELERATE_USE_FSDP FSDP_VERSION FSDP_SHARDING_STRATEGY FSDP_RESHARD_AFTER_FORWARD "
        "FSDP_OFFLOAD_PARAMS FSDP_MIN_NUM_PARAMS FSDP_FORWARD_PREFETCH FSDP_USE_ORIG_PARAMS "
        "FSDP_CPU_RAM_EFFICIENT_LOADING FSDP_SYNC_MODULE_STATES FSDP_ACTIVATION_CHECKPOINTING "
        "FSDP_AUTO_WRAP_POLICY FSDP_TRANSFORMER_CLS_TO_WRAP FSDP_BACKWARD_PREFETCH "
        "FSDP_STATE_DICT_TYPE ACCELERATE_CPU_AFFINITY ACCELERATE_DEBUG_MODE"
    ),
}
TUNING = frozenset(name for names in BY_SOURCE.values() for name in names.split())


def unlisted(variables: Iterable[str]) -> list[str]:
    """Return those of the given variables that the user has to allow by name, sorted."""
    return sorted({*variables} - TUNING)


def refuse_unless_allowed(
    variables: Mapping[str, str], allowed: Iterable[str], source: str
) -> None:
    """Raise an error if a file sets variables that neither tune nor were allowed by name."""
    names = [name for name in unlisted(variables) if name not in {*allowed}]
    if not names:
        return
    refused = "\n".join(f"{source} sets {name}={variables[name]!r}." for name in names)
    raise UsageError(
        f"{refused}\nA file from somebody else could run code, overwrite files or send data away "
        "by a variable, so only those that are known to tune may be set. If you trust these "
        f"values, name the variables: --allow-env {','.join(names)}, or apply(..., "
        f"allow_env={names}). If not, take them out of the file."
    )
