"""Give mutated configurations to `load`, and build the problems of those that it accepts: one line each, or none.

The mutations start from the files in `examples/`: of their text (characters, lines, sections, nesting, control
characters, numbers of thousands of digits, texts of a megabyte) and of their tables (other types, huge and not finite
numbers, nesting, unknown, missing and misplaced keys). Each configuration is resolved and, where it can be, its network
and problem are built, in a process with limited memory. Allowed are success and a `DepositumError` of one printable
line of at most 300 characters, within the time limit.

    python benchmarks/hostile_configs.py [--cases 5000] [--seed 0] [--workers 1]

prints a table, and exits with 1 if a configuration does anything else.
"""

import argparse
import json
import math
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
#: Bytes of address space of a worker, and seconds that one configuration may take.
MEMORY, SECONDS = 8 << 30, 120
#: Configurations per process.
BATCH = 250

#: Values of every kind that a file can hold, and some that it should not.
VALUES: tuple[Any, ...] = (
    *(0, -1, 1, 2, 3, 7, 10, 1000, 10**5, 10**6, 10**9, 2**31, 2**53, 2**63 - 1, -(2**63), 10**19, 10**30, 10**400),
    *(0.0, -0.0, 0.5, 1.0, -1.5, 1e-320, 1e-30, 1e308, -1e308, math.inf, -math.inf, math.nan),
    *("", " ", "ring", "Ring", "l1", "cpu", "cuda", "cuda:99", "auto", "full", "../../etc/passwd", "/dev/zero", "."),
    *("x" * 5000, "x" * 300, "ünïcödé", "日本語", "‮", "\x1b[2J", "a\nb", "nul\0", "{client}.npz", "a:b", "os:system"),
    *("%s%n", "{0}", "'", '"', "\\", "true", "nan", "1e5", "~", "con", "module:name", "depositum.errors:nearest"),
    *(True, False, [], [[]], [1, 2], [0.1, "a"], [0] * 3000, ["x" * 200] * 50, list(range(40)), [[[[[[[[1]]]]]]]]),
    *({}, {"a": 1}, {"ring": {}}, {"ring": {"hops": 10**9}}, {"ring": 3}, {"erdos-renyi": {"p": 2.0}}),
    *({"synthetic": {"samples": 10**12}}, {"synthetic": {"features": 10**9}}, {"mlp": {"hidden": [10**9]}}),
    *(
        {"mcp": {"lam": 1e308, "theta": 1e-308}},
        {"dirichlet": 1e-300},
        {"dirichlet": math.nan},
        {"power": {"start": 1}},
    ),
    *(
        {"a": {"b": {"c": {"d": {"e": {"f": {}}}}}}},
        {"": ""},
        {"x" * 300: 1},
        [{"l1": {}, "on": "*"}],
        [{"l1": {}}] * 40,
    ),
)
#: Texts that are put somewhere into a file.
SNIPPETS = (
    *("x = " + "[" * depth + "]" * depth for depth in (5, 40, 2000)),
    *("y = " + "{a=" * depth + "1" + "}" * depth for depth in (5, 40, 2000)),
    *("[" + ".".join(["a"] * parts) + "]" for parts in (5, 40, 20000)),
    ".".join(["a"] * 20_000) + " = 1",
    *(f"[run]\nsteps = {'9' * digits}" for digits in (19, 25, 4299, 5000, 200_000)),
    *(f"steps = {base}{digit * 5000}" for base, digit in (("0x", "f"), ("0b", "1"), ("0o", "7"))),
    f'model = "{"m" * 1_000_000}"',
    f"{'k' * 100_000} = 1",
    *("steps = 1979-05-27T07:32:00Z", "seeds = [1979-05-27]", "alpha = 07:32:00", "clients = 1e3", "clients = 1_000"),
    *(
        "[problem]",
        "[run]\nsteps = 3",
        "[[run]]",
        "[run.steps]",
        "[problem.dataset]",
        "run = 3",
        "[algorithm]\nname = 3",
    ),
    *(
        "\x00",
        "\x07",
        "\x1b[31m",
        "\ufeff",
        "\u2028",
        "\r",
        "\t",
        '"',
        "'",
        '"""',
        "'''",
        "=",
        "[",
        "]",
        "{",
        "}",
        "#",
        "\\",
    ),
    *('a = "\\ud800"', 'a = "\\u0000"', '"" = 1', "'a.b' = 2", "nan = nan", "inf = inf", "a.b = 1\na = 2", "[a]\n[a]"),
    *(
        '[override.fedavg.algorithm]\neta = "x"',
        "[override]\na = 1",
        "[override.x.y]",
        "[override.smooth.run]\nsteps = 1",
    ),
)


