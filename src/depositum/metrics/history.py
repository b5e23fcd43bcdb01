"""The history of a run: one record per trial and evaluated iteration."""

from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from depositum.metrics.measures import CHEAP, COSTLY, PERPLEXITY

if TYPE_CHECKING:
    import pandas as pd

#: Columns that count what a run has cost so far, per client.
COSTS = ("phases", "bytes_sent", "gradient_evaluations", "seconds")
#: Columns with a running mean, over the iterations at which they were evaluated.
AVERAGED = ("stationarity", "gradient_error")
COLUMNS = ("seed", "iteration", *COSTS, *CHEAP, *COSTLY, *(f"{name}_mean" for name in AVERAGED))


class History:
    """Records of all trials in order, each completed with its running means.

    A record has the seed of its trial and, where several configurations run side by side, the trial's label as
    `trial`, which tells apart trials of the same seed.

    >>> history = History()
    >>> for t, error in enumerate([4.0, 2.0]):
    ...     _ = history.add({"seed": 0, "iteration": t, "gradient_error": error})
    >>> history.frame["gradient_error_mean"].tolist()
    [4.0, 3.0]
    """

    def __init__(self, records: Iterable[dict[str, Any]] = ()) -> None:
        self.records: list[dict[str, Any]] = []
        self._sums: dict[tuple[int, str], list[float]] = defaultdict(lambda: [0.0, 0])
        for record in records:
            self.add(record)

    def add(self, record: dict[str, Any]) -> dict[str, Any]:
        """Append a record, completed with its running means, and return it."""
        record = dict(record)
        for name in AVERAGED:
            if record.get(name) is not None:
                total = self._sums[record.get("trial", record["seed"]), name]
                total[0] += record[name]
                total[1] += 1
                record[f"{name}_mean"] = total[0] / total[1]
        self.records.append(record)
        return record

    def last(self, seed: int) -> dict[str, Any] | None:
        """The latest record of a seed."""
        return next((r for r in reversed(self.records) if r["seed"] == seed), None)

    @property
    def frame(self) -> "pd.DataFrame":
        """All records as a table; a measure that was not evaluated is NaN."""
        import pandas as pd

        return pd.DataFrame(self.records, columns=[*COLUMNS, *user_columns(self.records)])


def user_columns(records: Iterable[Iterable[str]]) -> tuple[str, ...]:
    """The names of user-defined measures in records, or in the columns of tables, in order.

    >>> user_columns([{"seed": 0, "trial": 0, "f1": 0.5, "perplexity:overall": 9.0}])
    ('f1',)
    """
    names = dict.fromkeys(name for record in records for name in record)
    return tuple(n for n in names if n not in COLUMNS and n != "trial" and not n.startswith(PERPLEXITY))
