"""The up-sampling half of a 3-D U-Net, step by step: conv transpose k2 s2 -> InstanceNorm -> LeakyReLU -> + skip."""

import time

import numpy as np

from convt3d import Add, ConvTranspose3d, InstanceNorm, LeakyReLU, Pipeline
from convt3d.spec.reference import evaluate

UP = Pipeline(ConvTranspose3d(stride=2, bias=True), InstanceNorm(affine=True), LeakyReLU(0.01), Add("tensor"))
# UP takes input, weight, bias, instancenorm_weight, instancenorm_bias, add_other


def level(rng: np.random.Generator, cin: int, cout: int, skip: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    """Weights of one decoder level and the encoder's feature map it is joined with."""
    shapes = (cin, cout, 2, 2, 2), (cout,), (cout,), (cout,), skip
    return tuple(rng.standard_normal(shape, dtype=np.float32) for shape in shapes)


def main() -> None:
    rng = np.random.default_rng(2)
    value = rng.standard_normal((1, 64, 3, 6, 5), dtype=np.float32)
    for cin, cout in ((64, 32), (32, 16), (16, 8)):
        skip = (1, cout, *(2 * size for size in value.shape[2:]))
        operands = level(rng, cin, cout, skip)
        UP(value, *operands)  # the first call of a structure compiles it, or finds it in the cache
        begun = time.perf_counter()
        up = UP(value, *operands)
        seconds = time.perf_counter() - begun
        meaning = evaluate(UP, value.astype(np.float64), [array.astype(np.float64) for array in operands])
        error = np.abs(up - meaning).max() / np.abs(meaning).max()
        print(f"{value.shape} -> {up.shape}: {1e3 * seconds:.2f} ms, largest error {error:.1e} of the scale")
        assert error < 1e-5, "the kernel and its meaning disagree"
        value = up


if __name__ == "__main__":
    main()
