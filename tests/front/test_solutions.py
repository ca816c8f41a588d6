"""The problems' `solution`s against PyTorch in float64, for every case, kind of array and type; and their refusals."""

import inspect
import math

import ml_dtypes
import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812, everybody's name for it

from convt3d import ArgumentError, ArgumentTypeError, DTypeError, Error, OutputError, ShapeError
from convt3d.front.solutions import problems
from convt3d.spec.problems import TENSOR_AXES

MAX_MAX_SUM, SUM_NORM, CLAMP_SOFTMAX, ASYM, NORM_GELU = problems

ALL_CASES = [(slug, case) for slug, problem in problems.items() for case in problem.cases]
each_problem = pytest.mark.parametrize("slug", problems)
each_case = pytest.mark.parametrize(
    ("slug", "case"), ALL_CASES, ids=[f"{slug}-{case.name}" for slug, case in ALL_CASES]
)


def test_short_names() -> None:
    """What tells one problem from another is enough."""
    names = ["max-max-sum", "sum-layernorm-avgpool-gelu", "avgpool-clamp-softmax-multiply"]
    names += ["asym-input-sq-kernel", "layernorm-gelu-scaling"]
    assert [problems[name].slug for name in names] == list(problems)
    assert "max-max-sum" in problems
    with pytest.raises(Error, match="The nearest is 'max-max-sum'"):
        problems["max-max-summ"]


def case_of(slug, name):
    return next(case for case in problems[slug].cases if case.name == name)


def torch_answer(slug, arrays, values):
    """The problem as its text reads, stage by stage in PyTorch; tensors of any one type."""
    stride, padding, output_padding, dilation = (
        [values.get(f"{name}_{axis}", default) for axis in "dhw"]
        for name, default in (("stride", 1), ("padding", 0), ("output_padding", 0), ("dilation", 1))
    )
    x = arrays["input"]
    if slug == CLAMP_SOFTMAX:
        x = F.avg_pool3d(x, values["pool_kernel"])
    bias = arrays.get("conv_bias")
    y = F.conv_transpose3d(
        x, arrays["kernel"], bias, stride, padding, output_padding, values.get("groups", 1), dilation
    )
    if slug == MAX_MAX_SUM:
        return F.max_pool3d(F.max_pool3d(y, 2), 3).sum(dim=1, keepdim=True)
    if slug == SUM_NORM:
        return F.gelu(F.avg_pool3d(layer_norm(y + values["sum_weight"]), 2))
    if slug == CLAMP_SOFTMAX:
        y = torch.clamp(y, values["clamp_min"], values["clamp_max"])
        return torch.softmax(y.flatten(2), dim=2).view(y.shape) * arrays["scale"].reshape(1, -1, 1, 1, 1)
    if slug == NORM_GELU:
        return F.gelu(layer_norm(y)) * values["scaling_factor"]
    return y


def layer_norm(y):
    return F.layer_norm(y.movedim(1, -1), y.shape[1:2], eps=1e-5).movedim(-1, 1)


def expected_of(slug, arrays, values):
    """The float64 answer for arrays of any type."""
    return torch_answer(slug, {name: torch.from_numpy(widened(a)) for name, a in arrays.items()}, values).numpy()


def widened(array):
    return array.double().numpy() if isinstance(array, torch.Tensor) else np.asarray(array, np.float64)


def assert_close(got, expected, relative):
    """Within `relative` of the largest finite value expected; NaN and infinities in the same places."""
    assert got.shape == expected.shape
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(got[~finite], expected[~finite])
    scale = np.abs(expected[finite]).max(initial=0.0) or 1.0
    assert np.abs(got[finite] - expected[finite]).max(initial=0.0) <= relative * scale


def poisoned_call(slug, values, convert=lambda array: array, seed=0):
    """Arguments in the published order, `output` full of NaN."""
    problem = problems[slug]
    arrays = problem.make_inputs(values, np.random.default_rng(seed))
    arrays = {name: convert(array) for name, array in arrays.items()}
    output = convert(np.full(problem.shapes(values)["output"], np.nan))
    return arrays, output, [*arrays.values(), output, *values.values()]


# --- values -----------------------------------------------------------------------------------------------------------


@each_case
def test_every_case_equals_pytorch(slug, case):
    arrays, output, arguments = poisoned_call(slug, case.values)
    before = {name: array.copy() for name, array in arrays.items()}
    assert problems[slug].solution(*arguments) is None
    assert_close(output, expected_of(slug, arrays, case.values), 1e-10)
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, before[name])


