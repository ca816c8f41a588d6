"""Pipelines and operators on dask arrays: `import convt3d.dask`, and all of them take one, lazily.

x = dask.array.from_zarr("in.zarr")
y = pipe(x, weight)                            # a dask array; nothing is computed yet
y = convt3d.dask.apply(pipe, x, weight, persist=True)
"""

from .front import apply

__all__ = ["apply"]
