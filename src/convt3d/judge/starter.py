"""Files to start from: the problem's signature in each language, the sizes of the output, and a body that fills it with
zeros. They compile and run; what they lack is the computation."""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources
from math import prod
from string import Template

from ..spec.problem_file import SIZE, TENSOR
from ..spec.problems import Problem
from ..spec.stages import AvgPool3d, MaxPool3d, Sum

Sizes = tuple[str, str, str, str]  # channels, depth, height, width as expressions of the parameters

ABOUT = """\
convt3d problem: {slug}
{title}: `convt3d show {slug}` prints what it computes.
`convt3d sample FILE` runs it on a tiny case, `convt3d check FILE` judges it, `convt3d bench FILE` times it."""


def starter(problem: Problem, language: str) -> str:
    return _LANGUAGES[language][1](problem)


def file_name(problem: Problem, language: str) -> str:
    return problem.slug.replace("-", "_") + _LANGUAGES[language][0]


def output_sizes(problem: Problem, divide: str) -> Sizes:
    """The output's axes after the batch; `divide` is the language's sign for whole division."""
    pipeline = problem.pipeline(problem.benchmark)
    before, after = pipeline.stages[: pipeline.conv_index], pipeline.stages[pipeline.conv_index + 1 :]
    window = prod(stage.triples[0][0] for stage in after if isinstance(stage, (MaxPool3d, AvgPool3d)))
    channels = "1" if any(isinstance(stage, Sum) for stage in after) else "out_channels"
    sizes = []
    for name, axis in (("depth", "d"), ("height", "h"), ("width", "w")):
        entering = f"({name} {divide} pool_kernel - 1)" if before else f"({name} - 1)"
        dilated = f"dilation_{axis} * " if "dilation_d" in problem.sample else ""
        extra = f" + output_padding_{axis}" if "output_padding_d" in problem.sample else ""
        # + before -: the sizes are unsigned in C
        out = f"{entering} * stride_{axis} + {dilated}(kernel_{axis} - 1){extra} + 1 - 2 * padding_{axis}"
        sizes.append(out if window == 1 else f"({out}) {divide} {window}")
    return channels, *sizes  # type: ignore[return-value]


def comment(problem: Problem, sign: str) -> str:
    lines = ABOUT.format(slug=problem.slug, title=problem.title).splitlines()
    return "".join(f"{sign} {line}\n" for line in lines)


def c_signature(problem: Problem) -> str:
    def declared(kind: str, const: bool) -> str:
        return f"{'const ' * const}real*" if kind == TENSOR else kind

    parts = [f"    {declared(p.type, p.const)} {p.name}" for p in problem.parameters]
    return "void solution(\n" + ",\n".join(parts) + ")"


def python_signature(problem: Problem) -> str:
    kinds = {SIZE: ": int", TENSOR: "", "double": ": float"}
    parts = [f"    {p.name}{kinds[p.type]}," for p in problem.parameters]
    return "def solution(\n" + "\n".join(parts) + "\n):"


def _filled(template: str, problem: Problem, signature: str, divide: str) -> str:
    """A file of `starters`, of which the name is the language's."""
    sizes = dict(zip(("channels", "depth", "height", "width"), output_sizes(problem, divide), strict=True))
    return Template(_read(template)).substitute(sizes, types=_read("types"), signature=signature)


def _read(name: str) -> str:
    return (resources.files(__package__) / "starters" / f"{name}.txt").read_text(encoding="utf-8")


def _c(problem: Problem) -> str:
    return comment(problem, "//") + _filled("c", problem, c_signature(problem), "/")


def _cpp(problem: Problem) -> str:
    text = _filled("c", problem, f'extern "C" {c_signature(problem)}', "/")
    return comment(problem, "//") + text.replace("<math.h>", "<cmath>").replace("<stddef.h>", "<cstddef>")


def _cuda(problem: Problem) -> str:
    return comment(problem, "//") + _filled("cuda", problem, c_signature(problem), "/")


def _python(template: str) -> Callable[[Problem], str]:
    return lambda problem: comment(problem, "#") + _filled(template, problem, python_signature(problem), "//")


_LANGUAGES: dict[str, tuple[str, Callable[[Problem], str]]] = {
    "python": (".py", _python("python")),
    "triton": ("_triton.py", _python("triton")),
    "c": (".c", _c),
    "cpp": (".cpp", _cpp),
    "cuda": (".cu", _cuda),
}
LANGUAGES = tuple(_LANGUAGES)
