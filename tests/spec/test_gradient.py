"""The meaning of gradients is that of PyTorch's automatic differentiation, of both convolutions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from helpers.gradients import geometries
from hypothesis import given, settings

from convt3d.spec.gradient import bias_gradient, weight_gradient


def gradients_by_torch(x: Any, w: Any, transposed: bool, geometry: tuple[Any, ...], grad: Any = None) -> Any:
    """Of weight and bias, and the gradient of the output they come from."""
    stride, padding, dilation, groups = geometry
    channels = w.shape[1] * groups if transposed else w.shape[0]
    x, w = torch.from_numpy(x), torch.from_numpy(w).requires_grad_()
    bias = torch.zeros(channels, dtype=torch.float64, requires_grad=True)
    if transposed:
        y = torch.nn.functional.conv_transpose3d(x, w, bias, stride, padding, 0, groups, dilation)
    else:
        y = torch.nn.functional.conv3d(x, w, bias, stride, padding, dilation, groups)
    grad = torch.from_numpy(np.random.default_rng(1).standard_normal(y.shape)) if grad is None else grad
    y.backward(grad)
    return w.grad.numpy(), bias.grad.numpy(), grad.numpy()


@settings(max_examples=60)
@given(case=geometries())
def test_weight_gradient_is_pytorchs(case: Any) -> None:
    """Unequal strides, paddings, dilations and kernels, groups, kernels below strides, axes of size 1."""
    rng = np.random.default_rng(case.seed)
    x = rng.standard_normal((case.batch, case.groups * case.channels[0], *case.sizes))
    geometry = case.stride, case.padding, case.dilation, case.groups
    if all(size > 0 for size in case.out_of_transposed):
        w = rng.standard_normal((x.shape[1], case.channels[1], *case.kernel))
        truth, of_bias, grad = gradients_by_torch(x, w, True, geometry)
        np.testing.assert_allclose(weight_gradient(x, grad, case.kernel, *geometry), truth, atol=1e-9)
        np.testing.assert_allclose(bias_gradient(grad), of_bias, atol=1e-9)
    if all(size > 0 for size in case.out_of_convolution):
        w = rng.standard_normal((case.groups * case.channels[1], case.channels[0], *case.kernel))
        truth, of_bias, grad = gradients_by_torch(x, w, False, geometry)
        np.testing.assert_allclose(weight_gradient(grad, x, case.kernel, *geometry), truth, atol=1e-9)
        np.testing.assert_allclose(bias_gradient(grad), of_bias, atol=1e-9)


def test_output_padding_adds_no_terms_of_its_own() -> None:
    """Outputs that output_padding adds are summed like the others, where a tap reaches them."""
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((2, 3, 4, 3, 2)), rng.standard_normal((3, 2, 2, 3, 4))
    weight = torch.from_numpy(w).requires_grad_()
    y = torch.nn.functional.conv_transpose3d(torch.from_numpy(x), weight, None, 3, 1, (2, 1, 0))
    grad = rng.standard_normal(y.shape)
    y.backward(torch.from_numpy(grad))
    found = weight_gradient(x, grad, (2, 3, 4), (3, 3, 3), (1, 1, 1))
    np.testing.assert_allclose(found, weight.grad.numpy(), atol=1e-12)


@pytest.mark.parametrize("where", ["small", "large"])
def test_what_no_tap_meets_does_not_count(where: str) -> None:
    """A NaN that a tap does not pair with anything leaves its gradient finite."""
    arrays = {"small": np.ones((1, 1, 1, 1, 3)), "large": np.ones((1, 1, 1, 1, 3))}
    arrays[where][..., 0] = np.nan
    found = weight_gradient(arrays["small"], arrays["large"], (1, 1, 3), padding=(0, 0, 1))[0, 0, 0, 0]
    assert np.isnan(found).tolist() == ([False, True, True] if where == "small" else [True, True, False])
