"""Policy: what this node allows, whatever the server requests.

It is read from the node's own config (keys in `settings.py`) and from $FLHE_HOME, $FLHE_METRICS
and $FLHE_WITNESS. It ignores Flower's run config, because the server can rewrite that. Limits are
set in a pinned roster (`flhe.keys.roster.limits`) and in the node config; the stricter one applies.

A simulation has no node config for pinning. Only there, trust is first-use, schemes may have their
weakest settings, and the disk counts as one that is never rolled back. Only there, the server may
see unpermuted supports, read sums and ask for any part of an update in clear. A run is unencrypted
if its run config says so: `scheme="plain"` or `flhe-plain=true`.
"""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Literal, TypeVar

from flhe.coding.flatten import Layout
from flhe.coding.select import MAPS
from flhe.errors import ConfigError, PolicyError, QuorumError
from flhe.keys.roster import limits
from flhe.keys.roster.pinned import load_pinned
from flhe.keys.roster.roster import Roster
from flhe.node.settings import OWN
from flhe.schemes import PLAIN
from flhe.schemes.limit import Limit, Value
from flhe.schemes.registry import SCHEMES
from flhe.training.contract import Contract
from flhe.training.terms import Terms

CURVE_BITS = 128
"""Security of the key agreement over Curve25519, under which each scheme's own keys travel."""
_NAMED = 10
"""Number of names that an error lists."""
Trust = Literal["pinned", "first-use"]
Config = Mapping[str, object]
T = TypeVar("T", str, bool, int)
_NEEDS = {str: "text", bool: "true or false", int: "a whole number, 0 or more"}
RULES = (*MAPS, "random", "layers")
"""Selection rules; see `flhe.coding.select`."""
COUNTS = ("num-examples", "num_examples")
"""Names of an example count. The server names the weight, so it could name any metric as one."""
MAX_QUERIES = 100
"""Default maximum number of queries in a federation."""
METRICS = ("loss", "accuracy", "acc")
PREFIXES = ("train", "eval", "val", "test")


@functools.cache
def settings() -> tuple[str, ...]:
    """Return flhe's keys in a node config."""
    return tuple(f"flhe-{name}" for name in (*OWN, *limits.known()))


def misspelt(config: Config) -> str:
    """Return the error for unknown settings, or "": a misspelled limit would not be enforced."""
    unknown = sorted(k for k in map(str, config) if k not in settings() and _is_ours(_folded(k)))
    if not unknown:
        return ""
    meant = get_close_matches(_folded(unknown[0]), settings(), 1)
    hint = (
        f"did you mean {meant[0]}?"
        if meant
        else "the node.toml that `flhe site init` writes lists them"
    )
    return f"{', '.join(unknown[:_NAMED])}: no setting of flhe in a node config; {hint}"


def configured(node_config: Config) -> bool:
    """Return whether a node config has any flhe setting, as on a deployed node."""
    return any(str(key).startswith("flhe-") for key in node_config)


def _folded(key: str) -> str:
    """Return a key without its common misspellings: case, `_` for `-`, and leading signs."""
    return key.casefold().replace("_", "-").lstrip("-#'\" ")


@functools.lru_cache
def _is_ours(folded: str) -> bool:
    """Return whether flhe's setting was meant, and not the app's own, such as `partition-id`."""
    return folded.startswith("flhe") or bool(get_close_matches(folded, settings(), 1, 0.87))


def setting(config: Config, key: str, default: T) -> T:
    """Return a setting of the type of `default`, by default that; ConfigError for another type."""
    found, kind = config.get(key, default), type(default)
    if type(found) is not kind or (kind is int and found < 0):  # type: ignore[operator]
        raise ConfigError(f"{key} must be {_NEEDS[kind]}, got {type(found).__name__}")
    return found


