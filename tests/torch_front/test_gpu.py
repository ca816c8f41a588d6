"""CUDA tensors take the Triton kernels. No GPU is here: the same path runs on CPU tensors by Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton", "3.4")
from helpers.eager import tensors  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from triton import runtime, testing  # noqa: E402
from triton.compiler import CompilationError  # noqa: E402
from triton.runtime.errors import OutOfResources, PTXASError  # noqa: E402

import convt3d as ct  # noqa: E402
import convt3d.torch  # noqa: E402
from convt3d.gpu import run as run_gpu  # noqa: E402
from convt3d.gpu import tune as gpu_tune  # noqa: E402
from convt3d.gpu.plan import gpu_plan  # noqa: E402
from convt3d.recent import Recent  # noqa: E402
from convt3d.spec.dtypes import DTYPES  # noqa: E402
from convt3d.spec.pipeline import Pipeline  # noqa: E402
from convt3d.torch import engine, gpu, stock  # noqa: E402
from convt3d.torch.gradients import gradients  # noqa: E402
from convt3d.torch.operators import BY_NAME  # noqa: E402


@pytest.fixture(autouse=True)
def _nothing_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_told", set())


def test_cuda_has_a_kernel_of_its_own() -> None:
    for operator in BY_NAME.values():
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"convt3d::{operator.name}", "CUDA")


def test_the_kernel_of_an_operator() -> None:
    """Without a warning: nothing of it runs on stock PyTorch."""
    x, w, bias = tensors((1, 2, 2, 3, 3), (2, 3, 2, 2, 2), (3,), grad=False)
    got = gpu.run("conv_transpose3d", *BY_NAME["conv_transpose3d"].lower(x, w, bias, [2, 2, 2], [1, 1, 1]))
    torch.testing.assert_close(got, functional.conv_transpose3d(x, w, bias, 2, 1))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last_3d], ids=str)
def test_results_have_the_memory_format_that_tracing_expects(layout: Any) -> None:
    x, w = tensors((2, 16, 2, 2, 3), (16, 8, 2, 2, 2), grad=False)
    x, w = x.to(memory_format=layout), w.to(memory_format=layout)
    got = gpu.on_gpu(Pipeline(ct.ConvTranspose3d(stride=2)), x, [w])
    expected = functional.conv_transpose3d(x, w, None, 2)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    assert got.is_contiguous(memory_format=layout)


def test_unbatched_input_and_a_vector_written_as_a_column() -> None:
    x, w, scale = tensors((2, 2, 3, 3), (2, 3, 2, 2, 2), (1, 3, 1, 1, 1), grad=False)
    got = gpu.on_gpu(Pipeline(ct.ConvTranspose3d(stride=2), ct.Multiply("channel")), x, [w, scale])
    torch.testing.assert_close(got, functional.conv_transpose3d(x, w, None, 2) * scale[0])


def test_what_has_no_kernels_goes_to_stock_with_one_warning() -> None:
    x, w = tensors((1, 2, 2, 2, 2), (2, 2, 2, 2, 2), grad=False)
    pipeline = Pipeline(ct.ConvTranspose3d(stride=2), ct.LayerNorm("width"))
    with pytest.warns(UserWarning, match="runs on stock PyTorch: LayerNorm along the width has no GPU kernel"):
        got = gpu.run("pipeline", pipeline, x, [w])
    torch.testing.assert_close(got, functional.layer_norm(functional.conv_transpose3d(x, w, None, 2), (4,)))


def test_stock_results_have_the_memory_format_that_tracing_expects_on_any_device() -> None:
    x, w = tensors((2, 3, 2, 2, 3), (3, 6, 2, 2, 2), grad=False)
    pipeline = Pipeline(ct.ConvTranspose3d(stride=2), ct.LayerNorm())
    assert stock.run(pipeline, x, [w]).is_contiguous()
    assert stock.run(pipeline, x.to("meta"), [w.to("meta")]).is_contiguous()


REFUSED: dict[str, Any] = {
    "knows no torch.complex64": lambda x, w: (x.to(torch.complex64), w.to(torch.complex64)),
    "of different types": lambda x, w: (x, w.double()),
    "on one device": lambda x, w: (x, w.to("meta")),
}


@pytest.mark.parametrize("why", REFUSED)
def test_tensors_it_cannot_take(why: str) -> None:
    x, w = REFUSED[why](*tensors((1, 2, 2, 2, 2), (2, 2, 2, 2, 2), grad=False))
    assert why in gpu.why_not(x, [w])


# --- settings ---------------------------------------------------------------------------------------------------------


MATMUL, CUDNN = "torch.backends.cuda.matmul", "torch.backends.cudnn"
SETTINGS = {
    "pass": "bf16x6",
    f"{MATMUL}.allow_tf32 = True": "tf32",
    "torch.set_float32_matmul_precision('highest')": "bf16x6",
    "torch.set_float32_matmul_precision('high')": "tf32",
    "torch.set_float32_matmul_precision('medium')": "tf32",
    f"{MATMUL}.fp32_precision = 'tf32'": "tf32",
    f"{MATMUL}.fp32_precision = 'ieee'": "bf16x6",
    f"{CUDNN}.allow_tf32 = False": "ieee",
    f"{MATMUL}.allow_tf32 = True; {CUDNN}.allow_tf32 = False": "ieee",
    f"{MATMUL}.fp32_precision = 'tf32'; {CUDNN}.conv.fp32_precision = 'ieee'": "ieee",
    f"{CUDNN}.conv.fp32_precision = 'ieee'": "ieee",
    f"{CUDNN}.conv.fp32_precision = 'tf32'": "bf16x6",
}


def test_how_float32_is_multiplied_is_said_in_words_of_pytorch() -> None:
    """Each in a process of its own, one after the other: PyTorch does not let its older and newer settings be mixed."""
    newer = hasattr(torch.backends.cuda.matmul, "fp32_precision")  # torch 2.9
    settings = {code: word for code, word in SETTINGS.items() if newer or "fp32_precision" not in code}
    code = (
        "import os, torch\n"
        "from convt3d.torch.gpu import float32_precision\n"
        f"for setting in {list(settings)!r}:\n"
        "    if not os.fork():\n"
        "        try:\n"
        "            exec(setting)\n"
        "            print(float32_precision(), flush=True)\n"
        "        finally:\n"
        "            os._exit(0)\n"
        "    os.wait()\n"
    )
    path = {**os.environ, "PYTHONPATH": str(Path(ct.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", code], env=path, capture_output=True, text=True, timeout=600, check=False
    )
    assert dict(zip(settings, done.stdout.split(), strict=True)) == settings, done.stderr


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_the_precision_of_float32_changes_no_other_type(monkeypatch: pytest.MonkeyPatch, dtype: Any) -> None:
    plans: list[Any] = []
    monkeypatch.setattr(run_gpu, "execute", lambda plan, *_: plans.append(plan))
    x, w = (one.to(dtype) for one in tensors((1, 16, 2, 2, 2), (16, 2, 2, 2, 2), grad=False))
    for precision in ("tf32", "ieee"):
        gpu.on_gpu(Pipeline(ct.ConvTranspose3d(stride=2)), x, [w], precision)
    first, exact = plans
    assert first.precision == ("tf32" if dtype is torch.float32 else "ieee")
    assert (first is exact) == (dtype is not torch.float32)


def test_a_known_call_is_repeated_without_another_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """On input, result and weights of its own; whatever code is compiled for makes it another call."""
    pipeline, given = Pipeline(ct.ConvTranspose3d(stride=2), ct.Mean("channels")), []

    class Again:
        def run(self, arrays: Any, stream: int) -> None:
            given.append(arrays)
            arrays[1].fill_(7.0)

    def execute(plan: Any, x: Any, operands: Any, out: Any) -> Any:
        planned.append(plan)
        out.fill_(1.0)
        return Again()

    planned: list[Any] = []
    monkeypatch.setattr(run_gpu, "execute", execute)
    monkeypatch.setattr(run_gpu, "_stream", lambda: 0)
    monkeypatch.setattr(gpu, "_calls", Recent(9))
    x, w = tensors((16, 2, 3, 2), (16, 2, 2, 2, 2), grad=False)  # without a batch
    other, weights = tensors((16, 2, 3, 2), (16, 2, 2, 2, 2), grad=False)
    first, second = (gpu.run("pipeline", pipeline, *one) for one in ((x, [w]), (other, [weights])))
    assert (first.shape, first.stride()) == (second.shape, second.stride())
    assert bool((first == 1).all())
    assert bool((second == 7).all())
    assert len(planned) == 1
    (arrays,) = given
    assert [one.data_ptr() for one in arrays] == [other.data_ptr(), second.data_ptr(), weights.data_ptr()]
    room = torch.empty(x.numel() + 1)
    unaligned = room[1:].view(x.shape)
    different = [(unaligned, w), (x.transpose(1, 3), w), (x.double(), w.double()), (x[:, :1], w), (x, w[:, :1])]
    for number, (one, weight) in enumerate(different):
        gpu.run("pipeline", pipeline, one, [weight])
        assert len(planned) == 2 + number
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    gpu.run("pipeline", pipeline, x, [w])
    with convt3d.torch.autotune():
        gpu.run("pipeline", pipeline, x, [w])
    assert len(planned) == 4 + number
    assert len(given) == 1


@pytest.fixture
def tuned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers that were measured."""
    monkeypatch.setattr(gpu_tune, "_fastest", {})
    return []


