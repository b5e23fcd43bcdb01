"""What a run of a language model leaves: adapters in the form that `peft` reads, with cards that say what they are.

`adapter/` holds the average of the clients' adapters, with the tokenizer and a card; of further seeds,
`adapter.seed-N/`. Where clients' own adapters are asked for, they are in `clients/N/` in there.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from depositum.data.text import load_tokenizer
from depositum.engines import Loop
from depositum.engines.processes import ProcessEngine
from depositum.errors import RunError
from depositum.layout import Layout
from depositum.metrics import OVERALL
from depositum.models import LoraModel
from depositum.runs import checkpoint
from depositum.runs.folder import PART, PERPLEXITIES, RunFolder, of_seed

FOLDER, WEIGHTS, CARD = "adapter", "adapter_model.safetensors", "README.md"


def write_adapter(folder: RunFolder, loop: Loop, seed: int, row: Tensor, *, first: bool, write: bool) -> None:
    """Keep the averaged adapter `[d]` of a seed; of several processes, one writes what there is one of.

    The card of a run that is at its end says the perplexities of the base, which is where it began, and of the adapter.
    """
    model, snapshot = loop.engine.problem.model, loop.snapshot
    assert isinstance(model, LoraModel)
    place = folder.path / of_seed(FOLDER, seed, first)
    if write:
        measured = {r["iteration"]: r for r in folder.read_table(PERPLEXITIES) if r["seed"] == seed}
        ends = [measured[t] for t in (0, loop.steps) if t in measured]
        files = {CARD: _card(folder, model, ends if len(ends) == 2 else [], row, snapshot.t)}
        _write(place, model, row, files, with_tokenizer=True)
    if model.client_adapters:
        clients = loop.engine.clients if isinstance(loop.engine, ProcessEngine) else range(loop.engine.problem.n)
        for client, own in zip(clients, snapshot.rows_of([seed])["x"], strict=True):
            _write(place / "clients" / str(client), model, own, {}, with_tokenizer=False)


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


def rewrite_settings(place: Path, before: str, after: str) -> None:
    """Put other settings in the place of those that an adapter's card names; what is no adapter has none."""
    card = place / CARD
    if card.exists():
        card.write_text(card.read_text(encoding="utf-8").replace(before.strip(), after.strip()), encoding="utf-8")


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
