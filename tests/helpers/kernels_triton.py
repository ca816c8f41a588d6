"""Honest kernels in Triton for each problem: one program for each block of voxels, run by the interpreter."""

from __future__ import annotations

from convt3d.judge.starter import python_signature
from convt3d.spec.problems import PROBLEMS

KERNELS = """\
import torch
import triton
import triton.language as tl


@triton.jit
def conv_kernel(x, w, y, voxels, cin, cout, groups, D, H, W, OD, OH, OW, kd, kh, kw, sd, sh, sw, pd, ph, pw, dd, dh, dw,
                BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < voxels
    ow, oh, od = at % OW, at // OW % OH, at // (OW * OH) % OD
    co, b = at // (OW * OH * OD) % cout, at // (OW * OH * OD * cout)
    per_in, per_out = cin // groups, cout // groups
    total = tl.zeros((BLOCK,), y.dtype.element_ty)
    for i in range(kd):
        for j in range(kh):
            for k in range(kw):
                zd, zh, zw = od + pd - i * dd, oh + ph - j * dh, ow + pw - k * dw
                hit = inside & (zd >= 0) & (zh >= 0) & (zw >= 0) & (zd % sd == 0) & (zh % sh == 0) & (zw % sw == 0)
                zd, zh, zw = zd // sd, zh // sh, zw // sw
                hit = hit & (zd < D) & (zh < H) & (zw < W)
                for c in range(per_in):
                    ci = co // per_out * per_in + c
                    value = tl.load(x + (((b * cin + ci) * D + zd) * H + zh) * W + zw, mask=hit, other=0.0)
                    weight = tl.load(w + (((ci * per_out + co % per_out) * kd + i) * kh + j) * kw + k, mask=hit, other=0.0)
                    total += value.to(total.dtype) * weight.to(total.dtype)
    tl.store(y + at, total, mask=inside)


@triton.jit
def norm_kernel(y, voxels, C, S, shift, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # of (sample, voxel)
    inside = at < voxels
    base = at // S * C * S + at % S
    mean = tl.zeros((BLOCK,), y.dtype.element_ty)
    for c in range(C):
        mean += tl.load(y + base + c * S, mask=inside, other=0.0) + shift
    mean = mean / C
    variance = tl.zeros((BLOCK,), y.dtype.element_ty)
    for c in range(C):
        centred = tl.load(y + base + c * S, mask=inside, other=0.0) + shift - mean
        variance += centred * centred
    scale = 1.0 / tl.sqrt(variance / C + 1e-5)
    for c in range(C):
        value = tl.load(y + base + c * S, mask=inside, other=0.0) + shift
        tl.store(y + base + c * S, (value - mean) * scale, mask=inside)


@triton.jit
def pool_kernel(x, y, voxels, D, H, W, PD, PH, PW, k, MAX: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < voxels
    base = ((at // (PW * PH * PD) * D + at // (PW * PH) % PD * k) * H + at // PW % PH * k) * W + at % PW * k
    total = tl.load(x + base, mask=inside, other=0.0).to(y.dtype.element_ty)
    for i in range(1, k * k * k):
        step = (i // (k * k) * H + i // k % k) * W + i % k
        value = tl.load(x + base + step, mask=inside, other=0.0).to(y.dtype.element_ty)
        total = tl.maximum(total, value) if MAX else total + value
    if not MAX:
        total = total / (k * k * k)
    tl.store(y + at, total, mask=inside)


@triton.jit
def gelu_kernel(y, out, voxels, factor, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(y + at, mask=at < voxels, other=0.0)
    value = 0.5 * value * (1.0 + tl.erf(value * 0.7071067811865476)) * factor
    tl.store(out + at, value.to(out.dtype.element_ty), mask=at < voxels)


@triton.jit
def sum_kernel(y, bias, out, voxels, C, S, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < voxels
    total = tl.zeros((BLOCK,), y.dtype.element_ty)
    for c in range(C):
        total += tl.load(y + at // S * C * S + c * S + at % S, mask=inside, other=0.0) + tl.load(bias + c).to(total.dtype)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def softmax_kernel(y, scale, out, C, S, low, high, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    value = tl.load(y + row * S + at, mask=at < S, other=0.0)
    value = tl.where(at < S, tl.minimum(tl.maximum(value, low), high), float("-inf"))
    e = tl.exp(value - tl.max(value, 0))
    result = e / tl.sum(e, 0) * tl.load(scale + row % C).to(e.dtype)
    tl.store(out + row * S + at, result.to(out.dtype.element_ty), mask=at < S)


BLOCK = 4096


def grid(n):
    return (triton.cdiv(n, BLOCK),)


def wide(tensor):
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def conv(x, w, stride, padding, extra=(0, 0, 0), dilation=(1, 1, 1), groups=1):
    size, taps = x.shape[2:], w.shape[2:]
    out = [(n - 1) * s - 2 * p + d * (k - 1) + e + 1 for n, s, p, d, k, e in zip(size, stride, padding, dilation, taps, extra)]
    y = torch.empty((x.shape[0], w.shape[1] * groups, *out), dtype=wide(w))
    conv_kernel[grid(y.numel())](x, w, y, y.numel(), x.shape[1], y.shape[1], groups, *size, *out, *taps, *stride, *padding,
                                 *dilation, BLOCK=BLOCK)
    return y


def layer_norm(y, shift):
    n, c, *volume = y.shape
    voxels = volume[0] * volume[1] * volume[2]
    norm_kernel[grid(n * voxels)](y, n * voxels, c, voxels, shift, BLOCK=BLOCK)
    return y


def pool(x, k, largest):
    y = torch.empty((*x.shape[:2], *(n // k for n in x.shape[2:])), dtype=wide(x))
    pool_kernel[grid(y.numel())](x, y, y.numel(), *x.shape[2:], *y.shape[2:], k, MAX=largest, BLOCK=BLOCK)
    return y
"""

