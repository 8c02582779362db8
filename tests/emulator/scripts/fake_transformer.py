"""A transformer of 1.3 G parameters in bfloat16, for fake tensors, and the ways a script asks for values."""

# ruff: noqa: T201

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norm1(x)).split(width, dim=2)
        q, k, v = (p.view(batch, length, self.heads, -1).transpose(1, 2) for p in parts)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    def __init__(self, layers: int = 24, width: int = 2048, words: int = 32000) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width, 16) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


model = Model().to(torch.bfloat16)
assert model.head.weight is model.embed.weight
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
loader = DataLoader(
    TensorDataset(torch.randint(0, 32000, (4, 512))), batch_size=2, num_workers=2, shuffle=True
)
for (tokens,) in loader:
    loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten())
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    print(f"{loss:.3f} {loss.item()} {bool(loss > 0)} {loss.tolist()} {loss.detach().numpy()}")
mask = loss.detach().reshape(1) > 0
print(len(mask.nonzero()), loss.detach().reshape(1)[mask].shape)
torch.save(model.state_dict(), "nowhere/model.pt")
