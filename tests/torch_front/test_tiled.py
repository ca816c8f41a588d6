"""`tiled`: a network over a volume in tiles has the result it has at once; what cannot be cut is refused."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import convt3d

torch = pytest.importorskip("torch")
import convt3d.torch  # noqa: E402 - where torch is installed
from convt3d.torch.field import fields  # noqa: E402

nn = torch.nn


class Net(nn.Module):  # type: ignore[misc]
    """A U-Net of two levels."""

    def __init__(self, norm: Any = nn.BatchNorm3d) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv3d(1, 4, 3, padding=1), norm(4), nn.LeakyReLU())
        self.deep = nn.Sequential(nn.MaxPool3d(2), nn.Conv3d(4, 6, 3, padding=1), norm(6), nn.LeakyReLU())
        self.up = nn.ConvTranspose3d(6, 4, 2, 2)
        self.last = nn.Conv3d(8, 2, (3, 1, 5), padding=(1, 0, 2))

    def forward(self, x: Any) -> Any:
        down = self.down(x)
        return self.last(torch.cat([self.up(self.deep(down)), down], 1))


NETWORKS: dict[str, tuple[Any, tuple[int, ...], Any]] = {
    "one layer, odd sizes": (lambda: nn.Sequential(nn.Conv3d(1, 4, 3, padding=1), nn.ReLU()), (2, 1, 21, 20, 13), 8),
    "skips and strides": (Net, (1, 1, 40, 24, 28), (16, 8, 12)),
    "no padding, dilation, unbatched": (
        lambda: nn.Sequential(nn.Conv3d(1, 4, 3, 2, 1), nn.ReLU(), nn.Conv3d(4, 2, 5, padding=(2, 0, 1), dilation=2)),
        (1, 51, 42, 37),
        (16, 8, 12),
    ),
    "finer": (
        lambda: nn.Sequential(nn.ConvTranspose3d(1, 4, 3, 2, 1), nn.ReLU(), nn.AvgPool3d(3, 1)),
        (1, 1, 19, 11, 17),
        5,
    ),
    "by three": (lambda: nn.Sequential(nn.Conv3d(1, 4, 3, 3), nn.Upsample(scale_factor=3)), (1, 1, 48, 33, 36), 12),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_tiles_have_the_result_of_the_whole(name: str) -> None:
    make, shape, tile = NETWORKS[name]
    torch.manual_seed(0)
    model, x = make().eval(), torch.randn(shape)
    with torch.no_grad():
        expected = model(x) if x.dim() == 5 else model(x[None])[0]
    got = convt3d.torch.tiled(model, x, tile=tile)
    assert got.shape == expected.shape
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


def test_the_field_is_that_of_the_layers() -> None:
    with torch.no_grad():
        depth, height, width = fields(model := Net().eval(), model, 1, torch.float32)
    assert {depth.step, height.step, width.step} == {2}
    assert depth.ratio == Fraction(1)
    assert height.left < depth.left < width.left  # kernels of 1, 3 and 5 at the end


def test_from_zarr_to_zarr(tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr")
    torch.manual_seed(0)
    model = nn.Conv3d(2, 3, 3, padding=1).eval()
    x = np.random.default_rng(0).standard_normal((2, 18, 17, 16), dtype=np.float32)
    source = zarr.create_array(str(tmp_path / "in.zarr"), shape=x.shape, chunks=(2, 8, 8, 8), dtype="f4")
    source[...] = x
    target = zarr.create_array(str(tmp_path / "out.zarr"), shape=(3, 18, 17, 16), chunks=(3, 8, 8, 8), dtype="f4")
    assert convt3d.torch.tiled(model, source, target, tile=8) is target
    with torch.no_grad():
        expected = model(torch.from_numpy(x)[None])[0].numpy()
    np.testing.assert_allclose(target[...], expected, atol=1e-5)


def test_statistics_over_space_are_refused_unless_told_how() -> None:
    model, x = Net(nn.InstanceNorm3d).eval(), torch.randn(1, 1, 16, 16, 16)
    with pytest.raises(convt3d.ArgumentError, match=r"depend on all of space.*down\.1 \(InstanceNorm3d\)"):
        convt3d.torch.tiled(model, x)
    assert convt3d.torch.tiled(model, x, tile=8, statistics="tile").shape == (1, 2, 16, 16, 16)
    pooled = nn.Sequential(nn.Conv3d(1, 4, 3), nn.AdaptiveAvgPool3d(1)).eval()
    with pytest.raises(convt3d.ArgumentError, match=r"1 \(AdaptiveAvgPool3d\)"):
        convt3d.torch.tiled(pooled, x)


def test_errors_say_what_to_do() -> None:
    model, x = nn.Conv3d(1, 2, 3).eval(), torch.zeros(1, 1, 9, 9, 9)
    with pytest.raises(convt3d.ArgumentTypeError, match=r"must be an nn\.Module"):
        convt3d.torch.tiled(lambda x: x, x)
    with pytest.raises(convt3d.ArgumentError, match=r"model\.eval\(\)"):
        convt3d.torch.tiled(nn.Conv3d(1, 2, 3), x)
    with pytest.raises(convt3d.ArgumentError, match="must be 'tile' or None"):
        convt3d.torch.tiled(model, x, statistics="all")
    with pytest.raises(convt3d.ArgumentError, match="positive integers"):
        convt3d.torch.tiled(model, x, tile=0)
    with pytest.raises(convt3d.ShapeError, match=r"must be \(B, C, D, H, W\)"):
        convt3d.torch.tiled(model, x[0, 0])
    with pytest.raises(convt3d.ShapeError, match="must take"):
        convt3d.torch.tiled(nn.Linear(3, 4).eval(), x)
    with pytest.raises(convt3d.OutputError, match="must have the result's shape"):
        convt3d.torch.tiled(model, x, np.zeros((1, 2, 9, 9, 9), np.float32))

    class Skip(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down, self.up = nn.Conv3d(1, 2, 2, stride=2), nn.ConvTranspose3d(2, 1, 2, stride=2)

        def forward(self, x: Any) -> Any:
            return x + self.up(self.down(x))

    with pytest.raises(convt3d.ShapeError, match=r"sizes that the network does not take .* multiples of 2 x 2 x 2"):
        convt3d.torch.tiled(Skip().eval(), torch.zeros(1, 1, 17, 16, 16), tile=8)


class Coordinates(nn.Module):  # type: ignore[misc]
    """Knows where a voxel is."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv3d(1, 3, 3, padding=1)

    def forward(self, x: Any) -> Any:
        return self.first(x) + torch.linspace(0, 1, x.shape[-1])


def test_a_network_that_knows_where_voxels_are_is_refused() -> None:
    with pytest.raises(convt3d.ArgumentError, match="or on where they are"):
        convt3d.torch.tiled(Coordinates().eval(), torch.randn(1, 1, 8, 8, 24), tile=8)
