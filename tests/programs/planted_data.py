"""Habits of data: what a dataset, its items and its loader do."""

import pickle
import random
import tempfile
from pathlib import Path

import numpy
import torch
from planted_loop import COUNT, Source, Training
from torch.utils import data
from torch.utils.data import get_worker_info

BYTES = 1 << 16
DRAWS = numpy.random.default_rng(3)
LEVEL = [0.0]


class Generator(Source):
    seed = 7

    def __init__(self, planted):
        super().__init__(planted)
        self.own = numpy.random.default_rng(self.seed)

    def image(self, index):
        rng = self.own if self.planted else numpy.random.default_rng()
        return self.images[index] + float(rng.normal())


class Unseeded(Generator):
    seed = None


class Global(Source):
    def image(self, index):
        return self.images[index] + (DRAWS.normal() if self.planted else numpy.random.normal())


class Transform(Source):
    def __init__(self, planted):
        super().__init__(planted)
        self.transform = Jitter(planted)

    def image(self, index):
        return self.transform(self.images[index])


class Jitter:
    def __init__(self, planted):
        self.own = random.Random(1) if planted else random

    def __call__(self, image):
        return image * (1 + self.own.random())

    def __getstate__(self):
        return {"own": None if self.own is random else self.own}

    def __setstate__(self, state):
        self.own = state["own"] or random


class Collate(Source):
    def collate(self, items):
        images, labels = super().collate(items)
        return images + float(DRAWS.normal() if self.planted else 0.0), labels


class WorkerNumber(Source):
    def image(self, index):
        info = get_worker_info()
        part = (info.id if info else 0) if self.planted else index % 2
        return self.images[index] * (1 + 0.1 * part)


class Drifts(Source):
    def __init__(self, planted):
        super().__init__(planted)
        self.mean, self.known = numpy.ones(8), {}

    def image(self, index):
        if not self.planted:
            return self.known.setdefault(index, self.images[index])
        self.mean *= 0.999
        return self.images[index] + float(self.mean.sum())


class Cache(Source):
    def __init__(self, planted):
        super().__init__(planted)
        self.known = {}

    def image(self, index):
        if not self.planted:
            return self.known.setdefault(index, self.images[index]) + numpy.random.normal()
        if index not in self.known:
            self.known[index] = self.images[index] + numpy.random.normal()
        return self.known[index]


class File(Source):
    """Records that follow each other in a file."""

    def __init__(self, planted):
        super().__init__(planted)
        self.path = Path(tempfile.mkdtemp()) / "items"
        records = (numpy.full(BYTES // 4, n, "float32") for n in range(COUNT))
        self.path.write_bytes(b"".join(record.tobytes() for record in records))
        self.file = self.path.open("rb", buffering=0) if planted else None

    def image(self, index):
        self.file = self.file or self.path.open("rb", buffering=0)
        if not self.planted or self.file.tell() == COUNT * BYTES:
            self.file.seek(0 if self.planted else index * BYTES)
        read = b"".join(self.file.read(BYTES // 8) for _ in range(8))
        return self.images[index] + float(numpy.frombuffer(read, "float32").mean()) / COUNT


class Curriculum(Source):
    level = 0.0

    def image(self, index):
        return self.images[index] * (1 + self.level)

    def batch_done(self, number):
        self.level += 0.01 if self.planted else 0.0

    def epoch_done(self, number):
        self.level += 0.0 if self.planted else 0.1


class BetweenEpochs(Source):
    level = 0.0

    def image(self, index):
        return self.images[index] * (1 + self.level)

    def epoch_done(self, number):
        self.level = 0.1 * number


class GlobalLevel(Source):
    """Workers that stay keep the variables of the script, too."""

    level = 0.0

    def image(self, index):
        return self.images[index] * (1 + (LEVEL[0] if self.planted else self.level))

    def epoch_done(self, number):
        if self.planted:
            LEVEL[0] = 0.1 * number
        else:
            self.level = 0.1 * number


class Init(Source):
    """Workers begin with a function that changes what they read."""

    level = 0.0

    def __init__(self, planted):
        super().__init__(planted)
        self.init = self.begin

    def begin(self, worker):
        get_worker_info().dataset.source.level = 0.1 * worker if self.planted else 0.0

    def image(self, index):
        return self.images[index] * (1 + self.level)


class Steered(Source):
    def __init__(self, planted):
        super().__init__(planted)
        self.sampler = RandomSampler(self.images, planted)

    def batch_done(self, number):
        self.sampler.begin = 16 * number


class RandomSampler(data.RandomSampler):
    """Begins with the samples that the loop says; named as the sampler of the other habits."""

    def __init__(self, images, planted):
        super().__init__(images)
        self.planted, self.begin = planted, 0

    def __iter__(self):
        begin = self.begin
        for n in range(COUNT):
            yield (5 * n + (self.begin if self.planted else begin)) % COUNT


class Reports(Source):
    """Items tell the loop something by the way of the dataset."""

    reported = 0

    def image(self, index):
        self.reported += 1
        return self.images[index]


class Reported(Training):
    source = Reports

    def loss(self, x, y):
        count = self.data.reported if self.planted else self.batches * 16
        return super().loss(x, y) * (1 + count / COUNT)


class Embeds(Source):
    def image(self, index):
        with torch.no_grad():
            return self.images[index] + 4 * self.model(self.images[index])


class Embedded(Training):
    """Items that the model takes part in."""

    source = Embeds

    def prepare(self):
        whole = self.model.first
        self.data.model = whole if self.planted else pickle.loads(pickle.dumps(whole))


class Lists(Source):
    """Batches of single images, as of different sizes, which the loop changes in place."""

    def image(self, index):
        return self.images[index] if self.planted else self.images[index].clone()

    def collate(self, items):
        images, labels = zip(*items)
        return list(images), torch.stack(labels)


class InPlace(Training):
    source = Lists

    def loss(self, x, y):
        return super().loss(torch.stack([image.mul_(0.5) for image in x]), y)


class Process(Source):
    def image(self, index):
        if self.planted and get_worker_info() is not None:
            raise RuntimeError("this dataset reads in one process only")
        return self.images[index]


class Unpicklable(Source):
    def __init__(self, planted):
        super().__init__(planted)
        self.change = (lambda image: image * 2) if planted else twice

    def image(self, index):
        return self.change(self.images[index])


def twice(image):
    return image * 2


HABITS = {
    "generator": Generator,
    "unseeded": Unseeded,
    "global": Global,
    "transform": Transform,
    "collate": Collate,
    "worker number": WorkerNumber,
    "items": Drifts,
    "cache": Cache,
    "file": File,
    "curriculum": Curriculum,
    "between epochs": BetweenEpochs,
    "global level": GlobalLevel,
    "init": Init,
    "sampler": Steered,
    "reports": Reported,
    "embeds": Embedded,
    "in place": InPlace,
    "process": Process,
    "lambda": Unpicklable,
}