KINDS = {
    "numpy-float32": (lambda a: a.astype(np.float32), 2.0**-23),
    "numpy-float16": (lambda a: a.astype(np.float16), 2.0**-10),
    "numpy-bfloat16": (lambda a: a.astype(ml_dtypes.bfloat16), 2.0**-7),
    "torch-float64": (torch.from_numpy, 2.0**-42),
    "torch-float32": (lambda a: torch.from_numpy(a).float(), 2.0**-23),
    "torch-float16": (lambda a: torch.from_numpy(a).half(), 2.0**-10),
    "torch-bfloat16": (lambda a: torch.from_numpy(a).bfloat16(), 2.0**-7),
}


@pytest.mark.parametrize("name", ["unequal-everything", "prime-sizes"])
@pytest.mark.parametrize("kind", KINDS)
@each_problem
def test_every_kind_of_array(slug, kind, name):
    convert, eps = KINDS[kind]
    values = case_of(slug, name).values
    arrays, output, arguments = poisoned_call(slug, values, convert)
    problems[slug].solution(*arguments)
    # One rounding of the result, and a few of float32 sums where those are not far finer.
    assert_close(widened(output), expected_of(slug, arrays, values), 16 * eps if eps == 2.0**-23 else eps)


@each_problem
def test_keywords_and_a_mixture(slug):
    values = problems[slug].sample
    arrays, output, arguments = poisoned_call(slug, values)
    problems[slug].solution(*arguments)
    again = np.full_like(output, np.nan)
    assert problems[slug].solution(**dict(reversed(values.items())), output=again, **arrays) is None
    np.testing.assert_array_equal(again, output)
    mixed = np.full_like(output, np.nan)
    problems[slug].solution(*arrays.values(), mixed, **values)
    np.testing.assert_array_equal(mixed, output)


@each_problem
def test_numpy_numbers_as_sizes(slug):
    values = {
        name: np.float32(value) if isinstance(value, float) else np.int32(value)
        for name, value in problems[slug].sample.items()
    }
    arrays, output, _ = poisoned_call(slug, problems[slug].sample)
    problems[slug].solution(*arrays.values(), output, *values.values())
    assert_close(output, expected_of(slug, arrays, problems[slug].sample), 1e-10)


@each_problem
def test_any_strides(slug):
    values = case_of(slug, "unequal-everything").values
    arrays, output, _ = poisoned_call(slug, values)
    turned = [np.ascontiguousarray(array.T).T for array in arrays.values()]
    wide = np.full((*output.shape[:4], 2 * output.shape[4]), np.nan)
    problems[slug].solution(*turned, wide[..., ::2], *values.values())
    assert_close(wide[..., ::2], expected_of(slug, arrays, values), 1e-10)
    assert np.isnan(wide[..., 1::2]).all()


@pytest.mark.parametrize("convert", [lambda a: a, torch.from_numpy], ids=["numpy", "torch"])
def test_scale_as_a_vector(convert):
    values = case_of(CLAMP_SOFTMAX, "unequal-everything").values
    arrays, output, _ = poisoned_call(CLAMP_SOFTMAX, values, convert)
    flat = {**arrays, "scale": arrays["scale"].reshape(-1)}
    problems[CLAMP_SOFTMAX].solution(*flat.values(), output, *values.values())
    assert_close(widened(output), expected_of(CLAMP_SOFTMAX, arrays, values), 1e-10)


@each_problem
def test_empty_batch(slug):
    values = {**problems[slug].sample, "batch_size": 0}
    _, output, arguments = poisoned_call(slug, values)
    assert output.size == 0
    assert problems[slug].solution(*arguments) is None


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@each_problem
def test_non_finite_voxels_travel_as_in_pytorch(slug, bad):
    values = case_of(slug, "unequal-everything").values
    arrays, output, arguments = poisoned_call(slug, values)
    arrays["input"][0, 1, 1, 1, 1] = bad
    problems[slug].solution(*arguments)
    assert_close(output, expected_of(slug, arrays, values), 1e-10)


# --- signature --------------------------------------------------------------------------------------------------------

ARITY = {MAX_MAX_SUM: 19, SUM_NORM: 22, CLAMP_SOFTMAX: 25, ASYM: 25, NORM_GELU: 22}


@each_problem
def test_signature_is_the_published_one(slug):
    parameters = inspect.signature(problems[slug].solution).parameters
    assert len(parameters) == ARITY[slug]
    assert list(parameters) == [parameter.name for parameter in problems[slug].parameters]
    assert all(p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for p in parameters.values())


