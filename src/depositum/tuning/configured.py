"""Configurations that differ in hyper-parameters: how the settings of a candidate become its configuration."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import ValidationError

from depositum import regularizers
from depositum.algorithms import Algorithm
from depositum.errors import ConfigError, listing, nearest, short_repr
from depositum.runs import ResolvedConfig
from depositum.runs.config import AlgorithmSection
from depositum.runs.config_keys import config_keys, setting_name
from depositum.tuning.judging import Candidate
from depositum.validation import describe_errors

#: Keys besides the hyper-parameters of the method that may be varied: with these, the data and the model stay the same.
VARIABLE = ("problem.beta", "run.period", "run.batch_size")


def check_key(spec: ResolvedConfig, key: object) -> str:
    """The full key of a hyper-parameter, which may be given without its section; any other key is refused."""
    hyper = [f"algorithm.{field.name}" for field in dataclasses.fields(spec.algorithm)]  # type: ignore[arg-type]
    allowed = [*hyper, *VARIABLE]
    found = next((full for full in allowed if key in (full, full.partition(".")[2])), None)
    if found is None:
        names = [setting_name(full) for full in allowed]
        near = nearest(key, [*(full.partition(".")[2] for full in allowed), *allowed]) if isinstance(key, str) else ""
        raise ConfigError("over", f"{short_repr(key)} cannot be varied; it can be {listing(names)}{near}")
    return found


def check_values(key: str, values: object) -> list[Any]:
    """The values of a hyper-parameter as a list without repetitions; anything else is refused."""
    if isinstance(values, np.ndarray):
        values = values.tolist()
    if isinstance(values, str) or not isinstance(values, Sequence) or not len(values):
        raise ConfigError(key, f"{short_repr(values)} given; it must be a list of values")
    plain = [value.item() if isinstance(value, np.generic) else value for value in values]
    for value in plain:
        if not isinstance(value, str | int | float) or isinstance(value, bool):
            raise ConfigError(key, f"{short_repr(value)} given; the values must be numbers or names")
    return list(dict.fromkeys(plain))


def settings_of(candidate: Candidate, method: Algorithm) -> dict[str, Any]:
    """The settings of a candidate, by configuration key; its stepsize has four digits, as a user would write it."""
    settings = dict(candidate.others)
    if candidate.step is not None:
        value = 1 / candidate.step if method.stepsize_inverse else candidate.step
        settings[f"algorithm.{method.stepsize_key}"] = float(f"{value:.4g}")
    return settings


def with_settings(spec: ResolvedConfig, settings: Mapping[str, Any]) -> ResolvedConfig:
    """The configuration with other values of some keys, checked as `resolve` does.

    Data, model and network stay the same; the keys are those that `check_key` allows.
    """
    sections: dict[str, dict[str, Any]] = {}
    for key, value in settings.items():
        section, _, name = key.partition(".")
        sections.setdefault(section, {})[name] = value
    hyper = sections.pop("algorithm", {})
    with config_keys("algorithm"):
        method = dataclasses.replace(spec.algorithm, **hyper)  # type: ignore[type-var]
    config = spec.config
    if hyper:
        given = {**(config.algorithm.model_extra or {}), **hyper}
        config = config.model_copy(update={"algorithm": AlgorithmSection(name=config.algorithm.name, **given)})
    for section, values in sections.items():
        config = config.model_copy(update={section: _changed(getattr(config, section), section, values)})
    changed = dataclasses.replace(spec, config=config, algorithm=method)
    _check(changed, method)
    return changed


def with_seeds(spec: ResolvedConfig, seeds: list[int]) -> ResolvedConfig:
    """The configuration with other seeds."""
    run = spec.config.run.model_copy(update={"seeds": seeds})
    return dataclasses.replace(spec, config=spec.config.model_copy(update={"run": run}))


def _changed(old: Any, section: str, values: Mapping[str, Any]) -> Any:
    """A section with other values, validated."""
    try:
        return type(old).model_validate({**old.model_dump(exclude_unset=True), **values})
    except ValidationError as error:
        first = error.errors()[0]
        same = [e for e in error.errors() if e["loc"][:1] == first["loc"][:1]]
        raise ConfigError(f"{section}.{first['loc'][0]}", describe_errors(same)) from None


@config_keys()
def _check(spec: ResolvedConfig, method: Algorithm) -> None:
    problem, run = spec.config.problem, spec.config.run
    if problem.beta < 0:
        raise ConfigError("beta", f"{problem.beta!r} given; it must be a number ≥ 0")
    if run.batch_size != "full" and run.batch_size < 1:
        raise ConfigError("batch_size", f"{run.batch_size} given; it must be a whole number ≥ 1, or 'full'")
    composite = problem.beta > 0 and not isinstance(spec.regularizer, regularizers.Zero)
    method.check(run.period, composite=composite, prox_modulus=problem.beta * spec.regularizer.rho)