BODIES = {
    "conv-transpose-3d-asym-input-sq-kernel": """\
    output.copy_(conv(input, kernel, stride, padding, extra, dilation, groups))
""",
    "conv-transpose3d-max-max-sum": """\
    y = pool(pool(conv(input, kernel, stride, padding), 2, True), 3, True)
    voxels = output.numel()
    sum_kernel[grid(voxels)](y, conv_bias, output, voxels, out_channels, voxels // batch_size, BLOCK=BLOCK)
""",
    "conv-transpose3d-sum-layernorm-avgpool-gelu": """\
    y = pool(layer_norm(conv(input, kernel, stride, padding, extra), sum_weight), 2, False)
    gelu_kernel[grid(y.numel())](y, output, y.numel(), 1.0, BLOCK=BLOCK)
""",
    "conv-transpose3d-avgpool-clamp-softmax-multiply": """\
    y = conv(pool(input, pool_kernel_size, False), kernel, stride, padding, extra)
    voxels = y.numel() // (batch_size * out_channels)
    block = triton.next_power_of_2(voxels)
    softmax_kernel[(batch_size * out_channels,)](y, scale, output, out_channels, voxels, clamp_min, clamp_max, BLOCK=block)
""",
    "conv-transpose3d-layernorm-gelu-scaling": """\
    y = layer_norm(conv(input, kernel, stride, padding, extra), 0.0)
    gelu_kernel[grid(y.numel())](y, output, y.numel(), scaling_factor, BLOCK=BLOCK)
""",
}


def solution(slug: str) -> str:
    sample = PROBLEMS[slug].sample
    names = [("stride", "stride"), ("padding", "padding"), ("extra", "output_padding"), ("dilation", "dilation")]
    triples = [
        f"    {short} = ({', '.join(f'{name}_{axis}' for axis in 'dhw')})\n"
        for short, name in names
        if f"{name}_d" in sample
    ]
    signature = python_signature(PROBLEMS[slug]).replace("    pool_kernel: int", "    pool_kernel_size: int")
    return f"# convt3d problem: {slug}\n{KERNELS}\n\n{signature}\n{''.join(triples)}{BODIES[slug]}"
