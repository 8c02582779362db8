"""A small residual network: one training step, then inference, as anybody would write it."""

import torch
from torch import nn


class Residual(nn.Module):
    """Two convolutions with batch norm around a shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, channels, height, width] to the same."""
        y = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(y)) + x)


def main() -> None:
    """Train one step, evaluate two batches."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1),
        Residual(64),
        nn.MaxPool2d(2),
        Residual(64),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    images, labels = torch.randn(16, 3, 32, 32), torch.randint(0, 10, (16,))
    loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    model.eval()
    with torch.no_grad():
        for batch in range(2):
            best = model(torch.randn(16, 3, 32, 32)).argmax(dim=1)
            print(f"batch {batch}: {best.tolist()}")


if __name__ == "__main__":
    main()
