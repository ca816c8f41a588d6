"""A volume in chunks through a pipeline: the same bits as in memory, and a norm whose statistics cross all chunks."""

import numpy as np

try:
    import dask.array as da
except ImportError:
    da = None


def main() -> None:
    if da is None:
        print("skipped: this example needs dask (pip install 'dask[array]')")
        return
    import convt3d.dask  # from here on, pipelines take dask arrays

    rng = np.random.default_rng(0)
    volume = rng.standard_normal((1, 8, 24, 40, 36), dtype=np.float32)
    weight = rng.standard_normal((8, 4, 4, 4, 4), dtype=np.float32)
    chunked = da.from_array(volume, chunks=(1, 8, 12, 20, 36))

    finer = convt3d.Pipeline(convt3d.ConvTranspose3d(stride=2, padding=1), convt3d.LayerNorm(), convt3d.GELU())
    lazy = finer(chunked, weight)
    print(f"lazy {lazy.shape} in {lazy.numblocks} chunks, nothing is computed yet")
    print(f"same bits as in memory: {np.array_equal(lazy.compute(), finer(volume, weight))}")

    normed = convt3d.Pipeline(convt3d.ConvTranspose3d(stride=2, padding=1), convt3d.InstanceNorm(), convt3d.ReLU())
    difference = np.abs(normed(chunked, weight).compute() - normed(volume, weight)).max()
    print(f"InstanceNorm over all chunks: within rounding {difference < 1e-4}")


if __name__ == "__main__":
    main()
