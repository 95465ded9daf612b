"""Habits of data: what a dataset, its items and its loader do."""

import pickle
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
    def prepare(self):
        self.own = numpy.random.default_rng(7)

    def added(self, index):
        return float((self.own if self.planted else numpy.random.default_rng()).normal())


class Global(Source):
    def added(self, index):
        return DRAWS.normal() if self.planted else numpy.random.normal()


class Collate(Source):
    def collate(self, items):
        images, labels = super().collate(items)
        return images + float(DRAWS.normal() if self.planted else 0.0), labels


class Cache(Source):
    def prepare(self):
        self.known = {}

    def image(self, index):
        if index not in self.known or not self.planted:
            self.known[index] = self.images[index] + numpy.random.normal()
        return self.known[index]


class File(Source):
    """Records that follow each other in a file."""

    def prepare(self):
        self.path = Path(tempfile.mkdtemp()) / "items"
        records = (numpy.full(BYTES // 4, n, "float32") for n in range(COUNT))
        self.path.write_bytes(b"".join(record.tobytes() for record in records))
        self.file = self.path.open("rb", buffering=0) if self.planted else None

    def added(self, index):
        self.file = self.file or self.path.open("rb", buffering=0)
        if not self.planted or self.file.tell() == COUNT * BYTES:
            self.file.seek(0 if self.planted else index * BYTES)
        read = b"".join(self.file.read(BYTES // 8) for _ in range(8))
        return float(numpy.frombuffer(read, "float32").mean()) / COUNT


class Leveled(Source):
    known = 0.0

    def level(self, index):
        return self.known


class Curriculum(Leveled):
    def batch_done(self, number):
        self.known += 0.01 if self.planted else 0.0

    def epoch_done(self, number):
        self.known += 0.0 if self.planted else 0.1


class BetweenEpochs(Leveled):
    def epoch_done(self, number):
        self.known = 0.1 * number


class GlobalLevel(Leveled):
    """Workers that stay keep the variables of the script, too."""

    def level(self, index):
        return LEVEL[0] if self.planted else self.known

    def epoch_done(self, number):
        if self.planted:
            LEVEL[0] = 0.1 * number
        else:
            self.known = 0.1 * number


class Init(Leveled):
    """Workers begin with a function that changes what they read."""

    def prepare(self):
        self.init = self.begin

    def begin(self, worker):
        get_worker_info().dataset.source.known = 0.1 * worker if self.planted else 0.0


class RandomSampler(data.RandomSampler):
    """Begins with the samples that the loop says; named as the sampler of the other habits."""

    def __init__(self, images, planted):
        super().__init__(images)
        self.planted, self.begin = planted, 0

    def __iter__(self):
        begin = self.begin
        for n in range(COUNT):
            yield (5 * n + (self.begin if self.planted else begin)) % COUNT


class Sampler(Source):
    def prepare(self):
        self.sampler = RandomSampler(self.images, self.planted)

    def batch_done(self, number):
        self.sampler.begin = 16 * number


class Reports(Training):
    """Items tell the loop something by the way of the dataset."""

    class source(Source):
        reported = 0

        def image(self, index):
            self.reported += 1
            return self.images[index]

    def loss(self, x, y):
        count = self.data.reported if self.planted else self.batches * 16
        return super().loss(x, y) * (1 + count / COUNT)


class Embeds(Training):
    """Items that the model takes part in."""

    class source(Source):
        @torch.no_grad()
        def image(self, index):
            return self.images[index] + 4 * self.model(self.images[index])

    def prepare(self):
        whole = self.model.first
        self.data.model = whole if self.planted else pickle.loads(pickle.dumps(whole))


class InPlace(Training):
    class source(Source):
        """Batches of single images, as of different sizes, which the loop changes in place."""

        def image(self, index):
            return self.images[index] if self.planted else self.images[index].clone()

        def collate(self, items):
            images, labels = zip(*items)
            return list(images), torch.stack(labels)

    def loss(self, x, y):
        return super().loss(torch.stack([image.mul_(0.5) for image in x]), y)


class Process(Source):
    def image(self, index):
        if self.planted and get_worker_info() is not None:
            raise RuntimeError("this dataset reads in one process only")
        return self.images[index]


def twice(image):
    return image * 2


class Lambda(Source):
    def prepare(self):
        self.change = (lambda image: image * 2) if self.planted else twice

    def image(self, index):
        return self.change(self.images[index])
