"""Runs of a language model: all methods, exported adapters, resumption, and invalid settings."""

import copy
import csv
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("peft")
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel

from depositum import models
from depositum.errors import ConfigError, DataError
from depositum.language import LoraModel, pretrained
from depositum.runs import Config, build_problem, load, resolve
from tests.support.language_models import make_tokenizer, records, with_model, write_config, write_lines
from tests.support.small_runs import KillAt, Killed, cli, files, outcome, train


@pytest.fixture
def config(bases: dict[str, Path], lines: Path, tmp_path: Path) -> Path:
    return write_config(tmp_path / "c.toml", bases["qwen2"], {"file": str(lines)})


# Runs


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("depositum", {"momentum": "polyak", "alpha": 0.1, "gamma": 0.5}),
        ("depositum", {"momentum": "nesterov", "alpha": 0.1, "gamma": 0.5}),
        ("deepstorm", {}),
        ("prox-dasa-gt", {}),
        ("gut", {}),
        ("d-psgd", {}),
        ("dsgt", {}),
    ],
)
def test_methods_of_the_paper_s_table(
    bases: dict[str, Path], lines: Path, tmp_path: Path, method: str, settings: dict[str, Any]
) -> None:
    """Each trains the tiny model, with MCP or without h, and writes an adapter and its perplexities."""
    smooth = {"regularizer": "zero", "beta": 0.0} if method in ("gut", "d-psgd", "dsgt") else {}
    path = write_config(tmp_path / "c.toml", bases["qwen2"], {"file": str(lines)}, problem=smooth)
    text = path.read_text().replace('name = "depositum"\nalpha = 0.2\ngamma = 0.5', f'name = "{method}"')
    path.write_text(text)
    train(path, tmp_path / "out", overrides=tuple(f"algorithm.{k}={v}" for k, v in settings.items()))
    with (tmp_path / "out" / "perplexity.csv").open(newline="") as file:
        before, between, after = csv.DictReader(file)
    assert [row["iteration"] for row in (before, between, after)] == ["0", "3", "6"]
    assert float(after["overall"]) > 1
    assert before["overall"] != after["overall"]
    assert load_file(tmp_path / "out" / "adapter" / "adapter_model.safetensors")


FRESH = """
import json, math, sys
import torch
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

base, adapter, file, template = sys.argv[1:]
model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), adapter).merge_and_unload().eval()
tokenizer = AutoTokenizer.from_pretrained(adapter)
total = count = 0
for line in open(file):
    record = json.loads(line)
    prompt = tokenizer.encode(template.replace("{instruction}", record["instruction"]))
    ids = prompt + tokenizer.encode(record["response"]) + [tokenizer.eos_token_id]
    labels = [-100] * len(prompt) + ids[len(prompt):]
    with torch.no_grad():
        loss = model(input_ids=torch.tensor([ids]), labels=torch.tensor([labels])).loss
    total, count = total + float(loss) * (len(ids) - len(prompt)), count + len(ids) - len(prompt)
print(math.exp(total / count))
"""


@pytest.mark.slow
def test_plain_peft_reproduces_the_reported_perplexity(bases: dict[str, Path], lines: Path, tmp_path: Path) -> None:
    """The exported adapter, merged by plain peft in another process, has the perplexity that the run reported.

    It is not the perplexity of the base.
    """
    tested = write_lines(
        tmp_path / "test.jsonl", [{k: r[k] for k in ("instruction", "response")} for r in records(12, 50)]
    )
    template = "Task: {instruction} Answer:"
    dataset = {"file": str(lines), "test_file": str(tested), "template": template}
    path = write_config(tmp_path / "c.toml", bases["qwen2"], dataset, run={"steps": 12})
    train(path, tmp_path / "out")
    with (tmp_path / "out" / "perplexity.csv").open(newline="") as file:
        before, *_, after = (float(row["overall"]) for row in csv.DictReader(file))
    command = [
        sys.executable,
        "-c",
        FRESH,
        str(bases["qwen2"]),
        str(tmp_path / "out" / "adapter"),
        str(tested),
        template,
    ]
    result = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert float(result.stdout) == pytest.approx(after, rel=1e-4)
    assert abs(before - after) > 1e-3 * before
    card = (tmp_path / "out" / "adapter" / "README.md").read_text()
    assert f"{after:.4f}" in card
    assert "PeftModel.from_pretrained" in card
    assert "gamma = 0.5" in card


