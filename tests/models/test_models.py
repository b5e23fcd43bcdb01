"""Built-in models: sizes, initial parameters, resizing, and stacking over clients."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from depositum.errors import ConfigError
from depositum.models import MODELS, build, cnn, mlp, prepare_samples, resnet18
from depositum.randomness import seed_for
from tests.support.module_sizes import parameter_count

IMAGES = {"linear": (1, 8, 8), "mlp": (1, 8, 8), "cnn": (1, 32, 32), "resnet18": (1, 16, 16)}
#: All models except for language models, which tests/language/ covers.
CLASSIFIERS = [name for name in MODELS if not MODELS.attribute(name, "tokenizer_path", None)]


# ---------------------------------------------------------------------------------------------- shape and structure


@pytest.mark.parametrize(
    ("name", "input_shape", "classes", "count"),
    [
        ("linear", (123,), 2, 248),
        ("linear", (1, 28, 28), 10, 7_850),
        ("linear", (3, 32, 32), 10, 30_730),
        ("mlp", (123,), 2, 24_258),
        ("mlp", (1, 28, 28), 10, 109_386),
        ("mlp", (3, 32, 32), 10, 402_250),
        ("cnn", (1, 28, 28), 10, 268_362),
        ("cnn", (3, 32, 32), 10, 268_650),
        ("resnet18", (1, 28, 28), 10, 11_175_370),
        ("resnet18", (3, 32, 32), 10, 11_181_642),
    ],
)
def test_parameter_counts_are_those_of_the_paper(
    name: str, input_shape: tuple[int, ...], classes: int, count: int
) -> None:
    """Fails if a layer is added, removed or widened, or if a bias is added or removed."""
    assert parameter_count(build(name, input_shape, classes, seed=0)) == count


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_every_model_maps_a_batch_to_scores(name: str) -> None:
    """Fails if a registered model does not flatten its inputs or changes the order of the batch."""
    model = build(name, IMAGES[name], 7, seed=1).double().eval()
    batch = torch.rand(3, *IMAGES[name], dtype=torch.float64)
    scores = model(batch)
    assert scores.shape == (3, 7)
    torch.testing.assert_close(model(batch.flip(0)), scores.flip(0))


def test_mlp_and_linear_match_their_formulas() -> None:
    """Fails if a ReLU is missing between layers, or follows the last one (negative scores would be clipped)."""
    model = build("mlp", (2, 3), 4, seed=0)
    x = torch.randn(50, 2, 3)
    w = dict(model.named_parameters())
    h = x.reshape(50, 6)
    h = torch.relu(h @ w["linear1.weight"].T + w["linear1.bias"])
    h = torch.relu(h @ w["linear2.weight"].T + w["linear2.bias"])
    scores = h @ w["linear3.weight"].T + w["linear3.bias"]
    assert (scores < 0).any()
    torch.testing.assert_close(model(x), scores)
    linear = build({"linear": {"bias": False}}, (2, 3), 4, seed=0)
    torch.testing.assert_close(linear(x), x.reshape(50, 6) @ linear.get_parameter("linear.weight").T)
    assert parameter_count(linear) == 24


def test_mlp_has_the_given_widths() -> None:
    """Without hidden layers, the MLP is the linear model."""
    assert [tuple(p.shape) for p in mlp((5,), 3, hidden=[4]).parameters()] == [(4, 5), (4,), (3, 4), (3,)]
    assert parameter_count(mlp((5,), 3, hidden=[])) == parameter_count(build("linear", (5,), 3, seed=0))


def test_cnn_matches_its_formula() -> None:
    """Fails for another order of ReLU, pooling and flattening, or another padding."""
    model = build("cnn", (3, 32, 32), 10, seed=0)
    w = dict(model.named_parameters())
    x = torch.rand(2, 3, 32, 32)
    h = F.max_pool2d(F.conv2d(x, w["conv1.weight"], w["conv1.bias"], padding=1).relu(), 2)
    h = F.max_pool2d(F.conv2d(h, w["conv2.weight"], w["conv2.bias"], padding=1).relu(), 2)
    h = F.linear(h.reshape(2, 2048), w["linear1.weight"], w["linear1.bias"]).relu()
    torch.testing.assert_close(model(x), F.linear(h, w["linear2.weight"], w["linear2.bias"]))


def resnet18_by_hand(w: dict[str, Tensor], x: Tensor) -> Tensor:
    """ResNet-18 in training mode from its weights, with the stride and skip of each layer written out."""

    def norm(h: Tensor, name: str) -> Tensor:
        mean, var = h.mean((0, 2, 3), keepdim=True), h.var((0, 2, 3), keepdim=True, unbiased=False)
        scale, shift = w[f"{name}.weight"].view(1, -1, 1, 1), w[f"{name}.bias"].view(1, -1, 1, 1)
        return (h - mean) / torch.sqrt(var + 1e-5) * scale + shift

    h = norm(F.conv2d(x, w["conv1.weight"], stride=2, padding=3), "bn1").relu()
    h = F.max_pool2d(h, 3, stride=2, padding=1)
    for block in ("1.0", "1.1", "2.0", "2.1", "3.0", "3.1", "4.0", "4.1"):
        at, stride = f"layer{block}", 2 if block in ("2.0", "3.0", "4.0") else 1
        skip = h
        if stride == 2:
            skip = norm(F.conv2d(h, w[f"{at}.downsample.0.weight"], stride=2), f"{at}.downsample.1")
        h = norm(F.conv2d(h, w[f"{at}.conv1.weight"], stride=stride, padding=1), f"{at}.bn1").relu()
        h = norm(F.conv2d(h, w[f"{at}.conv2.weight"], padding=1), f"{at}.bn2")
        h = (h + skip).relu()
    return F.linear(h.mean((2, 3)), w["fc.weight"], w["fc.bias"])


def test_resnet18_matches_its_formula() -> None:
    """Fails for a wrong stride, a missing skip or ReLU, or names other than torchvision's."""
    model = resnet18((3, 40, 40), 5, width=6).double().train()
    x = torch.rand(3, 3, 40, 40, dtype=torch.float64)
    torch.testing.assert_close(model(x), resnet18_by_hand(dict(model.named_parameters()), x))
    # The standard table has 62 parameters and three buffers for each of its 20 batch norms.
    assert len(list(model.parameters())) == 62
    assert len(list(model.buffers())) == 60
    assert list(model.state_dict())[:2] == ["conv1.weight", "bn1.weight"]
    assert list(model.state_dict())[-2:] == ["fc.weight", "fc.bias"]


