"""LoRA models: gradients, the token loss, and a single copy of the base.

The models are Hugging Face's with random weights. Expected values are computed with plain `transformers` and `peft`, in
float64 if the architecture supports it (Qwen2 computes its norms in float32).
"""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

pytest.importorskip("transformers")
pytest.importorskip("peft")
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from depositum import models
from depositum.engines.compilation import trace
from depositum.language import IGNORED
from depositum.language.instruction_records import InstructionRecord
from depositum.language.lora import FoldedShape, RowLinear
from depositum.language.pretrained import load_base
from depositum.layout import Layout
from depositum.metrics import with_perplexities
from depositum.problem import Oracle
from depositum.problem.constants import smoothness, variance
from depositum.problem.losses import as_loss
from depositum.runs import build_engine, build_problem, load
from tests.support.language_models import ADAPTED, make_tokenizer, records, with_model, write_config


@pytest.fixture
def config(bases: dict[str, Path], lines: Path, tmp_path: Path) -> Path:
    return write_config(tmp_path / "c.toml", bases["qwen2"], {"file": str(lines)})


def reference(base: Path, architecture: str, row: torch.Tensor, layout: Layout, dtype: torch.dtype) -> Any:
    """Plain peft: the base in a dtype, with the adapters of one row."""
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
    """The summed loss of the response tokens, computed sequence by sequence without padding, and their number."""
    tokenizer = make_tokenizer()
    total, count = torch.zeros((), dtype=torch.float64), 0
    for line in batch:
        prompt = tokenizer.encode(InstructionRecord(**line).prompt())
        ids = [*prompt, *tokenizer.encode(line["response"]), tokenizer.eos_token_id][:length]
        scores = model(input_ids=torch.tensor([ids])).logits[0]
        for position in range(len(prompt), len(ids)):
            total = total - F.log_softmax(scores[position - 1].double(), 0)[ids[position]]
            count += 1
    return total, count


# Gradients


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["vmap", "loop"])
@pytest.mark.parametrize(("architecture", "tolerance"), [("gpt2", 1e-12), ("qwen2", 1e-5)])
def test_gradients_equal_those_of_peft(
    bases: dict[str, Path], lines: Path, tmp_path: Path, architecture: str, tolerance: float, backend: str
) -> None:
    """The gradient of a mini-batch is that of the mean over its response tokens, for one client's adapters.

    Fails if rows are mixed up, the prompt or the padding is learnt, or a mean is over samples instead of tokens.
    """
    path = write_config(
        tmp_path / "c.toml",
        bases[architecture],
        {"file": str(lines), "test": 0.0, "validation": 0.0, "samples": 40},
        problem=with_model(bases[architecture], architecture),
        run={"dtype": "float64", "backend": backend},
    )
    problem = build_problem([load(path)])
    oracle = Oracle(problem, 3, dtype=torch.float64, precision="float64", backend=backend)
    assert oracle.model.backend == backend
    x = oracle.start() + 0.3 * torch.randn(3, problem.layout.size, generator=torch.Generator().manual_seed(0)).double()
    batch = oracle.sample()
    gradients = oracle.grad(x, batch)
    full = oracle.full_grad(x)
    for i in range(3):
        model = reference(bases[architecture], architecture, x[i], problem.layout, torch.float64)
        for ours, indices in (
            (gradients[i], batch.indices[i].tolist()),
            (full[i], problem.trials[0].parts[i].tolist()),
        ):
            total, count = token_sums(model, [records(40)[index] for index in indices], 64)
            named = {f"adapted.{k}": p for k, p in model.named_parameters() if p.requires_grad}
            theirs = problem.layout.row(
                dict(zip(named, torch.autograd.grad(total / count, [*named.values()]), strict=True))
            )
            assert (ours - theirs).abs().max() <= tolerance * theirs.abs().max()


def test_all_backends_agree(bases: dict[str, Path], lines: Path, tmp_path: Path) -> None:
    """Training, losses and accuracies do not depend on how gradients are computed, for several seeds at once."""
    states, measured = [], []
    for backend in ("vmap", "loop"):
        path = write_config(
            tmp_path / f"{backend}.toml",
            bases["qwen2"],
            {"file": str(lines)},
            run={"seeds": [0, 1], "backend": backend},
        )
        simulator = build_engine([load(path)])
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


@pytest.mark.slow
def test_an_iteration_can_be_traced(bases: dict[str, Path], lines: Path, tmp_path: Path) -> None:
    """The model inspects no values, so an iteration can be captured and compiled; its trace gives the same state."""
    path = write_config(tmp_path / "c.toml", bases["qwen2"], {"file": str(lines)}, run={"backend": "vmap"})
    simulator = build_engine([load(path)])
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


def test_reordered_tokens_are_rejected() -> None:
    """Folded rows are in order; for any other inputs, a layer cannot know to which row tokens belong."""
    layer = RowLinear(4, 2, bias=False)
    layer.folded = FoldedShape()
    layer.folded.shape = (6, 5)
    stacked = torch.randn(3, 2, 4)
    x = torch.randn(6, 5, 4)
    out = torch.func.functional_call(layer, {"weight": stacked}, (x,))
    each = torch.cat([x[2 * i : 2 * i + 2] @ stacked[i].T for i in range(3)])
    assert torch.allclose(out, each, atol=1e-6)
    for wrong in (x.flatten(0, 1), x.transpose(0, 1)):
        with pytest.raises(ValueError, match="not whole sequences"):
            torch.func.functional_call(layer, {"weight": stacked}, (wrong,))


