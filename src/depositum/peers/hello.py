"""What two neighbours tell each other first, and the comparison of it: whatever differs is named by key, at both ends.

Neighbours compare the agreement, the model's start and what their code computes on the same numbers (`compare`). They
need not run the same release: the version of the protocol is the highest that both speak.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import depositum
from depositum.errors import ConfigError, short_repr
from depositum.federation.agreement import Agreement, compare_tables
from depositum.peers.frames import PROTOCOLS, Kind, Refused, read_text

#: Seconds by which clocks may differ before it is reported.
CLOCK_SKEW = 60.0


@dataclass(frozen=True)
class Comparison:
    """Facts that both ends tell, and what refuses those that differ."""

    facts: dict[str, Any]
    check: Callable[[dict[str, Any], dict[str, Any], str, str], None]


class Introduction:
    """What a member tells its neighbours first, and what it makes of what they tell.

    Attributes
    ----------
    differences
        What differs from a neighbour's, found before this member began to train.
    protocol
        The version of the protocol that is spoken with each neighbour.
    """

    def __init__(self, agreement: Agreement, name: str, log: Callable[[str], None]) -> None:
        self._agreement, self._name, self._log = agreement, name, log
        self._comparisons: dict[str, Comparison] = {}
        self.differences: dict[str, ConfigError] = {}
        self.protocol: dict[str, int] = {}

    def compare(self, what: str, facts: dict[str, Any], check: Callable[..., None]) -> None:
        """Compare these facts, too."""
        self._comparisons[what] = Comparison(facts, check)

    def own(self) -> dict[str, Any]:
        """What is told."""
        return {
            "member": self._name,
            "protocols": list(PROTOCOLS),
            "versions": _versions(),
            "time": time.time(),
            "digest": self._agreement.digest(),
            "agreement": self._agreement.compared_table(),
            "facts": {what: comparison.facts for what, comparison in self._comparisons.items()},
        }

    def check(self, name: str, hello: Mapping[str, Any], fatal: bool) -> None:
        """Refuse a neighbour with which this member cannot train; `fatal` if this member then cannot start either."""
        try:
            self._check(name, hello)
        except ConfigError as error:
            if fatal:
                self.differences[name] = error
            raise Refused(str(error)) from None
        except Exception:  # values of a kind or a size that no member sends
            raise Refused(f"sent a {Kind.HELLO.name} that cannot be compared") from None
        self.differences.pop(name, None)

    def _check(self, name: str, hello: Mapping[str, Any]) -> None:
        told = hello.get("protocols")
        common = [p for p in PROTOCOLS if isinstance(told, list) and p in told]
        if not common:
            raise ConfigError(
                "protocol", f"{name} speaks {short_repr(told)}, and this release {list(PROTOCOLS)}; update one"
            )
        self.protocol[name] = max(common)
        if hello.get("digest") != self._agreement.digest():
            raise self._different_agreement(name, hello)
        facts = hello.get("facts")
        for what, comparison in self._comparisons.items():
            theirs = facts.get(what) if isinstance(facts, Mapping) else None
            if not isinstance(theirs, dict):
                raise ConfigError(what, f"{name} does not say what it has")
            comparison.check(comparison.facts, theirs, self._name, name)
        self._report(name, hello)

    def _different_agreement(self, name: str, hello: Mapping[str, Any]) -> ConfigError:
        own, theirs = self._agreement.compared_table(), hello.get("agreement")
        keys = compare_tables(own, theirs) if isinstance(theirs, Mapping) else []
        if not keys:
            return ConfigError("federation", f"{name} has another agreement; accept the same invitation")
        shown = ", ".join(keys[:5]) + (", …" if len(keys) > 5 else "")
        here, there = short_repr(_at(own, keys[0])), short_repr(_at(theirs, keys[0]))
        values = f" ({here} here, {there} there)" if len(keys) == 1 else ""
        return ConfigError(keys[0], f"{shown} differ from the agreement of {name}{values}; accept the same one")

    def _report(self, name: str, hello: Mapping[str, Any]) -> None:
        """Log what may differ."""
        versions, own = hello.get("versions"), _versions()
        for package, version in own.items():
            theirs = read_text(versions, package) if isinstance(versions, Mapping) else ""
            if theirs != version:
                self._log(f"{name} runs {package} {theirs or '?'}, this member {version}")
        now = hello.get("time")
        if isinstance(now, int | float) and abs(skew := now - time.time()) > CLOCK_SKEW:
            ahead = "ahead of" if skew > 0 else "behind"
            self._log(f"the clock of {name} is {abs(skew):.0f} s {ahead} the clock here; set the one that is wrong")


def _at(table: Any, key: str) -> Any:
    """The value of a dotted key; None if it is missing."""
    for part in key.split("."):
        table = table.get(part) if isinstance(table, Mapping) else None
    return table


def _versions() -> dict[str, str]:
    import torch

    return {"depositum": depositum.__version__, "torch": torch.__version__.split("+")[0]}
