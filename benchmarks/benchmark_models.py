"""Models that benchmarks measure besides the paper's: common layers, and those of benchmarks that others publish."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from depositum import models


@dataclass(frozen=True)
class Case:
    """A model and the shape of its data.

    Attributes
    ----------
    build
        Makes the model, with weights that torch's generator draws.
    shape
        Of one sample; of token ids if `words` is not 0.
    words
        The number of different tokens; 0 for real inputs.
    labels
        The number of classes.
    each_token
        Whether every token has a label.
    """

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    samples: int
    labels: int = 10
    words: int = 0
    each_token: bool = False

    @property
    def loss(self) -> str:
        return "tokens" if self.each_token else "cross-entropy"

    def model(self) -> nn.Module:
        """The model, always with the same weights."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return self.build()

    def data(self, count: int) -> tuple[Tensor, Tensor]:
        """Random inputs and labels, always the same."""
        generator = torch.Generator().manual_seed(0)
        if self.words:
            inputs = torch.randint(0, self.words, (count, *self.shape), generator=generator)
        else:
            inputs = torch.randn(count, *self.shape, generator=generator)
        shape = (count, *self.shape) if self.each_token else (count,)
        return inputs, torch.randint(0, self.labels, shape, generator=generator)


class VisionTransformer(nn.Module):
    """Patches of a 32×32 image as 64 tokens, and pre-norm blocks of attention that use a fused kernel."""

    def __init__(self, width: int = 192, heads: int = 3, blocks: int = 6) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.positions = nn.Parameter(0.02 * torch.randn(64, width))
        layers = (
            nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(blocks)
        )
        self.blocks = nn.Sequential(*layers)
        self.scores = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.positions
        scores: Tensor = self.scores(self.blocks(tokens).mean(1))
        return scores


class LSTMClassifier(nn.Module):
    """The rows of a 28×28 image as a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.scores = nn.LSTM(28, 128, batch_first=True), nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.scores(self.rnn(x)[0][:, -1])
        return scores


class HuggingFaceScores(nn.Module):
    """The scores of a model of `transformers`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.model(x).logits
        return scores


def _separable() -> nn.Module:
    def block(inputs: int, outputs: int, stride: int) -> list[nn.Module]:
        depthwise = nn.Conv2d(inputs, inputs, 3, stride, 1, groups=inputs, bias=False)
        pointwise = nn.Conv2d(inputs, outputs, 1, bias=False)
        return [depthwise, nn.BatchNorm2d(inputs), nn.ReLU(), pointwise, nn.BatchNorm2d(outputs), nn.ReLU()]

    first = [nn.Conv2d(3, 32, 3, 1, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU()]
    blocks = [*block(32, 64, 1), *block(64, 128, 2), *block(128, 128, 1), *block(128, 256, 2)]
    return nn.Sequential(*first, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10))


def _group_norm() -> nn.Module:
    def block(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3, 1, 1), nn.GroupNorm(8, outputs), nn.ReLU(), nn.MaxPool2d(2)]

    return nn.Sequential(*block(3, 32), *block(32, 64), *block(64, 64), nn.Flatten(), nn.Linear(1024, 10))


def pfl_cnn(dropout: bool) -> nn.Module:
    """The CNN of pfl-research's CIFAR-10 benchmark, 1,626,442 parameters."""
    convolutions = [nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)]
    drops = [nn.Dropout(0.25), nn.Dropout(0.5)] if dropout else [nn.Identity(), nn.Identity()]
    hidden = [nn.Flatten(), nn.Linear(12544, 128), nn.ReLU()]
    return nn.Sequential(*convolutions, drops[0], *hidden, drops[1], nn.Linear(128, 10))


def lenet() -> nn.Module:
    """LeNet-5 for 32×32 images in colour, 62,006 parameters, as in BlazeFL's benchmark."""
    first = [nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)]
    hidden = [nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)]
    return nn.Sequential(*first, nn.Flatten(), *hidden)


def _hugging_face_vit() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    size = {"hidden_size": 192, "num_hidden_layers": 12, "num_attention_heads": 3, "intermediate_size": 768}
    config = ViTConfig(**size, image_size=32, patch_size=4, num_labels=10)
    return HuggingFaceScores(ViTForImageClassification(config))


def _hugging_face_bert() -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    size = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 512}
    config = BertConfig(**size, vocab_size=8000, max_position_embeddings=128, num_labels=10)
    return HuggingFaceScores(BertForSequenceClassification(config))


def _hugging_face_gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return HuggingFaceScores(GPT2LMHeadModel(GPT2Config(vocab_size=50257, n_positions=128)))


def _paper(name: str, shape: tuple[int, ...], labels: int, samples: int) -> Case:
    return Case(lambda: models.build(name, shape, labels, 0), shape, samples, labels)


IMAGE = (3, 32, 32)
CASES = {
    "linear": _paper("linear", (123,), 2, 32_560),
    "mlp": _paper("mlp", (784,), 10, 60_000),
    "cnn": _paper("cnn", (1, 32, 32), 10, 60_000),
    "resnet18": _paper("resnet18", IMAGE, 10, 50_000),
    "vit": Case(VisionTransformer, IMAGE, 50_000),
    "lstm": Case(LSTMClassifier, (28, 28), 60_000),
    "separable": Case(_separable, IMAGE, 50_000),
    "groupnorm": Case(_group_norm, IMAGE, 50_000),
    "pfl": Case(lambda: pfl_cnn(dropout=False), IMAGE, 50_000),
    "pfl-dropout": Case(lambda: pfl_cnn(dropout=True), IMAGE, 50_000),
    "lenet": Case(lenet, IMAGE, 50_000),
    "hf-vit": Case(_hugging_face_vit, IMAGE, 50_000),
    "hf-bert": Case(_hugging_face_bert, (64,), 20_000, words=8000),
    "hf-gpt2": Case(_hugging_face_gpt2, (64,), 5_000, 50257, words=50257, each_token=True),
}
#: The paper's models, which are measured unless others are named.
PAPER = ("linear", "mlp", "cnn", "resnet18")
#: The paper's models and those of common layers: model:clients:seeds.
ANY_MODEL = (
    "linear:10:1,mlp:10:1,cnn:10:1,resnet18:10:1,vit:10:1,lstm:20:1,separable:20:1,groupnorm:20:1,pfl:20:1,pfl-dropout:20:1,"
    "hf-vit:10:1,hf-bert:10:1,hf-gpt2:10:1"
)
#: More clients and seeds of the paper's models.
SCALE = "linear:10:5,linear:1000:1,mlp:10:5,cnn:10:5,cnn:20:1,cnn:100:1,cnn:1000:1"
