"""A run of the user's own objects: their problem, network and method as a configuration that a run folder can store.

Objects that a configuration cannot name are described by their size and a digest of their content. A run is resumed
only with objects of the same description.
"""

import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from depositum.algorithms import ALGORITHMS, Algorithm
from depositum.channels import CHANNELS, Channel
from depositum.metrics import MetricSettings
from depositum.networks import DirectedNetwork, Network
from depositum.problem import Problem
from depositum.problem.losses import LOSSES, Loss
from depositum.regularizers import REGULARIZERS, Group, Groups, Regularizer
from depositum.runs.config import AlgorithmSection, MetricsSection, Named, NetworkSection, ProblemSection
from depositum.runs.config_file import parse
from depositum.runs.resolved import ResolvedConfig, check_numbers, check_together, checked_network

#: The name under which a configuration describes an object that the user passed.
IN_MEMORY = "in-memory"


def resolve_given(
    problem: Problem,
    method: Algorithm,
    *,
    network: Network | None,
    channel: Channel,
    regularizer: Regularizer,
    metrics: MetricSettings,
    run: Mapping[str, Any],
    processes: Mapping[str, Any],
    holdout: float = 0.0,
    digests: bool = True,
) -> ResolvedConfig:
    """The configuration of a problem, a network and a method that the user passed, checked in full.

    Parameters
    ----------
    network
        None for the default, a ring.
    run, processes
        The keys of these sections.
    holdout
        The part of each client's training samples that replaces the test data.
    digests
        Whether the content of data and model is described, which a folder needs; it reads all data once.
    """
    config = parse({"run": dict(run), "processes": dict(processes)}).model_copy(
        update={
            "problem": ProblemSection(
                dataset=_described_data(problem, digests),
                model=_described_model(problem, digests),
                loss=_described_loss(problem.loss),
                clients=problem.n,
                weighting=problem.weighting,
                regularizer=_described_regularizer(regularizer),
                beta=float(problem.beta),
                holdout=holdout,
            ),
            "network": _network_section(network, channel),
            "algorithm": AlgorithmSection(name=_method_name(method)),
            "metrics": _metrics_section(metrics),
        }
    )
    check_numbers(config)
    check_together(config, method, regularizer, metrics)
    settings = config.run.engine_settings()
    network = checked_network(network, channel, settings, method, problem.n)
    return ResolvedConfig(config, Path(), method, regularizer, network, channel, settings, metrics, problem)


def is_in_memory(chosen: Named) -> bool:
    """Whether a configuration describes, and does not name, a dataset or a model."""
    return isinstance(chosen, dict) and IN_MEMORY in chosen


def same_but_for_the_start(one: object, other: object) -> bool:
    """Whether two descriptions of models differ in nothing but the initial parameters."""
    if not (isinstance(one, dict) and isinstance(other, dict) and {*one} == {*other} == {IN_MEMORY}):
        return False
    first, second = ({k: v for k, v in model[IN_MEMORY].items() if k != "start"} for model in (one, other))
    return bool(first == second)


def _described_data(problem: Problem, digests: bool) -> Named:
    parts = problem.trials[0].parts
    described: dict[str, Any] = {
        "samples": sum(map(len, parts)),
        "shape": list(problem.train.inputs.shape[1:]),
    }
    if digests:
        tensors = [problem.train.inputs, problem.train.targets, torch.tensor([len(part) for part in parts])]
        if problem.test is not None:
            tensors += [problem.test.inputs, problem.test.targets]
        described["digest"] = _digest(*tensors)
    return {IN_MEMORY: described}


def _described_model(problem: Problem, digests: bool) -> Named:
    model = problem.model
    described: dict[str, Any] = {"class": type(model).__qualname__, "parameters": problem.layout.size}
    if digests:
        described |= {
            "architecture": architecture_digest(model),
            "start": _digest(problem.trials[0].start, *model.buffers()),
        }
    return {IN_MEMORY: described}


