"""No module at all: functional code with a custom autograd Function and a hand-written update."""

# ruff: noqa: T201

import torch


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 2 * x * gradient


w = torch.randn(8, 4, requires_grad=True)
data = torch.randn(16, 8)
for _ in range(3):
    loss = Square.apply(data @ w).mean()
    loss.backward()
    with torch.no_grad():
        w -= 0.1 * w.grad
    w.grad = None
    print(loss.item())
