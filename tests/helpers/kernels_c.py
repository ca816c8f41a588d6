"""Honest kernels in C, C++ and CUDA for each problem: plain loops behind the starters' signature."""

from __future__ import annotations

from convt3d.judge.starter import c_signature
from convt3d.spec.problems import PROBLEMS

TYPES = """\
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#ifndef CONVT3D_REAL
#define CONVT3D_REAL float
#define CONVT3D_SUM float
#endif
typedef CONVT3D_REAL real;
typedef CONVT3D_SUM sum_t;
typedef ptrdiff_t index_t;
"""

CONV = """\
struct axis { index_t in, out, kernel, stride, padding, dilation; };

DEVICE static struct axis axis_of(size_t in, size_t kernel, size_t stride, size_t padding, size_t extra, size_t dilation)
{
    struct axis a = {(index_t)in, 0, (index_t)kernel, (index_t)stride, (index_t)padding, (index_t)dilation};
    a.out = (a.in - 1) * a.stride - 2 * a.padding + a.dilation * (a.kernel - 1) + (index_t)extra + 1;
    return a;
}

/* The input index that tap k carries to output o, or -1. */
DEVICE static index_t source(struct axis a, index_t o, index_t k)
{
    const index_t step = o + a.padding - k * a.dilation;
    return step < 0 || step % a.stride || step / a.stride >= a.in ? -1 : step / a.stride;
}

/* One voxel of the transposed convolution of one sample. */
DEVICE static sum_t conv_at(const sum_t* x, const real* w, struct axis d, struct axis h, struct axis v, size_t cin,
                            size_t cout, size_t groups, size_t co, index_t od, index_t oh, index_t ow)
{
    const size_t per_in = cin / groups, per_out = cout / groups, first = co / per_out * per_in;
    sum_t sum = 0;
    for (size_t ci = first; ci < first + per_in; ++ci)
        for (index_t a = 0; a < d.kernel; ++a)
            for (index_t b = 0; b < h.kernel; ++b)
                for (index_t c = 0; c < v.kernel; ++c) {
                    const index_t i = source(d, od, a), j = source(h, oh, b), k = source(v, ow, c);
                    if (i < 0 || j < 0 || k < 0) continue;
                    sum += x[((ci * d.in + i) * h.in + j) * v.in + k]
                         * (sum_t)w[(((ci * per_out + co % per_out) * d.kernel + a) * h.kernel + b) * v.kernel + c];
                }
    return sum;
}

DEVICE static sum_t gelu(sum_t x) { return (sum_t)0.5 * x * ((sum_t)1 + (sum_t)erf((double)x * 0.70710678118654752)); }

/* The channels of one voxel, normalised in place. */
DEVICE static void layer_norm(sum_t* value, size_t channels)
{
    sum_t mean = 0, variance = 0;
    for (size_t c = 0; c < channels; ++c) mean += value[c];
    mean /= (sum_t)channels;
    for (size_t c = 0; c < channels; ++c) variance += (value[c] - mean) * (value[c] - mean);
    const sum_t scale = (sum_t)1 / (sum_t)sqrt((double)(variance / (sum_t)channels) + 1e-5);
    for (size_t c = 0; c < channels; ++c) value[c] = (value[c] - mean) * scale;
}
"""

# Every body has x: one sample in sum_t, and the axes d, h, v.
SAMPLE = """\
    const size_t volume = in_channels * depth * height * width;
    sum_t* x = (sum_t*)malloc((volume + 2 * out_channels) * sizeof(sum_t));
    sum_t *column = x + volume, *total = column + out_channels;
    for (size_t n = 0; n < batch_size; ++n) {{
        for (size_t i = 0; i < volume; ++i) x[i] = (sum_t)input[n * volume + i];
{body}
    }}
    free(x);
"""
AXES = """\
    const struct axis d = axis_of({depth}, kernel_d, stride_d, padding_d, {extra_d}, {dilation_d});
    const struct axis h = axis_of({height}, kernel_h, stride_h, padding_h, {extra_h}, {dilation_h});
    const struct axis v = axis_of({width}, kernel_w, stride_w, padding_w, {extra_w}, {dilation_w});
"""

