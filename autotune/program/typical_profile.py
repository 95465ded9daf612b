"""The profile of a typical program, for questions that name no program."""

from __future__ import annotations

from autotune.program.profile import LoaderFacts, OptimizerFacts, Profile

# The typical program that stands in when the user names none
BATCH = 32


WAYS = ("for-loop", "foreach", "fused")


def ordinary_program(device: str) -> Profile:
    """Return the profile of a typical program: a small image classifier with attention and AdamW.

    It stands in when ``autotune knobs`` is called without a program.
    """
    loader = LoaderFacts(
        dataset="Dataset",
        dataset_len=60_000,
        batch_size=BATCH,
        num_workers=0,
        prefetch_factor=None,
        pin_memory=False,
        persistent_workers=False,
        sampler="RandomSampler",
        has_batch_sampler=False,
        iterable=False,
        drop_last=False,
    )
    implementation = "foreach" if device == "cuda" else "for-loop"
    return Profile(
        device=device,
        loaders=(loader,),
        optimizers=(OptimizerFacts("AdamW", ("AdamW", "Adam"), (1e-3,), implementation, WAYS),),
        parameters=10**6,
        repeated_blocks=8,
        program_checkpointing=False,
        conv2d_layers=8,
        channels_last=False,
        program_autocast=None,
        program_scaler=False,
        weights_dtype="float32",
        program_compile=False,
        num_threads=1,
        interop_threads=1,
        cudnn_benchmark=False,
        matmul_precision="highest",
        flush_denormal=False,
        mmap_threshold=8 << 20,
        deterministic_algorithms=False,
        anomaly_detection=False,
        calls_sdpa=True,
        sdpa_backend="auto",
        profiles=False,
        copies_without_blocking=False,
        zero_grad_to_none=True,
        preloaded="",
        cuda_alloc_conf="",
    )
