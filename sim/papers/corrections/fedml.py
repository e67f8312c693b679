"""What FedML-HE's text gets wrong or leaves open, shown on its own rules.

Source: Jin et al., "FedML-HE".
"""

from __future__ import annotations

import numpy as np

from flhe_lab.papers.corrections.proof import Found

VALUES = 1_663_370
"""Of the CNN in its Table 4."""


def _fedml_select() -> Found:
    import tenseal as ts

    # One multiplication, as configured in Sec. 4.1; n = 4096 holds that with short primes.
    context = ts.context(ts.SCHEME_TYPE.CKKS, 4096, coeff_mod_bit_sizes=[40, 20, 40])
    context.global_scale = 2.0**20
    total = ts.ckks_vector(context, [0.1, 0.4, 0.2]) * 0.5
    refused = []
    try:
        _ = total > 0.1
    except TypeError:
        refused.append("TenSEAL has no comparison")
    try:
        _ = total * total
    except ValueError:
        refused.append("after the weights not even a square can be computed")
    return Found(
        f"CKKS with one multiplication: {'; '.join(refused)}. The first is of this library alone; "
        "the second carries the argument, as a comparison takes products: so no top p of an "
        "encrypted map.",
        len(refused) == 2,
    )


def _fedml_map() -> Found:
    import torch
    from torch.nn import functional

    from flhe.coding.sensitivity import sensitivity

    torch.manual_seed(1)  # a made-up model; no key
    model = torch.nn.Sequential(
        torch.nn.Linear(784, 100), torch.nn.ReLU(), torch.nn.Linear(100, 10)
    )
    image, label = torch.rand(1, 784), torch.tensor([3])
    maps = sensitivity(model, functional.cross_entropy, [(image, label)])
    functional.cross_entropy(model(image), label).backward()  # type: ignore[no-untyped-call]
    grads = {name: p.grad for name, p in model.named_parameters()}
    flat = torch.cat([maps[name].reshape(-1) for name in grads])
    weights = grads["0.weight"]
    assert weights is not None
    alike, shares = [], (0.1, 0.2, 0.3, 0.4)
    for p in shares:
        # Ties at the border are encrypted too.
        border = flat.sort(descending=True).values[int(p * flat.numel())]
        clear = (maps["0.weight"] < border) & (weights != 0)
        # dl/dW_jk = x_k d_j: the row of a unit is the image, but for its brightness.
        unit = int(clear.sum(dim=1).argmax())
        row = weights[unit].abs()
        # What is hidden of it is the brightest part: sensitivity is x_k times a number of the unit.
        seen = torch.where(clear[unit], row, row[clear[unit]].max())
        alike.append(float(torch.corrcoef(torch.stack([seen, image[0]]))[0, 1].abs()))
    texts = [f"{a:.2f} with {p:.0%} encrypted" for a, p in zip(alike, shares, strict=True)]
    return Found(
        "MLP of 784, 100 and 10 units, one image: the gradients of one unit's weights, with the "
        "brightest of what is in clear where something is hidden, correlate with the image by "
        f"{', '.join(texts)}.",
        alike[0] > 0.999 and alike[1] > 0.9,
    )


def _fedml_one_map() -> Found:
    rng = np.random.default_rng(2)  # test data
    # Linear regression: the loss is (w x - y)^2 / 2, so |d/dy dl/dw| is |x|, here over 8 samples.
    spread = rng.random((3, 1, 10_000)) * [[[1e3]], [[1]], [[1]]]  # one has other units
    maps = np.abs(rng.standard_normal((3, 8, 10_000)) * spread).mean(axis=1)
    top = [set(np.argsort(m)[-1000:].tolist()) for m in (maps.sum(axis=0), maps[0])]
    normed = sum(m / m.max() for m in maps)
    ours = set(np.argsort(normed)[-1000:].tolist())
    alike, even = (len(t & top[1]) / 1000 for t in (top[0], ours))
    return Found(
        "Linear regression, three clients, the inputs of one in units a thousandth as large: "
        f"{alike:.0%} of what is encrypted is its own top tenth; with scaled maps {even:.0%}.",
        alike > 0.97 and even < 0.6,
    )


def _fedml_remarks() -> Found:
    rng, p = np.random.default_rng(3), 0.1  # test data
    deltas = rng.random(200_000)
    chosen = rng.random(deltas.size) < p
    whole = deltas.sum()  # Theorem 3.11: the sum of Delta_i / b over what is in clear
    worded, meant = (deltas[clear].sum() / whole for clear in (chosen, ~chosen))
    order = np.argsort(deltas)
    most = np.zeros(deltas.size, np.bool_)
    most[order[: int((1 - p) * deltas.size)]] = True
    selective = deltas[most].sum() / whole
    return Found(
        f"p = {p}, J = 1: to encrypt the remaining ones, as worded, leaves {worded:.2f}; to "
        f"encrypt the chosen ones {meant:.2f}. The most sensitive: {selective:.2f}, which is "
        f"{selective / meant:.2f} of random selection, not {(1 - p) ** 2:.2f}.",
        abs(worded - p) < 0.01 and abs(selective / meant - (1 - p)) < 0.01,
    )


def _fedml_epsilon() -> Found:
    p, alpha, b = 0.1, 1.0, 1.0
    worst = 2 * alpha / b * (VALUES - round(p * VALUES))  # Theorem 3.11: all that clipping bounds
    assumed = VALUES / 2 * (1 - p) ** 2
    return Found(
        f"CNN, {p:.0%} encrypted, b = 1, every round: by its formula epsilon = {assumed:,.0f} "
        "with differences spread over [0, 1]; with values clipped at 1 and nothing assumed, "
        f"{worst:,.0f}.",
        worst > assumed > 1e5,
    )
