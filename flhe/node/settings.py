"""Settings of a node config besides the limits: their names, without `flhe-`, and their meaning.

The limits declare their own (`flhe.keys.roster.limits`). `flhe site init` writes each meaning into a
site's file.
"""

from __future__ import annotations

OWN = {
    "home": "State directory of this node. Without it, each run begins as another site.",
    "roster": "File of the roster. Without it the node refuses to start.",
    "roster-hash": "Hash of the roster that the sites compared, 64 hexadecimal digits.",
    "trust": '"pinned", or "first-use" in trials: the nodes that connect first are members.',
    "schemes": "Schemes that may run here, by commas. Default: flhe's own, without plain.",
    "metrics": "Metrics that may leave, in sums, by commas. With max-epsilon, only those named here.",
    "min-survivors": "Fewest senders of a sum that this node helps to open. 0: as the roster says.",
    "max-federations": "Federations that may begin; 0 for any number. `flhe permit` allows one more.",
    "accept-contract": "Hashes of the contracts that may run, under any run config. Empty: any.",
    "queries": "Names of the queries that this site answers, by commas.",
    "min-contributors": "Fewest sites in a sum of answers that this node helps to open.",
    "max-queries": "Most queries of one federation.",
    "select-rules": "Rules that may choose the encrypted part of an update.",
    "dealt-key": "File of this site's keys, where a dealer deals them.",
    "witness": "Directory for the record of what was used last, outside the disk of flhe-home.",
    "durable": "True: this disk is never put back to an older state, so keys outlive the witness.",
    "leave": "True: give up all keys and leave.",
}
