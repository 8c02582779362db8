"""Two steps of a block that is computed again in backward, and names the device in its forward; made on no device, then moved."""

import torch
from torch.utils.checkpoint import checkpoint


class Block(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x) + torch.ones(8, device="cuda")


if __name__ == "__main__":
    with torch.device("meta"):
        model = Block(8, 8)
    model.to_empty(device="cuda")
    assert model.weight.device.type != "meta"
    optimizer = torch.optim.SGD(model.parameters())
    for _ in range(2):
        x = torch.randn(4, 8)
        checkpoint(model, x, use_reentrant=False).sum().backward()
        optimizer.step()
