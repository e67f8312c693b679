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
    """Takes mappings, gives mappings, and has one weight in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(6, 4), nn.Linear(4, 6, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor, scale: Tensor) -> dict[str, Tensor]:
        mixed = self.embed(tokens) * scale[:, None, None]
        return {"logits": self.head(functional.scaled_dot_product_attention(*[mixed] * 3)[:, 0])}


class Mixed(nn.Module):
    """Two inputs of different shapes, one of them a mapping's; or all of them in one."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 4)

    def forward(self, one: Tensor, others: dict[str, Tensor] | None = None) -> Tensor:
        if others is None:
            one, others = one[:, :3], {"a": one[:, 3], "b": one[:, 4:]}
        out: Tensor = self.layer(torch.cat([one, others["b"] * others["a"][:, None]], 1)).tanh()
        return out


class Attending(nn.Module):
    def __init__(self, *, by_hand: bool = False) -> None:
        super().__init__()
        self.layer, self.by_hand = nn.Linear(4, 4), by_hand

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.layer(x)
        out: Tensor = (
            (mixed @ mixed.mT / 2).softmax(-1) @ mixed
            if self.by_hand
            else functional.scaled_dot_product_attention(*[mixed] * 3)
        )
        return out.mean(1)


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

    def __init__(self, *, module: bool, weight: bool) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = self.a if module else nn.Linear(4, 4)
        self.c = nn.Linear(4, 4)
        if weight:
            self.c.weight = self.a.weight
        self.o = nn.Linear(4, 3)

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
