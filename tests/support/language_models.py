"""Tiny language models for tests: random weights, byte-level tokens, synthetic instructions."""

import json
from pathlib import Path
from typing import Any

import tomli_w
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from depositum.language.pretrained import FrozenBase
from tests.support.small_runs import CommandResult, cli

END = "<end>"
KINDS = ("arithmetic", "spelling", "naming")
#: Architectures, and their layers that have adapters.
ADAPTED = {"qwen2": ["q_proj", "v_proj"], "gpt2": ["c_attn", "c_fc"]}


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One token per byte, and an end-of-text token."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: i for i, letter in enumerate([END, *letters])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END)


def make_base(folder: Path, architecture: str = "qwen2", dtype: torch.dtype = torch.float32) -> Path:
    """Write a model and its tokenizer with `save_pretrained`: 9,664 parameters (qwen2), always the same."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        if architecture == "qwen2":
            model: Any = Qwen2ForCausalLM(
                Qwen2Config(
                    vocab_size=264,
                    hidden_size=16,
                    intermediate_size=24,
                    num_hidden_layers=2,
                    num_attention_heads=2,
                    num_key_value_heads=1,
                    max_position_embeddings=256,
                    tie_word_embeddings=True,
                )
            )
        else:
            model = GPT2LMHeadModel(GPT2Config(vocab_size=264, n_positions=256, n_embd=16, n_layer=2, n_head=2))
        # The scores of an untrained model are nearly equal, and its gradients nearly 0.
        for parameter in model.parameters():
            parameter.data += 0.2 * torch.randn_like(parameter)
    model.to(dtype).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


def records(count: int, first: int = 0) -> list[dict[str, str]]:
    """Instructions of three alternating categories; those of the first have a context."""
    out = []
    for i in range(first, first + count):
        kind = KINDS[i % len(KINDS)]
        out.append({"instruction": f"{kind} {i}", "response": "yes " * (1 + i % 4) + str(i), "category": kind})
        if kind == KINDS[0]:
            out[-1]["context"] = f"of {i}"
    return out


def write_lines(path: Path, lines: list[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def with_model(base: Path, architecture: str, **more: Any) -> dict[str, Any]:
    """The `problem` section's model for a base."""
    return {"model": {"lora": {"base": str(base), "rank": 2, "targets": ADAPTED[architecture], **more}}}


def write_config(path: Path, base: Path, dataset: dict[str, Any], **changes: dict[str, Any]) -> Path:
    """A configuration of three clients with texts of at most 64 tokens."""
    table: dict[str, dict[str, Any]] = {
        "problem": {
            "dataset": {"instructions": {"max_length": 64, **dataset}},
            "model": {"lora": {"base": str(base), "rank": 2, "targets": ["q_proj", "v_proj"]}},
            "clients": 3,
            "regularizer": {"mcp": {"lam": 1.0, "theta": 5.0}},
            "beta": 1e-5,
        },
        "network": {"topology": "complete"},
        "algorithm": {"name": "depositum", "alpha": 0.2, "gamma": 0.5},
        "run": {"steps": 6, "batch_size": 2, "evaluate_every": 3, "checkpoint_every": 3, "device": "cpu"},
        "processes": {"timeout": 60.0},
    }
    for section, keys in changes.items():
        table.setdefault(section, {}).update(keys)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(tomli_w.dumps(table), encoding="utf-8")
    return path


def run_with_changed_base(arguments: list[str], change: float) -> CommandResult:
    """`depositum run` with one weight of the base changed by `change`."""
    plain = FrozenBase.__init__

    def changed(self: FrozenBase, name: str, model: Any) -> None:
        with torch.no_grad():
            next(model.parameters()).view(-1)[5] += change
        plain(self, name, model)

    FrozenBase.__init__ = changed  # type: ignore[method-assign]
    return cli("run", *arguments)
