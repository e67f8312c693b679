"""adapters: a small transformer, trained here on public text, and its low-rank adapters."""

from functools import cache
from pydoc_data.topics import topics  # Python's own documentation: no download

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization

LENGTH, WIDTH, RANK = 48, 32, 4


class Transformer(nn.Module):
    """Two layers over ASCII text: codes (count, LENGTH) -> logits (count, 128, LENGTH)."""

    def __init__(self):
        super().__init__()
        self.embedding, self.places = (
            nn.Embedding(128, WIDTH),
            nn.Parameter(torch.zeros(LENGTH, WIDTH)),
        )
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)

    def forward(self, codes: Tensor) -> Tensor:
        """Return the logits of each next character."""
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
        x = self.encoder(self.embedding(codes) + self.places, mask, is_causal=True)
        return (x @ self.embedding.weight.T).transpose(1, 2)


class LoRA(nn.Module):
    """W + B A. All sites have the same random A, so B's mean is exact (Sun et al., ICLR 2024)."""

    def __init__(self, weight: Tensor):
        super().__init__()
        self.register_buffer("a", torch.randn(RANK, weight.shape[1]) / RANK**0.5)
        self.b = nn.Parameter(torch.zeros(weight.shape[0], RANK))

    def forward(self, weight: Tensor) -> Tensor:
        """Return the corrected weight."""
        return weight + self.b @ self.a


@cache
def base(steps: int) -> Transformer:
    """Train a model on public text, freeze it, and add adapters to each layer."""
    torch.manual_seed(0)
    model = Transformer()
    fit(model, "".join(topics.values()), steps, lr=3e-3)
    for layer in model.requires_grad_(False).encoder.layers:
        for part, name in ((layer.self_attn, "in_proj_weight"), (layer.linear1, "weight")):
            register_parametrization(part, name, LoRA(getattr(part, name)))
    return model


def adapters(model: Transformer) -> dict[str, Tensor]:
    """Return the part of the state that is trained, and so the part that travels."""
    return {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}


def fit(model: Transformer, text: str, steps: int, lr: float) -> float:
    """Train on random windows of the text, and return the mean loss of a next character."""
    codes = torch.frombuffer(bytearray(text, "ascii", "ignore"), dtype=torch.uint8).long()
    optimizer, total = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr), 0.0
    for _ in range(steps):
        windows = codes[torch.randint(len(codes) - LENGTH, (16, 1)) + torch.arange(LENGTH + 1)]
        loss = nn.functional.cross_entropy(model(windows[:, :-1]), windows[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() / steps
    return total


def notes(site: int) -> str:
    """Return one site's notes, which are made up."""
    return "".join(f"Pt {100 * site + n}: {('fever', 'cough')[n % 2]}.\n" for n in range(300))
