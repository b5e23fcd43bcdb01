"""The configuration of a member's run: the agreement's, with its network and with the member's own data."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx as nx

from depositum import data, networks
from depositum.engines import with_participation
from depositum.errors import ConfigError, listing, nearest, short_repr
from depositum.federation.agreement import Agreement
from depositum.networks.graphs import Graph
from depositum.networks.mixing_matrices import MIXINGS
from depositum.runs import ResolvedConfig, resolve
from depositum.runs.config import NetworkSection
from depositum.runs.config_file import apply_override, parse
from depositum.runs.config_keys import config_keys

#: What each member may choose for itself; all else is agreed.
LOCAL_KEYS = ("run.device", "run.backend", "run.compile", "problem.model.lora.base")
#: The dataset of an agreement that does not name one: each member has a file of arrays.
OWN_ARRAYS = "{client}.npz"


def resolve_agreement(
    agreement: Agreement,
    name: str | None = None,
    own_data: Path | None = None,
    base: Path | None = None,
    overrides: Sequence[str] = (),
) -> ResolvedConfig:
    """The checked configuration of the member `name`, or, without one, of nobody in particular.

    Parameters
    ----------
    own_data
        The member's data: a file, or a folder of images. Without it, its problem is given otherwise, or not at all.
    base
        The folder that paths in the configuration start from.
    overrides
        `key=value` for the member's own choices, `LOCAL_KEYS`.
    """
    table = _run_table(agreement)
    for override in overrides:
        check_local(override)
        apply_override(table, _from_here(override))
    _check_dataset(table["problem"]["dataset"])
    _check_shared(table)
    config = parse(table)
    client = None if name is None else agreement.client(name)

    def held(clients: int) -> range:
        return range(0) if client is None or own_data is None else range(client, client + 1)

    spec = resolve(config, base, held, None if own_data is None else str(own_data.expanduser().resolve()))
    if spec.algorithm.server:
        problem = f"{spec.algorithm.name!r} given, which needs a server; members communicate with their neighbours only"
        raise ConfigError("algorithm.name", problem)
    if agreement.absent == "drop":
        _check_droppable(spec)
    section = config.network
    with config_keys():
        network = networks.build(_graph(agreement), section.mixing, len(agreement.members), base, drop=section.drop)
    described = NetworkSection(
        topology={"edges": [list(edge) for edge in agreement.client_edges]},
        mixing=section.mixing,
        drop=section.drop,
        channel=section.channel,
    )
    return replace(
        spec,
        config=config.model_copy(update={"network": described}),
        network=with_participation(replace(network, name="federation"), spec.engine_settings.participation),
    )


def check_local(override: str) -> None:
    """Refuse a `key=value` that a member cannot choose for itself."""
    key = override.partition("=")[0].strip()
    if key not in LOCAL_KEYS:
        problem = f"{short_repr(override)} given, but this is agreed by all members; a member can set"
        raise ConfigError("--set", f"{problem} {listing(LOCAL_KEYS)}{nearest(key, LOCAL_KEYS)}")


def _from_here(override: str) -> str:
    """The same with the absolute path of a file that exists: the configuration's own paths start elsewhere."""
    key, _, value = override.partition("=")
    path = Path(value.strip().strip("'\"")).expanduser()
    return f"{key}={str(path.resolve())!r}" if key.strip().endswith(".base") and path.exists() else override


def _run_table(agreement: Agreement) -> dict[str, Any]:
    """The configuration as a run takes it; its topology is replaced later."""
    table = deepcopy(agreement.config)
    problem = table.setdefault("problem", {})
    problem["clients"] = len(agreement.members)
    problem.setdefault("dataset", OWN_ARRAYS)
    table["network"] = {**table.get("network", {}), "topology": "complete"}
    table["processes"] = {"evaluate": "none" if agreement.evaluate == "none" else "scalars"}
    return table


def _check_droppable(spec: ResolvedConfig) -> None:
    """Refuse what needs all neighbours in every phase, or all members at any time but the start."""
    given, channel = "'drop' given, but", spec.channel
    if channel.memory or channel.row_bytes(1, spec.engine_settings.resolve_dtype()) is None:
        problem = f"{given} through the channel {channel!r}, messages depend on earlier ones or on each other"
        raise ConfigError("federation.absent", f"{problem}; use 'exact', 'float16' or 'bfloat16'")
    if spec.algorithm.compresses:
        problem = f"{given} {spec.algorithm.name!r} sends differences, which a neighbour that is away would miss"
        raise ConfigError("federation.absent", problem)
    if spec.config.processes.evaluate != "none":
        problem = f"{given} sums of measures need all members; use federation.evaluate = 'none'"
        raise ConfigError("federation.absent", problem)
    own = {"network.drop": spec.config.network.drop, "run.participation": spec.config.run.participation}
    for key in (key for key, value in own.items() if value):
        raise ConfigError("federation.absent", f"{given} {key} drops links too; use one of them")


def _check_dataset(dataset: Any) -> None:
    """Refuse data that is not a member's own file."""
    if data.client_pattern(dataset) is None:
        forms = f"write {OWN_ARRAYS!r}, or {{ table = {{ path = '{{client}}.csv', target = … }} }}"
        raise ConfigError("problem.dataset", f"{short_repr(dataset)} given, but each member has its own file; {forms}")
    if (test := data.explicit_test_file(dataset)) is not None:
        problem = f"the test data {short_repr(test)} given, but a path is another file at each member; leave it out"
        raise ConfigError("problem.dataset", problem)


def _check_shared(table: dict[str, Any]) -> None:
    """Refuse what would tell others about a member's data, and files that others do not have."""
    if table["problem"].get("weighting") == "samples":
        problem = "'samples' given, but members of a federation do not tell each other how many samples they have"
        raise ConfigError("problem.weighting", f"{problem}; use 'uniform'")
    mixing = table["network"].get("mixing")
    if isinstance(mixing, str) and mixing not in MIXINGS:
        problem = f"{short_repr(mixing)} given; it can be {listing(MIXINGS)}{nearest(mixing, MIXINGS)}"
        raise ConfigError("network.mixing", f"{problem} (a file is another one at each member)")


def _graph(agreement: Agreement) -> Graph:
    graph: Graph = nx.empty_graph(len(agreement.members))
    graph.add_edges_from(agreement.client_edges)
    return graph