def listed(config: Config, key: str, default: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return names separated by commas, possibly none; `default` if not set."""
    if key not in config:
        return default
    return tuple(name.strip() for name in setting(config, key, "").split(",") if name.strip())


def allowed(simulated: bool = False, plain_asked: bool = False) -> tuple[str, ...]:
    """Return the schemes that may run by default; deployed, flhe's own that allow it."""
    if simulated:
        return (*SCHEMES.names(), PLAIN) if plain_asked else SCHEMES.names()
    return tuple(name for name in SCHEMES.own if SCHEMES.named(name).deployed)


@dataclass(frozen=True, slots=True)
class Policy:
    """Policy of one node: defaults, its config and its roster.

    `home` is the state directory; if not configured, `root` is the directory above it to make
    private. With `trust` "pinned" the members are those of `roster`, else the first that advertise.
    `schemes` may run here, `metrics` may leave: `loss` includes `train_loss`, `eval-loss` and the
    like. With `leave` the node refuses everything and destroys its keys. `limits` are the stricter
    of roster and own config, by name (`keys.roster.limits`). `dealt_key` is the file with this
    site's dealt keys; `select_rules` may choose the encrypted part.

    This node helps to open a sum of `min_survivors` senders or more, besides the roster's limit. At
    most `max_federations` may begin in `home`; 0 allows any number. `witness` is the witness's
    directory, None for a default one, and with `durable` keys outlive it. `accepted` are hashes of
    permitted contracts, 64 hexadecimal digits each; none permits all. `queries` are the names of
    permitted queries, None for all that the app answers. `max_queries` limits their number in one
    federation. A sum of answers needs `min_contributors` senders.
    """

    home: Path
    trust: Trust = "pinned"
    roster: Roster | None = None
    schemes: tuple[str, ...] = field(default_factory=allowed)
    metrics: tuple[str, ...] = METRICS
    leave: bool = False
    limits: Mapping[str, Value] = field(
        default_factory=lambda: {name: one.default for name, one in limits.known().items()}
    )
    dealt_key: Path | None = None
    select_rules: tuple[str, ...] = ("sensitivity",)
    min_survivors: int = 0
    max_federations: int = 0
    witness: Path | None = None
    durable: bool = False
    queries: tuple[str, ...] | None = ()
    min_contributors: int = 0
    max_queries: int = MAX_QUERIES
    accepted: tuple[str, ...] = ()
    root: Path | None = None

    def __post_init__(self) -> None:
        if self.trust not in ("pinned", "first-use"):
            raise ConfigError(f"flhe-trust={self.trust!r}: must be 'pinned' or 'first-use'")
        if self.trust == "pinned" and self.roster is None:
            raise ConfigError(
                "no roster is pinned on this node: set flhe-roster and flhe-roster-hash in its "
                'node config (or flhe-trust="first-use" if members need no authentication)'
            )
        if unknown := [rule for rule in self.select_rules if rule not in RULES]:
            raise ConfigError(f"flhe-select-rules: {unknown[0]!r} is none of {', '.join(RULES)}")
        if self.trust == "first-use" and self.roster is not None:
            raise ConfigError("a roster is pinned and flhe-trust is 'first-use': choose one")

    @classmethod
    def of_node(
        cls,
        node_config: Config,
        *,
        run_id: int,
        node_id: int,
        simulated: bool,
        plain_asked: bool = False,
        environ: Mapping[str, str] = os.environ,
    ) -> Policy:
        """Return the policy of the node that runs here; ConfigError for invalid settings."""
        if slips := misspelt(node_config):
            raise ConfigError(slips)
        simulated = simulated and not configured(node_config)
        trust = setting(node_config, "flhe-trust", "") or ("first-use" if simulated else "pinned")
        home = setting(node_config, "flhe-home", "")
        root = None if home else default_root(environ)
        if root is None:
            path = Path(home)
        elif simulated and environ.get("FLHE_HOME") and "partition-id" in node_config:
            path = root / f"node-{int(str(node_config['partition-id']))}"
        else:
            path = root / f"{run_id}" / f"{node_id}"
        roster = _roster(node_config)
        dealt = setting(node_config, "flhe-dealt-key", "")
        witness = setting(node_config, "flhe-witness", "") or environ.get("FLHE_WITNESS")
        if simulated and not witness:
            witness = str(path / "witness")  # it goes with the run
        rules = RULES if simulated else ("sensitivity",)
        own = {name: _bound(node_config, own, simulated) for name, own in limits.known().items()}
        bounds = (limits.NONE if roster is None else roster.limits).tighten(own)
        if bounds["max-epsilon"] and root is not None and not simulated:
            raise ConfigError(
                "flhe-max-epsilon without flhe-home: elsewhere each run would have a budget of its own"
            )
        metrics = () if bounds["max-epsilon"] else METRICS  # their sums have no noise
        return cls(
            home=path,
            trust=trust,  # type: ignore[arg-type]  # validated in __post_init__
            roster=roster,
            schemes=_schemes(node_config) or allowed(simulated, plain_asked),
            metrics=listed(node_config, "flhe-metrics", listed(environ, "FLHE_METRICS", metrics)),
            leave=setting(node_config, "flhe-leave", False),
            witness=Path(witness) if witness else None,
            durable=simulated or setting(node_config, "flhe-durable", False),
            # A node without a pinned roster has nothing to compare a federation with.
            max_federations=setting(node_config, "flhe-max-federations", int(roster is not None)),
            dealt_key=Path(dealt) if dealt else None,
            select_rules=listed(node_config, "flhe-select-rules", rules),
            min_survivors=setting(node_config, "flhe-min-survivors", 0),
            accepted=listed(node_config, "flhe-accept-contract"),
            queries=None if simulated else listed(node_config, "flhe-queries"),
            min_contributors=setting(node_config, "flhe-min-contributors", 0),
            max_queries=setting(node_config, "flhe-max-queries", MAX_QUERIES),
            root=root,
            limits=bounds,
        )

    def check_members(self, members: int) -> None:
        """Refuse to share a key with a group of too few members; QuorumError."""
        need = max(self.limits["min-members"], self.min_survivors)
        if members < need:
            raise QuorumError(
                f"{members} members answered, this node's policy needs {need}: wait for more nodes, or "
                f"lower {self._setting('min-members')} (or flhe-min-survivors)"
            )

    def check_survivors(self, senders: int, contract: Contract) -> None:
        """Refuse to help open a sum of too few senders; QuorumError."""
        if senders < (need := self.fewest(contract)):
            raise QuorumError(
                f"a sum of {senders} senders, this node opens none of fewer than {need}: wait for more "
                "nodes, or lower min_replies in the contract, and in the node config "
                "flhe-min-survivors (of answers to queries, flhe-min-contributors)"
            )

    def fewest(self, contract: Contract) -> int:
        """Return the fewest senders of a sum that this node helps to open, by contract and policy."""
        own = max(self.min_survivors, self.min_contributors if contract.asks else 0)
        return max(contract.least, own)

    def check_query(self, name: str) -> None:
        """Refuse a query that this site does not answer; PolicyError."""
        if self.queries is not None and name not in self.queries:
            raise PolicyError(
                f"query {name!r} is not among those that this site answers: add it to flhe-queries in "
                "the node config, if its administrator agrees"
            )

    def check_scheme(self, scheme: str) -> None:
        """Refuse a scheme that this node or its roster does not allow."""
        if scheme == PLAIN and PLAIN not in self.schemes:
            raise PolicyError(
                "the server asked for an unencrypted run, which this node refuses: use a strategy "
                'of flhe, or allow "plain" in flhe-schemes (in a simulation, by flhe-plain=true in '
                "the run config)"
            )
        if scheme == PLAIN and self.limits["max-epsilon"]:
            raise PolicyError("an unencrypted run has no noise, and this site has a privacy budget")
        if scheme not in self.schemes:
            raise PolicyError(f"scheme {scheme!r} is not among {', '.join(self.schemes)}")
        if self.roster is not None and not self.roster.allows(scheme):
            raise PolicyError(f"scheme {scheme!r} is not among those that the pinned roster allows")

    def check_contract(self, contract: Contract) -> None:
        """Refuse a contract that this node does not allow, or its administrator has not accepted."""
        self.check_terms(contract.terms)
        if contract.asks and self.queries == ():
            raise PolicyError(
                "the server asked for a federation that answers queries, and this site answers "
                "none: list the permitted queries in flhe-queries in the node config"
            )
        if contract.asks and contract.least < self.min_contributors:
            raise PolicyError(
                f"the contract has all members keep to sums of {contract.least} sites or more, and "
                f"answers of this one go into none of fewer than {self.min_contributors}: set "
                "min_replies in SecureSum, or lower flhe-min-contributors in the node config"
            )
        private = contract.asks or contract.terms.codec.mechanism is not None
        if self.limits["max-epsilon"] and not private:
            raise PolicyError(
                "the server asked for a run without differential privacy, and this site has a privacy "
                "budget: use dp_fedsgd or dp_fedavg as the strategy, or set "
                f"{self._setting('max-epsilon')} to 0"
            )
        name = contract.hash().hex()
        if self.accepted and name not in self.accepted:
            raise PolicyError(
                f"this site has not accepted the contract {name[:16]}...: read it (`flhe log`), and if "
                f'it is the agreed one, set flhe-accept-contract="{name}" in the node config'
            )

    def check_terms(self, terms: Terms) -> None:
        """Refuse terms that this node or its roster does not allow."""
        scheme = terms.scheme
        self.check_scheme(scheme.name)
        if terms.codec.sparse and not terms.codec.hides and not self.limits["unpermuted"]:
            raise PolicyError(
                "the server asked for sparse updates with permute=False, which reveals the "
                "chosen coordinates to it: leave permute on in the strategy, or set "
                f"{self._setting('unpermuted')}"
            )

        if terms.codec.least_share < self.limits["min-top-k"]:
            raise PolicyError(
                f"the server asked for {terms.codec.least_share:g} of an update's values, of which few "
                f"sites send the same, this node sends {self.limits['min-top-k']:g} or more: raise "
                f"top_k in the strategy, or lower {self._setting('min-top-k')}"
            )

        if scheme.reader == "server" and not self.limits["server-reads"]:
            raise PolicyError(
                "the server asked to read the sum of each round, and with it the model: use "
                f'unmask="clients" in the strategy, or set {self._setting("server-reads")}'
            )

        bits = min(scheme.security, CURVE_BITS)
        if bits < self.limits["min-bits"]:
            raise PolicyError(
                f"the server asked for {scheme.title} with {bits} bits of security, this "
                f"node takes {self.limits['min-bits']} or more: choose stronger parameters in the "
                f"strategy, or lower {self._setting('min-bits')}"
            )

        if broken := scheme.check_limits(self.limits):
            name, why = broken
            raise PolicyError(f"{why}, or set {self._setting(name)}")

        if scheme.agreement == "joint" and self.limits["fresh-keys"]:
            raise PolicyError(
                "the server asked for keys that last longer than one round, this node takes fresh ones "
                'only: use keys="round" in the strategy, or set '
                f"{self._setting('fresh-keys')} to false"
            )
        if scheme.dealt and self.dealt_key is None:
            raise PolicyError(
                "the server asked for keys that were dealt, and this node was dealt none: set "
                'flhe-dealt-key in the node config, or have members make their own: keys="joint" in '
                "the strategy"
            )

        if listed_metric(terms.weight_key, METRICS):
            raise PolicyError(
                f"the server asked to weigh updates by {terms.weight_key!r}, and a measure of the "
                "model is no weight: a refusal for one that is not whole, or 0, would reveal it; weigh "
                f"by {COUNTS[0]!r} in the strategy"
            )
        if terms.weight_key not in COUNTS and not self.allows_metric(terms.weight_key):
            raise PolicyError(
                f"the server asked to weigh updates by {terms.weight_key!r}, whose sum it may read: "
                f"weigh by {COUNTS[0]!r}, or allow it with flhe-metrics in the node config"
            )

        if terms.select.clear:
            self._check_clear(terms)

    def _check_clear(self, terms: Terms) -> None:
        select = terms.select
        if select.kind not in self.select_rules:
            raise PolicyError(
                f"the server asked to select the encrypted values by {select.kind!r}, this node "
                f"permits {', '.join(self.select_rules)}: change the rule in the strategy, or "
                "flhe-select-rules in the node config"
            )
        if not select.by_layer:
            self._check_selected(select.ratio)
        scale = 0.0 if terms.noise is None else terms.noise.scale
        if scale < self.limits["min-noise"]:
            raise PolicyError(
                f"the server asked for clear values with noise of scale {scale:g}, this node adds "
                f"{self.limits['min-noise']:g} or more: raise the strategy's noise, or lower "
                f"{self._setting('min-noise')}"
            )

    def check_layers(self, terms: Terms, layout: Layout) -> None:
        """Refuse terms whose encrypted layers are too small a part of this model."""
        if terms.select.clear and terms.select.by_layer:
            self._check_selected(terms.select.count(layout) / layout.floats)

    def _check_selected(self, share: float) -> None:
        least = self.limits["min-select"]
        if share < least:
            raise PolicyError(
                f"the server asked to encrypt {share:.3g} of each update and to see the rest, this "
                f"node encrypts {least:g} or more: raise select in the strategy, or lower "
                f"{self._setting('min-select')}"
            )

    def _setting(self, name: str) -> str:
        """Return the place of a setting that would allow the request."""
        where = f"flhe-{name} in the node config"
        if self.roster is not None and name in self.roster.limits.said:
            where += f", and {name} in the roster that all sites sign"
        return where

    def allows_metric(self, name: str) -> bool:
        """Return whether a metric of this name may leave the node."""
        return listed_metric(name, self.metrics)


def listed_metric(name: str, metrics: Collection[str]) -> bool:
    """Return whether a list of metrics has this one, with or without a prefix."""
    if name in metrics:
        return True
    prefix, _, rest = name.replace("-", "_").partition("_")
    return prefix in PREFIXES and rest in {metric.replace("-", "_") for metric in metrics}


def default_root(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the directory of state directories that are not configured."""
    if base := environ.get("FLHE_HOME"):
        return Path(base)
    if data := environ.get("XDG_DATA_HOME"):
        return Path(data) / "flhe" / "nodes"
    if home := environ.get("HOME"):
        return Path(home) / ".local" / "share" / "flhe" / "nodes"
    return Path(tempfile.gettempdir()) / f"flhe-{os.getuid()}"


def _roster(config: Config) -> Roster | None:
    path = setting(config, "flhe-roster", "")
    if not path:
        return None
    pinned = setting(config, "flhe-roster-hash", "")
    if not pinned:
        raise ConfigError("flhe-roster without flhe-roster-hash: pin the roster's hash too")
    return load_pinned(path, pinned)


def _schemes(config: Config) -> tuple[str, ...]:
    """Return the configured schemes; none if not set."""
    if "flhe-schemes" not in config:
        return ()
    known, named = (*SCHEMES.names(), PLAIN), listed(config, "flhe-schemes")
    if unknown := [name for name in named if name not in known]:
        raise ConfigError(f"flhe-schemes: {unknown[0]!r} is none of {', '.join(known)}")
    if not named:
        raise ConfigError(
            "flhe-schemes names no scheme: name those that may run, or leave it out to allow all that "
            "encrypt"
        )
    return named


def _bound(config: Config, limit: Limit, simulated: bool) -> Value:
    """Return the node config's value of a limit, or its default."""
    value = config.get(f"flhe-{limit.name}", limit.simulated if simulated else limit.default)
    if not limit.is_value(value):
        raise ConfigError(f"flhe-{limit.name} must be {limit.needs}")
    return limit.taken(value)  # type: ignore[arg-type]  # it is one