def mutate_text(text: str, source: random.Random) -> bytes:
    """One to three changes of the characters and lines of a file."""
    for _ in range(source.randint(1, 3)):
        lines = text.split("\n")
        at, where = source.randrange(len(lines)), source.randrange(len(text) + 1)
        kind = source.randrange(9)
        if kind == 0:
            lines.insert(at, source.choice(SNIPPETS))
        elif kind == 1:
            del lines[at]
        elif kind == 2:
            lines.insert(at, lines[source.randrange(len(lines))])
        elif kind == 3:
            key = lines[at].partition("=")[0]
            lines[at] = (
                f"{key}= {source.choice(['', '1' * 5000, '[[[[', '{', '.', '-', '+inf', '0x', 'true', '1.e', 'a'])}"
            )
        elif kind == 4:
            source.shuffle(lines)
        if kind < 5:
            text = "\n".join(lines)
        elif kind == 5:
            text = text[:where] + source.choice(SNIPPETS) + text[where:]
        elif kind == 6:
            text = (
                text[:where]
                + chr(source.choice([0, 7, 9, 10, 13, 27, 34, 39, 46, 61, 91, 93, 123, 233]))
                + text[where:]
            )
        elif kind == 7:
            text = text[:where] + text[where + source.randrange(1, 20) :]
        else:
            text = text[:where]
    content = text.encode("utf-8", "surrogatepass")
    if source.random() < 0.05:
        at = source.randrange(len(content) + 1)
        content = content[:at] + source.randbytes(3) + content[at:]
    return content


def mutate_table(table: dict[str, Any], source: random.Random) -> bytes:
    """One to three changes of the keys and values of a table, written as JSON, which holds more than TOML does."""
    for _ in range(source.randint(1, 3)):
        section = source.choice([*table, "problem", "network", "run", "algorithm", "metrics", "processes", "override"])
        kind = source.randrange(24)
        keys = table.setdefault(section, {})
        if kind == 0 or not isinstance(keys, dict):
            table[section] = source.choice(VALUES)
        elif kind == 1:
            keys[source.choice(["steps", "clients", "k" * 400, "ünï", "", "name", "a.b", "\x1b"])] = source.choice(
                VALUES
            )
        elif kind == 2 and keys:
            del keys[source.choice(list(keys))]
        elif kind == 3 and keys:
            key = source.choice(list(keys))
            keys[key] = {key: keys[key]}
        elif kind == 4 and keys:
            key = source.choice(list(keys))
            table.setdefault(source.choice(list(table)), {})
            other = table[source.choice(list(table))]
            if isinstance(other, dict):
                other[key] = keys.pop(key)
        elif kind == 5:
            nested: Any = source.choice(VALUES)
            for _ in range(source.choice([3, 30, 300])):
                nested = source.choice([[nested], {"a": nested}])
            keys[source.choice(SETTINGS[section])] = nested
        elif kind < 8 or section == "override":
            keys[source.choice(SETTINGS[section])] = source.choice(VALUES)
        else:
            key = source.choice(SETTINGS[section])
            keys[key] = plausible(section, key, source)
    return json.dumps(table).encode()


