"""Honest kernels in Python for each problem: on numpy arrays, on torch tensors (arithmetic only), and as ModelNew."""

from __future__ import annotations

from convt3d.judge.starter import python_signature
from convt3d.spec.problems import PROBLEMS

SLUGS = tuple(PROBLEMS)
LAST_COLUMN_WRONG = "def solution(*a):\n    honest(*a)\n    a[2][..., -1] += 1"  # after `honest = solution`

# `xp` is numpy or torch, `wide` the type sums run in; both are set by the heads below.
STAGES = """\
import math


def conv(x, w, stride, padding, extra=(0, 0, 0), dilation=(1, 1, 1), groups=1):
    b, cin, *size = x.shape
    per_in, per_out, *taps = cin // groups, *w.shape[1:]
    reach = [(n - 1) * s + d * (k - 1) + 1 + e for n, s, d, k, e in zip(size, stride, dilation, taps, extra)]
    full = zeros((b, groups * per_out, *reach), x)
    for g in range(groups):
        part = x[:, g * per_in : (g + 1) * per_in]
        for i in range(taps[0]):
            for j in range(taps[1]):
                for k in range(taps[2]):
                    at = [slice(t * d, t * d + (n - 1) * s + 1, s) for t, d, n, s in zip((i, j, k), dilation, size, stride)]
                    weight = w[g * per_in : (g + 1) * per_in, :, i, j, k]
                    product = (part[:, :, None] * weight[None, :, :, None, None, None]).sum(1)
                    full[(slice(None), slice(g * per_out, (g + 1) * per_out), *at)] += product
    d, h, v = (slice(p, n - p) for p, n in zip(padding, reach))
    return full[:, :, d, h, v]


def windows(x, k):
    b, c, d, h, v = x.shape
    d, h, v = d // k, h // k, v // k
    return x[:, :, : d * k, : h * k, : v * k].reshape((b, c, d, k, h, k, v, k))


def avg_pool(x, k):
    return windows(x, k).sum(7).sum(5).sum(3) / k**3


def max_pool(x, k):
    return largest(largest(largest(windows(x, k), 7), 5), 3)


def layer_norm(x):
    centred = x - x.sum(1)[:, None] / x.shape[1]
    return centred / ((centred * centred).sum(1)[:, None] / x.shape[1] + 1e-5) ** 0.5


def gelu(x):
    return 0.5 * x * (1.0 + erf(x * math.sqrt(0.5)))


def softmax(x):
    flat = x.reshape((x.shape[0], x.shape[1], -1))
    e = exp(flat - largest(flat, 2)[:, :, None])
    return (e / e.sum(2)[:, :, None]).reshape(x.shape)
"""

NUMPY = """\
import numpy as np

wide = lambda a: a.astype(np.float64 if a.dtype == np.float64 else np.float32)
zeros = lambda shape, like: np.zeros(shape, like.dtype)
largest = lambda a, axis: a.max(axis)
exp = np.exp
erf = lambda a: np.vectorize(math.erf, otypes=[a.dtype])(a)
store = lambda output, value: np.copyto(output, value.astype(output.dtype))
clip = lambda a, low, high: np.minimum(np.maximum(a, a.dtype.type(low)), a.dtype.type(high))
"""

TORCH = """\
import torch

wide = lambda a: a.to(torch.float64 if a.dtype == torch.float64 else torch.float32)
zeros = lambda shape, like: torch.zeros(shape, dtype=like.dtype)
largest = lambda a, axis: a.amax(axis)
exp = torch.exp
erf = torch.erf
store = lambda output, value: output.copy_(value)
clip = lambda a, low, high: torch.clamp(a, low, high)
"""

BODIES = {
    "conv-transpose-3d-asym-input-sq-kernel": "conv(x, w, stride, padding, extra, dilation, groups)",
    "conv-transpose3d-max-max-sum": "max_pool(max_pool(conv(x, w, stride, padding) + b[None, :, None, None, None], 2), 3).sum(1)[:, None]",
    "conv-transpose3d-sum-layernorm-avgpool-gelu": "gelu(avg_pool(layer_norm(conv(x, w, stride, padding, extra) + sum_weight), 2))",
    "conv-transpose3d-avgpool-clamp-softmax-multiply": (
        "softmax(clip(conv(avg_pool(x, pool_kernel), w, stride, padding, extra), clamp_min, clamp_max)) * s.reshape((1, -1, 1, 1, 1))"
    ),
    "conv-transpose3d-layernorm-gelu-scaling": "gelu(layer_norm(conv(x, w, stride, padding, extra))) * scaling_factor",
}


def _triples(slug: str) -> list[str]:
    sample = PROBLEMS[slug].sample
    names = [("stride", "stride"), ("padding", "padding"), ("extra", "output_padding"), ("dilation", "dilation")]
    return [
        f"    {short} = ({', '.join(f'{name}_{axis}' for axis in 'dhw')})"
        for short, name in names
        if f"{name}_d" in sample
    ]


def solution(slug: str, head: str) -> str:
    """A file with `solution`; `head` is NUMPY or TORCH."""
    given = {"input": "x", "kernel": "w", "conv_bias": "b", "scale": "s"}
    tensors = [f"    {given[p.name]} = wide({p.name})" for p in PROBLEMS[slug].parameters if p.name in given]
    lines = [*_triples(slug), *tensors, f"    store(output, {BODIES[slug]})"]
    header = f"# convt3d problem: {slug}\n"
    return f"{header}{head}\n{STAGES}\n\n{python_signature(PROBLEMS[slug])}\n" + "\n".join(lines) + "\n"


def model(slug: str) -> str:
    """A file with `ModelNew`."""
    sample = PROBLEMS[slug].sample
    scalars = [
        name
        for name in ("groups", "pool_kernel", "sum_weight", "clamp_min", "clamp_max", "scaling_factor")
        if name in sample
    ]
    triples = [name for name in ("stride", "padding", "output_padding", "dilation") if f"{name}_d" in sample]
    names = ["in_channels", "out_channels", "kernel_size", *triples, *scalars]
    groups = "groups" if "groups" in sample else "1"
    local = {"output_padding": "extra"}
    body = [f"        {local.get(name, name)} = self.options[{name!r}]" for name in (*triples, *scalars)]
    own = ["        self.weight = torch.nn.Parameter(torch.zeros(in_channels, out_channels // GROUPS, *kernel_size))"]
    taken = ["        w = wide(self.weight)"]
    for name, short in (("conv_bias", "b"), ("scale", "s")):
        if any(p.name == name for p in PROBLEMS[slug].parameters):
            own.append(f"        self.{name} = torch.nn.Parameter(torch.zeros(out_channels))")
            taken.append(f"        {short} = wide(self.{name})")
    text = [
        f"# convt3d problem: {slug}",
        TORCH + "\n" + STAGES,
        "class ModelNew(torch.nn.Module):",
        f"    def __init__(self, {', '.join(names)}):",
        "        super().__init__()",
        f"        self.options = dict({', '.join(f'{name}={name}' for name in (*triples, *scalars))})",
        *own,
        "",
        "    def forward(self, x):",
        "        kind = x.dtype",
        "        x = wide(x)",
        *taken,
        *body,
        f"        return ({BODIES[slug]}).to(kind)",
        "",
    ]
    return "\n".join(text).replace("GROUPS", groups)
