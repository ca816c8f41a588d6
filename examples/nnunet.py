"""An nnU-Net as its authors build it, and the same through convt3d: one line, the same result, the time of each."""

import timeit

try:
    import torch
    from dynamic_network_architectures.architectures.unet import PlainConvUNet
    from torch import nn
except ImportError as error:
    torch, missing = None, error.name


def best(model: "nn.Module", x: "torch.Tensor") -> float:
    return min(timeit.repeat(lambda: model(x), number=1, repeat=5)) * 1e3


def main() -> None:
    if torch is None:
        print(f"skipped: this example needs {missing} (pip install torch dynamic-network-architectures)")
        return
    import convt3d.torch

    torch.manual_seed(0)
    norm = {"norm_op": nn.InstanceNorm3d, "norm_op_kwargs": {"affine": True}}
    leaky = {"nonlin": nn.LeakyReLU, "nonlin_kwargs": {"inplace": True}}
    sizes = {"features_per_stage": (16, 32, 64), "strides": (1, 2, 2), "kernel_sizes": 3, "num_classes": 3}
    blocks = {"n_stages": 3, "n_conv_per_stage": 2, "n_conv_per_stage_decoder": 2, "conv_bias": True}
    network = PlainConvUNet(1, conv_op=nn.Conv3d, **sizes, **blocks, **norm, **leaky).eval()
    x = torch.randn(1, 1, 32, 48, 48)

    fast = convt3d.torch.optimize(network)
    with torch.inference_mode():
        expected, got = network(x), fast(x)
        print(f"stock {best(network, x):.1f} ms, optimized {best(fast, x):.1f} ms")
    print(f"maximum difference {float((got - expected).abs().max() / expected.abs().max()):.1e} of the scale")


if __name__ == "__main__":
    main()
