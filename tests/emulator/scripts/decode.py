"""Decoding with a key-value cache; arguments: generate (a method of the model), loop, batches or nothing (no loop of any kind);
then cat (the cache grows) or index (it is written in place); then the batches, such as 2,3."""

import sys

import torch
from torch import nn

HEADS, DEPTH, ROOM, PROMPT, TOKENS = 4, 16, 32, 8, 4
WIDTH = HEADS * DEPTH
how, kind = sys.argv[1:3]
batches = [int(text) for text in sys.argv[3].split(",")]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inputs, self.outputs = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.encoder = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, cache: list[torch.Tensor], at: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        parts = self.inputs(x).chunk(3, -1)
        q, k, v = (p.view(batch, length, HEADS, DEPTH).transpose(1, 2) for p in parts)
        if kind == "cat":
            cache[:] = [
                torch.cat([old, new], 2) for old, new in zip(cache, (k, v), strict=False)
            ] or [k, v]
        else:
            cache[:] = cache or [torch.zeros(batch, HEADS, ROOM, DEPTH) for _ in range(2)]
            for whole, new in zip(cache, (k, v), strict=True):
                whole.index_copy_(2, at, new)
        end = int(at[-1]) + 1
        k, v = (part[:, :, :end] for part in cache)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=length > 1)
        return self.outputs(y.transpose(1, 2).reshape(batch, length, WIDTH))

    def generate(self, x: torch.Tensor) -> None:
        decode(self, self.encoder(x))


def decode(model: Model, x: torch.Tensor) -> None:
    cache: list[torch.Tensor] = []
    at = torch.arange(PROMPT)
    done = torch.zeros(len(x), dtype=torch.bool)
    while not done.all():
        x = model(x, cache, at)[:, -1:].tanh()
        at = at[-1:] + 1
        done = done | (x[:, 0, 0] > 1.0) | torch.full((len(x),), int(at) >= PROMPT + TOKENS - 1)


model = Model()
with torch.no_grad():
    if how == "batches":
        data = torch.utils.data.DataLoader(torch.randn(6, WIDTH), batch_size=2)
        for x in data:
            model.outputs(model.encoder(x))
    for batch in batches if how in ("generate", "loop") else ():
        prompt = torch.randn(batch, PROMPT, WIDTH)
        model.generate(prompt) if how == "generate" else decode(model, prompt)
