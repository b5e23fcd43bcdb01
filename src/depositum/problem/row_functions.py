"""Torch's functions that `vmap`, a compiler or a CUDA graph cannot take as they are, rewritten for rows.

While a model is evaluated, `RowFunctions` replaces the calls of a few kinds of functions, whoever makes them: a layer
of torch, a library, or the user's own `forward`.

- Random ones (dropout of every kind, random depth, noise) draw from a hash of the row's word, the number of the draw in
  the pass, and the position of the element. So masks are the same on every device, in every backend and in every batch
  of rows, and are computed by ordinary integer arithmetic, which compiles and captures.
- Attention folds rows into the batch, so that a fused kernel computes all of them. Under `vmap` alone, the backward
  pass of these kernels fails on a GPU.
- Recurrent layers, which `vmap` does not support, are written out: one product per time step for all rows.
- Linear layers are one product over all samples and tokens of a row. `vmap` alone would copy the weights for every
  sample if the input is not contiguous.
- Embeddings do not train the vector of padding, as without `vmap`.
"""

from collections.abc import Callable, Iterable
from math import prod, sqrt
from types import FunctionType
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from depositum.randomness import hash_words, standard_normal

Function = Callable[..., Any]


class RowFunctions(TorchFunctionMode):
    """Replaces functions of torch while a model is evaluated.

    Parameters
    ----------
    word
        What the row's random numbers are hashed from, an int64 scalar: under `vmap`, one per row.
    batched
        Whether all rows are evaluated in one call, under `vmap`.

    Attributes
    ----------
    draws
        How many times random numbers have been drawn.
    """

    def __init__(self, word: Tensor, batched: bool) -> None:
        super().__init__()
        self.word, self.batched = word, batched
        self.draws = 0

    def __torch_function__(self, function: Function, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function in _COMPOSITE:
            with self:
                return _COMPOSITE[function](*args, **kwargs)
        replacement = _REPLACEMENTS.get(function)
        if replacement is None and self.batched:
            replacement = _BATCHED.get(function)
        return function(*args, **kwargs) if replacement is None else replacement(self, function, *args, **kwargs)

    # Random numbers

    def words(self, shape: Iterable[int]) -> Tensor:
        """64 random bits per element, new at every call, int64 of a shape."""
        shape = tuple(shape)
        positions = torch.arange(prod(shape), device=self.word.device).view(shape)
        words = hash_words(self.word, self.draws, positions)
        self.draws += 1
        return words

    def below(self, probability: float | Tensor, shape: Iterable[int]) -> Tensor:
        """Events of some probability, bool of a shape; decided in integers, hence alike on every device."""
        if isinstance(probability, Tensor):
            threshold: Any = (probability.double() * 2**32).round().to(torch.int64)
        else:
            threshold = round(probability * 2**32)
        return cast(Tensor, ((self.words(shape) >> 32) & 0xFFFFFFFF) < threshold)

    def uniform(self, shape: Iterable[int], dtype: torch.dtype) -> Tensor:
        """Numbers in [0, 1)."""
        bits = {torch.float64: 53, torch.bfloat16: 8, torch.float16: 11}.get(dtype, 24)
        return ((self.words(shape) >> (64 - bits)) & ((1 << bits) - 1)).to(dtype) * 2.0**-bits

    def on_its_device(self, device: Any) -> bool:
        """Whether a device that a model asks for is the one it runs on."""
        return torch.device(device or torch.get_default_device()).type == self.word.device.type

    # All rows at once

    def over_rows(self, function: Function, *arguments: Tensor | None) -> Any:
        """A function of tensors with the rows as first dimension, applied to those of one row.

        Under `vmap`, `function` is called once, for all rows.
        """
        if self.batched:
            return _AllRows.apply(function, *arguments)  # type: ignore[no-untyped-call]
        return _first_row(function(*(None if z is None else z[None] for z in arguments)))


class _AllRows(torch.autograd.Function):
    """Calls a function with the tensors of all rows, outside of `vmap`: a custom rule for any differentiable code."""

    @staticmethod
    def forward(function: Function, *arguments: Tensor | None) -> Any:
        # Nothing differs from row to row, so nothing here is trained.
        return _first_row(function(*(None if z is None else z[None] for z in arguments)))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def vmap(info: Any, dims: Any, function: Function, *arguments: Tensor | None) -> Any:
        rows = [
            None if z is None else z.expand(info.batch_size, *z.shape) if dim is None else z.movedim(dim, 0)
            for z, dim in zip(arguments, dims[1:], strict=True)
        ]
        out = function(*rows)
        return out, (0,) * len(out) if isinstance(out, tuple) else 0


def _first_row(out: Any) -> Any:
    return tuple(z[0] for z in out) if isinstance(out, tuple) else out[0]


# Dropout


def _scaled(rows: RowFunctions, x: Tensor, p: float, shape: Iterable[int]) -> Tensor:
    """X with elements of a broadcast mask dropped with probability p, the others scaled by 1/(1−p)."""
    if p == 1:
        return x * 0
    return x * (rows.below(1 - p, shape).to(x.dtype) * (1 / (1 - p)))


def _dropout(rows: RowFunctions, function: Function, input: Tensor, p: float, train: bool) -> Tensor:
    return _scaled(rows, input, p, input.shape) if train and p > 0 else input


def _feature_dropout(rows: RowFunctions, function: Function, input: Tensor, p: float, train: bool) -> Tensor:
    return _scaled(rows, input, p, _features(input)) if train and p > 0 else input


def _features(x: Tensor) -> tuple[int, ...]:
    """The shape of one element per channel of every sample."""
    return *x.shape[:2], *(1 for _ in x.shape[2:])


def _alpha(rows: RowFunctions, x: Tensor, p: float, shape: Iterable[int]) -> Tensor:
    """Alpha dropout: dropped elements become the negative saturation value of SELU; mean and variance are kept."""
    saturation = -1.7580993408473766
    if p == 1:
        return x * 0
    a = 1 / sqrt((saturation**2 * p + 1) * (1 - p))
    keep = rows.below(1 - p, shape).to(x.dtype)
    return x * (a * keep) + (a * saturation) * (1 - keep) - a * saturation * p


def _alpha_dropout(rows: RowFunctions, function: Function, input: Tensor, p: float, train: bool) -> Tensor:
    return _alpha(rows, input, p, input.shape) if train and p > 0 else input


def _feature_alpha_dropout(rows: RowFunctions, function: Function, input: Tensor, p: float, train: bool) -> Tensor:
    return _alpha(rows, input, p, _features(input)) if train and p > 0 else input


def _in_place(replacement: Function) -> Function:
    def in_place(rows: RowFunctions, function: Function, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return input.copy_(replacement(rows, function, input, *args, **kwargs))

    return in_place


def _rrelu(
    rows: RowFunctions,
    function: Function,
    input: Tensor,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
) -> Tensor:
    slope: Any = (lower + upper) / 2
    if training:
        slope = lower + (upper - lower) * rows.uniform(input.shape, input.dtype)
    return torch.where(input >= 0, input, slope * input)


# Other random numbers. A `generator` that a model passes is left to it: such a model is run in the loop.


def _sampled(draw: Callable[[RowFunctions, tuple[int, ...], torch.dtype], Tensor]) -> Function:
    """`torch.rand` and the like."""

    def sampled(rows: RowFunctions, function: Function, *size: Any, **options: Any) -> Tensor:
        if options.get("generator") is not None or not rows.on_its_device(options.get("device")):
            return cast(Tensor, function(*size, **options))
        given = options.get("size", size)
        shape = tuple(given[0] if len(given) == 1 and not isinstance(given[0], int) else given)
        return draw(rows, shape, options.get("dtype") or torch.get_default_dtype())

    return sampled


def _like(draw: Callable[[RowFunctions, tuple[int, ...], torch.dtype], Tensor]) -> Function:
    """`torch.rand_like` and the like."""

    def like(rows: RowFunctions, function: Function, input: Tensor, **options: Any) -> Tensor:
        return draw(rows, tuple(input.shape), options.get("dtype") or input.dtype)

    return like


def _uniform(rows: RowFunctions, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return rows.uniform(shape, dtype)


def _normal(rows: RowFunctions, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return standard_normal(rows.words(shape)).to(dtype)


def _bernoulli(
    rows: RowFunctions, function: Function, input: Tensor, p: float | None = None, *, generator: Any = None
) -> Tensor:
    if generator is not None:
        return cast(Tensor, function(input, generator=generator))
    return rows.below(input if p is None else p, input.shape).to(input.dtype)


def _bernoulli_in_place(
    rows: RowFunctions, function: Function, input: Tensor, p: float | Tensor = 0.5, *, generator: Any = None
) -> Tensor:
    if generator is not None:
        return cast(Tensor, function(input, p, generator=generator))
    return input.copy_(rows.below(p, input.shape))


def _uniform_in_place(
    rows: RowFunctions, function: Function, input: Tensor, low: float = 0, high: float = 1, *, generator: Any = None
) -> Tensor:
    if generator is not None:
        return cast(Tensor, function(input, low, high, generator=generator))
    return input.copy_(low + (high - low) * rows.uniform(input.shape, input.dtype))


def _normal_in_place(
    rows: RowFunctions, function: Function, input: Tensor, mean: float = 0, std: float = 1, *, generator: Any = None
) -> Tensor:
    if generator is not None:
        return cast(Tensor, function(input, mean, std, generator=generator))
    return input.copy_(mean + std * _normal(rows, tuple(input.shape), input.dtype))


def _exponential_in_place(
    rows: RowFunctions, function: Function, input: Tensor, lambd: float = 1, *, generator: Any = None
) -> Tensor:
    if generator is not None:
        return cast(Tensor, function(input, lambd, generator=generator))
    return input.copy_(-torch.log1p(-rows.uniform(input.shape, input.dtype)) / lambd)


def _of_every_row(rows: RowFunctions, function: Function, *args: Any, **kwargs: Any) -> Tensor:
    """An empty tensor with memory for every row, so that random numbers, which differ from row to row, fit into it."""
    empty: Tensor = function(*args, **kwargs)
    if not empty.is_floating_point() or empty.device != rows.word.device:
        return empty
    return empty.zero_() + 0 * rows.word.to(empty.dtype)


# Attention


def _attention(
    rows: RowFunctions,
    function: Function,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    if dropout_p > 0:
        return _attention_with_dropout(
            rows, query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa=enable_gqa
        )
    settings = {"is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
    if not rows.batched:
        return cast(Tensor, function(query, key, value, attn_mask, **settings))

    def folded(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """Attention for `[r, ..., L, E]`, as one batch of four dimensions, which fused kernels take."""
        lead = q.shape[:-2]
        if len(lead) < 3 or not lead == k.shape[:-2] == v.shape[:-2]:
            if enable_gqa and q.dim() == k.dim() == v.dim() == 5 and q.shape[:2] == k.shape[:2] == v.shape[:2]:
                lead = q.shape[:2]  # heads differ in number
            else:
                return cast(Tensor, function(q, k, v, _aligned(mask, q.dim()), **settings))
        heads = q.shape[-3]
        aligned = _aligned(mask, q.dim())
        if aligned is not None:
            last = aligned.shape[-3:]
            differs = any(size > 1 for size in aligned.shape[:-3])  # from sample to sample, or row to row
            aligned = aligned.expand(*q.shape[:-3], *last).reshape(-1, *last) if differs else aligned.reshape(last)
        q4, k4, v4 = (z.reshape(-1, *z.shape[-3:]) for z in (q, k, v))
        out: Tensor = function(q4, k4, v4, aligned, **settings)
        return out.view(*q.shape[:-3], heads, *out.shape[-2:])

    return cast(Tensor, rows.over_rows(folded, query, key, value, attn_mask))


def _aligned(mask: Tensor | None, dims: int) -> Tensor | None:
    """A mask `[r, ..., L, S]` with its dimensions after the rows aligned, from the right, with those of the queries."""
    if mask is None:
        return None
    return mask.view(mask.shape[0], *(1 for _ in range(dims - mask.dim())), *mask.shape[1:])


def _attention_with_dropout(
    rows: RowFunctions,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    p: float,
    causal: bool,
    scale: float | None,
    *,
    enable_gqa: bool,
) -> Tensor:
    """Attention whose weights are dropped: fused kernels would draw the mask from a generator."""
    if enable_gqa:
        key, value = (z.repeat_interleave(query.shape[-3] // z.shape[-3], -3) for z in (key, value))
    scores = query @ key.transpose(-2, -1) * (1 / sqrt(query.shape[-1]) if scale is None else scale)
    if causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if mask is not None:
        scores = torch.where(mask, scores, float("-inf")) if mask.dtype == torch.bool else scores + mask
    weights = scores.softmax(-1)
    return _scaled(rows, weights, p, weights.shape) @ value


# Linear layers

#: Samples and tokens from which a layer's weights are copied if they are not aligned: the copy costs two passes over
#: them, but a GPU's products read numbers one by one if a matrix or its rows do not start at multiples of 16 bytes.
ALIGNED_FROM = 256


def _linear(
    rows: RowFunctions, function: Function, input: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Tensor:
    if input.dim() < 3:
        return cast(Tensor, function(input, weight, bias))

    def of_rows(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
        return _row_products(x, w.transpose(1, 2), b)

    return cast(Tensor, rows.over_rows(of_rows, input, weight, bias))


def _addmm(
    rows: RowFunctions, function: Function, input: Tensor, mat1: Tensor, mat2: Tensor, **factors: float
) -> Tensor:
    """A product plus a bias, as in the linear layers of GPT-2."""
    if factors or input.dim() != 1:
        return cast(Tensor, function(input, mat1, mat2, **factors))

    def of_rows(b: Tensor, x: Tensor, w: Tensor) -> Tensor:
        return _row_products(x, w, b)

    return cast(Tensor, rows.over_rows(of_rows, input, mat1, mat2))


def _row_products(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    """X w + b for x `[r, ..., I]`, w `[r, I, O]` and b `[r, O]`."""
    flat = x.flatten(1, -2)
    if w.stride(0) == 0 and not w.requires_grad:  # all rows have the same weights
        y = flat.flatten(0, 1) @ w[0]
    else:
        y = torch.bmm(flat, _aligned_weights(w) if w.is_cuda and flat.shape[1] >= ALIGNED_FROM else w)
    y = y.view(*x.shape[:-1], -1)
    return y if b is None else y + b.view(len(b), *(1 for _ in x.shape[2:]), -1).to(y.dtype)


def _aligned_weights(w: Tensor) -> Tensor:
    """Matrices `[r, I, O]`, copied if products can only read them number by number."""
    if torch.is_autocast_enabled(w.device.type):  # which copies them anyway
        return w
    last = 2 if w.stride(2) == 1 else 1
    starts = (w.storage_offset(), w.stride(0), w.stride(3 - last))
    if w.shape[last] * w.element_size() % 16 or not any(start * w.element_size() % 16 for start in starts):
        return w
    return w.transpose(last, 2).clone(memory_format=torch.contiguous_format).transpose(last, 2)


# Recurrent layers


class _RecurrentWeight(torch.autograd.Function):
    """Passes on the terms `[T, r, B, G]` to which every step adds h Wᵀ, and computes the gradient of W from theirs.

    In one product over all steps, since the gradient of a step's term is that of its sum. The steps themselves use W
    as a constant; `hidden` receives their h `[r, B, H]` before the backward pass.
    """

    @staticmethod
    def forward(ctx: Any, terms: Tensor, weight: Tensor, hidden: list[Tensor]) -> Tensor:
        ctx.hidden = hidden
        return terms.view_as(terms)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        h = torch.stack(ctx.hidden)
        by_row = [z.transpose(0, 1).flatten(1, 2) for z in (dy, h.to(dy.dtype))]
        return dy, by_row[0].transpose(1, 2) @ by_row[1], None


#: h and the cell state, the terms of the inputs `[r, B, G]` and those of the hidden state to the new h and cell state.
Cell = Callable[[Tensor, Tensor | None, Tensor, Tensor], tuple[Tensor, Tensor | None]]


def _lstm_cell(h: Tensor, c: Tensor | None, from_input: Tensor, from_hidden: Tensor) -> tuple[Tensor, Tensor]:
    i, f, g, o = (from_input + from_hidden).chunk(4, -1)
    c = f.sigmoid() * cast(Tensor, c) + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def _gru_cell(h: Tensor, c: Tensor | None, from_input: Tensor, from_hidden: Tensor) -> tuple[Tensor, None]:
    (input_r, input_z, input_n), (hidden_r, hidden_z, hidden_n) = from_input.chunk(3, -1), from_hidden.chunk(3, -1)
    r, z = (input_r + hidden_r).sigmoid(), (input_z + hidden_z).sigmoid()
    n = (input_n + r * hidden_n).tanh()
    return n + z * (h - n), None


def _tanh_cell(h: Tensor, c: Tensor | None, from_input: Tensor, from_hidden: Tensor) -> tuple[Tensor, None]:
    return (from_input + from_hidden).tanh(), None


def _relu_cell(h: Tensor, c: Tensor | None, from_input: Tensor, from_hidden: Tensor) -> tuple[Tensor, None]:
    return (from_input + from_hidden).relu(), None


def _one_direction(
    cell: Cell, x: Tensor, h: Tensor, c: Tensor | None, weights: dict[str, Tensor]
) -> tuple[Tensor, Tensor, Tensor | None]:
    """One layer in one direction: outputs `[T, r, B, H]`, last h and last cell state, for inputs `[T, r, B, I]`."""
    steps, rows, size, _ = x.shape
    inputs = x.transpose(0, 1).flatten(1, 2) @ weights["ih"].transpose(1, 2)
    from_input = inputs.view(rows, steps, size, -1).transpose(0, 1)
    if "bias_ih" in weights:
        from_input = from_input + weights["bias_ih"][:, None]
        bias = weights["bias_hh"][:, None].expand(rows, size, -1)
    else:
        bias = from_input.new_zeros(()).expand(rows, size, from_input.shape[-1])
    hidden: list[Tensor] = []
    terms = _RecurrentWeight.apply(bias.expand(steps, *bias.shape), weights["hh"], hidden)  # type: ignore[no-untyped-call]
    recurrent = weights["hh"].detach().transpose(1, 2)
    outputs = []
    for term, own in zip(terms.unbind(0), from_input.unbind(0), strict=True):
        hidden.append(h.detach())
        h, c = cell(h, c, own, torch.baddbmm(term, h, recurrent))
        if "hr" in weights:
            h = h @ weights["hr"].transpose(1, 2)
        outputs.append(h)
    return torch.stack(outputs), h, c


def _recurrent(cell: Cell, cells: bool) -> Function:
    """The replacement of `torch.lstm` and the like; `cells` says whether there is a cell state besides h."""

    def recurrent(
        rows: RowFunctions,
        function: Function,
        input: Tensor,
        hx: Any,
        params: Any,
        has_biases: Any,
        *rest: Any,
    ) -> Any:
        if isinstance(params, Tensor) or len(rest) != 5:  # a packed sequence, whose lengths are values on the host
            return function(input, hx, params, has_biases, *rest)
        layers, p, train, bidirectional, batch_first = rest
        drops = train and p > 0 and layers > 1
        if not (rows.batched or drops):
            return function(input, hx, params, has_biases, *rest)
        x = input.transpose(0, 1) if batch_first else input
        directions = 2 if bidirectional else 1
        names = ["ih", "hh", *(["bias_ih", "bias_hh"] if has_biases else [])]
        if len(params) == (len(names) + 1) * layers * directions:
            names.append("hr")
        start = list(hx) if cells else [hx]
        width = directions * start[0].shape[-1]
        masks = [rows.below(1 - p, (*x.shape[:2], width)).to(x.dtype) for _ in range(layers - 1)] if drops else []

        def all_layers(x: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
            x = x.transpose(0, 1)
            h0, c0 = rest[0], rest[1] if cells else None
            keep, weights = rest[len(start) : len(start) + len(masks)], rest[len(start) + len(masks) :]
            last_h, last_c = [], []
            for layer in range(layers):
                outputs = []
                for direction in range(directions):
                    k = layer * directions + direction
                    own = dict(zip(names, weights[k * len(names) : (k + 1) * len(names)], strict=True))
                    given = x.flip(0) if direction else x
                    y, h, c = _one_direction(cell, given, h0[:, k], None if c0 is None else c0[:, k], own)
                    outputs.append(y.flip(0) if direction else y)
                    last_h.append(h)
                    last_c.append(c)
                x = torch.cat(outputs, -1) if directions == 2 else outputs[0]
                if layer < len(keep):
                    x = x * (keep[layer].transpose(0, 1) * (1 / (1 - p) if p < 1 else 0.0))
            states = [torch.stack(last_h, 1), *([torch.stack(cast(list[Tensor], last_c), 1)] if cells else [])]
            return (x.transpose(0, 1), *states)

        y, *states = rows.over_rows(all_layers, x, *start, *masks, *params)
        return (y.transpose(0, 1) if batch_first else y, *states)

    return recurrent


def _cell(cell: Cell, cells: bool) -> Function:
    """The replacement of `torch.lstm_cell` and the like, which on a GPU are kernels that `vmap` does not support."""

    def one_step(
        rows: RowFunctions,
        function: Function,
        input: Tensor,
        hx: Any,
        w_ih: Tensor,
        w_hh: Tensor,
        b_ih: Tensor | None = None,
        b_hh: Tensor | None = None,
    ) -> Any:
        h, c = hx if cells else (hx, None)
        new_h, new_c = cell(h, c, F.linear(input, w_ih, b_ih), F.linear(h, w_hh, b_hh))
        return (new_h, new_c) if cells else new_h

    return one_step


def _embedding(
    rows: RowFunctions, function: Function, weight: Tensor, indices: Tensor, padding_idx: int = -1, *rest: Any
) -> Tensor:
    """Embeddings; `vmap` alone would train those of padding too, since it stacks all rows' tables to one."""
    out: Tensor = function(weight, indices, padding_idx, *rest)
    return out if padding_idx < 0 else torch.where((indices == padding_idx)[..., None], out.detach(), out)


def _cat(rows: RowFunctions, function: Function, tensors: Any, *args: Any, **kwargs: Any) -> Tensor:
    """Concatenation without empty tensors, with which libraries begin a cache of keys and values.

    Torch's compiler leaves them out too, but a copy of the only other tensor then has strides that it did not expect.
    """
    filled = [z for z in tensors if z.numel() > 0]
    if len(filled) == 1 < len(tensors):
        return cast(Tensor, filled[0].clone(memory_format=torch.contiguous_format))
    return cast(Tensor, function(tensors, *args, **kwargs))


def _bilinear(
    rows: RowFunctions, function: Function, input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Tensor:
    """A bilinear layer, for which `vmap` would call torch's function for one row after another."""
    out = torch.einsum("...i,oij,...j->...o", input1, weight, input2)
    return out if bias is None else out + bias


def _weight_norm(rows: RowFunctions, function: Function, v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    """Weight norm, for which `vmap` would call torch's function for one row after another."""
    others = [k for k in range(v.dim()) if k != dim % v.dim()] if dim != -1 else list(range(v.dim()))
    return v * (g / v.square().sum(others, keepdim=True).sqrt())


def _sees_no_modes(function: Function) -> Function:
    """The same Python code, which runs even while functions are replaced, so that those it calls are.

    Otherwise it would hand itself to the replacement, again and again.
    """
    assert isinstance(function, FunctionType)
    checks = {name: _never for name in function.__globals__ if name.startswith("has_torch_function")}
    code, scope = function.__code__, {**function.__globals__, **checks}
    copy = FunctionType(code, scope, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _never(*_: object) -> bool:
    return False


#: Functions written in Python that call others of those replaced here.
_COMPOSITE: dict[Function, Function] = {
    function: _sees_no_modes(function)
    for function in (
        F.dropout,
        F.dropout1d,
        F.dropout2d,
        F.dropout3d,
        F.alpha_dropout,
        F.feature_alpha_dropout,
        F.rrelu,
        F.embedding,
        F.gumbel_softmax,
        F.multi_head_attention_forward,
    )
}

#: Replaced in every backend, because they draw random numbers.
_REPLACEMENTS: dict[Function, Function] = {
    torch.dropout: _dropout,
    torch.dropout_: _in_place(_dropout),
    torch.feature_dropout: _feature_dropout,
    torch.feature_dropout_: _in_place(_feature_dropout),
    torch.alpha_dropout: _alpha_dropout,
    torch.alpha_dropout_: _in_place(_alpha_dropout),
    torch.feature_alpha_dropout: _feature_alpha_dropout,
    torch.feature_alpha_dropout_: _in_place(_feature_alpha_dropout),
    torch.rrelu: _rrelu,
    torch.rrelu_: _in_place(_rrelu),
    torch.rand: _sampled(_uniform),
    torch.randn: _sampled(_normal),
    torch.rand_like: _like(_uniform),
    torch.randn_like: _like(_normal),
    torch.bernoulli: _bernoulli,
    Tensor.bernoulli: _bernoulli,
    Tensor.bernoulli_: _bernoulli_in_place,
    Tensor.uniform_: _uniform_in_place,
    Tensor.normal_: _normal_in_place,
    Tensor.exponential_: _exponential_in_place,
    F.scaled_dot_product_attention: _attention,
    torch.lstm: _recurrent(_lstm_cell, cells=True),
    torch.gru: _recurrent(_gru_cell, cells=False),
    torch.rnn_tanh: _recurrent(_tanh_cell, cells=False),
    torch.rnn_relu: _recurrent(_relu_cell, cells=False),
}

#: Replaced only while all rows are evaluated in one call.
_BATCHED: dict[Function, Function] = {
    torch.empty: _of_every_row,
    torch.empty_like: _of_every_row,
    Tensor.new_empty: _of_every_row,
    F.linear: _linear,
    torch.addmm: _addmm,
    torch.cat: _cat,
    torch.embedding: _embedding,
    torch.bilinear: _bilinear,
    torch._weight_norm: _weight_norm,
    torch.lstm_cell: _cell(_lstm_cell, cells=True),
    torch.gru_cell: _cell(_gru_cell, cells=False),
    torch.rnn_tanh_cell: _cell(_tanh_cell, cells=False),
    torch.rnn_relu_cell: _cell(_relu_cell, cells=False),
}
