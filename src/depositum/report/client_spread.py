"""How evenly a run serves its clients, in one line."""

from pathlib import Path

from depositum.runs.folder import CLIENTS


def client_spread(folder: Path) -> str | None:
    """The spread over clients of the averaged model's accuracy (or loss) on their own data, at the end of a run.

    None if the folder does not have it. With several seeds, a client's value is its mean over them.
    """
    import pandas as pd

    path = folder / CLIENTS
    if not path.exists():
        return None
    values = pd.read_csv(path).groupby("client").mean()
    has_accuracy = "averaged_accuracy" in values
    shown = (100 * values["averaged_accuracy"] if has_accuracy else values["averaged_loss"]).to_numpy()
    worst = int(shown.argmin() if has_accuracy else shown.argmax())
    measure, form = ("accuracy %", "{:.2f}") if has_accuracy else ("loss", "{:.4f}")
    mean, spread, lowest = (form.format(float(v)) for v in (shown.mean(), shown.std(), shown[worst]))
    return f"clients' own training data, {measure}: mean {mean} ± {spread}, worst {lowest} (client {worst})"
