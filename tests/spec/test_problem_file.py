"""Problem files: what is read, what is refused and in which words, and that the package's own five are sound."""

import math
import re

import numpy as np
import pytest

from convt3d.errors import ArgumentError, ArgumentTypeError, Error, ProblemFileError, ShapeError, UnknownProblemError
from convt3d.spec.pipeline import Pipeline
from convt3d.spec.problem_file import Parameter, load
from convt3d.spec.problems import PROBLEMS, short_name
from convt3d.spec.reference import evaluate

SIZES = ["batch_size", "in_channels", "out_channels", "depth", "height", "width"]


def triples(*names):
    return [f"{name}_{axis}" for name in names for axis in "dhw"]


# The published signatures: tensors, sizes, scalars.
SIGNATURES = {
    "conv-transpose3d-max-max-sum": (
        ["input", "kernel", "conv_bias", "output"],
        [*SIZES, *triples("kernel", "stride", "padding")],
        [],
    ),
    "conv-transpose3d-sum-layernorm-avgpool-gelu": (
        ["input", "kernel", "output"],
        [*SIZES, *triples("kernel", "stride", "padding", "output_padding")],
        ["sum_weight"],
    ),
    "conv-transpose3d-avgpool-clamp-softmax-multiply": (
        ["input", "kernel", "scale", "output"],
        [*SIZES, *triples("kernel", "stride", "padding", "output_padding"), "pool_kernel"],
        ["clamp_min", "clamp_max"],
    ),
    "conv-transpose-3d-asym-input-sq-kernel": (
        ["input", "kernel", "output"],
        [*SIZES, *triples("kernel", "stride", "padding", "output_padding", "dilation"), "groups"],
        [],
    ),
    "conv-transpose3d-layernorm-gelu-scaling": (
        ["input", "kernel", "output"],
        [*SIZES, *triples("kernel", "stride", "padding", "output_padding")],
        ["scaling_factor"],
    ),
}

PUBLISHED = """---
slug: "double-it"
title: "Double, and add"
difficulty: "EASY"
author: "somebody"
tags: ["one", "two, three"]
parameters:
  - name: "input"
    type: "[VAR]"
    pointer: "true"
    const: "true"

  - name: "output"
    type: "[VAR]"
    pointer: "true"
    const: "false"

  - name: "size"
    type: "size_t"
    pointer: "false"
    constant: "false"

  - name: "factor"
    type: "double"
    pointer: "false"
    constant: "false"
---

Doubles it.

---
"""

OWN = PUBLISHED.replace(
    "---\n\nDoubles",
    """
# numbers
benchmark: {size: 1000, factor: 2.0}
sample: {size: 2,
  factor: 3}
cases:
  - name: "none"
    why: "nothing, at all"
    values: {size: 0, factor: -inf}
  - name: "tiny"
    why: "says \\"tiny\\""
    values: {size: 7, factor: 1e-30}
---

Doubles""",
)


# --- reading ----------------------------------------------------------------------------------------------------------


def test_published_format():
    problem = load(PUBLISHED, "problems/double-it.md")
    assert (problem.slug, problem.title, problem.difficulty) == ("double-it", "Double, and add", "EASY")
    assert problem.tags == ("one", "two, three")
    assert problem.parameters == (
        Parameter("input", "[VAR]", True, True),
        Parameter("output", "[VAR]", True, False),
        Parameter("size", "size_t", False, False),
        Parameter("factor", "double", False, False),
    )
    assert problem.statement == "Doubles it.\n\n---\n"
    assert not problem.benchmark
    assert not problem.sample
    assert problem.cases == ()


def test_own_format():
    problem = load(OWN, "double-it.md", complete=True)
    assert problem.benchmark == {"size": 1000, "factor": 2.0}
    assert problem.sample == {"size": 2, "factor": 3.0}
    assert isinstance(problem.sample["factor"], float)
    none, tiny = problem.cases
    assert (none.name, none.why, none.values) == ("none", "nothing, at all", {"size": 0, "factor": -math.inf})
    assert (tiny.why, tiny.values["factor"]) == ('says "tiny"', 1e-30)


def test_values_are_read_only():
    with pytest.raises(TypeError):
        load(OWN, "double-it.md").benchmark["size"] = 1