BODIES = {
    "conv-transpose-3d-asym-input-sq-kernel": """\
        for (size_t c = 0; c < out_channels; ++c)
            for (index_t i = 0; i < d.out; ++i)
                for (index_t j = 0; j < h.out; ++j)
                    for (index_t k = 0; k < v.out; ++k)
                        output[(((n * out_channels + c) * d.out + i) * h.out + j) * v.out + k] =
                            (real)conv_at(x, kernel, d, h, v, in_channels, out_channels, groups, c, i, j, k);
""",
    "conv-transpose3d-max-max-sum": """\
        const index_t pd = d.out / 6, ph = h.out / 6, pw = v.out / 6;
        for (index_t i = 0; i < pd; ++i)
            for (index_t j = 0; j < ph; ++j)
                for (index_t k = 0; k < pw; ++k) {
                    sum_t sum = 0;
                    for (size_t c = 0; c < out_channels; ++c) {
                        sum_t most = (sum_t)-INFINITY;
                        for (index_t a = 0; a < 6; ++a)
                            for (index_t b = 0; b < 6; ++b)
                                for (index_t e = 0; e < 6; ++e) {
                                    const sum_t y = conv_at(x, kernel, d, h, v, in_channels, out_channels, 1, c,
                                                            6 * i + a, 6 * j + b, 6 * k + e);
                                    most = y > most || y != y ? y : most;
                                }
                        sum += most + (sum_t)conv_bias[c];
                    }
                    output[((n * pd + i) * ph + j) * pw + k] = (real)sum;
                }
""",
    "conv-transpose3d-sum-layernorm-avgpool-gelu": """\
        const index_t pd = d.out / 2, ph = h.out / 2, pw = v.out / 2;
        for (index_t i = 0; i < pd; ++i)
            for (index_t j = 0; j < ph; ++j)
                for (index_t k = 0; k < pw; ++k) {
                    for (size_t c = 0; c < out_channels; ++c) total[c] = 0;
                    for (int corner = 0; corner < 8; ++corner) {
                        for (size_t c = 0; c < out_channels; ++c)
                            column[c] = conv_at(x, kernel, d, h, v, in_channels, out_channels, 1, c, 2 * i + corner / 4,
                                                2 * j + corner / 2 % 2, 2 * k + corner % 2) + (sum_t)sum_weight;
                        layer_norm(column, out_channels);
                        for (size_t c = 0; c < out_channels; ++c) total[c] += column[c];
                    }
                    for (size_t c = 0; c < out_channels; ++c)
                        output[(((n * out_channels + c) * pd + i) * ph + j) * pw + k] = (real)gelu(total[c] / 8);
                }
""",
    "conv-transpose3d-layernorm-gelu-scaling": """\
        for (index_t i = 0; i < d.out; ++i)
            for (index_t j = 0; j < h.out; ++j)
                for (index_t k = 0; k < v.out; ++k) {
                    for (size_t c = 0; c < out_channels; ++c)
                        column[c] = conv_at(x, kernel, d, h, v, in_channels, out_channels, 1, c, i, j, k);
                    layer_norm(column, out_channels);
                    for (size_t c = 0; c < out_channels; ++c)
                        output[(((n * out_channels + c) * d.out + i) * h.out + j) * v.out + k] =
                            (real)(gelu(column[c]) * (sum_t)scaling_factor);
                }
""",
    "conv-transpose3d-avgpool-clamp-softmax-multiply": """\
        for (size_t ci = 0; ci < in_channels; ++ci)  /* the pool, in place: it never writes ahead of what it reads */
            for (index_t i = 0; i < d.in; ++i)
                for (index_t j = 0; j < h.in; ++j)
                    for (index_t k = 0; k < v.in; ++k) {
                        sum_t sum = 0;
                        for (size_t a = 0; a < pool_kernel; ++a)
                            for (size_t b = 0; b < pool_kernel; ++b)
                                for (size_t e = 0; e < pool_kernel; ++e)
                                    sum += x[((ci * depth + i * pool_kernel + a) * height + j * pool_kernel + b) * width
                                             + k * pool_kernel + e];
                        x[((ci * d.in + i) * h.in + j) * v.in + k] = sum / (sum_t)(pool_kernel * pool_kernel * pool_kernel);
                    }
        const size_t voxels = (size_t)(d.out * h.out * v.out);
        sum_t* y = (sum_t*)malloc(voxels * sizeof(sum_t));
        for (size_t c = 0; c < out_channels; ++c) {
            sum_t most = (sum_t)-INFINITY, sum = 0;
            for (size_t at = 0; at < voxels; ++at) {
                y[at] = conv_at(x, kernel, d, h, v, in_channels, out_channels, 1, c, (index_t)at / (h.out * v.out),
                                (index_t)at / v.out % h.out, (index_t)at % v.out);
                if (y[at] < (sum_t)clamp_min) y[at] = (sum_t)clamp_min;
                if (y[at] > (sum_t)clamp_max) y[at] = (sum_t)clamp_max;
                if (y[at] > most) most = y[at];
            }
            for (size_t at = 0; at < voxels; ++at) sum += y[at] = (sum_t)exp((double)(y[at] - most));
            for (size_t at = 0; at < voxels; ++at)
                output[(n * out_channels + c) * voxels + at] = (real)(y[at] / sum * (sum_t)scale[c]);
        }
        free(y);
""",
}


def source(slug: str, language: str) -> str:
    """A whole file in c, cpp or cuda."""
    problem = PROBLEMS[slug]
    sizes = {
        name: f"{name} / pool_kernel" if "pool_kernel" in problem.sample else name
        for name in ("depth", "height", "width")
    }
    for axis in "dhw":
        sizes[f"extra_{axis}"] = f"output_padding_{axis}" if "output_padding_d" in problem.sample else "0"
        sizes[f"dilation_{axis}"] = f"dilation_{axis}" if "dilation_d" in problem.sample else "1"
    body = AXES.format(**sizes) + SAMPLE.format(body=BODIES[slug])
    signature = c_signature(problem)
    header = f"// convt3d problem: {slug}\n"
    if language != "cuda":
        export = 'extern "C" ' if language == "cpp" else ""
        return f"{header}#define DEVICE\n{TYPES}{CONV}\n{export}{signature}\n{{\n{body}}}\n"
    names = ", ".join(p.name for p in problem.parameters)
    solve = signature.replace("void solution", "__global__ void solve")
    call = f"{{\n    solve<<<1, 1>>>({names});\n    cudaDeviceSynchronize();\n}}\n"
    return f'{header}#define DEVICE __device__\n{TYPES}{CONV}\n{solve}\n{{\n{body}}}\n\nextern "C" {signature}\n{call}'