@pytest.mark.slow
def test_adapters_of_clients_and_seeds_are_exported(bases: dict[str, Path], lines: Path, tmp_path: Path) -> None:
    """With `client_adapters`, the mean of the clients' adapters is the averaged one; each seed has a folder."""
    path = write_config(
        tmp_path / "c.toml",
        bases["qwen2"],
        {"file": str(lines)},
        problem=with_model(bases["qwen2"], "qwen2", client_adapters=True),
        network={"topology": "ring"},
        run={"seeds": [0, 5], "period": 3, "steps": 3},
    )
    train(path, tmp_path / "out")
    for name in ("adapter", "adapter.seed-5"):
        folder = tmp_path / "out" / name
        mean = load_file(folder / "adapter_model.safetensors")
        own = [load_file(folder / "clients" / str(i) / "adapter_model.safetensors") for i in range(3)]
        for key, value in mean.items():
            assert torch.allclose(sum(part[key] for part in own) / 3, value, atol=1e-6)
        assert any(not torch.equal(own[0][key], own[1][key]) for key in mean)
    plain = AutoModelForCausalLM.from_pretrained(bases["qwen2"])
    assert PeftModel.from_pretrained(plain, tmp_path / "out" / "adapter" / "clients" / "1")
    with (tmp_path / "out" / "perplexity.csv").open(newline="") as file:
        assert [(row["seed"], row["iteration"]) for row in csv.DictReader(file)] == [
            ("0", "0"),
            ("5", "0"),
            ("0", "3"),
            ("5", "3"),
        ]


@pytest.mark.slow
def test_resumed_and_extended_runs_end_in_the_same_bytes(config: Path, tmp_path: Path) -> None:
    """As a run that was never interrupted."""
    train(config, tmp_path / "whole")
    with pytest.raises(Killed):
        train(config, tmp_path / "killed", KillAt(5))
    train(config, tmp_path / "killed")
    train(config, tmp_path / "longer", overrides=("run.steps=3",))
    train(config, tmp_path / "longer")
    for name in ("killed", "longer"):
        assert outcome(tmp_path / name) == outcome(tmp_path / "whole")
        assert files(tmp_path / name / "adapter") == files(tmp_path / "whole" / "adapter")
        assert (tmp_path / name / "perplexity.csv").read_bytes() == (tmp_path / "whole" / "perplexity.csv").read_bytes()
    assert not (tmp_path / "whole" / "model.safetensors").exists()


# Invalid settings


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "key", "message"),
    [
        ({"base": "nowhere/at/all/model"}, "problem.model.lora.base", "there is no such folder or file"),
        ({"base": "missing.gguf"}, "problem.model.lora.base", "there is no such file"),
        ({"base": "EMPTY"}, "problem.model.lora.base", "has no config.json"),
        (
            {"targets": ["q_proj", "v_prj"]},
            "problem.model.lora.targets",
            "'v_prj' is not a layer of the base; it can be",
        ),
        ({"targets": ["v_prj"]}, "problem.model.lora.targets", "did you mean 'v_proj'?"),
        ({"targets": []}, "problem.model.lora.targets", "the list is empty"),
        ({"rank": 0}, "problem.model.lora.rank", "0 given"),
        ({"dropout": 0.1}, "problem.model.lora.dropout", "unknown key"),
        ({"tokenizer": "EMPTY"}, "problem.model.lora.tokenizer", "has no config.json"),
    ],
)
def test_invalid_settings_are_rejected(
    bases: dict[str, Path], lines: Path, tmp_path: Path, changes: dict[str, Any], key: str, message: str
) -> None:
    """The error is one line and names the key, and nothing is written."""
    (tmp_path / "empty").mkdir()
    changes = {k: str(tmp_path / "empty") if v == "EMPTY" else v for k, v in changes.items()}
    model = {"lora": {"base": str(bases["qwen2"]), "rank": 2, **changes}}
    path = write_config(tmp_path / "c.toml", bases["qwen2"], {"file": str(lines)}, problem={"model": model})
    with pytest.raises(ConfigError) as caught:
        train(path, tmp_path / "out")
    assert caught.value.key == key
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("problem", "key", "message"),
    [
        ({"dataset": "digits"}, "problem.dataset", "'lora' needs text"),
        ({"model": "linear"}, "problem.model", "the dataset is text"),
        ({"loss": "mse"}, "problem.loss", "it is 'tokens'"),
        ({"holdout": 0.1}, "problem.holdout", "evaluate = 'validation'"),
    ],
)
def test_text_and_language_models_need_each_other(
    config: Path, problem: dict[str, Any], key: str, message: str
) -> None:
    """Other combinations are rejected before anything is loaded."""
    table = {name: dict(section) for name, section in load(config).table.items()}
    table["problem"] |= problem
    with pytest.raises(ConfigError, match=message) as caught:
        resolve(Config.model_validate(table))
    assert caught.value.key == key


