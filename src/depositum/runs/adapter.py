"""What a run of a language model leaves: adapters in the form that `peft` reads, and their perplexities.

`adapter/` holds the average of the clients' adapters, with the tokenizer and a card; of further seeds,
`adapter.seed-N/`. Where clients' own adapters are asked for, they are in `clients/N/` in there. `perplexity.csv` has
the perplexities of every seed's test data at the start, where the adapters change nothing, and at the end.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from depositum.data import TokenSamples
from depositum.data.text import load_tokenizer
from depositum.engines import Loop
from depositum.engines.processes import ProcessEngine
from depositum.errors import RunError
from depositum.layout import Layout
from depositum.models import LoraModel
from depositum.problem.perplexity import OVERALL, TokenLosses, token_losses
from depositum.runs import checkpoint
from depositum.runs.folder import PART, RunFolder, of_seed

FOLDER, TABLE, WEIGHTS = "adapter", "perplexity.csv", "adapter_model.safetensors"


def write_adapter(folder: RunFolder, loop: Loop, seed: int, row: Tensor, *, first: bool, write: bool) -> None:
    """Keep the averaged adapter `[d]` of a seed; at the end of a run, measure it too.

    Of several processes, one writes what there is one of, and all ask.
    """
    model, snapshot = loop.engine.problem.model, loop.snapshot
    assert isinstance(model, LoraModel)
    records = []
    if snapshot.t == loop.steps and seed in snapshot.live:
        records = _measured(loop, seed, row)
    place = folder.path / of_seed(FOLDER, seed, first)
    if write:
        if records:
            _write_table(folder, records, seed)
        files = {"README.md": _card(folder, model, records, row, snapshot.t)}
        _write(place, model, row, files, with_tokenizer=True)
    if model.client_adapters:
        clients = loop.engine.clients if isinstance(loop.engine, ProcessEngine) else range(loop.engine.problem.n)
        for client, own in zip(clients, snapshot.rows_of([seed])["x"], strict=True):
            _write(place / "clients" / str(client), model, own, {}, with_tokenizer=False)


def _measured(loop: Loop, seed: int, row: Tensor) -> list[dict[str, Any]]:
    """The records of the perplexities at the start and now; none without test data, or if nothing is to be sent."""
    engine = loop.engine
    samples, oracle = engine.problem.test, engine.oracle
    if not isinstance(samples, TokenSamples):
        return []
    trial = engine.problem.trials[engine.problem.seeds.index(seed)]  # its start and test data are alike in all cells
    if trial.tested is not None:
        samples = samples.take(trial.tested)
    records = []
    for t, x in ((0, trial.start), (loop.snapshot.t, row)):
        if not isinstance(engine, ProcessEngine):
            losses = token_losses(oracle, x, samples)
        elif engine.evaluate == "none":
            return []
        else:
            own = token_losses(oracle, x, samples, engine.group.rank, engine.group.size)
            loss, tokens = engine.group.sum(torch.stack([own.loss, own.tokens]))
            losses = TokenLosses(own.names, loss, tokens)
        records.append({"seed": seed, "iteration": t, **losses.perplexities()})
    return records


def _write_table(folder: RunFolder, records: list[dict[str, Any]], seed: int) -> None:
    """Put a seed's records in the place of those it had."""
    others = [record for record in folder.read_table(TABLE) if record["seed"] != seed]
    folder.write_table(TABLE, tuple(records[0]), [*others, *records])


def _write(place: Path, model: LoraModel, row: Tensor, files: Mapping[str, str], with_tokenizer: bool) -> None:
    """Write an adapter folder beside its place, then put each file into it, whole."""
    part = place.with_name(place.name + PART)
    try:
        part.mkdir(parents=True, exist_ok=True)
        adapted: Any = model.adapted
        adapted.peft_config["default"].save_pretrained(str(part))
        if with_tokenizer:
            load_tokenizer(model.tokenizer).save_pretrained(str(part))
        for name, text in files.items():
            (part / name).write_text(text, encoding="utf-8")
        place.mkdir(exist_ok=True)
        for file in part.iterdir():
            file.replace(place / file.name)
        shutil.rmtree(part)
        checkpoint.write_part(place / WEIGHTS, tensors(model, row), {"format": "pt"}).replace(place / WEIGHTS)
    except OSError as error:
        raise RunError(f"{place}: cannot be written ({error.strerror or error})") from None


def tensors(model: LoraModel, row: Tensor) -> dict[str, Tensor]:
    """The adapters of a row `[d]` by the names that `peft` gives them in a file."""
    from peft import get_peft_model_state_dict

    named = {name.removeprefix("adapted."): view for name, view in Layout.of(model).views(row).items()}
    chosen: dict[str, Tensor] = get_peft_model_state_dict(model.adapted, named, save_embedding_layers=False)
    return {name: tensor.detach().cpu().clone().contiguous() for name, tensor in chosen.items()}


def _card(folder: RunFolder, model: LoraModel, records: list[dict[str, Any]], row: Tensor, t: int) -> str:
    """The model card: what this is, how to load it, what it was measured at, and all settings."""
    base = model.base.name
    place = f'"{base}"'
    if base.endswith(".gguf"):
        place = f'"{Path(base).parent}", gguf_file="{Path(base).name}"'
    zeros = float((row == 0).double().mean())
    lines = [
        "---",
        f"base_model: {base}",
        "library_name: peft",
        "tags: [lora, depositum]",
        "---",
        "",
        "# A LoRA adapter trained without a server",
        "",
        f"The average of the clients' adapters after {t} iterations. Its {row.numel():,} parameters are added to",
        f"`{base}`; {100 * zeros:.2f} % of them are exactly 0.",
        "",
        "```python",
        "from peft import PeftModel",
        "from transformers import AutoModelForCausalLM, AutoTokenizer",
        "",
        f"base = AutoModelForCausalLM.from_pretrained({place})",
        'model = PeftModel.from_pretrained(base, "adapter")',
        'tokenizer = AutoTokenizer.from_pretrained("adapter")',
        "```",
        "",
    ]
    if records:
        before, after = records
        lines += ["## Perplexity of the test data's responses", "", "| | base | with the adapter |", "|---|---|---|"]
        names = [OVERALL, *(name for name in after if name not in ("seed", "iteration", OVERALL))]
        measured = [name for name in names if after[name] == after[name]]  # of the others there is no test data
        lines += [f"| {name} | {before[name]:.4f} | {after[name]:.4f} |" for name in measured] + [""]
    settings = folder.config_path.read_text(encoding="utf-8").strip() if folder.config_path.exists() else ""
    return "\n".join([*lines, "## Settings", "", "```toml", settings, "```", ""])
