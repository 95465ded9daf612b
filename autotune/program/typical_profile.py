"""The profile of a typical program, for questions that name no program."""

from __future__ import annotations

from autotune.program.profile import (
    AllocatorFacts,
    LoaderFacts,
    LoopFacts,
    ModelFacts,
    OptimizerFacts,
    PrecisionFacts,
    Profile,
    RankFacts,
    TorchSettings,
)

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
        model=ModelFacts(
            parameters=10**6,
            repeated_blocks=8,
            stages=0,
            conv2d_layers=8,
            batch_norm_layers=0,
            channels_last=False,
            is_compiled=False,
        ),
        precision=PrecisionFacts(weights_dtype="float32", autocast=None, has_scaler=False),
        settings=TorchSettings(
            threads=1,
            interop_threads=1,
            cudnn="default",
            matmul_precision="highest",
            flush_denormal=False,
            deterministic_algorithms=False,
            anomaly_detection=False,
            autograd_profiler=False,
            attention="auto",
        ),
        allocators=AllocatorFacts(mmap_threshold=8 << 20, cuda_alloc_conf=""),
        loop=LoopFacts(zero_grad_to_none=True),
        ranks=RankFacts(),
    )
