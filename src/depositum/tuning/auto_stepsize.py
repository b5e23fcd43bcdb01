"""`alpha = "auto"`: the stepsize is chosen before the run, and stored in the run's folder.

The folder of the run has `tuning.toml` (the choice and how it was made), `tuning.csv` (every candidate) and
`tuning.png`. A run that is resumed or extended takes the choice from there.
"""

import dataclasses
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from depositum.engines import Callback, Loop
from depositum.errors import ConfigError, RunError, short_repr
from depositum.runs import ResolvedConfig, RunFolder
from depositum.runs.config_file import differences
from depositum.runs.config_keys import setting_name
from depositum.runs.folder import MAY_CHANGE, TUNING_FIGURE, TUNING_RESULT, TUNING_TABLE
from depositum.runs.folder_lock import exclusive
from depositum.runs.given_problem import same_but_for_the_start
from depositum.tuning.configured import with_settings
from depositum.tuning.tuner import tune
from depositum.tuning.tuning_result import TuningResult

#: Sections and keys that do not change what is chosen.
_IRRELEVANT = (
    *("metrics", "processes", "run.seeds", "run.evaluate_every", "run.evaluate_from", "run.compile", "run.backend"),
    *(key for key in MAY_CHANGE if key != "run.steps"),
)


@dataclass(frozen=True)
class Tuned:
    """A configuration whose stepsize is a number; `result` is set if it was tuned just now."""

    spec: ResolvedConfig
    result: TuningResult | None = None


def tuned(
    spec: ResolvedConfig,
    folder: Path | None,
    *,
    callbacks: Sequence[Callback] = (),
    say: Callable[[str], None] = lambda _: None,
    on_loop: Callable[[Loop], None] = lambda _: None,
    **options: Any,
) -> Tuned:
    """The configuration with a number in place of `"auto"`; one without `"auto"` is returned as it is.

    The number is the one that the folder holds, or it is searched for and then stored there. `options` are those of
    `tune`.
    """
    if not spec.algorithm.automatic:
        return Tuned(spec)
    key = f"algorithm.{spec.algorithm.stepsize_key}"
    stored = None if folder is None else stored_choice(folder, spec)
    if stored is not None:
        say(f"{folder}: {setting_name(key)} = {stored[key]!r}, as chosen before ({TUNING_RESULT})")
        return Tuned(with_settings(spec, stored))
    if folder is None:
        say(f"{setting_name(key)} = 'auto': searching for a stepsize")
        result = tune(spec, callbacks=callbacks, on_loop=on_loop, **options)
    else:
        with exclusive(folder):
            RunFolder(folder).check(spec)
            say(f"{setting_name(key)} = 'auto': searching for a stepsize")
            result = tune(spec, callbacks=callbacks, on_loop=on_loop, **options)
            write_result(result, spec, folder)
    for line in result.summary:
        say(line)
    return Tuned(result.apply(spec), result)


def write_result(result: TuningResult, spec: ResolvedConfig, folder: Path) -> None:
    """Write the choice, the table of candidates and the figure to a folder."""
    best: dict[str, dict[str, Any]] = {}
    for key, value in result.best.items():
        section, _, name = key.partition(".")
        best.setdefault(section, {})[name] = value
    optional = {"margin": result.margin, "stable_up_to": result.stable_up_to}
    content = {
        "why": result.reasons,
        **{name: value for name, value in optional.items() if value is not None},
        "cost": result.cost,
        "seeds": list(result.seeds),
        "best": best,
        "configuration": tomllib.loads(spec.dump()),
    }
    written = RunFolder(folder)
    written.write_text(TUNING_TABLE, result.table.to_csv(index=False))
    result.figure(folder / TUNING_FIGURE)
    written.write_text(TUNING_RESULT, tomli_w.dumps(content))  # last: it stands for all three


def stored_choice(folder: Path, spec: ResolvedConfig) -> dict[str, Any] | None:
    """The settings that were chosen for a configuration in this folder, by key; None if there was no choice.

    A choice for another configuration is refused. A run that has begun may be extended by more steps: its stepsize
    stays the same.
    """
    path = folder / TUNING_RESULT
    if not path.exists():
        return None
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        chosen = {f"{section}.{name}": v for section, keys in content["best"].items() for name, v in keys.items()}
        before: Mapping[str, Any] = content["configuration"]
        differing = differences(before, tomllib.loads(spec.dump()))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, KeyError, AttributeError, TypeError) as error:
        raise RunError(f"{path}: is not the result of tuning ({short_repr(str(error))}); delete it") from None
    stepsize = f"algorithm.{spec.algorithm.stepsize_key}"
    begun = RunFolder(folder).config_path.exists()
    for key, (old, new) in differing.items():
        section = key.partition(".")[0]
        if key in _IRRELEVANT or section in _IRRELEVANT or (begun and key == "run.steps"):
            continue
        if key == stepsize or (key in chosen and chosen[key] == new):
            continue
        if begun and key == "problem.model" and same_but_for_the_start(old, new):
            continue  # reported when the run is resumed
        here = f"{setting_name(key)} is {short_repr(old)} there and {short_repr(new)} here"
        raise RunError(f"--out {folder}: its stepsize was tuned for another run ({here}); choose another folder")
    if stepsize not in chosen:
        raise RunError(f"{path}: has no value for {setting_name(stepsize)}; choose another folder")
    return {stepsize: chosen[stepsize]}


def automatic(spec: ResolvedConfig) -> ResolvedConfig:
    """The configuration with `"auto"` in place of its stepsize."""
    key = spec.algorithm.stepsize_key
    if not hasattr(spec.algorithm, key):
        raise ConfigError("algorithm.name", f"{spec.algorithm.name!r} has no stepsize that could be searched for")
    return dataclasses.replace(spec, algorithm=dataclasses.replace(spec.algorithm, **{key: "auto"}))  # type: ignore[type-var]