# ---------------------------------------------------------------------------------------------- initial parameters


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_initial_parameters_depend_on_the_seed_only(name: str) -> None:
    """Fails if torch's global generator, a default device or an earlier build affects the parameters."""
    torch.manual_seed(5)
    first = build(name, IMAGES[name], 3, seed=4).state_dict()
    torch.manual_seed(6)
    torch.rand(10)
    again, other = (build(name, IMAGES[name], 3, seed=s).state_dict() for s in (4, 5))
    assert all(torch.equal(first[k], again[k]) for k in first)
    assert not all(torch.equal(first[k], other[k]) for k in first)
    with torch.device("meta"):
        assert all(p.device.type == "cpu" for p in build(name, IMAGES[name], 3, seed=4).parameters())


def test_building_restores_the_global_generator() -> None:
    """Fails if `build` seeds or draws from torch's generator without restoring it."""
    torch.manual_seed(0)
    before = torch.get_rng_state()
    build("mlp", (4,), 2, seed=3)
    assert torch.equal(before, torch.get_rng_state())


def test_initialisation_is_the_default_of_pytorch() -> None:
    """Fails if a model sets its weights itself: the paper's accuracies are those of PyTorch's defaults."""
    model = build("cnn", (1, 32, 32), 10, seed=9)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_for(9, purpose="init"))
        plain = [nn.Conv2d(1, 16, 3), nn.Conv2d(16, 32, 3), nn.Linear(2048, 128), nn.Linear(128, 10)]
    expected = [p for layer in plain for p in layer.parameters()]
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), expected, strict=True))
    bound = 1 / 49**0.5  # PyTorch draws a convolution from U(±1/√fan_in); He's initialisation would exceed it
    assert 0.9 * bound < resnet18((1, 32, 32), 10).get_parameter("conv1.weight").abs().max() <= bound


# ------------------------------------------------------------------------------------------------------- resizing


def prepared(name: str, inputs: Tensor) -> Tensor:
    """The inputs as a model of three-channel images takes them."""
    return prepare_samples(build(name, (3, 28, 28), 10, seed=0), inputs, torch.zeros(len(inputs)))[0]


