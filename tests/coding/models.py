"""Models whose gradients are differentiated again, one for each thing that may go wrong."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


def random(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def mlp(seed: int = 0, outputs: int = 4) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, outputs))


class Tokens(nn.Module):
    """Takes mappings, and has one weight in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(6, 4), nn.Linear(4, 6, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor, scale: Tensor) -> dict[str, Tensor]:
        mixed = self.embed(tokens) * scale[:, None, None]
        return {"logits": self.head(functional.scaled_dot_product_attention(*[mixed] * 3)[:, 0])}


class Mixed(nn.Module):
    """Several inputs of different shapes, two of them in a mapping."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 4)

    def forward(self, one: Tensor, others: dict[str, Tensor]) -> Tensor:
        joined = torch.cat([one, others["b"] * others["a"][:, None]], 1)
        out: Tensor = self.layer(joined).tanh()
        return out


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = functional.scaled_dot_product_attention(*[self.layer(x)] * 3).mean(1)
        return out


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRU(3, 4, batch_first=True), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        if x.abs().max() > 100:  # control flow that depends on data: vmap refuses it
            x = x / 100
        out: Tensor = self.head(self.cell(x)[0][:, -1])
        return out


class Shared(nn.Module):
    """One layer in two places, and its weight in a third."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.c, self.o = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.b, self.c.weight = self.a, self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        for layer in (self.a, self.b, self.c):
            x = torch.tanh(layer(x))
        out: Tensor = self.o(x)
        return out


class Sum(nn.Module):
    """Two weights whose gradients are one tensor, and one that takes no part."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.unused = (nn.Parameter(random(i, 5, 4)) for i in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.one + self.two)