@pytest.mark.parametrize("key", ["benchmark", "sample", "cases"])
def test_own_keys_are_required_of_the_package(key):
    text = re.sub(rf"{key}:.*?(?=\n(sample|cases|---))", "", OWN, flags=re.S)
    load(text, "double-it.md")
    with pytest.raises(ProblemFileError, match=f"must have a value for {key}"):
        load(text, "double-it.md", complete=True)


# --- refusing: (what is replaced, by what, field and line, received, part of the rule) --------------------------------

WRONG = {
    "no front matter": ("---\nslug", "slug", "front matter, line 1", 'slug: "double-it"', "between two lines of ---"),
    "front matter never ends": ("---\n\nDoubles it.\n\n---", "", "front matter, line 1", "---", "between two lines"),
    "unknown key": ("author:", "writer:", "front matter, line 5", "writer", "is an unknown key; front matter has slug"),
    "missing key": (
        'title: "Double, and add"\n',
        "",
        "front matter, line 1",
        "no title",
        "must have a value for title",
    ),
    "key twice": ('author: "', 'slug: "', "slug, line 5", '"somebody"', "given twice"),
    "no key at all": ('author: "somebody"', "somebody", "front matter, line 5", "somebody", "must be `key: value`"),
    "item outside a list": ('author: "', '  - author: "', "front matter, line 5", '  - author: "somebody"', "must be"),
    "text without quotes": ('"EASY"', "EASY", "difficulty, line 4", "EASY", "must be a text in double quotes"),
    "empty text": ('"EASY"', '""', "difficulty, line 4", '""', "must be a text in double quotes"),
    "tags that are no list": ('["one", "two, three"]', '"one"', "tags, line 6", '"one"', "must be a list"),
    "bracket left open": ('three"]', 'three"', "tags, line 6", None, "opens with [ and does not close"),
    "slug with a capital": ('"double-it"', '"Double-it"', "slug, line 2", "Double-it", "lower-case words"),
    "slug with two hyphens": ('"double-it"', '"double--it"', "slug, line 2", "double--it", "single hyphens"),
    "slug of a path": ('"double-it"', '"../it"', "slug, line 2", "../it", "lower-case words"),
    "duplicate parameter": (
        '"factor"',
        '"size"',
        "parameters.name, line 23",
        "size",
        "names a parameter a second time",
    ),
    "name with a space": ('"size"', '"a size"', "parameters.name, line 18", "a size", "must be an identifier"),
    "unknown type": ('"size_t"', '"int"', "parameters.type, line 19", "int", "must be one of [VAR], size_t, double"),
    "bad bool": ('constant: "false"', 'constant: "no"', "parameters.const, line 21", '"no"', "must be true or false"),
    "number that is a pointer": ('pointer: "false"', 'pointer: "true"', "parameters.pointer, line 20", True, "size is"),
    "parameter without a type": (
        '    type: "size_t"\n',
        "",
        "parameters, line 18",
        "no type",
        "must have a value for type",
    ),
    "parameter with more": ('type: "size_t"', 'kind: "size_t"', "parameters, line 19", "kind", "is an unknown key"),
    "parameters that are no list": (
        "parameters:",
        "parameters: {a: 1}",
        "front matter, line 8",
        None,
        "must be `key: value`",
    ),
    "missing number": ("size: 1000, ", "", "benchmark, line 29", "no size", "must have a value for size"),
    "unknown number": ("size: 1000", "size: 1000, sise: 1", "benchmark, line 29", "sise", "has size, factor"),
    "number for a tensor": ("size: 1000", "size: 1000, input: 1", "benchmark, line 29", "input", "is an unknown key"),
    "number twice": ("size: 1000", "size: 1000, size: 1", "benchmark, line 29", "size: 1", "is given twice"),
    "no colon": ("size: 1000", "size 1000", "benchmark, line 29", "size 1000", "must be `name: number`"),
    "benchmark that is a text": (
        "{size: 1000, factor: 2.0}",
        '"big"',
        "benchmark, line 29",
        '"big"',
        "must be a mapping",
    ),
    "size with a fraction": (
        "size: 1000",
        "size: 1.5",
        "benchmark.size, line 29",
        "1.5",
        "a whole number >= 0 (size_t)",
    ),
    "negative size": ("size: 7", "size: -7", "cases.tiny.size, line 38", "-7", "a whole number >= 0 (size_t)"),
    "infinite size": ("size: 7", "size: inf", "cases.tiny.size, line 38", "inf", "a whole number >= 0 (size_t)"),
    "quoted size": ("size: 7", 'size: "7"', "cases.tiny.size, line 38", '"7"', "a whole number >= 0 (size_t)"),
    "scalar that is a word": ("1e-30", "small", "cases.tiny.factor, line 38", "small", "must be a real number"),
    "case without a number": ("size: 7, ", "", "cases.tiny, line 38", "no size", "must have a value for size"),
    "case with an unknown number": (
        "size: 7",
        "size: 7, depth: 1",
        "cases.tiny, line 38",
        "depth",
        "is an unknown key",
    ),
    "case without a reason": (
        '    why: "nothing, at all"\n',
        "",
        "cases, line 33",
        "no why",
        "must have a value for why",
    ),
    "case name twice": (
        '"tiny"\n    why',
        '"none"\n    why',
        "cases.name, line 36",
        "none",
        "names a case a second time",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_files_are_refused(what):
    old, new, argument, received, rule = WRONG[what]
    assert old in OWN
    with pytest.raises(ProblemFileError) as caught:
        load(OWN.replace(old, new, 1), "some/folder/double-it.md")
    error = caught.value
    assert error.operator == "double-it.md"
    assert error.argument == argument
    assert received is None or error.received == received
    assert rule in error.rule
    assert error.remedy
    assert isinstance(error, ValueError)


@pytest.mark.parametrize("text", ["", "\n", "---", "---\n---", "---\n---\n"])
def test_next_to_nothing_is_refused(text):
    with pytest.raises(ProblemFileError, match="front matter, line 1"):
        load(text, "empty.md")


# --- the package's own ------------------------------------------------------------------------------------------------

each_problem = pytest.mark.parametrize("slug", SIGNATURES)


def test_the_five_in_their_order():
    assert list(PROBLEMS) == list(SIGNATURES)
    assert len(PROBLEMS) == 5
    assert [len(problem.parameters) for problem in PROBLEMS.values()] == [19, 22, 25, 25, 22]


@each_problem
def test_parameters_are_the_published_ones(slug):
    tensors, sizes, scalars = SIGNATURES[slug]
    expected = [
        *(Parameter(name, "[VAR]", True, name != "output") for name in tensors),
        *(Parameter(name, "size_t", False, False) for name in sizes),
        *(Parameter(name, "double", False, False) for name in scalars),
    ]
    assert list(PROBLEMS[slug].parameters) == expected
    assert PROBLEMS[slug].slug == slug


@each_problem
def test_cases_are_many_legal_and_small(slug):
    problem = PROBLEMS[slug]
    assert len(problem.cases) >= 12
    for values in (problem.sample, *(case.values for case in problem.cases)):
        shapes = problem.shapes(values)
        assert max(math.prod(shape) for shape in shapes.values()) < 200_000
        assert min(shapes["output"]) >= 1
    assert math.prod(problem.shapes(problem.sample)["output"]) <= 1000


BENCHMARK_OUTPUTS = {
    "conv-transpose3d-max-max-sum": (16, 1, 10, 10, 10),
    "conv-transpose3d-sum-layernorm-avgpool-gelu": (32, 64, 16, 32, 32),
    "conv-transpose3d-avgpool-clamp-softmax-multiply": (32, 64, 32, 64, 64),
    "conv-transpose-3d-asym-input-sq-kernel": (8, 24, 98, 98, 98),
    "conv-transpose3d-layernorm-gelu-scaling": (32, 64, 32, 64, 64),
}


@each_problem
def test_benchmark_shape(slug):
    assert PROBLEMS[slug].shapes(PROBLEMS[slug].benchmark)["output"] == BENCHMARK_OUTPUTS[slug]


@each_problem
def test_operands_meet_their_slots(slug):
    problem = PROBLEMS[slug]
    pipeline, shapes = problem.pipeline(problem.sample), problem.shapes(problem.sample)
    kinds = {"kernel": "kernel", "conv_bias": "out_channel", "scale": "channel"}
    assert [slot.operand.kind for slot in pipeline.slots] == [kinds[name] for name in problem.operand_names]
    assert list(shapes) == ["input", *problem.operand_names, "output"]


@each_problem
def test_inputs_are_signed_and_reproducible(slug):
    problem = PROBLEMS[slug]
    arrays = problem.make_inputs(problem.cases[0].values, np.random.default_rng(5))
    again = problem.make_inputs(problem.cases[0].values, np.random.default_rng(5))
    shapes = problem.shapes(problem.cases[0].values)
    for name, array in arrays.items():
        assert array.shape == shapes[name]
        assert array.dtype == np.float64
        assert array.min() < 0 < array.max()
        np.testing.assert_array_equal(array, again[name])
    assert "output" not in arrays


def test_clamp_is_neither_always_nor_never_active():
    problem = PROBLEMS["conv-transpose3d-avgpool-clamp-softmax-multiply"]
    for case in problem.cases:
        low, high = case.values["clamp_min"], case.values["clamp_max"]
        if case.name in ("equal-bounds", "no-bounds", "one-result-voxel"):  # always, never, and too few voxels to tell
            continue
        pipeline, arrays = problem.pipeline(case.values), problem.make_inputs(case.values, np.random.default_rng(1))
        before_clamp = Pipeline(*pipeline.stages[:2])
        y = evaluate(before_clamp, arrays["input"], [arrays["kernel"]])
        assert 0.01 < np.mean((low < y) & (y < high)) < 0.99, case.name


@each_problem
def test_statement_names_every_tensor_and_its_origin(slug):
    problem = PROBLEMS[slug]
    for name in ("input", *problem.operand_names, "output"):
        assert f"`{name}`" in problem.statement
    assert re.search(r"KernelBench, level [12],\s\[\d+_\w+\.py\]", problem.statement)


def test_unknown_slug_names_the_nearest():
    with pytest.raises(UnknownProblemError) as caught:
        PROBLEMS["conv-transpose3d-layernorm-gelu"]
    assert isinstance(caught.value, KeyError)
    assert str(caught.value).startswith(
        "problems: slug = 'conv-transpose3d-layernorm-gelu': must be one of max-max-sum"
    )
    assert "nearest is 'conv-transpose3d-layernorm-gelu-scaling'" in str(caught.value)
    assert all(short_name(slug) in str(caught.value) for slug in SIGNATURES)


@pytest.mark.parametrize("slug", ["", 3, None, ("a",)])
def test_what_is_no_slug_is_a_key_error(slug):
    assert PROBLEMS.get(slug) is None
    assert slug not in PROBLEMS
    with pytest.raises(Error):
        PROBLEMS[slug]


BAD_VALUES = {
    "missing": ({"depth": None}, ArgumentTypeError, "depth"),
    "unknown": ({"deep": 3}, ArgumentTypeError, "deep"),
    "fraction": ({"depth": 2.0}, ArgumentTypeError, "depth"),
    "bool": ({"groups": True}, ArgumentTypeError, "groups"),
    "negative": ({"padding_h": -1}, ArgumentError, "padding_h"),
    "stride 0": ({"stride_w": 0}, ArgumentError, "stride_w"),
    "groups 0": ({"groups": 0}, ArgumentError, "groups"),
    "groups that do not divide Cout": ({"in_channels": 3, "out_channels": 4, "groups": 3}, ShapeError, "groups"),
    "groups that do not divide Cin": ({"in_channels": 4, "out_channels": 3, "groups": 3}, ShapeError, "groups"),
    "no voxel": ({"height": 0}, ShapeError, "input"),
    "output_padding": ({"output_padding_d": 1}, ArgumentError, "output_padding_d, output_padding_h, output_padding_w"),
    "padding": ({"padding_d": 9}, ShapeError, "padding_d, padding_h, padding_w"),
}


@pytest.mark.parametrize("what", BAD_VALUES)
def test_bad_values_are_named_in_the_problems_own_words(what):
    changes, kind, argument = BAD_VALUES[what]
    problem = PROBLEMS["conv-transpose-3d-asym-input-sq-kernel"]
    values = {name: value for name, value in {**problem.sample, **changes}.items() if value is not None}
    with pytest.raises(kind) as caught:
        problem.shapes(values)
    assert caught.value.operator == problem.slug
    assert caught.value.argument == argument
