"""Adapters on a language model: gradients, one copy of the base, what is saved, and what is refused.

The models here are real ones of Hugging Face's with random weights; what they should give is computed with plain
`transformers` and `peft`, in float64 where the architecture computes in it (Qwen2 takes its norms in float32).
"""

import copy
import csv
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

pytest.importorskip("transformers")
pytest.importorskip("peft")
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from depositum import models, pretrained
from depositum.data.instructions import Record
from depositum.data.text import IGNORED
from depositum.engines.acceleration import trace
from depositum.errors import ConfigError, DataError
from depositum.layout import Layout
from depositum.metrics import with_perplexities
from depositum.models.lora import Fold, LoraModel, RowLinear
from depositum.problem import Oracle
from depositum.problem.constants import smoothness, variance
from depositum.problem.losses import as_loss
from depositum.runs import Config, build_problem, load
from depositum.runs.build import build_simulator
from tests.language_models import make_base, make_tokenizer, records, write_config, write_lines
from tests.small_runs import Killed, KilledAt, files, outcome, train

ADAPTED = {"qwen2": ["q_proj", "v_proj"], "gpt2": ["c_attn", "c_fc"]}


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("bases")
    return {name: make_base(folder / name, name) for name in ADAPTED}


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_lines(tmp_path_factory.mktemp("lines") / "mine.jsonl", records(40))


@pytest.fixture
def config(bases: dict[str, Path], lines: Path, tmp_path: Path) -> Path:
    return write_config(tmp_path / "c.toml", bases["qwen2"], {"file": str(lines)})


def with_model(base: Path, architecture: str, **more: Any) -> dict[str, Any]:
    return {"model": {"lora": {"base": str(base), "rank": 2, "targets": ADAPTED[architecture], **more}}}


def reference(base: Path, architecture: str, row: torch.Tensor, layout: Layout, dtype: torch.dtype) -> Any:
    """Plain peft: the base in some dtype with one row's adapters."""
    plain = AutoModelForCausalLM.from_pretrained(base, dtype=dtype)
    adapted = get_peft_model(
        plain, LoraConfig(r=2, lora_alpha=16, target_modules=ADAPTED[architecture], task_type="CAUSAL_LM")
    ).to(dtype)
    parameters = dict(adapted.named_parameters())
    with torch.no_grad():
        for name, view in layout.views(row).items():
            parameters[name.removeprefix("adapted.")].copy_(view)
    return adapted.eval()


def token_sums(model: Any, batch: list[dict[str, str]], length: int) -> tuple[torch.Tensor, int]:
    """The summed loss of the responses' tokens, by hand, each sequence on its own without padding; and their number."""
    tokenizer = make_tokenizer()
    total, count = torch.zeros((), dtype=torch.float64), 0
    for line in batch:
        prompt = tokenizer.encode(Record(**line).prompt())
        ids = [*prompt, *tokenizer.encode(line["response"]), tokenizer.eos_token_id][:length]
        scores = model(input_ids=torch.tensor([ids])).logits[0]
        for place in range(len(prompt), len(ids)):
            total = total - F.log_softmax(scores[place - 1].double(), 0)[ids[place]]
            count += 1
    return total, count


# Gradients


@pytest.mark.parametrize("backend", ["vmap", "loop"])
@pytest.mark.parametrize(("architecture", "tolerance"), [("gpt2", 1e-12), ("qwen2", 1e-5)])
def test_gradients_are_peft_s(
    bases: dict[str, Path], lines: Path, tmp_path: Path, architecture: str, tolerance: float, backend: str
) -> None:
    """A mini-batch's gradient is that of the mean over its response tokens, of one client's adapters and no other's.

    Breaks if rows are mixed up, the prompt or the padding is learnt, or a mean is over samples and not over tokens.
    """
    path = write_config(
        tmp_path / "c.toml",
        bases[architecture],
        {"file": str(lines), "test": 0.0, "validation": 0.0, "samples": 40},
        problem=with_model(bases[architecture], architecture),
        run={"dtype": "float64", "backend": backend},
    )
    problem = build_problem(load(path))
    oracle = Oracle(problem, 3, dtype=torch.float64, precision="float64", backend=backend)
    assert oracle.model.backend == backend
    x = oracle.start() + 0.3 * torch.randn(3, problem.layout.size, generator=torch.Generator().manual_seed(0)).double()
    batch = oracle.sample()
    gradients = oracle.grad(x, batch)
    full = oracle.full_grad(x)
    for i in range(3):
        model = reference(bases[architecture], architecture, x[i], problem.layout, torch.float64)
        for ours, places in ((gradients[i], batch.indices[i].tolist()), (full[i], problem.trials[0].parts[i].tolist())):
            total, count = token_sums(model, [records(40)[place] for place in places], 64)
            named = {f"adapted.{k}": p for k, p in model.named_parameters() if p.requires_grad}
            theirs = problem.layout.row(
                dict(zip(named, torch.autograd.grad(total / count, [*named.values()]), strict=True))
            )
            assert (ours - theirs).abs().max() <= tolerance * theirs.abs().max()


