"""A large volume through a MONAI network in windows (sliding_window_inference), stock and through convt3d."""

import time

try:
    import torch
    from monai.inferers import sliding_window_inference
    from monai.networks.nets import UNet
except ImportError as error:
    torch, missing = None, error.name


def segment(volume: "torch.Tensor", network: "torch.nn.Module") -> "tuple[torch.Tensor, float]":
    start = time.perf_counter()
    labels = sliding_window_inference(volume, roi_size=(32, 32, 32), sw_batch_size=2, predictor=network)
    return labels, (time.perf_counter() - start) * 1e3


def main() -> None:
    if torch is None:
        print(f"skipped: this example needs {missing} (pip install torch monai)")
        return
    import convt3d.torch

    torch.manual_seed(0)
    network = UNet(3, 1, 2, channels=(16, 32, 64), strides=(2, 2), num_res_units=2).eval()
    volume = torch.randn(1, 1, 60, 56, 48)

    fast = convt3d.torch.optimize(network, torch.zeros(2, 1, 32, 32, 32))
    with torch.no_grad():
        (expected, stock), (got, optimized) = segment(volume, network), segment(volume, fast)
    print(f"labels {tuple(got.shape)}: stock {stock:.0f} ms, optimized {optimized:.0f} ms")
    print(f"maximum difference {float((got - expected).abs().max() / expected.abs().max()):.1e} of the scale")


if __name__ == "__main__":
    main()
