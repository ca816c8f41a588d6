"""Volumes on disk, larger than memory: zarr in, zarr out, box by box."""
