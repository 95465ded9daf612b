"""The list: training loops of libraries, written down before any of them was tried.

One small script each, in the style of the library's own documentation, on data that it makes or
that scikit-learn bundles. The list stays as it is, whatever comes out.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Listed:
    """One script.

    Attributes:
        name: Its file in ``programs/``, without the ending.
        package: Whose loop it is, as the package index names it.
        what: What of the library it uses.
        args: Its command line, under a search.
        short: Its command line for one epoch.
    """

    name: str
    package: str
    what: str
    args: tuple[str, ...] = ()
    short: tuple[str, ...] = ("1",)


LIST = (
    Listed("timm_train", "timm", "create_loader, optimizer and schedule as its train.py has them"),
    Listed("ignite_engine", "pytorch-ignite", "create_supervised_trainer"),
    Listed("monai_cache", "monai", "CacheDataset, its DataLoader"),
    Listed("monai_threads", "monai", "ThreadDataLoader"),
    Listed("skorch_classifier", "skorch", "NeuralNetClassifier.fit"),
    Listed("fastai_learner", "fastai", "Learner, DataLoaders and optimizer of its own"),
    Listed("ultralytics_yolo", "ultralytics", "YOLO(yaml).train, InfiniteDataLoader"),
    Listed("yolov5_loop", "torch", "the loop of YOLOv5's train.py, with its endless loader"),
    Listed("sb3_ppo", "stable-baselines3", "PPO.learn: no loader, steps inside the library"),
    Listed("sentence_transformer", "sentence-transformers", "SentenceTransformerTrainer"),
    Listed("geometric_graphs", "torch_geometric", "its DataLoader of graphs"),
    Listed("giant_sampler", "torch", "iter(loader) over a sampler of 10^10 draws (minGPT)"),
    Listed("cycled_loader", "torch", "next(cycle(loader)), as lucidrains' trainers"),
    Listed(
        "lightning_cli",
        "lightning",
        "LightningCLI",
        ("fit", "--trainer.max_epochs=1000", "--trainer.accelerator=cpu"),
        ("fit", "--trainer.max_epochs=1", "--trainer.accelerator=cpu"),
    ),
    Listed("lightning_fabric", "lightning", "Fabric.setup and setup_dataloaders"),
    Listed("accelerate_loop", "accelerate", "Accelerator.prepare"),
    Listed("hf_trainer", "transformers", "Trainer on a small model made of a config"),
)
