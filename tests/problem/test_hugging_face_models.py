"""Hugging Face models with random weights, trained in full: all clients in one call against one after another."""

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import depositum as dp
from depositum.problem import Oracle, Problem

transformers = pytest.importorskip("transformers")

SMALL = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16, "intermediate_size": 32}
TEXT = {"vocab_size": 30, "max_position_embeddings": 16}


class Scores(nn.Module):
    """The scores of a model of `transformers`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.model(x).logits
        return scores


def vit() -> nn.Module:
    size = {"image_size": 8, "patch_size": 4, "num_labels": 3}
    drop = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    config: Any = transformers.ViTConfig(**SMALL, **size, **drop)
    return Scores(transformers.ViTForImageClassification(config))


def bert() -> nn.Module:
    return Scores(transformers.BertForSequenceClassification(transformers.BertConfig(**SMALL, **TEXT, num_labels=3)))


def gpt2() -> nn.Module:
    config: Any = transformers.GPT2Config(vocab_size=30, n_embd=16, n_layer=2, n_head=2, n_positions=16)
    return Scores(transformers.GPT2LMHeadModel(config))


def llama() -> nn.Module:
    return Scores(transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL, **TEXT, num_key_value_heads=1)))


MODELS = {"vit": vit, "bert": bert, "gpt2": gpt2, "llama": llama}


def problem_of(name: str) -> Problem:
    """Three clients with six samples each, images or texts, in float64."""
    torch.manual_seed(0)
    model = MODELS[name]().double()
    causal = name in ("gpt2", "llama")
    clients = []
    for _ in range(3):
        inputs = torch.randn(6, 3, 8, 8).double() if name == "vit" else torch.randint(0, 30, (6, 7))
        targets = torch.randint(0, 30, (6, 7)) if causal else torch.randint(0, 3, (6,))
        clients.append((inputs, targets))
    return dp.problem.from_client_data(model, clients, loss="tokens" if causal else "cross-entropy")


@pytest.mark.parametrize("name", MODELS)
def test_all_clients_in_one_call_give_the_gradients_of_one_after_another(name: str) -> None:
    """In training, with the dropout of the model's configuration, and in evaluation; to 1e-10. No layer is reported."""
    problem, found = problem_of(name), []
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        for backend in ("loop", "vmap"):
            oracle = Oracle(problem, 4, dtype=torch.float64, backend=backend)
            assert oracle.model.is_random == (name != "llama")
            noise = torch.randn(oracle.start().shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
            x = oracle.start() + 0.02 * noise
            found.append((oracle.grad(x, oracle.sample()), oracle.full_grad(x)))
    torch.testing.assert_close(found[1], found[0], rtol=1e-10, atol=1e-10)
    names = [name for name, g in oracle.model.layout.views(found[1][1]).items() if not g.any()]
    assert not names, "parameters that are not trained"
