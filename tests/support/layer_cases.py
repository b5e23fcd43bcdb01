"""One small model per kind of layer, for tests that all rows at once give what one client after another gives."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

IMAGE, SEQUENCE, SIGNAL, VOLUME, WORDS = (4, 8, 8), (6, 8), (4, 9), (4, 3, 3, 3), (6,)


class Computed(nn.Module):
    """A module from a function of itself and its input."""

    def __init__(self, compute: Callable[["Computed", Tensor], Tensor], **modules: nn.Module | nn.Parameter) -> None:
        super().__init__()
        self.compute = compute
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, x: Tensor) -> Tensor:
        return self.compute(self, x)


def first_output(layer: nn.Module) -> nn.Module:
    """The first of a layer's several outputs."""
    return Computed(lambda self, x: self.layer(x)[0], layer=layer)


def self_attention(**options: object) -> nn.Module:
    layer = nn.MultiheadAttention(8, 2, batch_first=True, **options)  # type: ignore[arg-type]
    return Computed(lambda self, x: self.layer(x, x, x)[0], layer=layer)


def all_forms_of_attention(self: Computed, x: Tensor) -> Tensor:
    """With a mask, causal, with a bias of each sample, of three dimensions, with grouped heads, of five dimensions."""
    q, k, v = self.project(x).view(*x.shape[:2], 3, 2, 4).permute(2, 0, 3, 1, 4)
    mask = torch.ones(6, 6, dtype=torch.bool, device=x.device).tril()
    bias = x.mean((1, 2))[:, None, None, None] * torch.ones_like(mask, dtype=x.dtype)
    attend = F.scaled_dot_product_attention
    return (
        attend(q, k, v, mask)
        + attend(q, k, v, is_causal=True, scale=0.3)
        + attend(q, k, v, bias)
        + attend(q[:, 0], k[:, 0], v[:, 0])[:, None]
        + attend(q, k[:, :1], v[:, :1], enable_gqa=True)
        + attend(q[:, :, None], k[:, :, None], v[:, :, None])[:, :, 0]
    )


def attention_with_dropout(self: Computed, x: Tensor) -> Tensor:
    q, k, v = self.project(x).view(*x.shape[:2], 3, 2, 4).permute(2, 0, 3, 1, 4)
    p, mask = 0.4 if self.training else 0.0, torch.ones(6, 6, dtype=torch.bool, device=x.device).tril()
    return F.scaled_dot_product_attention(q, k, v, mask, dropout_p=p) + F.scaled_dot_product_attention(
        q, k, v, dropout_p=p, is_causal=True
    )


def unrolled(self: Computed, x: Tensor) -> Tensor:
    """A cell that the model's own code calls step by step."""
    state = None
    for step in x.unbind(1):
        state = self.cell(step, state)
    return state[0] if isinstance(state, tuple) else state  # type: ignore[return-value]


def random_depth(self: Computed, x: Tensor) -> Tensor:
    """Samples skip a layer, as torchvision's and timm's code draw it."""
    if not self.training:
        return x + self.layer(x)
    keep = torch.empty([len(x), 1, 1], dtype=x.dtype, device=x.device).bernoulli_(0.5)
    keep.div_(0.5)
    again = torch.floor(0.7 + torch.rand((len(x), 1, 1), dtype=x.dtype, device=x.device))
    return x + keep * again * self.layer(x) * x.new_empty((len(x), 1, 1)).bernoulli_(0.8)


def noise(self: Computed, x: Tensor) -> Tensor:
    if not self.training:
        return self.layer(x)
    return self.layer(x + torch.randn_like(x)) * torch.bernoulli(torch.full_like(x, 0.3)) + F.gumbel_softmax(x)


def words_of(x: Tensor) -> Tensor:
    """Indices of words 0 … 9, from real numbers."""
    return (x.detach().abs() * 4).long().clamp(max=9)


def embedded(layer: nn.Module) -> nn.Module:
    return Computed(lambda self, x: self.layer(words_of(x)), layer=layer)