def architecture_digest(model: nn.Module) -> str:
    """A digest of all of a model but its initial state: what it prints, its tensors' shapes, its frozen parameters."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    shapes = [f"{name} {tuple(z.shape)} {z.dtype} {z.requires_grad}" for name, z in tensors]
    return _digest("\n".join([repr(model), *shapes]), *(z for z in model.parameters() if not z.requires_grad))


def _described_loss(loss: Loss) -> str:
    return loss.name if loss.name in LOSSES else f"{IN_MEMORY}: {loss.name}"


def _described_regularizer(h: Regularizer) -> Named | list[dict[str, Any]]:
    """A regularizer as a configuration writes it, or one that can be compared with it."""
    if isinstance(h, Groups):
        return [_described_group(group) for group in h.groups]
    if isinstance(h, Group):
        return [_described_group(h)]
    name = next((name for name in REGULARIZERS if REGULARIZERS[name] is type(h)), None)
    if name is None:
        arguments = dataclasses.asdict(h) if dataclasses.is_dataclass(h) else {"repr": repr(h)}
        return {_class_name(h): {k: _plain(v) for k, v in arguments.items() if v is not None}}
    arguments = {k: getattr(h, k) for k in REGULARIZERS.parameters(name) if getattr(h, k, None) is not None}
    return {name: {k: _plain(v) for k, v in arguments.items()}} if arguments else name


def _described_group(group: Group) -> dict[str, Any]:
    inner = _described_regularizer(group.regularizer)
    described: dict[str, Any] = {inner: {}} if isinstance(inner, str) else dict(inner)  # type: ignore[arg-type]
    if group.patterns is not None:
        described["on"] = group.patterns if isinstance(group.patterns, str) else list(group.patterns)
    return {**described, "scale": group.scale}


def _metrics_section(metrics: MetricSettings) -> MetricsSection:
    section = {key: getattr(metrics, key) for key in MetricsSection.model_fields}
    section["functions"] = {name: _function_name(f) for name, f in metrics.functions.items()} or None
    return MetricsSection(**section)


def _function_name(function: Callable[..., Any]) -> str:
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}:{named.__qualname__}"


def _network_section(network: Network | None, channel: Channel) -> NetworkSection:
    spec = None if channel.spec is None else CHANNELS.with_defaults(channel.spec)
    described: Named = {IN_MEMORY: {"channel": repr(channel)}}
    if spec is not None:
        described = spec if isinstance(spec, str) else dict(spec)
    if network is None:
        return NetworkSection(channel=described)
    weights = network.weights
    parts = [weights.data, weights.indices, weights.indptr]
    if isinstance(network, DirectedNetwork):
        parts.append(network.push_weights.data)
    if network.sequence is not None:
        parts += [network.sequence.entries(weights), np.array([network.sequence.seed])]
    arrays = [torch.from_numpy(np.array(part)) for part in parts]
    varying = repr((network.drop, network.one_peer))
    varying += "".join(repr(given) for given in (network.lost, network.participation) if given is not None)
    varying += network.sequence.order if network.sequence is not None else ""
    topology = {"name": network.name, "edges": network.edges, "digest": _digest(varying, *arrays)}
    return NetworkSection(topology={IN_MEMORY: topology}, mixing=network.mixing, channel=described)


def _method_name(method: Algorithm) -> str:
    """The registered name of a method; that of a user-defined class is registered here, as if a file had named it."""
    kind = type(method)
    name = next((name for name in ALGORITHMS if ALGORITHMS[name] is kind), None)
    if name is None:
        name = _class_name(method)
        ALGORITHMS.register(name)(kind)
    return name


def _class_name(thing: object) -> str:
    return f"{type(thing).__module__}:{type(thing).__qualname__}"


def _plain(value: Any) -> Any:
    """A value that TOML can store."""
    if isinstance(value, Tensor | np.ndarray):
        return f"{IN_MEMORY}: {_digest(torch.as_tensor(value))}"
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items() if v is not None}
    if isinstance(value, bool | int | float | str):
        return value
    return repr(value)


def _digest(*parts: Tensor | str) -> str:
    """Sixteen hexadecimal digits that differ where the content of text or tensors differs."""
    found = hashlib.blake2b(digest_size=8)
    for part in parts:
        if isinstance(part, str):
            found.update(part.encode())
            continue
        tensor = part.detach().cpu().contiguous()
        found.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        found.update(tensor.reshape(-1).view(torch.uint8).numpy().data if tensor.numel() else b"")
    return found.hexdigest()