SETTINGS: dict[str, list[str]] = {
    "problem": ["dataset", "model", "loss", "clients", "partition", "partition_seed", "weighting", "regularizer"],
    "network": ["topology", "mixing", "drop", "channel"],
    "algorithm": ["name", "alpha", "gamma", "momentum", "start", "eta"],
    "run": ["steps", "period", "batch_size", "seeds", "device", "dtype", "precision", "backend", "compile"],
    "metrics": ["costly_every", "alpha", "smoothness", "train_every"],
    "processes": ["timeout", "evaluate", "send"],
    "override": ["fedavg", "smooth", "d-psgd"],
}
SETTINGS["problem"] += ["beta", "holdout"]
SETTINGS["run"] += ["evaluate_every", "evaluate_from", "checkpoint_every"]
INTEGERS = (0, 1, 2, 3, 5, 8, 10, 13, 16, 64, 100, 199, 200, 201, 1000, 10_000, 10**5, 10**6, 10**9, 10**12, 10**15)
INTEGERS += (2**31, 2**53, 2**62, 2**63 - 1, -1, -(10**9))
NUMBERS = (0.0, 1e-320, 1e-30, 1e-6, 0.1, 0.5, 0.999999, 1.0, 2.0, 100.0, 1e6, 1e30, 1e308, -1e-9, -1.0)
WHOLE = ("clients", "partition_seed", "steps", "period", "batch_size", "costly_every", "train_every", "evaluate_every")
WHOLE += ("evaluate_from", "checkpoint_every")


def plausible(section: str, key: str, source: random.Random) -> Any:
    """A value of the type that a setting has, or a component that exists, with extreme arguments."""
    from depositum import data, models, networks, regularizers
    from depositum.algorithms import ALGORITHMS
    from depositum.algorithms.schedules import SCHEDULES
    from depositum.channels import CHANNELS
    from depositum.registry import Registry

    registries: dict[str, Registry[Any]] = {
        **{"dataset": data.DATASETS, "model": models.MODELS, "partition": data.PARTITIONS, "channel": CHANNELS},
        **{"topology": networks.TOPOLOGIES, "mixing": networks.MIXINGS, "regularizer": regularizers.REGULARIZERS},
    }
    if key in registries:
        registry = registries[key]
        names = [name for name in registry if key not in ("dataset", "model") or name in CHEAP]
        return component(registry, source.choice(names), source)
    if key == "name":
        return source.choice(list(ALGORITHMS))
    if key in WHOLE:
        return source.choice(INTEGERS)
    if key == "seeds":
        return source.choice([list(range(source.choice([1, 2, 50, 1000]))), [2**63 - 1], 0, [0, 0]])
    if section == "algorithm" and source.random() < 0.3:
        return component(SCHEDULES, source.choice(list(SCHEDULES)), source)
    return source.choice(NUMBERS)


#: Datasets and models that are quick to load.
CHEAP = ("digits", "synthetic", "linear", "mlp", "cnn")


def component(registry: Any, name: str, source: random.Random) -> Any:
    """A component with extreme values for some of its arguments."""
    arguments: dict[str, Any] = {}
    for argument, parameter in registry.parameters(name).items():
        if source.random() < 0.5:
            wanted = str(parameter.annotation)
            lists = [source.choice(INTEGERS) for _ in range(source.randrange(4))]
            arguments[argument] = (
                source.choice(VALUES)
                if source.random() < 0.1
                else lists
                if any(word in wanted for word in ("list", "tuple", "Sequence"))
                else source.choice(NUMBERS)
                if "float" in wanted
                else source.choice(INTEGERS)
                if "int" in wanted
                else source.choice(VALUES)
            )
    return {name: arguments} if arguments else name


BASES = {path.name: path.read_text(encoding="utf-8") for path in sorted(EXAMPLES.glob("*.toml"))}
SMALL = "{ synthetic = { samples = 200, features = 6, classes = 3 } }"