#: The shape of a sample and the layer, for layers that do not draw random numbers.
LAYERS: dict[str, tuple[tuple[int, ...], Callable[[], nn.Module]]] = {
    "linear": (SEQUENCE, lambda: nn.Linear(8, 4)),
    "bilinear": (SEQUENCE, lambda: Computed(lambda self, x: self.layer(x, x), layer=nn.Bilinear(8, 8, 4))),
    "embedding": (WORDS, lambda: embedded(nn.Embedding(10, 4))),
    "embedding with padding": (WORDS, lambda: embedded(nn.Embedding(10, 4, padding_idx=0))),
    "embedding scaled by frequency": (
        WORDS,
        lambda: embedded(nn.Embedding(10, 4, padding_idx=2, scale_grad_by_freq=True)),
    ),
    "embedding bag": (WORDS, lambda: embedded(nn.EmbeddingBag(10, 4, mode="mean", padding_idx=1))),
    "convolution 1d": (SIGNAL, lambda: nn.Conv1d(4, 4, 3)),
    "depthwise convolution 1d, dilated": (SIGNAL, lambda: nn.Conv1d(4, 8, 3, groups=4, dilation=2)),
    "convolution 2d": (IMAGE, lambda: nn.Conv2d(4, 4, 3, stride=2)),
    "grouped convolution": (IMAGE, lambda: nn.Conv2d(4, 8, 3, groups=2)),
    "depthwise convolution": (IMAGE, lambda: nn.Conv2d(4, 4, 3, groups=4, padding=1)),
    "dilated convolution": (IMAGE, lambda: nn.Conv2d(4, 4, 3, dilation=2)),
    "reflecting convolution": (IMAGE, lambda: nn.Conv2d(4, 4, 3, padding="same", padding_mode="reflect")),
    "convolution 3d": (VOLUME, lambda: nn.Conv3d(4, 2, 2)),
    "transposed convolution 1d": (
        SIGNAL,
        lambda: nn.ConvTranspose1d(4, 4, 3, 2, groups=4, dilation=2, output_padding=1),
    ),
    "transposed convolution 2d": (IMAGE, lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2)),
    "batch norm 1d": (SIGNAL, lambda: nn.BatchNorm1d(4)),
    "batch norm 2d": (IMAGE, lambda: nn.BatchNorm2d(4)),
    "batch norm 3d": (VOLUME, lambda: nn.BatchNorm3d(4)),
    "batch norm without statistics": (IMAGE, lambda: nn.BatchNorm2d(4, affine=False, track_running_stats=False)),
    "batch norm averaging all batches": (IMAGE, lambda: nn.BatchNorm2d(4, momentum=None)),
    "batch norm 1d averaging all batches": (SIGNAL, lambda: nn.BatchNorm1d(4, momentum=None, affine=False)),
    "layer norm": (SEQUENCE, lambda: nn.LayerNorm(8)),
    "group norm": (IMAGE, lambda: nn.GroupNorm(2, 4)),
    "instance norm 1d": (SIGNAL, lambda: nn.InstanceNorm1d(4, affine=True)),
    "instance norm 2d": (IMAGE, lambda: nn.InstanceNorm2d(4, affine=True, track_running_stats=True)),
    "RMS norm": (SEQUENCE, lambda: nn.RMSNorm(8)),
    "local response norm": (IMAGE, lambda: nn.LocalResponseNorm(2)),
    "weight norm": (SEQUENCE, lambda: nn.utils.parametrizations.weight_norm(nn.Linear(8, 4))),
    "attention": (SEQUENCE, lambda: Computed(all_forms_of_attention, project=nn.Linear(8, 24))),
    "multi-head attention": (SEQUENCE, self_attention),
    "multi-head attention with extra keys": (SEQUENCE, lambda: self_attention(add_bias_kv=True, add_zero_attn=True)),
    "LSTM": (SEQUENCE, lambda: first_output(nn.LSTM(8, 5, 2, batch_first=True))),
    "LSTM in both directions, projected": (
        SEQUENCE,
        lambda: first_output(nn.LSTM(8, 5, bidirectional=True, proj_size=3, bias=False)),
    ),
    "GRU": (SEQUENCE, lambda: first_output(nn.GRU(8, 5, 2, bidirectional=True, batch_first=True))),
    "RNN": (SEQUENCE, lambda: first_output(nn.RNN(8, 5, batch_first=True))),
    "RNN of ReLU": (SEQUENCE, lambda: first_output(nn.RNN(8, 5, nonlinearity="relu"))),
    "LSTM cell": (SEQUENCE, lambda: Computed(unrolled, cell=nn.LSTMCell(8, 5))),
    "GRU cell": (SEQUENCE, lambda: Computed(unrolled, cell=nn.GRUCell(8, 5))),
    "RNN cell": (SEQUENCE, lambda: Computed(unrolled, cell=nn.RNNCell(8, 5))),
    "pooling": (
        IMAGE,
        lambda: nn.Sequential(nn.MaxPool2d(2), nn.AvgPool2d(2, 1), nn.AdaptiveMaxPool2d(3), nn.AdaptiveAvgPool2d(2)),
    ),
    "pooling 1d": (SIGNAL, lambda: nn.Sequential(nn.MaxPool1d(2, 1), nn.LPPool1d(2, 2), nn.AdaptiveAvgPool1d(2))),
    "activations": (
        IMAGE,
        lambda: nn.Sequential(
            nn.PReLU(4), nn.GELU(), nn.SiLU(), nn.Hardswish(), nn.Mish(), nn.ELU(), nn.SELU(), nn.LeakyReLU(),
            nn.Softplus(), nn.Tanhshrink(), nn.CELU(), nn.GLU(), nn.LogSoftmax(1),
        ),
    ),
    "resampling": (IMAGE, lambda: nn.Sequential(nn.Upsample(scale_factor=2, mode="bilinear"), nn.PixelUnshuffle(2))),
}  # fmt: skip

