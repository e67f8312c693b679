"""A colour, a marker and a line for each contender, the same in every picture."""

from __future__ import annotations

from flhe_app import style
from flhe_app.style import Look

LOOKS = {
    "SASH+": Look("blue", "P", "--"),
    "SASH": Look("blue", "o"),
    "FLASHE": Look("vermillion", "s"),
    "masks": Look("vermillion", "s"),
    "ESAFL": Look("green", "D"),
    "BatchCrypt": Look("purple", "^"),
    "FedML-HE": Look("wine", "v"),
    "double": Look("vermillion", "s"),
    "single": Look("blue", "o", "--"),
    "Flower": Look("ochre", "X", ":"),
    "TenSEAL": Look("ochre", "X", "-."),
    "SecAgg+": Look("wine", "v", "--"),
    "SecAgg": Look("wine", "v"),
    "plain": Look("grey", "."),
    "clear": Look("grey", "."),
    "paillier": Look("wine", "P"),
    "Pai": Look("wine", "P"),
    "FATE": Look("wine", "P"),
    "FV": Look("ochre", "X"),
    "CKKS": Look("ochre", "X"),
}
"""Part of a contender's name -> its look; the earliest part counts. No picture has two of one look."""

VARIANTS = {"10%": "--", "50%": ":", "rns-8192": "--", "clients weigh": ":"}
"""Part of a name -> the line of this variant of a contender."""


def look(name: str, spare: int = 0) -> Look:
    """Return the look of a contender; `spare` counts those of a picture that have none of their own."""
    parts = [part for part in LOOKS if part in name]
    if "Flower" in parts:
        return LOOKS["Flower"]
    if not parts:
        return style.spare(spare)
    found = LOOKS[min(parts, key=lambda part: (name.index(part), -len(part)))]
    return found._replace(line=next((VARIANTS[v] for v in VARIANTS if v in name), found.line))