def base_text(source: random.Random) -> str:
    """An example, of which data and model are replaced by small ones."""
    text = BASES[source.choice(list(BASES))]
    lines = [f"dataset = {SMALL}" if line.startswith("dataset") else line for line in text.split("\n")]
    return "\n".join('model = "linear"' if line.startswith("model") else line for line in lines)


def configuration(seed: int, number: int) -> tuple[bytes, bool]:
    """The content of one configuration, and whether it is a table in JSON."""
    source = random.Random(f"{seed}/{number}")
    text = base_text(source)
    if number % 3 == 0:
        return mutate_text(text, source), False
    return mutate_table(tomllib.loads(text), source), True


def attempt(content: bytes, is_table: bool, folder: Path) -> tuple[str, str]:
    """What a configuration led to, in a word, and the text of an error."""
    from depositum.errors import MAX_MESSAGE, DepositumError
    from depositum.runs import build_problem, from_table, load
    from depositum.runs.problems import engine_of

    path = folder / "config.toml"
    try:
        if is_table:
            spec = from_table(json.loads(content), folder)
        else:
            path.write_bytes(content)
            spec = load(path)
        spec.dump()
    except DepositumError as error:
        return check_message(str(error), MAX_MESSAGE, "refused")
    except Exception:
        return "TRACEBACK", traceback.format_exc()
    try:
        engine = engine_of([spec], build_problem([spec]))
        engine.start()
        engine.step()
    except DepositumError as error:
        return check_message(str(error), MAX_MESSAGE, "refused with data")
    except Exception:
        return "TRACEBACK", traceback.format_exc()
    return "accepted", ""


def check_message(message: str, most: int, word: str) -> tuple[str, str]:
    return (word, message) if message.isprintable() and 0 < len(message) <= most else ("BAD MESSAGE", message)


def guarded(limit: float, action: Callable[[], tuple[str, str]]) -> tuple[str, str]:
    """Do something within a time limit."""

    def too_slow(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, too_slow)
    signal.setitimer(signal.ITIMER_REAL, limit)
    try:
        return action()
    except TimeoutError:
        return "TOO SLOW", ""
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def work(seed: int, first: int, last: int) -> None:
    """Attempt some configurations in this process, and print a line of JSON for each."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for number in range(first, last):
            content, is_table = configuration(seed, number)
            began = time.perf_counter()
            word, text = guarded(SECONDS, lambda: attempt(content, is_table, Path(folder)))  # noqa: B023
            print(json.dumps([number, word, text, time.perf_counter() - began]), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--work", type=int, nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work(arguments.seed, *arguments.work)
        return
    counts, longest, slowest, end = Counter[tuple[str, str]](), 0, 0.0, arguments.first + arguments.cases
    number = arguments.first
    while number < end:
        last = min(number + BATCH, end)
        command = [sys.executable, __file__, "--seed", str(arguments.seed), "--work", str(number), str(last)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        for line in done.stdout.splitlines():
            at, word, text, seconds = json.loads(line)
            counts["text" if at % 3 == 0 else "table", word] += 1
            longest, slowest = max(longest, len(text) * word.islower()), max(slowest, seconds)
            if not word.islower():
                print(f"{word} in configuration {at}: {text[-1500:]}", flush=True)
            number = at + 1
        if number < last:  # the process died on this one
            print(f"DIED in configuration {number}: {done.stderr[-1500:]}", flush=True)
            counts["text" if number % 3 == 0 else "table", "DIED"] += 1
            number += 1
    print(f"{'mutation':10}{'outcome':20}{'configurations':>15}")
    for key in sorted(counts):
        print(f"{key[0]:10}{key[1]:20}{counts[key]:15}")
    print(f"{counts.total()} configurations; longest message {longest} characters, slowest {slowest:.1f} s")
    sys.exit(any(not word.islower() for _, word in counts))


if __name__ == "__main__":
    main()
