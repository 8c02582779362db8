"""A DataLoader with two worker processes (argument: fork or spawn) whose data set runs a module without parameters."""

# ruff: noqa: T201

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Normalize(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x - 0.5) / 0.25


class Squares(Dataset):
    def __init__(self) -> None:
        self.transform = Normalize()

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.transform(torch.full((8,), float(index))), index % 2


def main(start: str) -> None:
    workers = 0 if start == "none" else 2
    loader = DataLoader(
        Squares(),
        batch_size=8,
        num_workers=workers,
        shuffle=True,
        multiprocessing_context=start if workers else None,
    )
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        nn.CrossEntropyLoss()(model(x), y).backward()
        optimizer.step()
    print("done")


if __name__ == "__main__":
    main(sys.argv[1])
