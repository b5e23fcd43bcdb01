"""The model card of an exported adapter: what it is, how to load it, its perplexities and the settings of the run."""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor


def model_card(
    base: str, row: Tensor, iterations: int, perplexities: Mapping[str, tuple[float, float]], settings: str
) -> str:
    """The card as Markdown, for adapters `row [d]` on the model called `base`.

    `perplexities` are those of the base and of the adapter, by category. `settings` is the run's configuration as TOML.
    """
    source = f'"{base}"'
    if base.endswith(".gguf"):
        source = f'"{Path(base).parent}", gguf_file="{Path(base).name}"'
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
        f"The average of the clients' adapters after {iterations} iterations. Its {row.numel():,} parameters are",
        f"added to `{base}`; {100 * zeros:.2f} % of them are exactly 0.",
        "",
        "```python",
        "from peft import PeftModel",
        "from transformers import AutoModelForCausalLM, AutoTokenizer",
        "",
        f"base = AutoModelForCausalLM.from_pretrained({source})",
        'model = PeftModel.from_pretrained(base, "adapter")',
        'tokenizer = AutoTokenizer.from_pretrained("adapter")',
        "```",
        "",
    ]
    if perplexities:
        lines += ["## Perplexity of the test data's responses", "", "| | base | with the adapter |", "|---|---|---|"]
        lines += [f"| {name} | {before:.4f} | {after:.4f} |" for name, (before, after) in perplexities.items()] + [""]
    return "\n".join([*lines, "## Settings", "", "```toml", settings.strip(), "```", ""])
