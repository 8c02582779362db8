"""A small decoder-only language model trained on random tokens, as anybody would write it."""

import torch
from torch import nn
from torch.nn import functional

VOCABULARY, WIDTH, HEADS, LAYERS, CONTEXT = 512, 256, 4, 2, 128


class Attention(nn.Module):
    """Causal self-attention through PyTorch's fused operator."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, tokens, width] to the same."""
        batch, tokens, _ = x.shape
        q, k, v = (
            t.view(batch, tokens, HEADS, WIDTH // HEADS).transpose(1, 2)
            for t in self.qkv(x).split(WIDTH, dim=2)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, tokens, WIDTH))


class Block(nn.Module):
    """Attention and an MLP, each behind a layer norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, tokens, width] to the same."""
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Decoder(nn.Module):
    """Token and position embeddings, blocks, a linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(CONTEXT, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of the next token."""
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def main() -> None:
    """Two optimizer steps of two micro-batches each, in bfloat16 autocast."""
    torch.manual_seed(0)
    model = Decoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, foreach=True)
    for step in range(2):
        for _ in range(2):
            tokens = torch.randint(0, VOCABULARY, (4, CONTEXT))
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits = model(tokens)
            loss = functional.cross_entropy(logits.float().flatten(0, 1), tokens.flatten())
            (loss / 2).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