def test_solution_explains_itself():
    assert "Exact meaning" in problems[NORM_GELU].solution.__doc__
    assert problems[NORM_GELU].solution is problems[NORM_GELU].solution


def refusal(slug, arguments, named=None, output=None):
    """The error of a call that must not write anything into `output`."""
    with pytest.raises(Error) as caught:
        problems[slug].solution(*arguments, **(named or {}))
    assert caught.value.operator == slug
    assert str(caught.value).startswith(slug)
    if output is not None:
        assert np.isnan(output).all()
    return caught.value


@each_problem
def test_wrong_number_of_arguments(slug):
    _, output, arguments = poisoned_call(slug, problems[slug].sample)
    few = refusal(slug, arguments[:-1], output=output)
    assert isinstance(few, TypeError)
    assert f"takes {ARITY[slug]} arguments" in few.rule
    assert f"missing: {problems[slug].parameters[-1].name}" in few.rule
    many = refusal(slug, [*arguments, 1], output=output)
    assert isinstance(many, TypeError)
    assert many.received == f"{ARITY[slug] + 1} values"
    twice = refusal(slug, arguments, {"stride_d": 1}, output)
    assert (twice.argument, "given twice" in twice.rule) == ("stride_d", True)
    unknown = refusal(slug, arguments, {"strides": 1}, output)
    assert (unknown.argument, "is unknown" in unknown.rule) == ("strides", True)


# --- sizes that contradict the arrays ---------------------------------------------------------------------------------

SHOWN_SIZES = [
    (slug, size)
    for slug, problem in problems.items()
    for size in dict.fromkeys(axis for name in ("input", *problem.operand_names) for axis in TENSOR_AXES[name])
]


@pytest.mark.parametrize("off", [-1, 1])
@pytest.mark.parametrize(("slug", "size"), SHOWN_SIZES)
def test_size_that_contradicts_an_array(slug, size, off):
    values = case_of(slug, "unequal-everything").values
    arrays, output, _ = poisoned_call(slug, values)
    wrong = {**values, size: values[size] + off}
    error = refusal(slug, [*arrays.values(), output, *wrong.values()], output=output)
    assert isinstance(error, ShapeError)
    assert (error.argument, error.received) == (size, wrong[size])
    shown = [name for name in arrays if size in TENSOR_AXES[name]]
    assert f"contradicts `{shown[0]}` of shape {arrays[shown[0]].shape}" in error.rule
    assert f"Pass {size}={values[size]}" in error.remedy


HIDDEN_SIZES = [f"{name}_{axis}" for name in ("stride", "padding", "dilation") for axis in "dhw"]


@pytest.mark.parametrize("size", HIDDEN_SIZES)
def test_size_that_contradicts_the_output(size):
    values = case_of(ASYM, "unequal-everything").values
    arrays, output, _ = poisoned_call(ASYM, values)
    wrong = {**values, size: values[size] + 1}
    error = refusal(ASYM, [*arrays.values(), output, *wrong.values()], output=output)
    assert isinstance(error, OutputError)
    assert (error.argument, error.received) == ("output", f"array of shape {output.shape}")
    assert f"must have shape {problems[ASYM].shapes(wrong)['output']}" in error.rule


@each_problem
def test_output_of_another_shape(slug):
    arrays, right, _ = poisoned_call(slug, problems[slug].sample)
    output = np.full((*right.shape[:4], right.shape[4] + 1), np.nan)
    error = refusal(slug, [*arrays.values(), output, *problems[slug].sample.values()], output=output)
    assert isinstance(error, OutputError)
    assert f"must have shape {right.shape}" in error.rule


def test_groups_that_contradict_the_kernel():
    values = case_of(ASYM, "two-groups").values
    arrays, output, _ = poisoned_call(ASYM, values)
    error = refusal(ASYM, [*arrays.values(), output, *{**values, "groups": 4}.values()], output=output)
    assert isinstance(error, ShapeError)
    assert (error.argument, error.received) == ("out_channels", 6)
    assert "where it is 3 * groups 4" in error.rule


# --- other refusals: (slug, changed arguments, error, argument, part of the message) ----------------------------------

