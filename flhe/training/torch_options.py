"""Torch options: what a torch.optim optimizer was made with, read without importing torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flhe.errors import ConfigError

NEUTRAL: dict[str, Any] = {
    "weight_decay": 0,
    "amsgrad": False,
    "maximize": False,
    "capturable": False,
    "differentiable": False,
    "decoupled_weight_decay": False,
}
"""Options that have no counterpart here, with the values that change nothing."""

IMPLEMENTATION = ("params", "foreach", "fused")
"""What a param group holds beside its rule: the weights, and how torch computes."""


def options_of(optimizer: Any, known: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Name and parameters of a torch.optim.SGD, Adam or RMSprop, as it would step now.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        Its param groups are read: a learning rate that was set after it was made counts.
    known : mapping
        Optimizer's name in lower case -> the parameters that are taken over, among others.

    Returns
    -------
    dict[str, Any]
        "name", and each parameter under PyTorch's name.

    Raises
    ------
    ConfigError
        Another optimizer, param groups that differ, an option that has no counterpart.
    """
    kind = type(optimizer)
    name = kind.__name__.lower()
    if kind.__module__.partition(".")[0] != "torch" or name not in known:
        raise ConfigError(
            f"ClientOptimizer.like({kind.__module__}.{kind.__qualname__}): give a torch.optim.SGD, "
            "Adam or RMSprop itself; others, and classes derived from these, have rules of their own"
        )
    groups = [_options(kind.__name__, name, group, known[name]) for group in optimizer.param_groups]
    for other in groups[1:]:
        if odd := [key for key in groups[0] if other[key] != groups[0][key]]:
            raise ConfigError(
                f"torch.optim.{kind.__name__}: its param groups differ in {odd[0]}; every weight of "
                "the model is stepped alike here, give them one value"
            )
    return {"name": name, **groups[0]}


def _options(
    kind: str, name: str, group: Mapping[str, Any], parameters: Mapping[str, Any]
) -> dict[str, Any]:
    """The parameters of one param group."""
    if "initial_lr" in group:
        raise ConfigError(
            f"torch.optim.{kind}: a schedule changes its learning rate; leave it out, and give a "
            "constant rate, or decay"
        )
    found = {}
    for key, value in group.items():
        if key in parameters:
            found[key] = _number(value)
        elif key not in IMPLEMENTATION and (key not in NEUTRAL or value != NEUTRAL[key]):
            mend = f"leave it at {NEUTRAL[key]!r}" if key in NEUTRAL else "leave it out"
            raise ConfigError(
                f"torch.optim.{kind}({key}={value!r}): {name} here has no {key}; {mend}"
            )
    return found


def _number(value: Any) -> Any:
    """A number, or a pair of them, out of what may be a tensor of one value."""
    if isinstance(value, tuple | list):
        return tuple(_number(part) for part in value)
    return value.item() if hasattr(value, "item") else value
