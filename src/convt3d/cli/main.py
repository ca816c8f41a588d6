"""The command line: which arguments each command takes, and what exit code an ending has.

Exit codes: 0 ok, 1 a check failed, 2 bad usage or input, 130 interrupted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from ..bench.contenders import MODULES
from ..bench.record import version
from ..bench.suites import SUITES
from ..cpu.plan.choice import ALGORITHMS, AUTO, PRECISIONS
from ..cpu.plan.machine import WORDS
from ..errors import Error
from ..export.objects import TARGETS
from ..gpu.config import GENERATIONS
from ..judge.starter import LANGUAGES
from ..spec.dtypes import DTYPES
from . import catalogue, report
from .bench import bench
from .cache import ACTIONS as CACHE_ACTIONS
from .cache import cache
from .completion import SHELLS, completion
from .demo import demo
from .explain import DUMPS, explain_plan
from .export import LANGUAGES as EXPORTED
from .export import write_export
from .info import info
from .judge_check import check_file, sample_file
from .judge_starter import write_starter
from .run import run
from .volume import chunk_sizes, memory_size, volume

Command = Callable[[argparse.Namespace], int]


def main(argv: Sequence[str] | None = None) -> int:
    try:
        args = _parser().parse_args(argv)
        return int(args.command(args))
    except SystemExit as ending:  # argparse: 0 after --help and --version, 2 after a message
        return int(ending.code or 0)
    except KeyboardInterrupt:
        print("convt3d: interrupted", file=sys.stderr)
        return report.INTERRUPTED
    except Error as error:
        report.complain(error)
        return report.BAD_INPUT
    except MemoryError:
        report.complain("out of memory; choose a smaller batch_size or volume")
        return report.BAD_INPUT
    except BrokenPipeError:  # argparse's own output
        report.silence(sys.stdout)
        return report.OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="convt3d",
        description="Fused 3-D transposed-convolution operators.",
        epilog="Exit codes: 0 ok, 1 a check failed, 2 bad usage or input, 130 interrupted.",
    )
    parser.add_argument("--version", action="version", version=f"convt3d {version('convt3d')}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    _add(commands, "list", catalogue.list_problems, "the five problems")
    show = _add(
        commands, "show", catalogue.show_problem, "statement, signature, sizes, shapes and pipeline of a problem"
    )
    _add_slug(show)

    runner = _add(commands, "run", run, "run a problem, time it and check the result against its meaning")
    _add_slug(runner)
    _add_sizes(runner)
    runner.add_argument("--seed", type=_natural, default=0, metavar="N", help="of the random arrays (default 0)")
    runner.add_argument("--input", metavar="FILE.npz", help="arrays by parameter name instead of random ones")
    runner.add_argument("--output", metavar="FILE.npy", help="where to save the result")
    runner.add_argument("--repeat", type=_positive, default=1, metavar="N", help="runs; the best counts (default 1)")

    explainer = _add(commands, "explain", explain_plan, "what the plan for a problem will do")
    _add_slug(explainer)
    _add_sizes(explainer)
    explainer.add_argument("--dump", choices=DUMPS, help="instead: LLVM IR, assembly, or build steps of the kernels")
    explainer.add_argument("--gpu", type=int, choices=GENERATIONS, help="instead: the Triton kernels for sm_80, ...")
    explainer.add_argument("--measure", action="store_true", help="measure the rates of the roofline on this machine")

    starting = _add(commands, "starter", write_starter, "a file with a problem's signature to start your kernel from")
    _add_slug(starting)
    starting.add_argument("--lang", choices=LANGUAGES, required=True, help="language of the file")
    starting.add_argument("-o", "--output", metavar="FILE", help="its name (default: the problem's)")

    text = "a problem's GPU kernels as one file, or a problem or pipeline as a library for C that needs no Python"
    exporter = _add(commands, "export", write_export, text)
    exporter.add_argument(
        "subject", metavar="SLUG|PIPELINE", help="a problem; for C also stages such as 'ConvTranspose3d() -> ReLU()'"
    )
    exporter.add_argument("--lang", choices=EXPORTED, required=True, help="triton: one file; c: a folder")
    exporter.add_argument("-o", "--output", metavar="PATH", help="its name (default: the problem's)")
    exporter.add_argument("--name", metavar="NAME", help="of the library and its functions (default: the problem's)")
    exporter.add_argument("--dtype", choices=DTYPES, help="element type of the library (default float32)")
    exporter.add_argument("--target", choices=TARGETS, help="processor of the library (default: this one's)")
    exporter.add_argument("--static", action="store_true", help="an archive instead of a shared library")
    exporter.add_argument("--finite", action="store_true", help="triton: inputs and weights hold no NaN or infinity")

    sampler = _add(commands, "sample", sample_file, "your kernel on a tiny case: input, expected and got")
    _add_kernel(sampler)
    sampler.add_argument("--seed", type=_natural, metavar="N", help="of the random arrays (default 0)")
    _add_set(sampler, "change one size or scalar; may be repeated")

    checker = _add(commands, "check", check_file, "judge your kernel on all cases of a problem")
    _add_kernel(checker)
    checker.add_argument("--seed", type=_natural, metavar="N", help="repeat the run that printed it (default: fresh)")
    checker.add_argument("--case", action="append", metavar="NAME", help="this case only, or an .npz file of --keep")
    checker.add_argument("--keep", metavar="FOLDER", help="leave a failing case there as .npz, with a script")
    checker.add_argument("--picture", metavar="FILE.png", help="draw which voxels are wrong")
    checker.add_argument("--html", metavar="FILE.html", help="write a page with verdict, cases and diagnosis")
    checker.add_argument("--watch", action="store_true", help="judge again whenever FILE changes, until Ctrl-C")
    checker.add_argument("--compiled", action="store_true", help="Triton: run its PTX (sm_80), not the interpreter")
    _add_set(checker, "change one size or scalar of --case (default: sample); may be repeated")

    over = _add(commands, "volume", volume, "a pipeline over a zarr volume of any size; a run that was ended goes on")
    over.add_argument("input", metavar="IN.zarr", help="array or OME-NGFF image, in a directory")
    over.add_argument("output", metavar="OUT.zarr", help="where the result goes, zarr v3 with shards")
    over.add_argument("--pipeline", required=True, metavar="TEXT", help="such as 'ConvTranspose3d(stride=2) -> ReLU()'")
    over.add_argument("--weights", required=True, metavar="FILE.npz", help="arrays by the names of its operands")
    over.add_argument("--memory", type=memory_size, default=2 * 10**9, metavar="SIZE", help="at most (default 2GB)")
    over.add_argument("--chunks", type=chunk_sizes, metavar="D,H,W", help="of the result (default 64)")
    over.add_argument("--plan", action="store_true", help="only show chunks, bytes, memory and time")
    over.add_argument("--overwrite", action="store_true", help="begin anew, whatever OUT.zarr holds")
    _add_method(over)

    _add_cache(commands)
    _add(commands, "info", info, "CPU, versions and cache directory")
    demonstration = _add(commands, "demo", demo, "the five operators at benchmark shapes, timed and checked")
    demonstration.add_argument("--quick", action="store_true", help="one sample of each")
    _add_bench(commands)
    text = "a script for your shell that completes commands, options and problems"
    completing = commands.add_parser("completion", help=text, description=text[0].upper() + text[1:] + ".")
    completing.add_argument("shell", choices=SHELLS, help="which shell")
    completing.set_defaults(command=lambda args: completion(args, parser))
    return parser


def _add_cache(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = (
        "kernels on disk: `warm` makes them in advance, `list` and `verify` look at them, `clear` removes them, "
        "`export` and `import` carry them to another container or user in a signed pack"
    )
    parser = _add(commands, "cache", cache, text)
    parser.add_argument("action", choices=CACHE_ACTIONS, help="what to do")
    parser.add_argument(
        "words",
        nargs="*",
        metavar="SLUG | PIPELINE | FILE",
        help="of warm: problems or pipelines; of export: a new file",
    )
    warming = parser.add_argument_group("of warm")
    warming.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="INPUT:WEIGHT",
        help="1x32x8x8x8:32x16x3x3x3, and further weights",
    )
    warming.add_argument("--size", default="benchmark", metavar="NAME", help="of a problem (default benchmark)")
    warming.add_argument("--dtype", action="append", default=[], choices=DTYPES, help="may be repeated (float32)")
    warming.add_argument("--isa", action="append", default=[], choices=WORDS, help="as CONVT3D_ISA; may be repeated")
    warming.add_argument("--readable", action="store_true", help="also of import: let all users read the directory")
    parser.add_argument("--stale", action="store_true", help="of clear: only what nothing here can use")
    packs = parser.add_argument_group("of export and import")
    packs.add_argument("--key", metavar="FILE", help="secret of 16 bytes or more that signs the pack, or checks it")
    packs.add_argument("--unsigned", action="store_true", help="of import: take a pack without asking who made it")


def _add_bench(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = (
        "convt3d and its peers side by side; `report` draws the results, `compare A B` says what changed, "
        "FILE is a kernel of yours, judged and then timed beside PyTorch and convt3d"
    )
    parser = _add(commands, "bench", bench, text)
    parser.add_argument(
        "words",
        nargs="*",
        metavar="report | compare | FILE",
        help="report [RESULTS ...], compare RESULTS RESULTS, or your kernel; else: measure the suites",
    )
    suites = parser.add_argument_group("of the suites")
    suites.add_argument("--quick", action="store_true", help="few cases, peers that start at once, under a minute")
    suites.add_argument(
        "--suite", action="append", default=[], choices=[*SUITES, "networks"], help="all but networks, unless named"
    )
    suites.add_argument(
        "--peer",
        action="append",
        default=[],
        choices=MODULES,
        metavar="NAME",
        help=f"all, unless some are named: {', '.join(MODULES)}",
    )
    suites.add_argument("--filter", action="append", default=[], metavar="TEXT", help="cases whose name holds it")
    suites.add_argument("--threads", type=_positive, metavar="N", help="default: all usable cores")
    suites.add_argument(
        "--output", metavar="FILE", help="rows are appended here (bench.jsonl); of `report`: the page (bench.html)"
    )
    suites.add_argument("--figure", metavar="FILE.svg", help="of `report`: also draw the figure of a README")
    kernel = parser.add_argument_group("of a kernel")
    _add_kernel_options(kernel)
    kernel.add_argument("--size", default="benchmark-in-small", metavar="NAME", help="benchmark, sample or a case")
    _add_set(kernel, "change one size or scalar; may be repeated")
    kernel.add_argument("--repeat", type=_positive, default=10, metavar="N", help="rounds (default 10)")
    kernel.add_argument("--seed", type=_natural, metavar="N", help="of the random arrays (default: fresh)")


def _add(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, command: Command, text: str
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    parser.set_defaults(command=command)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    return parser


def _add_slug(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("slug", metavar="SLUG", help="name of a problem; `convt3d list` has them")


def _add_kernel(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="Python, Triton, C or C++ source, a shared library, or CUDA")
    _add_kernel_options(parser)


def _add_kernel_options(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--problem", metavar="SLUG", help="which problem (default: the one the file's header names)")
    parser.add_argument("--dtype", choices=DTYPES, help="element type (default float32)")
    parser.add_argument("--allow-torch", action="store_true", help="let the kernel call torch's operators")
    parser.add_argument("--limit", type=_positive, metavar="SECONDS", help="of one call (default 20, Triton 120)")


def _add_sizes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--size", default="sample", metavar="NAME", help="sample (the default), benchmark, or the name of a case"
    )
    _add_set(parser, "change one size or scalar; may be repeated")
    parser.add_argument("--dtype", choices=DTYPES, help="element type (default float32, or that of --input)")
    _add_method(parser)


def _add_method(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--algorithm", choices=ALGORITHMS, default=AUTO.algorithm, help="of the convolution")
    parser.add_argument(
        "--precision", choices=PRECISIONS, default=AUTO.precision, help="fast: fewer products, larger errors"
    )


def _add_set(parser: argparse._ActionsContainer, text: str) -> None:
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help=text)


def _natural(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError
    return number


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


# argparse names a type by this in its messages.
_natural.__name__ = "natural number"
_positive.__name__ = "positive integer"