@pytest.mark.slow
def test_the_documented_python_code(bases: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code of docs/language-models.md, with a small base: it trains, and plain peft reads the adapter."""
    monkeypatch.chdir(tmp_path)
    for name, first in (("0", 0), ("1", 20), ("test", 40)):
        write_lines(tmp_path / "data" / f"{name}.jsonl", records(8, first))
    text = (Path(__file__).parents[2] / "docs" / "language-models.md").read_text(encoding="utf-8")
    code = text.split("## In Python")[1].split("```python\n")[1].split("```")[0]
    names: dict[str, Any] = {}
    exec(compile(code.replace("Qwen/Qwen2.5-0.5B", str(bases["qwen2"])), "language-models.md", "exec"), names)
    last = names["result"].history.iloc[-1]
    assert last.train_loss < names["result"].history.train_loss.iloc[0]
    plain: Any = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(bases["qwen2"]), tmp_path / "adapter")
    test = names["texts"].test
    with torch.no_grad():
        scores = plain.eval()(test.inputs).logits
    loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), test.targets.flatten(), ignore_index=-100)
    assert float(loss) == pytest.approx(last.test_loss, rel=1e-4)


@pytest.mark.slow
def test_texts_longer_than_the_context_are_rejected(config: Path, bases: dict[str, Path], tmp_path: Path) -> None:
    """The error has both lengths; a large max_length of short texts is allowed."""
    long = write_lines(tmp_path / "long.jsonl", [{**record, "response": "yes " * 90} for record in records(30)])
    for file, code in ((str(long), 2), (None, 0)):
        own = {"max_length": 2000, **({"file": file} if file else {})}
        changes = [f"--set=problem.dataset.instructions.{key}={value}" for key, value in own.items()]
        result = cli("run", str(config), "--out", str(tmp_path / f"out{code}"), *changes)
        assert result.code == code, result
        if code:
            reading, error = result.err.splitlines()
            assert reading == "reading the language model and its texts"
            assert re.match(
                r"error: problem.dataset: texts have up to \d+ tokens, but the context of the base is 256;", error
            )


def test_padding_beyond_the_context_is_removed(lines: Path, tmp_path: Path) -> None:
    """A context that is not a multiple of the alignment: texts that fit are accepted."""
    config = GPT2Config(vocab_size=264, n_positions=44, n_embd=16, n_layer=1, n_head=2)
    GPT2LMHeadModel(config).save_pretrained(tmp_path / "short")
    make_tokenizer().save_pretrained(tmp_path / "short")
    model = {"lora": {"base": str(tmp_path / "short"), "rank": 2, "targets": ["c_attn"]}}
    dataset = {"file": str(lines), "max_length": 44, "template": "{instruction}"}
    path = write_config(tmp_path / "c.toml", tmp_path / "short", dataset, problem={"model": model})
    problem = build_problem([load(path)])
    assert problem.train.inputs.shape[1] <= 44
    assert train(path, tmp_path / "out")[0].finished


def test_a_tokenizer_of_another_model_is_rejected(bases: dict[str, Path], lines: Path, tmp_path: Path) -> None:
    """Tokens that the base does not have would be read beyond the end of its embedding."""
    tokenizer = make_tokenizer()
    tokenizer.add_tokens([f"<{i}>" for i in range(20)])
    tokenizer.save_pretrained(tmp_path / "other")
    write_lines(tmp_path / "mine.jsonl", [{"instruction": "<15>", "response": "a"}, *records(9)])
    model = {"lora": {"base": str(bases["qwen2"]), "tokenizer": "other"}}
    path = write_config(tmp_path / "c.toml", bases["qwen2"], {"file": "mine.jsonl"}, problem={"model": model})
    with pytest.raises(ConfigError, match="the base has tokens 0 … 263, but the tokenizer produces token 272"):
        build_problem([load(path)])


class NotFound(HfHubHTTPError):
    """The hub answers, but does not have the model."""

    def __init__(self) -> None:
        Exception.__init__(self, "404")


@pytest.mark.parametrize(
    ("raised", "offline"), [(None, False), (NotFound(), False), (ConnectionError("no route"), True)]
)
def test_the_hub_is_requested_once(monkeypatch: pytest.MonkeyPatch, raised: Exception | None, offline: bool) -> None:
    """If it cannot be reached there are no retries: the cached model is used, or the error is raised at once."""
    requested, read = [], []

    def model_info(self: HfApi, name: str, timeout: float) -> None:
        requested.append(name)
        if raised is not None:
            raise raised

    def from_pretrained(name: str, **options: Any) -> str:
        read.append(options)
        if len(read) == 2:
            raise OSError("We cannot find it")
        return "a tokenizer"

    monkeypatch.setattr(HfApi, "model_info", model_info)
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", from_pretrained)
    assert pretrained.from_pretrained("AutoTokenizer", "some/model", "key") == "a tokenizer"
    reason = (
        "the Hugging Face hub cannot be reached, and it was not downloaded before" if offline else "We cannot find it"
    )
    with pytest.raises(ConfigError, match=f"key: 'some/model' cannot be read: {reason}"):
        pretrained.from_pretrained("AutoTokenizer", "some/model", "key")
    assert read == [{"local_files_only": True} if offline else {}] * 2
    assert requested == ["some/model"] * 2


def test_a_pickle_is_never_loaded(bases: dict[str, Path], tmp_path: Path) -> None:
    """A base whose weights are a pickle could execute any code when it is read."""
    base = tmp_path / "base"
    shutil.copytree(bases["qwen2"], base)
    torch.save(load_file(base / "model.safetensors"), base / "pytorch_model.bin")
    (base / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"base' cannot be read: .*no file named model\.safetensors"):
        pretrained.load_base(str(base), "problem.model.lora.base")


def test_missing_libraries_are_reported(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to install."""
    found = pretrained.importlib.util.find_spec
    monkeypatch.setattr(
        pretrained.importlib.util,
        "find_spec",
        lambda name, *a: None if name in ("transformers", "peft") else found(name, *a),
    )
    with pytest.raises(ConfigError, match=r"needs transformers and peft; run: pip install 'depositum\[llm\]'"):
        load(config)


def test_a_base_with_missing_weights_is_rejected(bases: dict[str, Path], lines: Path, tmp_path: Path) -> None:
    """The library would initialise them at random."""
    from safetensors.torch import save_file

    plain = AutoModelForCausalLM.from_pretrained(bases["qwen2"])
    broken = tmp_path / "broken"
    plain.save_pretrained(broken)
    make_tokenizer().save_pretrained(broken)
    weights = load_file(broken / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    path = write_config(tmp_path / "c.toml", broken, {"file": str(lines)})
    with pytest.raises(ConfigError, match=r"lacks weights, such as 'model\.layers\.1\.mlp\.up_proj\.weight'"):
        build_problem([load(path)])


def test_an_invalid_line_stops_a_run_before_work(bases: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text('{"instruction": "a", "response": "b"}\n[1]\n')
    path = write_config(tmp_path / "c.toml", bases["qwen2"], {"file": "mine.jsonl"})
    with pytest.raises(DataError, match=r"problem\.dataset: .*mine\.jsonl, line 2: is a list"):
        train(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_model_can_be_copied(bases: dict[str, Path]) -> None:
    """A copy computes the same scores, and shares no adapter with the original."""
    model = models.build({"lora": {"base": str(bases["qwen2"])}}, (63,), 1, 0)
    assert isinstance(model, LoraModel)
    other = copy.deepcopy(model)
    ids = torch.arange(10)[None]
    assert torch.equal(model(ids), other(ids))
    with torch.no_grad():
        for parameter in other.parameters():
            if parameter.requires_grad:
                parameter += 1
    assert not torch.equal(model(ids), other(ids))


# A pretrained model


def test_a_pretrained_model_learns(tmp_path: Path) -> None:
    """A pretrained model, if one is given, has a low perplexity, and training decreases it.

    Fails if weights are read in the wrong order, positions are shifted by one, or a step increases the loss.
    """
    folder = os.environ.get("DEPOSITUM_LANGUAGE_MODEL")
    if not folder:
        pytest.skip("DEPOSITUM_LANGUAGE_MODEL is not set to the folder of a pretrained model of children's stories")
    start = "Once upon a time there was a little {}. The little {} liked to play in the park with"
    lines = [
        {"instruction": start.format(name, name), "response": f"her friends. One day, the {name} saw a big tree."}
        for name in ("girl", "boy", "dog", "cat", "bird", "mouse", "bear", "fish", "frog", "duck")
    ]
    dataset = {"file": str(write_lines(tmp_path / "mine.jsonl", lines)), "template": "{instruction}", "test": 0.2}
    path = write_config(tmp_path / "c.toml", Path(folder), dataset, run={"steps": 20})
    train(path, tmp_path / "out", overrides=("algorithm.alpha=0.02",))
    with (tmp_path / "out" / "perplexity.csv").open(newline="") as file:
        before, *_, after = (float(row["overall"]) for row in csv.DictReader(file))
    assert before < 10  # of 512 tokens
    assert after < before
