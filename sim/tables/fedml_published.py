"""What FedML-HE's paper says in its Tables 4 to 8: its appendix D.

Only a model's length matters to what is timed: vectors of so many values are drawn at random. Ratios
are made of the sizes and seconds here; the paper's own differ a little where it had more digits, and
for CNN's 16.66, which is that of Table 8's 105.72 MB.
"""

from __future__ import annotations

from flhe_lab.papers.published import rows

COHORT = 3
MODELS = rows("fedml", "table_4")
_NAMED = {model.name.partition(" (")[0]: model for model in MODELS}
CNN, MOBILENET, RESNET_18, RESNET_50, VIT, BERT = (
    _NAMED[name]
    for name in ("CNN", "MobileNet", "ResNet-18", "ResNet-50", "Vision Transformer", "BERT")
)
TABLE_5 = {_NAMED[row.model]: row for row in rows("fedml", "table_5")}
TOP_K = TABLE_5[RESNET_18].values
TABLE_6 = rows("fedml", "table_6")
BATCHES, SCALES = ([*dict.fromkeys(getattr(r, by) for r in TABLE_6)] for by in ("batch", "scale"))
TABLE_7 = {row.share: row for row in rows("fedml", "table_7")}
TABLE_8 = {row.framework: row for row in rows("fedml", "table_8")}
