"""Feed: the iterator that the program gets from a DataLoader.

It hands out the loader's batches, times how long the program waits for them, and can start over at
the end of the data, so that training goes on for as long as it is measured.

While configs take turns, the workers of those that wait are stopped by SIGSTOP, so that they load
nothing ahead at another config's expense, and their buffers are as they were when their turn comes
again. A stopped process handles no signal but SIGKILL and SIGCONT: it cannot end when it is asked
to, nor see that its parent has died. So all are woken before this process ends, and each dies with
the thread that started it (PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import atexit
import copy
import ctypes
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from time import perf_counter
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader

from autotune.inside.data.loader_options import RequestedOptions
from autotune.inside.data.loader_variants import LoaderSizes, LoaderVariants
from autotune.inside.data.loaders import BuiltLoaders
from autotune.inside.data.nested import first_tensor, map_tensors, tensors_in

MOST_WORKERS = max(8, 2 * len(os.sched_getaffinity(0)))  # of all passes that are kept
PR_SET_PDEATHSIG = 1  # linux/prctl.h


class FeedListener:
    """Follows what the program reads; the hooks run on the thread that asks for batches.

    Attributes:
        is_endless: Whether training continues beyond the program's epoch, also in the loop of a
            library's trainer.
    """

    is_endless: bool = False

    def before_batch(self, feed: Feed) -> None:
        """The program asks a feed for its next batch, which is not fetched yet."""

    def after_batch(self, feed: Feed, batch: Any, samples: int, wait_s: float) -> None:
        """A feed is about to hand a batch to the program."""

    def trains_on(self, feed: Feed) -> bool:  # noqa: ARG002
        """Return whether the feed drives optimizer steps.

        If it does, a config's loader options apply to it.
        """
        return False

    def starts_over(self, feed: Feed) -> bool:  # noqa: ARG002
        """Return whether a training feed restarts when its data are used up, or ends its pass.

        Not asked where training is endless.
        """
        return False

    def cuts(self, feed: Feed) -> bool:  # noqa: ARG002
        """Return whether the feed ends its pass here, although its loader may have more batches.

        Not asked where training is endless.
        """
        return False

    def epoch_ended(self, feed: Feed) -> None:
        """A feed's data are used up, and it starts over instead of ending the program's loop."""

    def pass_ended(self, feed: Feed) -> None:
        """A feed's pass is over: the program's loop gets no more batches from it."""


class _Passes(Protocol):
    """What feeds need of the program's loaders, which ``seams.loader.Passes`` has."""

    built: BuiltLoaders
    options: RequestedOptions
    sizes: LoaderSizes
    variants: LoaderVariants
    resting: Resting
    replays: bool

    def begin(self, loader: DataLoader[Any], written: DataLoader[Any]) -> Iterator[Any]: ...

    def hand_out(
        self, loader: DataLoader[Any], number: int, iteration: object = None, *, trains: bool
    ) -> None: ...


