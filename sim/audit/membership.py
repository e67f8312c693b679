"""Membership inference: tell whether a record was in the data that a model was trained on.

    loss    the lower a record's loss, the likelier it was
    LiRA    the likelihood ratio of the record's confidence, between two Gaussians: one fitted on the
            other models that had the record, one on those that had not

Each model is the target once, and all others are its shadow models. Means are each record's own; the
two variances are those of all records, as is best with few models.

Source: Yeom et al., "Privacy Risk in Machine Learning" (CSF 2018), Sec. 4; Carlini et al., "Membership
Inference Attacks From First Principles" (S&P 2022), Algorithm 1 and Sec. VI.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flhe_lab.audit.shadows import Floats

FPR, RESAMPLES = 0.01, 100

Bools = NDArray[np.bool_]


def strengths(members: Bools, confidence: Floats) -> dict[str, float]:
    """Return AUC, and true positive rate at 1% false positives, of both attacks over all targets.

    Arrays are (models, records). Standard errors are of draws of the targets, with replacement.
    """
    draws = np.random.default_rng(0).integers(0, len(members), (RESAMPLES, len(members)))
    found: dict[str, float] = {}
    for name, scores in (("loss", confidence), ("LiRA", ratios(members, confidence))):
        spread = np.std([rates(members[rows], scores[rows]) for rows in draws], axis=0)
        for what, value, error in zip(("AUC", "TPR"), rates(members, scores), spread, strict=True):
            found |= {f"{name} {what}": value, f"{name} {what} error": float(error)}
    return found


def ratios(members: Bools, confidence: Floats) -> Floats:
    """Return LiRA's log likelihood ratios, 0 where one side has no model; all (models, records)."""
    scores = np.zeros_like(confidence)
    for target in range(len(confidence)):
        others, known = np.delete(confidence, target, 0), []
        for chosen in (members, ~members):
            which = np.delete(chosen, target, 0)
            count = which.sum(0)
            mean = np.where(count, (others * which).sum(0) / np.maximum(count, 1), np.nan)
            variance = np.nansum((others - mean) ** 2 * which) / np.maximum(count - 1, 0).sum()
            known.append((confidence[target] - mean) ** 2 / variance + np.log(variance))
        scores[target] = np.nan_to_num((known[1] - known[0]) / 2)
    return scores


def rates(members: Bools, scores: Floats) -> tuple[float, float]:
    """Return the AUC, and the true positive rate where at most a share `FPR` of the others pass."""
    inside, outside = scores[members], np.sort(scores[~members])
    below = np.searchsorted(outside, inside, "left") + np.searchsorted(outside, inside, "right")
    threshold = outside[-1 - int(FPR * len(outside))]
    return float(below.mean() / (2 * len(outside))), float((inside > threshold).mean())