def test_rows_at_once_and_one_after_another(bases: dict[str, Path], lines: Path, tmp_path: Path) -> None:
    """Training, losses and accuracies agree whichever way gradients are made, for several seeds at once."""
    states, measured = [], []
    for backend in ("vmap", "loop"):
        path = write_config(
            tmp_path / f"{backend}.toml",
            bases["qwen2"],
            {"file": str(lines)},
            run={"seeds": [0, 1], "backend": backend},
        )
        simulator = build_simulator(load(path))
        simulator.start()
        for _ in range(3):
            simulator.step()
        states.append(simulator.state.x)
        mean = simulator.state.x.view(2, 3, -1).mean(1)
        measured.append([*simulator.oracle.evaluate(mean, {}, "test"), simulator.oracle.evaluate(mean, {}, "train")[0]])
    assert torch.allclose(*states, atol=1e-5)
    assert not torch.allclose(states[0][0], states[0][3])
    for one, other in zip(*measured, strict=True):
        assert torch.allclose(one, other, rtol=1e-5)


def test_an_iteration_can_be_traced(bases: dict[str, Path], lines: Path, tmp_path: Path) -> None:
    """Nothing in the model asks for values, so an iteration can be captured and compiled; traced, it is the same."""
    path = write_config(tmp_path / "c.toml", bases["qwen2"], {"file": str(lines)}, run={"backend": "vmap"})
    simulator = build_simulator(load(path))
    simulator.start()
    simulator.advance(1)
    iteration = simulator.iteration
    graph = trace(iteration, "exchange")
    copies = [tensor.clone() for tensor in iteration.tensors()]
    with torch.no_grad():
        graph(*copies)
    simulator.step()
    for name, ours in zip(simulator.state._fields, copies, strict=False):
        assert torch.allclose(ours, getattr(simulator.state, name), atol=1e-6)


def test_a_model_that_reorders_tokens_is_refused() -> None:
    """Folded rows lie in order; a layer that is given anything else cannot know whose tokens they are."""
    layer = RowLinear(4, 2, bias=False)
    layer.fold = Fold()
    layer.fold.shape = (6, 5)
    stacked = torch.randn(3, 2, 4)
    x = torch.randn(6, 5, 4)
    out = torch.func.functional_call(layer, {"weight": stacked}, (x,))
    each = torch.cat([x[2 * i : 2 * i + 2] @ stacked[i].T for i in range(3)])
    assert torch.allclose(out, each, atol=1e-6)
    for wrong in (x.flatten(0, 1), x.transpose(0, 1)):
        with pytest.raises(ValueError, match="not one sequence after another"):
            torch.func.functional_call(layer, {"weight": stacked}, (wrong,))


# The loss of tokens


def test_the_loss_of_tokens_by_hand() -> None:
    """Two sequences over three tokens: sums of -log softmax where a target is, counts of those, and right answers."""
    loss = as_loss("tokens")
    outputs = torch.tensor([[[0.0, 0.0, 0.0], [1.0, 0.0, 0.0]], [[0.0, 2.0, 0.0], [0.0, 0.0, 0.0]]])
    targets = torch.tensor([[IGNORED, 0], [1, 2]])
    values = [-1 + math.log(math.e + 2), -2 + math.log(math.e**2 + 2) + math.log(3)]
    assert torch.allclose(loss.per_sample(outputs, targets), torch.tensor(values))
    assert loss.terms is not None
    assert loss.terms(targets).tolist() == [1, 2]
    assert loss.correct is not None
    assert loss.correct(outputs, targets).tolist() == [1, 1]


