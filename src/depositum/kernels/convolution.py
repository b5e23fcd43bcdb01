"""Triton kernels for a convolution whose weights differ from client to client, as three implicit matrix products.

With r rows (clients), x `[r, B, C, H, W]`, weights with their taps first, w `[r, KH, KW, O, C]`, and
y `[r, B, O, P, Q]`, per row

    forward   y[o, m]  = Σ_k  w[o, k] · x[k, m]        m = (b, p, q), k = (kh, kw, c)
    inputs    dx[c, m] = Σ_k  w[k, c] · dy[k, m]       m = (b, h, w), k = (kh, kw, o)
    weights   dw[o, k] = Σ_m  dy[o, m] · x[k, m]       and the bias's db[o] = Σ_m dy[o, m]

Pixels are the fastest dimension of every tile, as they are in memory, and the taps are gathered while loading: nothing
is unfolded into memory, and images are not transposed before or after. With many channels the products run over the
channels of one tap at a time (`DEEP`), where the mask of the image's border is the same for all of them; with few, over
taps and channels at once. The sum over m in the weights' kernel is divided into parts that are added afterwards in
order: without atomic additions, results do not vary from run to run. Its programs go through the images with the same
pixels, so that offsets are computed once. Products are in TF32 (or bf16, if the inputs are), accumulated in float32.
Tiles were chosen by measurements on an H200 (`benchmarks/convolution_tiles.py`), and depend on sizes alone. The number
of samples is not a compile-time constant of the forward kernel, because evaluations call it with several.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _forward(
    x, w, bias, y, x_row, B, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, O: tl.constexpr, P: tl.constexpr,
    Q: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, STRIDE: tl.constexpr, PADH: tl.constexpr,
    PADW: tl.constexpr, HAS_BIAS: tl.constexpr, BO: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr,
    DEEP: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(2).to(tl.int64)
    o = tl.program_id(1) * BO + tl.arange(0, BO)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    b, pixel = m // (P * Q), m % (P * Q)
    h0, w0 = pixel // Q * STRIDE - PADH, pixel % Q * STRIDE - PADW
    in_m, in_o = m < B * P * Q, o < O
    x += row * x_row
    w += row * KH * KW * O * C
    acc = tl.zeros((BO, BM), tl.float32)
    if DEEP:
        blocks: tl.constexpr = (C + BK - 1) // BK
        for step in range(0, KH * KW * blocks):
            tap, c = step // blocks, step % blocks * BK + tl.arange(0, BK)
            h, v = h0 + tap // KW, w0 + tap % KW
            inside = (h >= 0) & (h < H) & (v >= 0) & (v < W) & in_m
            offset = (b * (C * H * W) + h * W + v)[None, :] + (c * (H * W))[:, None]
            taps = tl.load(x + offset, mask=inside[None, :] & (c < C)[:, None], other=0.0)
            offset = tap * (O * C) + o[:, None] * C + c[None, :]
            weights = tl.load(w + offset, mask=in_o[:, None] & (c < C)[None, :], other=0.0)
            acc = tl.dot(weights, taps, acc, input_precision="tf32")
    else:
        K: tl.constexpr = KH * KW * C
        for first in range(0, K, BK):
            k = first + tl.arange(0, BK)
            tap, c = k // C, k % C
            h, v = h0[None, :] + (tap // KW)[:, None], w0[None, :] + (tap % KW)[:, None]
            inside = (h >= 0) & (h < H) & (v >= 0) & (v < W) & in_m[None, :] & (k < K)[:, None]
            taps = tl.load(x + (b[None, :] * C + c[:, None]) * (H * W) + h * W + v, mask=inside, other=0.0)
            offset = o[:, None] * C + (tap * (O * C) + c)[None, :]
            weights = tl.load(w + offset, mask=in_o[:, None] & (k < K)[None, :], other=0.0)
            acc = tl.dot(weights, taps, acc, input_precision="tf32")
    if HAS_BIAS:
        acc += tl.load(bias + row * O + o, mask=in_o, other=0.0).to(tl.float32)[:, None]
    y += row * B * (O * P * Q)
    offset = (b * (O * P * Q) + pixel)[None, :] + (o * (P * Q))[:, None]
    tl.store(y + offset, acc.to(y.dtype.element_ty), mask=in_o[:, None] & in_m[None, :])


@triton.jit
def _inputs(
    dy, w, dx,
    B: tl.constexpr, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, O: tl.constexpr, P: tl.constexpr,
    Q: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, STRIDE: tl.constexpr, PADH: tl.constexpr,
    PADW: tl.constexpr, BC: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(2).to(tl.int64)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    b, pixel = m // (H * W), m % (H * W)
    h0, w0 = pixel // W + PADH, pixel % W + PADW
    in_m, in_c = m < B * H * W, c < C
    dy += row * B * O * P * Q
    w += row * KH * KW * O * C
    acc = tl.zeros((BC, BM), tl.float32)
    blocks: tl.constexpr = (O + BK - 1) // BK
    for step in range(0, KH * KW * blocks):
        tap, o = step // blocks, step % blocks * BK + tl.arange(0, BK)
        h, v = h0 - tap // KW, w0 - tap % KW
        inside = (h >= 0) & (v >= 0) & in_m
        if STRIDE > 1:
            inside &= (h % STRIDE == 0) & (v % STRIDE == 0)
            h, v = h // STRIDE, v // STRIDE
        inside &= (h < P) & (v < Q)
        offset = (b * (O * P * Q) + h * Q + v)[None, :] + (o * (P * Q))[:, None]
        taps = tl.load(dy + offset, mask=inside[None, :] & (o < O)[:, None], other=0.0)
        offset = tap * (O * C) + o[None, :] * C + c[:, None]
        weights = tl.load(w + offset, mask=in_c[:, None] & (o < O)[None, :], other=0.0)
        acc = tl.dot(weights, taps, acc, input_precision="tf32")
    dx += row * B * C * H * W
    offset = (b * (C * H * W) + pixel)[None, :] + (c * (H * W))[:, None]
    tl.store(dx + offset, acc.to(dx.dtype.element_ty), mask=in_c[:, None] & in_m[None, :])


@triton.jit
def _weights(
    dy, x, dw, db, x_row, rows,
    B: tl.constexpr, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, O: tl.constexpr, P: tl.constexpr,
    Q: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, STRIDE: tl.constexpr, PADH: tl.constexpr,
    PADW: tl.constexpr, HAS_BIAS: tl.constexpr, BO: tl.constexpr, BK: tl.constexpr, BM: tl.constexpr,
    CHUNKS: tl.constexpr, IMAGES: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    row, part = tl.program_id(2).to(tl.int64), tl.program_id(1)
    K: tl.constexpr = KH * KW * C
    blocks: tl.constexpr = (K + BK - 1) // BK
    block = tl.program_id(0) % blocks
    o = tl.program_id(0) // blocks * BO + tl.arange(0, BO)
    k = block * BK + tl.arange(0, BK)
    tap, c = k // C, k % C
    in_o, in_k = o < O, k < K
    # A block of pixels is a part of one image, or several complete ones.
    lane = part % CHUNKS * BM + tl.arange(0, BM)
    image, pixel = lane // (P * Q), lane % (P * Q)
    in_m = image < IMAGES
    h = (pixel // Q * STRIDE - PADH)[None, :] + (tap // KW)[:, None]
    v = (pixel % Q * STRIDE - PADW)[None, :] + (tap % KW)[:, None]
    inside = (h >= 0) & (h < H) & (v >= 0) & (v < W) & in_m[None, :] & in_k[:, None]
    from_x = (image[None, :] * C + c[:, None]) * (H * W) + h * W + v
    from_dy = (image * (O * P * Q) + pixel)[None, :] + (o * (P * Q))[:, None]
    inside_dy = in_o[:, None] & in_m[None, :]
    dy += row * B * O * P * Q
    x += row * x_row
    acc = tl.zeros((BO, BK), tl.float32)
    total = tl.zeros((BO,), tl.float32)
    start = part // CHUNKS * SPAN
    for b in range(start, min(start + SPAN, B), IMAGES):
        if IMAGES > 1:
            left = image + b < B
            taps = tl.load(x + b * (C * H * W) + from_x, mask=inside & left[None, :], other=0.0)
            outer = tl.load(dy + b * (O * P * Q) + from_dy, mask=inside_dy & left[None, :], other=0.0)
        else:
            taps = tl.load(x + b * (C * H * W) + from_x, mask=inside, other=0.0)
            outer = tl.load(dy + b * (O * P * Q) + from_dy, mask=inside_dy, other=0.0)
        acc = tl.dot(outer, tl.trans(taps), acc, input_precision="tf32")
        if HAS_BIAS:
            total += tl.sum(outer.to(tl.float32), axis=1)
    dw += (part * rows + row) * K * O
    tl.store(dw + o[:, None] * C + (tap * (O * C) + c)[None, :], acc, mask=in_o[:, None] & in_k[None, :])
    if HAS_BIAS:  # noqa: SIM102 (a compile-time constant; the other is not)
        if block == 0:
            tl.store(db + (part * rows + row) * O + o, total, mask=in_o)


#: Pixels of all images of a row from which tiles are those of large images.
MANY_PIXELS = 4096
#: Enough programs to keep a large GPU busy; sums are divided until that many exist.
PROGRAMS = 1056


def forward(x: Tensor, w: Tensor, bias: Tensor | None, stride: int, pad: tuple[int, int], size: tuple[int, int],
            **tiles: int) -> Tensor:  # fmt: skip
    """Outputs y `[r, B, O, P, Q]` of x `[r, B, C, H, W]`, w `[r, KH, KW, O, C]`, bias `[r, O]`; (P, Q) is `size`.

    All are contiguous, except that x may be one row expanded to r. `pad` is the padding above and left of an image.
    """
    constants = _constants(x.shape, w.shape, stride, pad, size)
    B, C, O, pixels = constants["B"], constants["C"], constants["O"], constants["B"] * size[0] * size[1]
    y = x.new_empty(len(x), B, O, *size)
    taps = constants["KH"] * constants["KW"]
    if C < 16:
        t = {"BO": _block(O, 64), "BM": 256 if O <= 32 else 128, "BK": 16, "DEEP": 0, "num_warps": 4, "num_stages": 2}
        if O <= 32 and taps * C > 16:
            t |= {"BM": 128, "BK": 32, "num_stages": 3}
    elif O <= 32:
        t = {"BO": _block(O, 32), "BM": 256, "BK": 16, "DEEP": 1, "num_warps": 4, "num_stages": 2}
    elif taps == 1 and pixels >= MANY_PIXELS:
        t = {"BO": 32, "BM": 256, "BK": _block(C, 32), "DEEP": 1, "num_warps": 4, "num_stages": 3}
    elif O <= 64:
        t = {"BO": 64, "BM": 64, "BK": _block(C, 32), "DEEP": 1, "num_warps": 4, "num_stages": 3}
    elif pixels >= 512:
        t = {"BO": 128, "BM": 64, "BK": _block(C, 32), "DEEP": 1, "num_warps": 4, "num_stages": 3}
    else:
        t = {"BO": 128, "BM": 32, "BK": _block(C, 32), "DEEP": 1, "num_warps": 4, "num_stages": 4}
    t = {**t, **tiles}
    grid = (triton.cdiv(pixels, t["BM"]), triton.cdiv(O, t["BO"]), len(x))
    _forward[grid](x, w, w if bias is None else bias, y, x.stride(0), **constants, HAS_BIAS=bias is not None, **t)
    return y


def input_gradient(dy: Tensor, x_shape: torch.Size, w: Tensor, stride: int, pad: tuple[int, int],
                   **tiles: int) -> Tensor:  # fmt: skip
    """Gradient of the inputs, dx `[r, B, C, H, W]`, from contiguous dy `[r, B, O, P, Q]`."""
    constants = _constants(x_shape, w.shape, stride, pad, (dy.shape[3], dy.shape[4]))
    C, O, pixels = constants["C"], constants["O"], constants["B"] * constants["H"] * constants["W"]
    dx = dy.new_empty(x_shape)
    if C <= 32 and O <= 32:
        t = {"BC": _block(C, 32), "BM": 256, "BK": _block(O, 32), "num_warps": 4, "num_stages": 2}
    elif C <= 32:
        t = {"BC": _block(C, 32), "BM": 128, "BK": 32, "num_warps": 4, "num_stages": 3}
    elif constants["KH"] * constants["KW"] == 1 and pixels >= MANY_PIXELS:
        t = {"BC": 32, "BM": 256, "BK": _block(O, 32), "num_warps": 4, "num_stages": 3}
    else:
        t = {"BC": 64, "BM": 32, "BK": _block(O, 32 if C <= 64 else 64), "num_warps": 2, "num_stages": 3}
    t = {**t, **tiles}
    grid = (triton.cdiv(pixels, t["BM"]), triton.cdiv(C, t["BC"]), len(dy))
    _inputs[grid](dy, w, dx, **constants, **t)
    return dx


def weight_gradient(dy: Tensor, x: Tensor, w_shape: torch.Size, stride: int, pad: tuple[int, int], bias: bool,
                    **tiles: int) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Gradients of the weights, dw `[r, KH, KW, O, C]`, and the bias, db `[r, O]` (empty without a bias)."""
    constants = _constants(x.shape, w_shape, stride, pad, (dy.shape[3], dy.shape[4]))
    B, O, pixels = constants["B"], constants["O"], constants["P"] * constants["Q"]
    rows, K = len(x), constants["C"] * constants["KH"] * constants["KW"]
    BM = _block(B * pixels, 128 if K <= 16 else 32)
    if O <= 32 or K < 64:
        t = {"BO": _block(O, 64), "BK": _block(K, 64 if O <= 32 else 32), "num_warps": 1 if O <= 32 else 2}
        t |= {"num_stages": 2}
    elif B * pixels >= MANY_PIXELS:
        t = {"BO": 64, "BK": 64, "num_warps": 4, "num_stages": 2}
    elif O > 64 and B * pixels >= 128:
        wide = B * pixels < 512  # few pixels: more of the inputs' channels at once
        t = {"BO": 64 if wide else 128, "BK": 128 if wide else 64, "num_warps": 4, "num_stages": 3}
    else:
        t = {"BO": 64, "BK": 32, "num_warps": 2, "num_stages": 2}
    t = {"BM": BM, **t, **tiles}
    tasks = triton.cdiv(O, t["BO"]) * triton.cdiv(K, t["BK"])
    chunks, images = triton.cdiv(pixels, t["BM"]), max(1, t["BM"] // pixels)
    spans = min(max(1, PROGRAMS // (tasks * rows * chunks)), triton.cdiv(B, images))
    span = triton.cdiv(triton.cdiv(B, spans), images) * images
    parts = chunks * triton.cdiv(B, span)
    dw = torch.empty(parts, *w_shape, device=x.device, dtype=torch.float32)
    db = torch.empty(parts, rows, O if bias else 0, device=x.device, dtype=torch.float32)
    _weights[(tasks, parts, rows)](
        dy, x, dw, db, x.stride(0), rows, **constants, HAS_BIAS=bias, CHUNKS=chunks, IMAGES=images, SPAN=span, **t
    )
    dw, db = (dw[0], db[0]) if parts == 1 else (dw.sum(0), db.sum(0))
    return dw.to(x.dtype), db.to(x.dtype)


@triton.jit
def _taps_first(
    w, out, row_stride, size, from_h, from_w, from_pair,
    KH: tl.constexpr, KW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1).to(tl.int64)
    pair = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = pair < size
    w += row * row_stride
    out += row * (KH * KW) * size
    # The taps of a pair of channels are adjacent in memory: the cache line that one reads serves the next.
    for tap in tl.static_range(KH * KW):
        value = tl.load(w + pair * from_pair + tap // KW * from_h + tap % KW * from_w, mask=inside)
        tl.store(out + tap * size + pair, value, mask=inside)


def taps_first(w: Tensor) -> Tensor:
    """A contiguous copy of weights `[r, KH, KW, O, C]` of any strides, as the kernels above need them."""
    rows, high, wide, outputs, channels = w.shape
    if w.stride(3) != channels * w.stride(4) or high * wide > 9:
        return w.contiguous()
    out = torch.empty(w.shape, dtype=w.dtype, device=w.device)
    size = outputs * channels
    block = 512
    _taps_first[(triton.cdiv(size, block), rows)](
        w, out, w.stride(0), size, w.stride(1), w.stride(2), w.stride(4), KH=high, KW=wide, BLOCK=block, num_warps=4
    )
    return out


def _constants(
    x_shape: torch.Size, w_shape: torch.Size, stride: int, pad: tuple[int, int], size: tuple[int, int]
) -> dict[str, int]:
    """The compile-time constants of a kernel."""
    _, B, C, H, W = x_shape
    _, KH, KW, O, _ = w_shape
    sizes = {"B": B, "C": C, "H": H, "W": W, "O": O, "P": size[0], "Q": size[1], "KH": KH, "KW": KW}
    return sizes | {"STRIDE": stride, "PADH": pad[0], "PADW": pad[1]}


def _block(size: int, largest: int) -> int:
    """The power of two that covers `size`, from 16 (the minimum of a tile product) to `largest`."""
    return max(16, min(largest, 1 << (size - 1).bit_length()))
