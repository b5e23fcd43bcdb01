"""How processes talk to each other: what a person may choose."""

from dataclasses import dataclass
from math import isfinite
from typing import get_args

from depositum.engines.processes.encoding import EncodingName
from depositum.engines.processes.measures import Evaluate
from depositum.errors import ConfigError, listing, nearest


@dataclass(frozen=True)
class ProcessSettings:
    """What is sent, and how long is waited for.

    Attributes
    ----------
    timeout
        Seconds within which all must have come and, later, within which a peer must answer.
    send
        What rows look like on a link: `"float32"` as they are (in the state's dtype), `"float16"`, `"bfloat16"`,
        `"sparse"`.
    evaluate
        What may be sent for measures: `"scalars"` and the averaged model, `"gather"` rows too, or `"none"`.
    """

    timeout: float = 30.0
    send: EncodingName = "float32"
    evaluate: Evaluate = "scalars"

    def __post_init__(self) -> None:
        if not (isfinite(self.timeout) and self.timeout > 0):
            raise ConfigError("processes.timeout", f"{self.timeout!r} given; it must be a number of seconds > 0")
        for key, choices in (("send", get_args(EncodingName)), ("evaluate", get_args(Evaluate))):
            value = getattr(self, key)
            if value not in choices:
                near = nearest(str(value), choices)
                raise ConfigError(f"processes.{key}", f"{value!r} given; it can be {listing(choices)}{near}")