def test_autotuning_measures_once_and_remembers(tuned: list[int]) -> None:
    def seconds(number: int) -> float:
        tuned.append(number)
        return abs(number - 2)

    assert gpu_tune.choice("a", 4, seconds) is None  # nobody asked
    with convt3d.torch.autotune():
        assert gpu_tune.choice("a", 4, seconds) == 2
    assert tuned == [0, 1, 2, 3]
    assert gpu_tune.choice("a", 4, seconds) == 2
    assert gpu_tune.choice("b", 4, seconds) is None
    assert tuned == [0, 1, 2, 3]


@pytest.mark.usefixtures("tuned")
def test_autotuning_passes_over_what_does_not_run() -> None:
    with convt3d.torch.autotune():
        assert gpu_tune.choice("a", 3, lambda number: None if number == 0 else 1.0 / number) == 2
        assert gpu_tune.choice("b", 3, lambda number: None) is None  # the heuristic's, which may say why
        assert gpu_tune.choice("b", 3, lambda number: 1.0) is None


@pytest.mark.usefixtures("tuned")
def test_autotuning_does_not_remember_without_end() -> None:
    with convt3d.torch.autotune():
        for key in range(gpu_tune.MOST_REMEMBERED + 5):
            gpu_tune.choice(key, 1, float)
    assert list(gpu_tune._fastest) == list(range(5, gpu_tune.MOST_REMEMBERED + 5))


