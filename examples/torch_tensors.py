"""Torch CPU tensors go in without a copy, and tensors come out; bfloat16 too."""

import convt3d

try:
    import torch
    from torch.nn import functional
except ImportError:
    torch = None


def main() -> None:
    if torch is None:
        print("skipped: this example needs torch (pip install torch)")
        return
    torch.manual_seed(0)
    x, w, scale = torch.randn(2, 8, 8, 12, 12), torch.randn(8, 16, 3, 3, 3) / 8, torch.rand(16)

    with torch.no_grad():
        y = convt3d.conv_transpose3d_avgpool_clamp_softmax_multiply(x, w, scale, clamp_min=-1.0, clamp_max=1.0)
        value = functional.avg_pool3d(x, 2)
        value = functional.conv_transpose3d(value, w, stride=2, padding=1, output_padding=1).clamp(-1.0, 1.0)
        eager = torch.softmax(value.flatten(2), 2).reshape(value.shape) * scale.reshape(1, -1, 1, 1, 1)
    print(f"{type(y).__name__} {tuple(y.shape)} {y.dtype}")
    print(f"largest difference from eager torch: {float((y - eager).abs().max() / eager.abs().max()):.1e} of the scale")

    # Any strides are read in place: a channels_last tensor gives the same bits as a contiguous one.
    last = x.contiguous(memory_format=torch.channels_last_3d)
    plain, strided = (convt3d.conv_transpose3d(each, w, stride=2) for each in (x, last))
    print(f"channels_last_3d gives the same bits: {torch.equal(plain, strided)}")

    # 16-bit types are summed in float32 and rounded once, when the result is stored.
    half = convt3d.conv_transpose3d(x.bfloat16(), w.bfloat16(), stride=2)
    print(f"{half.dtype}: {float((half.float() - plain).abs().max() / plain.abs().max()):.1e} of the scale")


if __name__ == "__main__":
    main()
