# convt3d problem: conv-transpose-3d-asym-input-sq-kernel
# numpy: tap by tap, a matrix product over channels that is added where the tap carries it.
import numpy as np


def solution(
    input, kernel, output, batch_size, in_channels, out_channels, depth, height, width, kernel_d, kernel_h, kernel_w,
    stride_d, stride_h, stride_w, padding_d, padding_h, padding_w, output_padding_d, output_padding_h, output_padding_w,
    dilation_d, dilation_h, dilation_w, groups,
):  # fmt: skip
    sums = np.float64 if output.dtype == np.float64 else np.float32
    x, w = input.astype(sums), kernel.astype(sums)
    size = depth, height, width
    taps = kernel_d, kernel_h, kernel_w
    stride, dilation = (stride_d, stride_h, stride_w), (dilation_d, dilation_h, dilation_w)
    padding = padding_d, padding_h, padding_w
    # Uncropped: padding takes voxels off both ends afterwards.
    whole = [n + 2 * p for n, p in zip(output.shape[2:], padding, strict=True)]
    full = np.zeros((batch_size, out_channels, *whole), sums)
    per_in, per_out = in_channels // groups, out_channels // groups
    for group in range(groups):
        part = x[:, group * per_in : (group + 1) * per_in]
        channels = slice(group * per_out, (group + 1) * per_out)
        for tap in np.ndindex(taps):
            target = tuple(
                slice(k * d, k * d + (n - 1) * s + 1, s) for k, d, n, s in zip(tap, dilation, size, stride, strict=True)
            )
            weight = w[(slice(group * per_in, (group + 1) * per_in), slice(None), *tap)]  # (Cin/g, Cout/g)
            full[(slice(None), channels, *target)] += np.einsum("bidhw,io->bodhw", part, weight)
    crop = tuple(slice(p, p + n) for p, n in zip(padding, output.shape[2:], strict=True))
    output[...] = full[(slice(None), slice(None), *crop)]
