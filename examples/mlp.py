"""A small PyTorch training loop, as anybody would write it; nothing here knows of trnprof."""

import torch
from torch import nn


class Classifier(nn.Module):
    """Three linear layers with GELU and a layer norm."""

    def __init__(self, width: int = 1024) -> None:
        super().__init__()
        self.embed = nn.Linear(784, width)
        self.norm = nn.LayerNorm(width)
        self.hidden = nn.Linear(width, width)
        self.head = nn.Linear(width, 10)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Logits of each class."""
        hidden = torch.nn.functional.gelu(self.embed(pixels))
        hidden = torch.nn.functional.gelu(self.hidden(self.norm(hidden)))
        return self.head(hidden)


def main() -> None:
    """Train for three steps on random data."""
    torch.manual_seed(0)
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(3):
        pixels, labels = torch.randn(512, 784), torch.randint(0, 10, (512,))
        loss = torch.nn.functional.cross_entropy(model(pixels), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