class Feed:
    """Hands out the batches of a loader, and swaps the loader underneath when its options change.

    The program calls it on the thread that iterates, which need not be the thread that trains.
    Unless the listener asks for more, it behaves as PyTorch's own iterator: the same batches,
    random numbers and end.

    Attributes:
        loader: The loader that the program iterates.
        present: What it takes batches from now.
        handed: Batches that the program got in this pass.
        is_mixed: Whether the batches of this pass are not one pass over the program's data: the
            loader was swapped or has another length, a batch was repeated, or autotune took
            batches.
        wants_gradients: Whether gradients were enabled when the program began to iterate.
        thread: Id of the thread that asked for the last batch.
    """

    def __init__(self, loader: DataLoader[Any], passes: _Passes, listener: FeedListener) -> None:
        self.loader = loader
        self.handed = 0
        self._has_started_over = False
        self._passes = passes
        self._listener = listener
        self._version = passes.options.version
        self._resting: dict[DataLoader[Any], LoaderPass] = {}
        self.wants_gradients = torch.is_grad_enabled()
        self.thread = threading.get_ident()
        self._cached: _Cached | None = None
        first = passes.variants.of(loader) if listener.trains_on(self) else loader
        self.is_mixed = self._differs(first)
        self.present = LoaderPass(first, loader, passes)

    def __iter__(self) -> Feed:
        return self

    def __del__(self) -> None:
        if "_resting" in vars(self):  # not yet if the feed could not be made
            self._drop_resting()

    def __len__(self) -> int:
        return len(self.present.loader)

    def __next__(self) -> Any:
        listener = self._listener
        self.thread = threading.get_ident()
        listener.before_batch(self)
        if not listener.is_endless and listener.cuts(self):
            self.present.end()
            listener.pass_ended(self)
            raise StopIteration
        is_steered = listener.trains_on(self)
        if is_steered and self.is_behind:
            self._swap()
        asked = perf_counter()
        if is_steered and self._passes.replays:
            self.is_mixed = True
            self._cached = self._cached or _Cached(*self._next(starts_over=True))
            batch, samples = self._cached.batch(), self._cached.samples
        else:
            self._cached = None
            starts_over = is_steered and (listener.is_endless or listener.starts_over(self))
            batch, samples = self._next(starts_over=starts_over)
        self.handed += 1
        trains = is_steered or self.present.is_target
        self._passes.hand_out(self.present.loader, self.present.number, trains=trains)
        listener.after_batch(self, batch, samples, perf_counter() - asked)
        return batch

    def take(self) -> tuple[Any, int]:
        """Return a batch and its samples as the program would get it, starting over at the end.

        The program does not get the batch, so the pass is mixed from here on.
        """
        self.is_mixed = True
        return self._next(starts_over=True)

    @property
    def limit(self) -> int | None:
        """The number of batches that the program takes for one pass; None if that is unknown."""
        return self._passes.sizes.length_read(self.loader)

    @property
    def is_behind(self) -> bool:
        """Whether the loader's options changed since this feed took its loader."""
        return self._version != self._passes.options.version

    def goes_beyond(self) -> bool:
        """Return whether the program got more batches than it takes for one pass.

        Without a known length, return whether the feed has started over at the end of its data.
        """
        limit = self.limit
        return self._has_started_over if limit is None else self.handed > limit

    def __getattr__(self, name: str) -> Any:
        """Return attributes of PyTorch's iterator, since a program may read its workers there."""
        if name.startswith("__") or "present" not in vars(self):
            raise AttributeError(name)
        return getattr(self.present.iterator, name)

    @property
    def samples_per_epoch(self) -> int | None:
        """Samples from one beginning to the next, under the present options.

        None if data or batches have no known size.
        """
        sizes, loader = self._passes.sizes, self.present.loader
        batches, size = sizes.length(loader), sizes.batch_size(loader)
        if batches is None or size is None:
            return None
        whole = batches * size
        if self._passes.built.facts(self.loader).drop_last:
            return whole
        return min(whole, sizes.dataset_len(self.loader) or whole)

    def _next(self, *, starts_over: bool) -> tuple[Any, int]:
        """Return the next batch and its sample count; start over at the data's end if wanted."""
        try:
            return self.present.take()
        except StopIteration:
            if not starts_over:
                self._listener.pass_ended(self)
                raise
            self._listener.epoch_ended(self)
            self._has_started_over = True
            self.present = LoaderPass(self.present.loader, self.loader, self._passes)
            return self.present.take()

    def _differs(self, variant: DataLoader[Any]) -> bool:
        sizes = self._passes.sizes
        return sizes.length(variant) != sizes.length(self.loader)

    def _swap(self) -> None:
        """Go on with the loader's variant under the present options, where it had stopped."""
        self._version = self._passes.options.version
        variant = self._passes.variants.of(self.loader)
        self.is_mixed = bool(self.handed) or self._differs(variant)
        if variant is not self.present.loader:
            rested = self._change_turns(variant)
            self.present = rested or LoaderPass(variant, self.loader, self._passes)

    def _change_turns(self, variant: DataLoader[Any]) -> LoaderPass | None:
        """Let the present pass rest; return the one over *variant*, awake, if it has rested."""
        resting = self._passes.resting
        resting.stop(self.present)
        self._resting[self.present.loader] = self.present
        wanted = self._resting.pop(variant, None)
        most_workers = MOST_WORKERS - variant.num_workers
        while self._resting and sum(loader.num_workers for loader in self._resting) > most_workers:
            resting.wake(self._resting.pop(next(iter(self._resting))))
        if wanted is not None:
            resting.wake(wanted)
        return wanted

    def _drop_resting(self) -> None:
        while self._resting:
            self._passes.resting.wake(self._resting.popitem()[1])


