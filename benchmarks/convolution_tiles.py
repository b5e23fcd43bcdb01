"""The tiles of the convolution kernels, measured on a GPU: those in use against others, for the layers of benchmarks.

    python benchmarks/convolution_tiles.py OUT [--layers NAME,…]
    python benchmarks/convolution_tiles.py OUT --warm K/N

A line is one pass of one layer: microseconds with the tiles that `depositum.kernels.convolution` chooses, the best
other ones, and the bounds by products and by memory. It also shows the batched matrix product of the same size, without
the time of unfolding images for it. `--warm K/N` compiles the K-th of N shares of the variants and measures nothing, so
that several processes can fill Triton's cache first. OUT/tiles.json contains everything.
"""

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from depositum.kernels import convolution as kernels
from depositum.problem.precision import forward_backward

#: rows, batch, channels, image size, outputs, taps in each direction, stride, padding above and left, output size
LAYERS = {
    "resnet 8x8": (10, 32, 64, 8, 64, 3, 1, 1, 8),
    "resnet 4x4": (10, 32, 128, 4, 128, 3, 1, 1, 4),
    "resnet 8x8 to 4x4": (10, 32, 64, 8, 128, 3, 2, 1, 4),
    "resnet 2x2": (10, 32, 256, 2, 256, 3, 1, 1, 2),
    "resnet 2x2 to 1x1": (10, 32, 256, 2, 512, 2, 2, 0, 1),
    "pfl second": (20, 32, 32, 30, 64, 3, 1, 0, 28),
    "separable first": (20, 32, 3, 32, 32, 3, 1, 1, 32),
    "separable 32 to 64": (20, 32, 32, 32, 64, 1, 1, 0, 32),
    "separable 128 to 128": (20, 32, 128, 16, 128, 1, 1, 0, 16),
}
REPEATS = 20


#: Rows and columns of a tile, terms of a step of its sum, warps, stages.
PIXELS_OUT = (
    (64, 64, 32, 4, 3), (64, 64, 64, 4, 3), (64, 128, 32, 4, 3), (128, 64, 32, 4, 3), (128, 64, 64, 4, 3),
    (128, 128, 32, 8, 3), (64, 256, 32, 8, 3), (64, 32, 64, 4, 3), (32, 128, 32, 4, 3), (32, 256, 32, 4, 3),
)  # fmt: skip
WEIGHTS_OUT = (
    (64, 64, 32, 4, 2), (64, 64, 32, 4, 3), (64, 128, 32, 4, 3), (128, 64, 32, 4, 3), (128, 128, 32, 8, 3),
    (64, 64, 64, 4, 3), (128, 64, 64, 8, 3), (32, 32, 64, 2, 3), (32, 32, 128, 4, 3),
)  # fmt: skip


def candidates(name: str, outer: int, inner: int) -> list[dict[str, int]]:
    """Other tiles of a pass whose results have `outer` rows and whose sums have `inner` terms per tap."""
    names = {"forward": ("BO", "BM", "BK"), "inputs": ("BC", "BM", "BK"), "weights": ("BO", "BK", "BM")}[name]
    return [
        dict(zip((*names, "num_warps", "num_stages"), tiles, strict=True))
        for tiles in (WEIGHTS_OUT if name == "weights" else PIXELS_OUT)
        if tiles[0] <= max(32, outer) and (name == "weights" or tiles[2] <= max(32, inner))
    ]


def passes(name: str) -> dict[str, tuple[Callable[..., Any], int, int]]:
    """The three passes of a layer as functions of tiles, with the sizes that `candidates` takes."""
    r, batch, c, image, o, taps, stride, pad, size = LAYERS[name]
    x = torch.randn(r, batch, c, image, image, device="cuda")
    w = torch.randn(r, taps, taps, o, c, device="cuda")
    dy = torch.randn(r, batch, o, size, size, device="cuda")
    pads = pad, pad
    return {
        "forward": (lambda **t: kernels.forward(x, w, None, stride, pads, (size, size), **t), o, c),
        "inputs": (lambda **t: kernels.input_gradient(dy, x.shape, w, stride, pads, **t), c, o),
        "weights": (lambda **t: kernels.weight_gradient(dy, x, w.shape, stride, pads, False, **t), o, c),
    }


def products(name: str) -> dict[str, Callable[[], Tensor]]:
    """The matrix products of the same passes, of unfolded images and weights that are slices of rows."""
    r, batch, c, _, o, taps, _, _, size = LAYERS[name]
    k, m = c * taps * taps, batch * size * size
    w = torch.randn(r, o * k + 10, device="cuda")[:, 3 : 3 + o * k].view(r, o, k)
    columns, dy = torch.randn(r, k, m, device="cuda"), torch.randn(r, o, m, device="cuda")
    return {
        "forward": lambda: torch.bmm(w, columns),
        "inputs": lambda: torch.bmm(w.transpose(1, 2), dy),
        "weights": lambda: torch.bmm(dy, columns.transpose(1, 2)),
    }


def microseconds(call: Callable[[], object]) -> float:
    """The mean time of a call, in a CUDA graph of several."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(REPEATS):
            call()
    best = float("inf")
    for _ in range(3):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        best = min(best, 1e3 * start.elapsed_time(end) / REPEATS)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--layers", default=",".join(LAYERS))
    parser.add_argument("--warm", metavar="K/N", help="only compile a share of the variants")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("needs a GPU")
    options.out.mkdir(parents=True, exist_ok=True)
    share, shares = (int(part) for part in options.warm.split("/")) if options.warm else (0, 1)
    count, results = 0, []
    for layer in options.layers.split(","):
        r, batch, c, image, o, taps, _, _, size = LAYERS[layer]
        bound = 2 * r * batch * size**2 * o * c * taps**2 / 350e12
        traffic = 4 * r * (batch * c * image**2 + batch * o * size**2 + o * c * taps**2) / 4.2e12
        if not options.warm:
            with forward_backward("tf32"):
                plain = {name: microseconds(call) for name, call in products(layer).items()}
        for name, (call, outer, inner) in passes(layer).items():
            times = []
            for tiles in [{}, *candidates(name, outer, inner)]:
                count += 1
                if count % shares != share % shares:
                    continue
                variant = partial(call, **tiles)
                try:
                    times.append((variant() is None if options.warm else microseconds(variant), tiles))
                except Exception as error:  # too much shared memory, say
                    print(f"  {layer}, {name}, {tiles}: {' '.join(str(error).split())[:80]}")
            if options.warm:
                continue
            used, others = times[0][0], sorted(times[1:], key=lambda pair: pair[0])
            results.append({"layer": layer, "pass": name, "microseconds": times, "product": plain[name]})
            print(
                f"{layer}, {name}: in use {used:.1f}; best {others[0][0]:.1f} {others[0][1]}, then {others[1][0]:.1f} "
                f"{others[1][1]}; product {plain[name]:.1f}; bounds {1e6 * bound:.1f}, {1e6 * traffic:.1f}",
                flush=True,
            )
            (options.out / "tiles.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main()