def test_measures_are_means_over_tokens(bases: dict[str, Path], lines: Path, tmp_path: Path) -> None:
    """Train and test loss, accuracy and perplexity of x_0 are those of the plain base, every token counting alike."""
    path = write_config(
        tmp_path / "c.toml", bases["gpt2"], {"file": str(lines)}, problem=with_model(bases["gpt2"], "gpt2")
    )
    problem = build_problem(load(path))
    oracle = Oracle(problem, 2)
    start = oracle.start()[:1]
    base = AutoModelForCausalLM.from_pretrained(bases["gpt2"]).eval()
    decode = {tuple(row): i for i, row in enumerate(_all_inputs(lines, bases["gpt2"]).tolist())}
    tested = [records(40)[decode[tuple(row)]] for row in problem.test.inputs.tolist()]
    with torch.no_grad():
        total, count = token_sums(base, tested, 64)
        kinds = {
            kind: token_sums(base, [t for t in tested if t["category"] == kind], 64) for kind in problem.test.categories
        }
        clients = [
            token_sums(base, [records(40)[decode[tuple(row)]] for row in problem.train.inputs[part].tolist()], 64)
            for part in problem.trials[0].parts
        ]
    loss, accuracy = oracle.evaluate(start, {}, "test")
    assert float(loss) == pytest.approx(float(total) / count, rel=1e-6)
    assert 0 <= float(accuracy) <= 1
    f = sum(float(t) / c for t, c in clients) / 3  # each client is the mean over its own tokens, and all count alike
    assert float(oracle.evaluate(start, {}, "train")[0]) == pytest.approx(f, rel=1e-6)
    measured = oracle.evaluate_test(start, {})
    # What processes measure are shares, which must add up to the whole's, of a category too.
    halves = [oracle.evaluate_test(start, {}, (first, 2)) for first in (0, 1)]
    for key, value in measured.items():
        assert torch.allclose(halves[0][key] + halves[1][key], value)
    said = with_perplexities(measured, problem)
    assert said["perplexity:overall"] == pytest.approx(math.exp(float(total) / count), rel=1e-6)
    for kind, (t, c) in kinds.items():
        assert said[f"perplexity:{kind}"] == pytest.approx(math.exp(float(t) / c), rel=1e-6)
    assert set(said) == {"test_loss", "test_accuracy", *(f"perplexity:{kind}" for kind in ("overall", *kinds))}


def _all_inputs(lines: Path, base: Path) -> torch.Tensor:
    from depositum import data

    spec = {"instructions": {"file": str(lines), "max_length": 64, "test": 0.0, "validation": 0.0}}
    return data.load(spec, tokenizer=str(base)).train.inputs


# One copy of the base


def storages(*modules: torch.nn.Module) -> dict[int, int]:
    """The frozen weights that modules hold: each piece of memory, and its bytes."""
    found = [p for module in modules for p in module.parameters() if not p.requires_grad]
    return {p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for p in found}


def test_constants_are_of_means_over_tokens(bases: dict[str, Path], lines: Path, tmp_path: Path) -> None:
    """L and σ², as `depositum theory` asks for them: attention must be differentiated twice, and tokens, not texts, be
    counted. L against differences of full gradients, σ² against mini-batch gradients of one text.
    """
    table = {"run": {"dtype": "float64", "batch_size": 1}, "problem": with_model(bases["gpt2"], "gpt2", rank=1)}
    config = load(write_config(tmp_path / "c.toml", bases["gpt2"], {"file": str(lines)}, **table))
    oracle = build_simulator(config).oracle
    x = oracle.start()
    v = torch.randn(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(0))
    for _ in range(30):
        v = v / v.norm(dim=1, keepdim=True)
        v = (oracle.full_grad(x + 1e-5 * v) - oracle.full_grad(x - 1e-5 * v)) / 2e-5
    assert smoothness(oracle).value == pytest.approx(float(v.norm(dim=1).max()), rel=0.05)
    oracle.begin(torch.full((), -1, dtype=torch.int64))
    apart = sum((oracle.grad(x, oracle.sample(1)) - oracle.full_grad(x)).square().sum(1) for _ in range(8)) / 8
    assert variance(oracle, draws=8).value == pytest.approx(float(torch.as_tensor(apart).max()), rel=1e-9)


def test_the_base_is_in_memory_once(bases: dict[str, Path], lines: Path, tmp_path: Path) -> None:
    """Two seeds of three clients, the problem, the oracle and what is left after a divergence share one base."""
    path = write_config(tmp_path / "c.toml", bases["qwen2"], {"file": str(lines)}, run={"seeds": [0, 1]})
    simulator = build_simulator(load(path))
    simulator.start()
    smaller = simulator.restricted_to([1])
    problem = simulator.problem
    held = [problem.model, simulator.oracle.model.model, smaller.oracle.model.model]
    held += [problem.averaged_model(simulator.state.x[0], {}), simulator.oracle.model.batched]
    plain = AutoModelForCausalLM.from_pretrained(bases["qwen2"])
    once = sum(p.numel() * p.element_size() for p in plain.parameters())
    assert sum(storages(*held).values()) == once
    assert simulator.state.x.shape == (6, problem.layout.size)
    assert problem.layout.size == 2 * (2 * 16 + 2 * 16 + 2 * 16 + 2 * 8)  # two layers: A and B of q, A and B of v
    assert not simulator.oracle.buffers
    # In another dtype there is one more, whatever the number of clients.
    double = Oracle(problem, 2, dtype=torch.float64, precision="float64")
    assert sum(storages(double.model.model).values()) == 2 * once


