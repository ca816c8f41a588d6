"""A chain of one's own: a gated residual block, written as stages, explained and run as one kernel."""

import numpy as np

from convt3d import Add, ConvTranspose3d, Keep, LayerNorm, Multiply, Pipeline, Sigmoid
from convt3d.spec.reference import evaluate


def main() -> None:
    # y = convT(x);  y + layernorm(y) * sigmoid(layernorm(y) * 1.5) * g, with one gain g for each channel
    block = Pipeline(
        ConvTranspose3d(stride=(1, 2, 2), padding=1, bias=True),
        Keep("y"),
        LayerNorm(),
        Keep("normal"),
        Multiply(1.5),
        Sigmoid(),
        Multiply("normal"),
        Multiply("channel"),
        Add("y"),
    )
    rng = np.random.default_rng(1)
    arrays = {
        "input": rng.standard_normal((1, 6, 5, 9, 11), dtype=np.float32),
        "weight": rng.standard_normal((6, 10, 3, 4, 4), dtype=np.float32) / 12,
        "bias": rng.standard_normal(10, dtype=np.float32),
        "multiply_other": rng.standard_normal(10, dtype=np.float32),
    }
    print(f"takes input, {', '.join(block.operand_names)}")
    print(block.explain(arrays["input"].shape, arrays["weight"].shape))

    y = block(**arrays)
    x, *operands = (array.astype(np.float64) for array in arrays.values())
    meaning = evaluate(block, x, operands)
    print(f"result {y.shape}, largest difference from the meaning {np.abs(y - meaning).max():.1e}")


if __name__ == "__main__":
    main()
