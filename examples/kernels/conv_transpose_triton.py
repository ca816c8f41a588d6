# convt3d problem: conv-transpose-3d-asym-input-sq-kernel
# Triton: each program computes a block of output voxels; a tap that reaches no input is masked.
import torch
import triton
import triton.language as tl


@triton.jit
def conv_transpose(
    x, w, y, voxels, cin, cout, groups, D, H, W, OD, OH, OW, kd, kh, kw, sd, sh, sw, pd, ph, pw, dd, dh, dw,
    SUM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < voxels
    ow, oh, od = at % OW, at // OW % OH, at // (OW * OH) % OD
    co, b = at // (OW * OH * OD) % cout, at // (OW * OH * OD * cout)
    per_in, per_out = cin // groups, cout // groups
    total = tl.zeros((BLOCK,), SUM)
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
                    tap = (((ci * per_out + co % per_out) * kd + i) * kh + j) * kw + k
                    total += value.to(SUM) * tl.load(w + tap, mask=hit, other=0.0).to(SUM)
    tl.store(y + at, total.to(y.dtype.element_ty), mask=inside)


def solution(
    input, kernel, output, batch_size, in_channels, out_channels, depth, height, width, kernel_d, kernel_h, kernel_w,
    stride_d, stride_h, stride_w, padding_d, padding_h, padding_w, output_padding_d, output_padding_h, output_padding_w,
    dilation_d, dilation_h, dilation_w, groups,
):  # fmt: skip
    voxels, block = output.numel(), 1024
    sums = tl.float64 if output.dtype == torch.float64 else tl.float32
    conv_transpose[(triton.cdiv(voxels, block),)](
        input, kernel, output, voxels, in_channels, out_channels, groups, depth, height, width, *output.shape[2:],
        kernel_d, kernel_h, kernel_w, stride_d, stride_h, stride_w, padding_d, padding_h, padding_w,
        dilation_d, dilation_h, dilation_w, SUM=sums, BLOCK=block,
    )  # fmt: skip