REFUSED = {
    "bounds swapped": (CLAMP_SOFTMAX, {"clamp_min": 2.0}, ArgumentError, "clamp_min, clamp_max", "Swap the bounds"),
    "bound NaN": (CLAMP_SOFTMAX, {"clamp_max": math.nan}, ArgumentError, "clamp_max", "must not be NaN"),
    "bound a text": (CLAMP_SOFTMAX, {"clamp_max": "1"}, ArgumentTypeError, "clamp_max", "must be a real number"),
    "bound None": (CLAMP_SOFTMAX, {"clamp_max": None}, ArgumentTypeError, "clamp_max", "must be a real number"),
    "pool too large": (CLAMP_SOFTMAX, {"pool_kernel": 5}, ShapeError, "pool_kernel", "larger than its input of size 2"),
    "pool 0": (CLAMP_SOFTMAX, {"pool_kernel": 0}, ArgumentError, "pool_kernel", "must be >= 1"),
    "scale a matrix": (CLAMP_SOFTMAX, {"scale": np.ones((1, 3))}, ShapeError, "scale", "(1, out_channels, 1, 1, 1)"),
    "scale too long": (CLAMP_SOFTMAX, {"scale": np.ones(4)}, ShapeError, "out_channels", "contradicts `scale`"),
    "bias too long": (MAX_MAX_SUM, {"conv_bias": np.ones(4)}, ShapeError, "out_channels", "contradicts `conv_bias`"),
    "pools too large": (MAX_MAX_SUM, {"padding_d": 1}, ShapeError, "max-pool kernel", "larger than its input"),
    "size a float": (ASYM, {"depth": 2.0}, ArgumentTypeError, "depth", "must be an integer"),
    "size a bool": (ASYM, {"groups": True}, ArgumentTypeError, "groups", "must be an integer"),
    "size negative": (ASYM, {"padding_w": -1}, ArgumentError, "padding_w", "must be >= 0"),
    "size too large": (ASYM, {"stride_w": 2**64}, ArgumentError, "stride_w", "64-bit"),
    "result too large": (ASYM, {"stride_w": 2**62}, ShapeError, "output shape", "64-bit offsets"),
    "stride 0": (ASYM, {"stride_h": 0}, ArgumentError, "stride_h", "must be >= 1"),
    "dilation 0": (ASYM, {"dilation_h": 0}, ArgumentError, "dilation_h", "must be >= 1"),
    "output_padding": (ASYM, {"output_padding_d": 1}, ArgumentError, "output_padding_d, output_padding_h", "smaller"),
    "nothing left": (ASYM, {"padding_d": 9}, ShapeError, "padding_d, padding_h, padding_w", "output of size"),
    "input a list": (ASYM, {"input": [[1.0]]}, ArgumentTypeError, "input", "must be a numpy array"),
    "input None": (ASYM, {"input": None}, ArgumentTypeError, "input", "must be a numpy array"),
    "input unbatched": (ASYM, {"input": np.ones((2, 2, 3, 4))}, ShapeError, "input", "(batch_size, in_channels, depth"),
    "input integers": (ASYM, {"input": np.ones((1, 2, 2, 3, 4), int)}, DTypeError, "input", "float32"),
    "kernel of another type": (ASYM, {"kernel": np.ones((2, 2, 2, 2, 2), "f4")}, DTypeError, "kernel", "same type"),
    "output None": (ASYM, {"output": None}, ArgumentTypeError, "output", "must be a numpy array"),
    "scalar a text": (NORM_GELU, {"scaling_factor": "2"}, ArgumentTypeError, "scaling_factor", "must be a real number"),
    "scalar complex": (SUM_NORM, {"sum_weight": 1j}, ArgumentTypeError, "sum_weight", "must be a real number"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refusals(what):
    slug, changes, kind, argument, part = REFUSED[what]
    arrays, output, _ = poisoned_call(slug, problems[slug].sample)
    arguments = {**arrays, "output": output, **problems[slug].sample, **changes}
    error = refusal(slug, [], arguments, output)
    assert type(error) is kind
    assert error.argument.startswith(argument)
    assert part in str(error)


@pytest.mark.parametrize("how", ["read-only", "another type", "overlapping", "the input itself"])
def test_outputs_that_cannot_be_written(how):
    values = {**problems[ASYM].sample, **{name: 1 for name in problems[ASYM].sample if name.startswith("kernel")}}
    values = {**values, "stride_h": 1}  # so that output and input have one shape
    arrays, output, _ = poisoned_call(ASYM, values)
    assert arrays["input"].shape == output.shape
    if how == "read-only":
        output.setflags(write=False)
    elif how == "another type":
        output = output.astype(np.float32)
    elif how == "overlapping":
        output = np.lib.stride_tricks.as_strided(output, output.shape, (0, *output.strides[1:4], 0))
    else:
        output = arrays["input"]
    before = output.copy()
    error = refusal(ASYM, [*arrays.values(), output, *values.values()])
    assert error.argument == "output"
    np.testing.assert_array_equal(output, before)
