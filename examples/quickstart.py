"""One fused operator on numpy arrays, compared with its float64 meaning."""

import numpy as np

import convt3d
from convt3d.spec.reference import evaluate


def main() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 8, 6, 10, 12), dtype=np.float32)  # (B, Cin, D, H, W)
    w = rng.standard_normal((8, 16, 4, 4, 4), dtype=np.float32) / 16  # (Cin, Cout, Kd, Kh, Kw)

    y = convt3d.conv_transpose3d_layernorm_gelu_scaling(x, w, scaling_factor=0.5, stride=2, padding=1)
    print(f"input  {x.shape} {x.dtype}")
    print(f"result {y.shape} {y.dtype}")

    # The same result again, into an array of the caller's: no new memory is touched.
    again = np.full_like(y, np.nan)
    convt3d.conv_transpose3d_layernorm_gelu_scaling(x, w, scaling_factor=0.5, stride=2, padding=1, out=again)
    print(f"same bits with out=: {np.array_equal(y, again)}")

    # Every stage has a slow, obvious meaning in float64. The kernel is tested against it, and so can anyone.
    pipeline = convt3d.Pipeline(
        convt3d.ConvTranspose3d(stride=2, padding=1), convt3d.LayerNorm(), convt3d.GELU(), convt3d.Multiply(0.5)
    )
    meaning = evaluate(pipeline, x.astype(np.float64), [w.astype(np.float64)])
    print(f"largest difference from the meaning: {np.abs(y - meaning).max():.1e} of {np.abs(meaning).max():.1f}")

    # A mistake is answered with operator, argument, value, rule and remedy.
    try:
        convt3d.conv_transpose3d(x, w, output_padding=1)
    except convt3d.Error as error:
        print(f"refused: {error}")


if __name__ == "__main__":
    main()