def test_the_base_in_bfloat16(bases: dict[str, Path], config: Path) -> None:
    """Only the base is halved: adapters, what is trained and the angles of rotary positions stay in float32."""
    problem = build_problem(load(config))
    oracle = Oracle(problem, 2, precision="bf16")
    model = oracle.model.model
    for name, parameter in model.named_parameters():
        assert parameter.dtype == (torch.float32 if "lora_" in name else torch.bfloat16)
    hidden = [b for module in model.modules() for b in module._buffers.values() if b is not None]
    assert hidden
    assert all(b.dtype == torch.float32 for b in hidden if b.is_floating_point())
    exact = Oracle(problem, 2)
    x = oracle.start()
    ours, theirs = (o.grad(x, o.sample()) for o in (oracle, exact))
    assert ours.dtype == torch.float32
    assert (ours - theirs).norm() <= 0.05 * theirs.norm()


def test_the_start_depends_on_the_seed_alone(bases: dict[str, Path]) -> None:
    """Whether the base had to be read or was there, and whatever torch's generator did: B is 0, A the seed's."""
    spec = {"lora": {"base": str(bases["qwen2"]), "rank": 2}}
    models.base.read_base.cache_clear()
    rows = []
    for seed in (3, 3, 4):
        torch.rand(5)
        model = models.build(spec, (63,), 1, seed)
        rows.append(Layout.of(model).row({k: p.detach() for k, p in model.named_parameters()}))
    assert torch.equal(rows[0], rows[1])
    assert not torch.equal(rows[0], rows[2])
    views = Layout.of(model).views(rows[0])
    assert all((view == 0).all() == ("lora_B" in name) for name, view in views.items())


# Runs


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
def test_all_methods_of_the_table(
    bases: dict[str, Path], lines: Path, tmp_path: Path, method: str, settings: dict[str, Any]
) -> None:
    """Each trains on the tiny model, with MCP or without h, and leaves an adapter and its perplexities."""
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


def test_the_adapter_in_a_fresh_process(bases: dict[str, Path], lines: Path, tmp_path: Path) -> None:
    """What is saved is what was trained: merged by plain peft, where nothing of this package is, it has the perplexity
    that the run reported, and that is not the base's.
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
    said = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert float(said.stdout) == pytest.approx(after, rel=1e-4)
    assert abs(before - after) > 1e-3 * before
    card = (tmp_path / "out" / "adapter" / "README.md").read_text()
    assert f"{after:.4f}" in card
    assert "PeftModel.from_pretrained" in card
    assert "gamma = 0.5" in card


def test_adapters_of_clients_and_seeds(bases: dict[str, Path], lines: Path, tmp_path: Path) -> None:
    """Asked for, each client's own adapter is there, and their mean is the averaged one; each seed has a folder."""
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


def test_killed_and_taken_up_again(config: Path, tmp_path: Path) -> None:
    """A run that is killed, and one that is extended, end in the same bytes as one that never stopped."""
    train(config, tmp_path / "whole")
    with pytest.raises(Killed):
        train(config, tmp_path / "killed", KilledAt(5))
    train(config, tmp_path / "killed")
    train(config, tmp_path / "longer", overrides=("run.steps=3",))
    train(config, tmp_path / "longer")
    for name in ("killed", "longer"):
        assert outcome(tmp_path / name) == outcome(tmp_path / "whole")
        assert files(tmp_path / name / "adapter") == files(tmp_path / "whole" / "adapter")
        assert (tmp_path / name / "perplexity.csv").read_bytes() == (tmp_path / "whole" / "perplexity.csv").read_bytes()
    assert not (tmp_path / "whole" / "model.safetensors").exists()


# What is refused


