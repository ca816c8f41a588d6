"""A small 3-D U-Net, stock and swapped: the same weights, the same results, and the time of each."""

import copy
import timeit

try:
    import torch
    from torch import nn
except ImportError:
    torch = None


def level(conv: "nn.Module") -> "nn.Sequential":
    return nn.Sequential(conv, nn.BatchNorm3d(conv.out_channels), nn.ReLU(inplace=True))


def build() -> "nn.Module":
    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside, self.down = level(nn.Conv3d(1, 8, 3, 1, 1)), level(nn.Conv3d(8, 16, 3, 2, 1))
            self.deep, self.head = level(nn.Conv3d(16, 32, 3, 2, 1)), nn.Conv3d(16, 2, 1)
            self.up1, self.up0 = (level(nn.ConvTranspose3d(32, c, 3, 2, 1, output_padding=1)) for c in (16, 8))

        def forward(self, x):
            fine = self.inside(x)
            coarse = self.down(fine)
            risen = torch.cat([coarse, self.up1(self.deep(coarse))], 1)
            return self.head(torch.cat([fine, self.up0(risen)], 1))

    return UNet().eval()


def best(model: "nn.Module", x: "torch.Tensor") -> float:
    return min(timeit.repeat(lambda: model(x), number=1, repeat=5)) * 1e3


def main() -> None:
    if torch is None:
        print("skipped: this example needs torch (pip install torch)")
        return
    import convt3d.torch

    torch.manual_seed(0)
    stock, x = build(), torch.randn(1, 1, 32, 64, 64)
    swapped = copy.deepcopy(stock)
    print(convt3d.torch.swap(swapped))
    with torch.inference_mode():
        expected, got = stock(x), swapped(x)
        print(f"stock {best(stock, x):.1f} ms, swapped {best(swapped, x):.1f} ms")
    print(f"maximum difference {float((got - expected).abs().max() / expected.abs().max()):.1e} of the scale")


if __name__ == "__main__":
    main()
