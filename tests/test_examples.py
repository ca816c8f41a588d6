"""The examples run, quickly, and print what they promise."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest
from helpers.command import python

import convt3d

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"

# file -> pieces of its output
PRINTS = {
    "quickstart.py": (
        "result (2, 16, 12, 20, 24) float32",
        "same bits with out=: True",
        "largest difference from the meaning",
        "refused: conv_transpose3d: output_padding = (1, 1, 1): must be smaller",
    ),
    "torch_tensors.py": (
        "Tensor (2, 16, 8, 12, 12) torch.float32",
        "channels_last_3d gives the same bits: True",
        "torch.bfloat16:",
    ),
    "unet3d.py": (
        "swapped up1.0: fused with BatchNorm3d, ReLU",
        "swapped up0.0: fused with BatchNorm3d, ReLU",
        " ms, swapped ",
        "maximum difference ",
    ),
    "training.py": ("autoencoder stock loss ", "gan stock loss ", "unet stock loss ", " ms; swapped ", " ms a step"),
    "pipeline.py": (
        "takes input, weight, bias, multiply_other",
        "Add(other='y')",
        "needed ",
        "result (1, 10, 5, 18, 22), largest difference from the meaning",
    ),
    "volume_upsampling.py": (
        "-> (1, 32, 6, 12, 10)",
        "-> (1, 16, 12, 24, 20)",
        "-> (1, 8, 24, 48, 40)",
        "of the scale",
    ),
    "dask_volume.py": (
        "lazy (1, 4, 48, 80, 72) in (1, 1, 2, 2, 1) chunks",
        "same bits as in memory: True",
        "within rounding True",
    ),
    "jax_training.py": (
        "step 0: loss ",
        "step 60: loss ",
        "learnt to ",
        "each sample's own gradient (4, 2, 1, 2, 2, 2)",
    ),
    "nnunet.py": ("stock ", " ms, optimized ", "maximum difference "),
    "sliding_window.py": ("labels (1, 2, 60, 56, 48): stock ", " ms, optimized ", "maximum difference "),
}
NEED_TORCH = ("torch_tensors.py", "unet3d.py", "training.py")
NEED_JAX = ("jax_training.py",)
# Networks of other people: the extra `models`.
NEED_MODELS = {"nnunet.py": "dynamic_network_architectures", "sliding_window.py": "monai"}


def run(path: Path, **environment: str) -> str:
    """Its output, from an interpreter for which every warning is an error and which sees the same convt3d."""
    return python("-W", "error", path, silent=True, **environment)


@pytest.mark.parametrize("name", PRINTS)
def test_example_prints(name: str) -> None:
    if name in NEED_TORCH or name in NEED_MODELS:
        pytest.importorskip("torch")
    if name == "dask_volume.py":
        pytest.importorskip("dask.array")
    if name in NEED_JAX:
        pytest.importorskip("jax")
    if name not in NEED_MODELS:
        output = run(EXAMPLES / name)
    elif importlib.util.find_spec(NEED_MODELS[name]) is None:
        pytest.skip(f"{NEED_MODELS[name]} is not installed: pip install '.[models]'")
    else:  # warnings of these packages are not ours
        output = python(
            EXAMPLES / name, PYTHONPATH=os.pathsep.join([str(Path(convt3d.__file__).parents[1]), *sys.path])
        )
    for piece in PRINTS[name]:
        assert piece in output


@pytest.mark.parametrize("name", NEED_TORCH)
def test_torch_example_without_torch(name: str, tmp_path: Path) -> None:
    """It says so and ends well."""
    (tmp_path / "torch.py").write_text("raise ImportError('not here')\n")
    source = Path(convt3d.__file__).parents[1]
    output = run(EXAMPLES / name, PYTHONPATH=os.pathsep.join([str(tmp_path), str(source)]))
    assert output == "skipped: this example needs torch (pip install torch)\n"


def test_every_example_is_tested_and_short() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(PRINTS)
    for path in EXAMPLES.glob("*.py"):
        assert len(path.read_text(encoding="utf-8").splitlines()) < 60, path.name