#: The same for layers that draw random numbers in training.
RANDOM_LAYERS: dict[str, tuple[tuple[int, ...], Callable[[], nn.Module]]] = {
    "dropout": (IMAGE, lambda: nn.Dropout(0.5)),
    "dropout in place": (SEQUENCE, lambda: nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3, inplace=True))),
    "dropout of channels 1d": (SIGNAL, lambda: nn.Dropout1d(0.5)),
    "dropout of channels 2d": (IMAGE, lambda: nn.Dropout2d(0.5)),
    "dropout of channels 3d": (VOLUME, lambda: nn.Dropout3d(0.5)),
    "alpha dropout": (IMAGE, lambda: nn.AlphaDropout(0.5)),
    "alpha dropout of channels": (IMAGE, lambda: nn.FeatureAlphaDropout(0.5)),
    "random ReLU": (IMAGE, nn.RReLU),
    "random depth": (SEQUENCE, lambda: Computed(random_depth, layer=nn.Linear(8, 8))),
    "noise": (SEQUENCE, lambda: Computed(noise, layer=nn.Linear(8, 8))),
    "attention with dropout": (SEQUENCE, lambda: Computed(attention_with_dropout, project=nn.Linear(8, 24))),
    "multi-head attention with dropout": (SEQUENCE, lambda: self_attention(dropout=0.4)),
    "transformer": (
        SEQUENCE,
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.3, batch_first=True), 2),
    ),
    "LSTM with dropout": (SEQUENCE, lambda: first_output(nn.LSTM(8, 5, 3, dropout=0.4, batch_first=True))),
    "GRU with dropout": (SEQUENCE, lambda: first_output(nn.GRU(8, 5, 2, dropout=0.4, bidirectional=True))),
}


class Classifier(nn.Module):
    """A layer, three scores from its outputs, and a factor of its inputs so that gradients pass through the layer."""

    def __init__(self, layer: nn.Module, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(()))
        self.layer = layer
        with torch.no_grad():
            outputs = layer.double().eval()(torch.randn(2, *shape, dtype=torch.float64))
        self.scores = nn.Linear(outputs[0].numel(), 3).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.scores(self.layer(self.factor * x).flatten(1))


def classifier(name: str) -> tuple[tuple[int, ...], Classifier]:
    """The shape of a sample, and a float64 classifier with a kind of layer, in training mode."""
    shape, make = (LAYERS | RANDOM_LAYERS)[name]
    torch.manual_seed(0)
    return shape, Classifier(make(), shape).double().train()