class LoaderPass:
    """A pass over a loader, which begins when this is made: workers start then.

    Attributes:
        loader: The loader that is iterated.
        iterator: PyTorch's iterator. It is never unset, because other threads may read its queues.
        number: Batches that were taken.
        is_short: Whether the last batch is a smaller one that only occurs because autotune changed
            the batch size. The program alone might never meet one.
        is_target: Whether this is the training loader known from an earlier run.
    """

    def __init__(self, loader: DataLoader[Any], written: DataLoader[Any], passes: _Passes) -> None:
        self.loader, self._written = loader, written
        self._sizes = sizes = passes.sizes
        self.number = 0
        self.is_short = False
        self._batch_size = sizes.batch_size(loader)
        facts = passes.built.facts(written)
        self.is_target = passes.built.is_target(written)
        self._short_batch = None if facts.drop_last or facts.iterable else sizes.round_of(loader)
        self.iterator: Iterator[Any] = passes.begin(loader, written)

    def take(self) -> tuple[Any, int]:
        """Return the next batch and its samples: the loader's batch size, or counted in tensors.

        A loader without a batch size leaves only the tensors. The last batch of an epoch may be
        smaller, which follows from the length of the dataset.

        Raises:
            StopIteration: at the end of the data.
        """
        batch = next(self.iterator)
        self.number += 1
        self.is_short = False
        if self._batch_size is None:
            tensor = first_tensor(batch)
            return batch, int(tensor.shape[0]) if tensor is not None else 1
        if self._short_batch is None or self.number % self._short_batch:
            return batch, self._batch_size
        dataset_len = self._sizes.dataset_len(self._written) or self._batch_size
        samples = (dataset_len - 1) % self._batch_size + 1
        is_written_size = self._batch_size == self._sizes.batch_size(self._written)
        self.is_short = samples < self._batch_size and not is_written_size
        return batch, samples

    def end(self) -> None:
        """End before the data end; workers end or persist, as they would then."""
        self.iterator = iter(())


class Resting:
    """Stops the workers of passes whose options do not have their turn, and wakes them."""

    def __init__(self) -> None:
        self._stopped: dict[int, list[int]] = {}  # process ids, by the id of a pass
        atexit.register(self.wake_all)

    def stop(self, one: LoaderPass) -> None:
        """Stop the workers of a pass; without workers nothing happens."""
        workers = getattr(one.iterator, "_workers", ())
        self._stopped[id(one)] = [worker.pid for worker in workers if worker.is_alive()]
        _signal(self._stopped[id(one)], signal.SIGSTOP)

    def wake(self, one: LoaderPass) -> None:
        """Let the workers of a pass go on."""
        _signal(self._stopped.pop(id(one), []), signal.SIGCONT)

    def wake_all(self) -> None:
        """Let all workers go on, because their passes are to end."""
        while self._stopped:
            _signal(self._stopped.popitem()[1], signal.SIGCONT)


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def die_with_parent(is_worker: Callable[[], bool]) -> None:
    """Have the kernel kill forked workers when the thread that forked them ends.

    Only for workers that the main thread starts: another thread may end before its workers do.
    """
    main = threading.main_thread().ident
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def in_child() -> None:
        if threading.get_ident() == main and is_worker():
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

    os.register_at_fork(after_in_child=in_child)


class _Cached:
    """One batch that is handed out for many steps, to measure training without loading.

    Each step gets new containers, whose entries the program may replace or remove. Tensors are
    shared until the program changes one in place; then each step gets copies of the original batch.
    """

    def __init__(self, batch: Any, samples: int) -> None:
        self.samples = samples
        self._master = copy.deepcopy(batch)
        self._hand_out(batch)

    def batch(self) -> Any:
        """Return the batch in new containers; a deep copy if the last one was changed in place."""
        if self._versions != _versions(self._batch):
            self._hand_out(copy.deepcopy(self._master))
        return map_tensors(lambda tensor: tensor, self._batch)

    def _hand_out(self, batch: Any) -> None:
        self._batch = batch
        self._versions = _versions(batch)


def _versions(batch: Any) -> list[int]:
    return [t._version for t in tensors_in(batch)]  # noqa: SLF001 - autograd's own counter