class OfGpu(torch.Tensor):
    """A tensor that says it is on a GPU."""

    is_cuda = True


@pytest.mark.usefixtures("tuned")
@pytest.mark.parametrize("far", [False, True], ids=["near", "far"])
def test_all_is_asked_and_measured_on_the_device_of_x(monkeypatch: pytest.MonkeyPatch, far: bool) -> None:
    """And the configurations that are measured are those of the plan with the offsets it needs."""
    seen: list[Any] = []
    current: list[Any] = []

    @contextmanager
    def device(which: Any) -> Iterator[None]:
        current.append(which)
        yield
        current.pop()

    def note(what: Any, result: Any = None) -> Any:
        seen.append((what, *current))
        return result

    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda which: (8, 0))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: note("asked", False))
    monkeypatch.setattr(run_gpu, "_far", lambda *_: 2**31 if far else 0)
    monkeypatch.setattr(run_gpu, "_seconds", lambda plan, *_: note(plan, 1.0))
    monkeypatch.setattr(run_gpu, "execute", lambda plan, *_: note("run"))
    x, w = tensors((1, 64, 8, 8, 8), (64, 64, 2, 2, 2), grad=False)
    with convt3d.torch.autotune():
        run_gpu.run(Pipeline(ct.ConvTranspose3d(stride=2)), x.as_subclass(OfGpu), [w], torch.empty(1, 64, 16, 16, 16))
    assert all(where == [x.device] for _, *where in seen)
    first, *plans, last = (what for what, _ in seen)
    assert (first, last) == ("asked", "run")
    assert {plan.wide for plan in plans} == {far}
    assert len({plan.kernels[0].config for plan in plans}) == len(plans) == plans[0].choices > 1


class Called(TorchDispatchMode):
    """Notes the names of operators."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("stage", "weight", "by"),
    [
        (ct.ConvTranspose3d(stride=2, padding=1), (8, 12, 3, 3, 3), "convt3d::conv3d"),
        (ct.Conv3d(stride=2, padding=1), (12, 8, 3, 3, 3), "convt3d::conv_transpose3d"),
    ],
    ids=["transposed", "forward"],
)
@pytest.mark.parametrize("known", [True, False], ids=["a GPU of ours", "another"])
def test_gradients_of_inputs_are_ours_on_the_gpu(
    monkeypatch: pytest.MonkeyPatch, stage: Any, weight: tuple[int, ...], by: str, known: bool
) -> None:
    """Tensors have no contents here. The weight's gradient is PyTorch's; so is all of it where kernels take no part."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(gpu, "_why_not_device", lambda device: None if known else "old")
    pipeline = Pipeline(stage, ct.ReLU())
    with FakeTensorMode(), torch.no_grad(), Called() as called:
        x, w = torch.empty(2, 8, 16, 16, 16, device="cuda"), torch.empty(weight, device="cuda")
        result = stock.run(pipeline, x, [w])
        called.names.clear()
        found = gradients(pipeline, torch.empty_like(result), x, [w], result, (True, True))
    assert [each.shape for each in found] == [x.shape, w.shape]
    assert (by in called.names) == known
    assert "aten::convolution_backward" in called.names