def bilinear_half_pixel(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """Bilinear interpolation with half-pixel centres, one output pixel at a time."""
    out = np.empty((height, width))
    for i in range(height):
        for j in range(width):
            r = max((i + 0.5) * image.shape[0] / height - 0.5, 0.0)
            c = max((j + 0.5) * image.shape[1] / width - 0.5, 0.0)
            r0, c0 = int(r), int(c)
            r1, c1 = min(r0 + 1, image.shape[0] - 1), min(c0 + 1, image.shape[1] - 1)
            top = image[r0, c0] * (1 - (c - c0)) + image[r0, c1] * (c - c0)
            bottom = image[r1, c0] * (1 - (c - c0)) + image[r1, c1] * (c - c0)
            out[i, j] = top * (1 - (r - r0)) + bottom * (r - r0)
    return out


@pytest.mark.parametrize("size", [(28, 28), (8, 8), (20, 45)])
def test_cnn_inputs_are_resized_bilinearly(size: tuple[int, int]) -> None:
    """Fails with align_corners=True, padding, nearest neighbours or swapped axes."""
    images = torch.rand(2, 3, *size, dtype=torch.float64)
    resized = prepared("cnn", images)
    assert resized.shape == (2, 3, 32, 32)
    for n in range(2):
        for c in range(3):
            expected = bilinear_half_pixel(images[n, c].numpy(), 32, 32)
            np.testing.assert_allclose(resized[n, c].numpy(), expected, atol=1e-13)


def test_resizing_in_chunks_gives_the_same_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if a chunk of the dataset is lost, duplicated or misplaced."""
    images = torch.rand(10, 1, 28, 28)
    resized = prepared("cnn", images)
    monkeypatch.setattr("depositum.models.convolutional._CHUNK", 3)
    assert torch.equal(prepared("cnn", images), resized)


def test_only_the_cnn_resizes() -> None:
    """Fails if the data of other models, or images of 32×32 pixels, are copied or changed."""
    images, fitting = torch.rand(2, 1, 28, 28), torch.rand(2, 3, 32, 32)
    assert all(prepared(name, images) is images for name in ("linear", "mlp", "resnet18"))
    assert prepare_samples(nn.Linear(3, 2), images, images) == (images, images)
    assert prepared("cnn", fitting) is fitting
    assert prepared("cnn", images).shape == (2, 1, 32, 32)
    assert cnn((1, 28, 28), 10)(prepared("cnn", images)).shape == (2, 10)


# ------------------------------------------------------------------------------------- stacking over clients (vmap)

CLIENTS, BATCH = 2, 4


def stacked(name: str, dtype: torch.dtype = torch.float64) -> tuple[nn.Module, dict[str, Tensor], dict[str, Tensor]]:
    """A model, and its parameters and buffers with one row per client, each client's different."""
    model = build(name, IMAGES[name], 3, seed=0).to(dtype)
    clients = [build(name, IMAGES[name], 3, seed=s).to(dtype) for s in range(CLIENTS)]
    for i, client in enumerate(clients):
        for buffer in client.buffers():
            buffer += i
    parameters = {k: torch.stack([c.get_parameter(k).detach() for c in clients]) for k, _ in model.named_parameters()}
    buffers = {k: torch.stack([c.get_buffer(k) for c in clients]) for k, _ in model.named_buffers()}
    return model, parameters, buffers


def client_batches(name: str) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.rand(CLIENTS, BATCH, *IMAGES[name], dtype=torch.float64), torch.randint(3, (CLIENTS, BATCH))


@pytest.mark.slow
@pytest.mark.parametrize("name", CLASSIFIERS)
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_vmapped_gradients_equal_a_loop(name: str, training: bool) -> None:
    """vmap of grad over stacked parameters equals a loop of ordinary backward passes, buffers included.

    Fails for in-place activations, branches on values, and buffers shared between clients. The buffers are cloned
    inside the differentiated function and returned with its value: batch norm then updates each client's copy, and the
    caller's buffers do not change.
    """
    model, parameters, buffers = stacked(name)
    model.train(training)
    inputs, targets = client_batches(name)

    def loss(p: dict[str, Tensor], b: dict[str, Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        b = {k: v.clone() for k, v in b.items()}
        return F.cross_entropy(functional_call(model, (p, b), (x,)), y), b

    initial = {k: v.clone() for k, v in buffers.items()}
    gradients, new_buffers = vmap(grad(loss, has_aux=True))(parameters, buffers, inputs, targets)
    assert all(torch.equal(initial[k], buffers[k]) for k in buffers)

    for i in range(CLIENTS):
        model.load_state_dict({k: v[i] for k, v in (parameters | buffers).items()})
        model.zero_grad()
        F.cross_entropy(model(inputs[i]), targets[i]).backward()
        for k, p in model.named_parameters():
            torch.testing.assert_close(gradients[k][i], p.grad, rtol=1e-8, atol=1e-10)
        for k, buffer in model.named_buffers():
            torch.testing.assert_close(new_buffers[k][i], buffer)
            assert torch.equal(buffer, initial[k][i]) != training  # batch norm moves its statistics in training only


@pytest.mark.parametrize("name", ["cnn", "resnet18"])
def test_convolutional_models_reject_data_that_are_not_images(name: str) -> None:
    """Fails if tabular data reach a convolution."""
    with pytest.raises(ConfigError, match=rf"^model: '{name}' takes images .* shape \(123,\)"):
        build(name, (123,), 2, seed=0)
    if name == "cnn":
        with pytest.raises(ConfigError, match=r"^model: 'cnn' takes images .* shape \(123,\)"):
            prepared("cnn", torch.rand(4, 123))
