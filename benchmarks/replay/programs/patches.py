"""Train a small network on patches cut, flipped and encoded from scikit-learn's two photos."""

import io
import random

import torch
from PIL import Image
from sklearn.datasets import load_sample_images
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

SIZE, PATCHES = 40, 4096


class Patches(Dataset):
    """JPEG patches of the photos, decoded and augmented one by one; the label is the photo."""

    def __init__(self) -> None:
        photos = [Image.fromarray(image) for image in load_sample_images().images]
        rng = random.Random(0)
        self.files = []
        for number in range(PATCHES):
            photo = photos[number % 2]
            left, top = rng.randrange(photo.width - 128), rng.randrange(photo.height - 128)
            file = io.BytesIO()
            photo.crop((left, top, left + 128, top + 128)).save(file, "JPEG")
            self.files.append((file.getvalue(), number % 2))
        self.transform = transforms.Compose(
            [
                transforms.RandomResizedCrop(SIZE, scale=(0.5, 1.0)),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
            ]
        )

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        data, label = self.files[index]
        return self.transform(Image.open(io.BytesIO(data))), label


def main() -> None:
    torch.manual_seed(0)
    loader = DataLoader(Patches(), batch_size=32, shuffle=True, drop_last=True)
    model = nn.Sequential(
        nn.Conv2d(3, 24, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(24, 48, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(48 * 16, 2),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(50):
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