@pytest.mark.parametrize(
    ("changes", "key", "said"),
    [
        ({"base": "nowhere/at/all/model"}, "problem.model.lora.base", "there is no such folder or file"),
        ({"base": "missing.gguf"}, "problem.model.lora.base", "there is no such file"),
        ({"base": "EMPTY"}, "problem.model.lora.base", "has no config.json"),
        ({"targets": ["q_proj", "v_prj"]}, "problem.model.lora.targets", "'v_prj' is no layer of the base; there are"),
        ({"targets": ["v_prj"]}, "problem.model.lora.targets", "did you mean 'v_proj'?"),
        ({"targets": []}, "problem.model.lora.targets", "no layer given"),
        ({"rank": 0}, "problem.model.lora.rank", "0 given"),
        ({"dropout": 0.1}, "problem.model.lora.dropout", "unknown key"),
        ({"tokenizer": "EMPTY"}, "problem.model.lora.tokenizer", "has no config.json"),
    ],
)
def test_bad_settings(
    bases: dict[str, Path], lines: Path, tmp_path: Path, changes: dict[str, Any], key: str, said: str
) -> None:
    """Each is refused in one line, by its key, and nothing is written."""
    (tmp_path / "empty").mkdir()
    changes = {k: str(tmp_path / "empty") if v == "EMPTY" else v for k, v in changes.items()}
    model = {"lora": {"base": str(bases["qwen2"]), "rank": 2, **changes}}
    path = write_config(tmp_path / "c.toml", bases["qwen2"], {"file": str(lines)}, problem={"model": model})
    with pytest.raises(ConfigError) as caught:
        train(path, tmp_path / "out")
    assert caught.value.key == key
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("problem", "key", "said"),
    [
        ({"dataset": "digits"}, "problem.dataset", "'lora' needs text"),
        ({"model": "linear"}, "problem.model", "the dataset is text"),
        ({"loss": "mse"}, "problem.loss", "it is 'tokens'"),
        ({"holdout": 0.1}, "problem.holdout", "evaluate = 'validation'"),
    ],
)
def test_texts_and_models_that_do_not_fit(config: Path, problem: dict[str, Any], key: str, said: str) -> None:
    """Found before anything is loaded."""
    table = load(config).complete()
    table["problem"] |= problem
    with pytest.raises(ConfigError, match=said) as caught:
        Config.model_validate(table).check()
    assert caught.value.key == key


def test_a_tokenizer_of_another_model(bases: dict[str, Path], lines: Path, tmp_path: Path) -> None:
    """Tokens that the base does not know would read memory that is not there."""
    tokenizer = make_tokenizer()
    tokenizer.add_tokens([f"<{i}>" for i in range(20)])
    tokenizer.save_pretrained(tmp_path / "other")
    write_lines(tmp_path / "mine.jsonl", [{"instruction": "<15>", "response": "a"}, *records(9)])
    model = {"lora": {"base": str(bases["qwen2"]), "tokenizer": "other"}}
    path = write_config(tmp_path / "c.toml", bases["qwen2"], {"file": "mine.jsonl"}, problem={"model": model})
    with pytest.raises(ConfigError, match="they do not belong together"):
        build_problem(load(path))


def test_libraries_that_are_not_installed(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What to install is said, by name."""
    found = pretrained.importlib.util.find_spec
    monkeypatch.setattr(
        pretrained.importlib.util,
        "find_spec",
        lambda name, *a: None if name in ("transformers", "peft") else found(name, *a),
    )
    with pytest.raises(ConfigError, match=r"needs transformers and peft; run: pip install 'depositum\[llm\]'"):
        load(config)


def test_weights_that_are_missing(bases: dict[str, Path], lines: Path, tmp_path: Path) -> None:
    """A base whose file lacks a layer would be filled up with random numbers."""
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
        build_problem(load(path))


def test_a_bad_line_stops_a_run_before_work(bases: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text('{"instruction": "a", "response": "b"}\n[1]\n')
    path = write_config(tmp_path / "c.toml", bases["qwen2"], {"file": "mine.jsonl"})
    with pytest.raises(DataError, match=r"problem\.dataset: .*mine\.jsonl, line 2: is a list"):
        train(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_model_can_be_copied(bases: dict[str, Path]) -> None:
    """A copy computes the same, and shares no adapter with its original."""
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


# A real model


def test_a_real_model_learns(tmp_path: Path) -> None:
    """Real weights where they are at hand: read aright they know their language, and training makes them better at it.

    Breaks if weights are read in a wrong order, positions are shifted by one, or the step goes uphill.
    """
    folder = os.environ.get("DEPOSITUM_LANGUAGE_MODEL")
    if not folder:
        pytest.skip("DEPOSITUM_LANGUAGE_MODEL names no folder with a pretrained model of children's stories")
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
