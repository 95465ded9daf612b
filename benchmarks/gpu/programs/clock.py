"""Samples per second of a training loop that runs free: nothing waits for the device but the end."""

import time

import torch

WARM_STEPS, WARM_S = 3, 0.3


class Clock:
    """Counts samples; by CUDA events on a GPU, by the wall clock on a CPU.

    Training goes on for ``seconds`` after the first steps; without them it is never over.
    """

    def __init__(self, device: torch.device, seconds: float | None) -> None:
        self.device, self.seconds = device, seconds
        self.steps, self.samples = 0, 0
        self.began_s = time.perf_counter()
        self.counts_since_s: float | None = None
        self.begin = self._mark()

    def _mark(self) -> torch.cuda.Event | float:
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def step(self, samples: int) -> bool:
        """Count one step; returns whether the training is over."""
        now_s = time.perf_counter()
        self.steps += 1
        if self.counts_since_s is not None:
            self.samples += samples
            return self.seconds is not None and now_s - self.counts_since_s >= self.seconds
        if self.steps >= WARM_STEPS and now_s - self.began_s >= WARM_S:
            self.counts_since_s, self.begin = now_s, self._mark()
        return False

    def report(self) -> None:
        """Print the rate, the device, and on a GPU the peak of its memory."""
        end = self._mark()
        if isinstance(end, float):
            elapsed_s = end - self.begin
        else:
            torch.cuda.synchronize()
            elapsed_s = self.begin.elapsed_time(end) / 1000
            print(f"peak memory: {torch.cuda.max_memory_reserved()} bytes reserved")
        print(f"device: {self.device}")
        print(f"{self.samples / elapsed_s:.2f} samples/s")