# The token loss


def test_token_loss_matches_its_formula() -> None:
    """Two sequences over three tokens: sums of -log softmax over the targets, their number, and correct answers."""
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
    """Losses, accuracy and perplexity of x_0 are those of the plain base, with the same weight for every token."""
    path = write_config(
        tmp_path / "c.toml", bases["gpt2"], {"file": str(lines)}, problem=with_model(bases["gpt2"], "gpt2")
    )
    problem = build_problem([load(path)])
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
    f = sum(float(t) / c for t, c in clients) / 3  # all clients have the same weight
    assert float(oracle.evaluate(start, {}, "train")[0]) == pytest.approx(f, rel=1e-6)
    measured = oracle.evaluate_test(start, {})
    # Processes measure shares of the test data, which must add up to the total, in every category too.
    halves = [oracle.evaluate_test(start, {}, (first, 2)) for first in (0, 1)]
    for key, value in measured.items():
        assert torch.allclose(halves[0][key] + halves[1][key], value)
    found = with_perplexities(measured, problem)
    assert found["perplexity:overall"] == pytest.approx(math.exp(float(total) / count), rel=1e-6)
    for kind, (t, c) in kinds.items():
        assert found[f"perplexity:{kind}"] == pytest.approx(math.exp(float(t) / c), rel=1e-6)
    assert set(found) == {"test_loss", "test_accuracy", *(f"perplexity:{kind}" for kind in ("overall", *kinds))}


def _all_inputs(lines: Path, base: Path) -> torch.Tensor:
    from depositum import data

    spec = {"instructions": {"file": str(lines), "max_length": 64, "test": 0.0, "validation": 0.0}}
    return data.load(spec, tokenizer=str(base)).train.inputs


# One copy of the base


def storages(*modules: torch.nn.Module) -> dict[int, int]:
    """The memory of the frozen weights of modules: the address and the size in bytes of each storage."""
    found = [p for module in modules for p in module.parameters() if not p.requires_grad]
    return {p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for p in found}


@pytest.mark.slow
def test_constants_are_those_of_means_over_tokens(bases: dict[str, Path], lines: Path, tmp_path: Path) -> None:
    """L and σ², as measured by `depositum theory`, against differences of full gradients and gradients of single texts.

    Attention must be differentiated twice, and tokens instead of texts be counted.
    """
    table = {"run": {"dtype": "float64", "batch_size": 1}, "problem": with_model(bases["gpt2"], "gpt2", rank=1)}
    config = load(write_config(tmp_path / "c.toml", bases["gpt2"], {"file": str(lines)}, **table))
    oracle = build_engine([config]).oracle
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
    """Two seeds of three clients, the problem, the oracle and the simulator of a remaining seed share one base."""
    path = write_config(tmp_path / "c.toml", bases["qwen2"], {"file": str(lines)}, run={"seeds": [0, 1]})
    simulator = build_engine([load(path)])
    simulator.start()
    smaller = simulator.with_trials([1])
    problem = simulator.problem
    modules = [problem.model, simulator.oracle.model.model, smaller.oracle.model.model]
    modules += [problem.averaged_model(simulator.state.x[0], {}), simulator.oracle.model.vmap_model]
    plain = AutoModelForCausalLM.from_pretrained(bases["qwen2"])
    once = sum(p.numel() * p.element_size() for p in plain.parameters())
    assert sum(storages(*modules).values()) == once
    assert simulator.state.x.shape == (6, problem.layout.size)
    assert problem.layout.size == 2 * (2 * 16 + 2 * 16 + 2 * 16 + 2 * 8)  # two layers: A and B of q, A and B of v
    assert not simulator.oracle.buffers
    # In another dtype there is one more copy, for any number of clients.
    double = Oracle(problem, 2, dtype=torch.float64, precision="float64")
    assert sum(storages(double.model.model).values()) == 2 * once


def test_only_the_base_is_in_bfloat16(bases: dict[str, Path], config: Path) -> None:
    """Adapters, the state and the angles of rotary positions stay in float32."""
    problem = build_problem([load(config)])
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


def test_the_start_depends_on_the_seed_only(bases: dict[str, Path]) -> None:
    """B is 0 and A is drawn from the seed, whether or not the base was cached, whatever torch's generator drew."""
    spec = {"lora": {"base": str(bases["qwen2"]), "rank": 2}}
    load_base.cache_clear()
    rows = []
    for seed in (3, 3, 4):
        torch.rand(5)
        model = models.build(spec, (63,), 1, seed)
        rows.append(Layout.of(model).row({k: p.detach() for k, p in model.named_parameters()}))
    assert torch.equal(rows[0], rows[1])
    assert not torch.equal(rows[0], rows[2])
    views = Layout.of(model).views(rows[0])
    assert all((view == 0).all() == ("lora_B" in name) for name, view in views.items())