class Kernels:
    """In place of a module of kernels: each raises this error, and counts."""

    def __init__(self, error: Exception) -> None:
        self.error, self.launched = error, 0

    def __getattr__(self, name: str) -> Any:
        return self

    def __getitem__(self, grid: Any) -> Any:
        return self._raise

    def _raise(self, *arguments: Any, **options: Any) -> None:
        self.launched += 1
        raise self.error


REFUSALS = {
    "shared memory, Required: 300000": OutOfResources(300_000, 232_448, "shared memory"),
    "PTXAS error: too many registers": PTXASError("too many registers"),
    "device kernel image is invalid": RuntimeError("Triton Error [CUDA]: device kernel image is invalid"),
    "unsupported toolchain": RuntimeError(
        "Triton Error [CUDA]: the provided PTX was compiled with an unsupported toolchain."
    ),
}


@pytest.mark.parametrize("message", REFUSALS)
def test_kernels_that_a_gpu_does_not_take_go_to_stock_with_one_warning(
    monkeypatch: pytest.MonkeyPatch, message: str
) -> None:
    """Which carries the message; they are not tried a second time with the same tensors, but with others."""
    kernels = Kernels(REFUSALS[message])
    monkeypatch.setattr(run_gpu, "load", lambda text: kernels)
    monkeypatch.setattr(run_gpu, "_known", Recent(9))
    pipeline, (x, w) = Pipeline(ct.ConvTranspose3d(stride=2)), tensors((1, 2, 2, 2, 2), (2, 2, 2, 2, 2), grad=False)
    with pytest.warns(UserWarning, match=f"stock PyTorch: its kernel ct3d_f32_0_pack cannot be had .*{message}"):
        got = gpu.run("conv_transpose3d", pipeline, x, [w])
    torch.testing.assert_close(got, functional.conv_transpose3d(x, w, None, 2))
    assert torch.equal(gpu.run("conv_transpose3d", pipeline, x, [w]), got)  # a second warning would be an error
    assert kernels.launched == 1
    gpu.run("conv_transpose3d", pipeline, x.to(memory_format=torch.channels_last_3d), [w])
    assert kernels.launched == 2


@pytest.mark.parametrize(
    "error", [RuntimeError("Failed to find C compiler.\nSet CC."), OSError("libcuda.so.1: no"), ImportError("GLIBC")]
)
def test_a_machine_on_which_triton_does_not_work_leaves_calls_to_stock(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """No C compiler, a driver that is too old: found out once, with Triton's own words in the one warning."""
    asked = []

    class Active:
        def get_current_target(self) -> None:
            asked.append(1)
            raise error

    monkeypatch.setattr(runtime.driver, "_active", Active())
    gpu._why_no_driver.cache_clear()
    try:
        monkeypatch.setattr(gpu, "why_not", lambda x, operands: gpu._why_no_driver())
        pipeline, (x, w) = Pipeline(ct.ConvTranspose3d(stride=2)), tensors((1, 2, 2, 2, 2), (2, 2, 2, 2, 2), grad=False)
        words = " ".join(str(error).split())
        with pytest.warns(UserWarning, match=f"stock PyTorch: Triton cannot use .*{type(error).__name__}: {words}"):
            got = gpu.run("conv_transpose3d", pipeline, x, [w])
        torch.testing.assert_close(got, functional.conv_transpose3d(x, w, None, 2))
        gpu.run("conv_transpose3d", pipeline, x, [w])  # a second warning would be an error
        assert len(asked) == 1
    finally:
        gpu._why_no_driver.cache_clear()


@pytest.mark.parametrize("error", [CompilationError("text", None, "a fault of ours"), RuntimeError("illegal address")])
def test_errors_in_kernels_and_of_the_driver_are_not_hidden(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    monkeypatch.setattr(run_gpu, "load", lambda text: Kernels(error))
    x, w = tensors((1, 2, 2, 2, 2), (2, 2, 2, 2, 2), grad=False)
    with pytest.raises(type(error)):
        gpu.run("conv_transpose3d", Pipeline(ct.ConvTranspose3d(stride=2)), x, [w])


@pytest.mark.usefixtures("tuned")
def test_autotuning_passes_over_what_the_gpu_does_not_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_gpu, "load", lambda text: Kernels(OutOfResources(9, 8, "shared memory")))
    monkeypatch.setattr(run_gpu, "_known", Recent(9))
    monkeypatch.setattr(testing, "do_bench", lambda call, **_: call())
    x, w = tensors((1, 2, 2, 2, 2), (2, 2, 2, 2, 2), grad=False)
    plan = gpu_plan(Pipeline(ct.ConvTranspose3d(stride=2)), tuple(x.shape), (tuple(w.shape),), DTYPES["float32"])
    assert run_gpu._seconds(plan, x, [w], torch.empty(plan.trace.output)) is None
