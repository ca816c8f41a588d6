"""What runs inside the sandbox: loads somebody's kernel and calls it when told to. The judge believes nothing it says.

A script of its own (child.py REQUESTS REPLIES FAULTS SLOT NARROW: three file descriptors, two numbers of bytes); it
must not import convt3d. Requests and replies are lines of JSON:

    equip     the module search path and the libraries the file needs; then the rules hold
    load      the file: its kind, its path; replies after the module's code has run, and says whether it is a ModelNew
    prepare   where the tensors of a case lie in the memory files; builds the arguments, and a ModelNew with its weights
    call      runs the kernel once
    noop      nothing

A reply is {"ok": true}, or {"error": word, "detail": text}. What the system says about a fault goes to FAULTS as it is.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import json
import linecache
import math
import mmap
import os
import platform
import re
import signal
import struct
import sys
import traceback
from collections.abc import Callable
from typing import Any

NO_ACCESS = 0
CTYPES = {"size_t": ctypes.c_size_t, "double": ctypes.c_double}
# Modules that hold an answer to the problems; torch has rules of its own.
ANSWERS = (
    "convt3d",
    *("jax", "jaxlib", "tensorflow", "tflite_runtime", "ai_edge_litert", "keras", "tinygrad", "mlx"),
    *("onnx.reference", "onnx.backend", "onnxruntime", "openvino", "tensorrt", "tvm", "ncnn", "MNN", "coremltools"),
    *("mxnet", "paddle", "mindspore", "oneflow", "megengine", "jittor", "nnabla", "chainer", "cv2"),
    *("theano", "aesara", "pytensor", "autograd.scipy", "cupy", "cupyx", "intel_extension_for_pytorch"),
    *("scipy.signal", "scipy.ndimage", "astropy.convolution", "spconv", "MinkowskiEngine", "torchsparse"),
)
LIBRARIES = re.compile(
    r"libtorch|dnnl|mkldnn|onednn|onnxruntime|openvino|xla_|tensorflow|tflite|cudnn|nvinfer|paddle|mindspore|libtvm|"
    r"libncnn|libMNN|libmlx\.|opencv_dnn|cv2\.|libarm_compute|libxsmm|XNNPACK",
    re.IGNORECASE,
)
# Operators of torch that do the work of a stage; arithmetic, reductions, views and copies are everyone's.
OPERATORS = re.compile(
    r"conv(?!ert)|mkldnn|onednn|(?<!in)(?<!com)(?<!cu)(?<!ha)mm(?!a)|matmul|(?<![a-z])(add)?mv(?![a-z])|dot|"
    r"linear(?!1d|_comb)|einsum|"
    r"pool|(layer|group|batch|instance|rms)_norm|softmax|gelu|col2im|im2col|linalg(?!_vector_norm|__powsum|_cross)|solve|(?<!slice_)inverse|"
    r"ormqr|cdist|embedding_bag|rnn|lstm|gru_|attention"
)
BACKENDS = ("CPU", "SparseCPU", "SparseCsrCPU", "MkldnnCPU", "QuantizedCPU", "NestedTensorCPU")
COMMON_SPACES = ("prim", "prims", "profiler")  # they call torch's own operators


class NotAllowed(ImportError):
    """The kernel asked somebody else to do the work."""


def the_torch() -> Any:
    """Imported when first asked for: most kernels do without."""
    return importlib.import_module("torch")


class Refused(Exception):
    """A reply that is no success."""

    def __init__(self, word: str, detail: str) -> None:
        super().__init__(word, detail)
        self.word, self.detail = word, detail


# --- rules ------------------------------------------------------------------------------------------------------------


def forbid(names: tuple[str, ...], allow_torch: bool) -> None:
    """An audit hook, which cannot be taken back: no import of `names` and no file of theirs, no library with an
    answer, no other program, no file written outside the working directory."""
    folder, writes = os.path.realpath(os.getcwd()) + os.sep, os.O_WRONLY | os.O_RDWR | os.O_CREAT
    resolve, decode, base, is_library = os.path.realpath, os.fsdecode, os.path.basename, LIBRARIES.search
    inside = answers_file(names)

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event == "import":
            name = str(args[0])
            if any(name == banned or name.startswith(banned + ".") for banned in names):
                raise NotAllowed(f"import of {name}")
        elif event == "ctypes.dlopen" and not allow_torch and is_library(base(str(args[0]))):
            raise NotAllowed(f"library {args[0]}")
        elif event == "open" and isinstance(args[0], (str, bytes)) and (args[2] or 0) & writes:
            path = resolve(decode(args[0]))
            if not path.startswith(folder) and path != os.devnull:
                raise NotAllowed(f"writing {path}")
        elif event in ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty"):
            raise NotAllowed(f"start of another process ({event})")
        if event in ("open", "import", "ctypes.dlopen", "os.link", "os.symlink", "os.rename"):
            for path in args[:2]:
                if isinstance(path, (str, bytes)) and inside(resolve(decode(path)) + os.sep):
                    raise NotAllowed(f"file {decode(path)} of an answer")

    sys.addaudithook(hook)


def answers_file(names: tuple[str, ...]) -> Callable[[str], bool]:
    """Whether a path lies in a package of one of these names, wherever that is; this very file excepted."""
    own, exists = os.path.realpath(__file__) + os.sep, os.path.exists
    parts = [os.sep + name.replace(".", os.sep) + os.sep for name in names]

    def inside(path: str) -> bool:
        for part in parts:
            at = path.find(part)
            while at >= 0 and path != own:
                if exists(path[: at + len(part)] + "__init__.py"):
                    return True
                at = path.find(part, at + 1)
        return False

    return inside


def forbid_operators() -> None:
    """torch's kernels for the CPU are replaced, for all threads and for calls from C++ too: in its own namespace those
    that do the work of a stage, in all others every one."""
    torch = the_torch()
    names: dict[str, list[str]] = {}
    for full in torch._C._dispatch_get_all_op_names():
        space, _, name = full.partition("::")
        if space not in COMMON_SPACES and (space != "aten" or OPERATORS.search(name.partition(".")[0])):
            names.setdefault(space, []).append(full)
    for space, all_of_it in names.items():
        library = torch._C._dispatch_library("IMPL", space, "", __file__, 0)
        for full in all_of_it:
            for key in replaceable(torch, full):
                library.impl(full.partition("::")[2], key, refuser(full), False)
        # Never released, and no Python object knows it: the replacement cannot be taken back.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(library))


def refuser(name: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise NotAllowed(f"torch operator {name}")

    return refuse


def replaceable(torch: Any, name: str) -> list[str]:
    """The keys under which an operator has a kernel of its own; one of torch's that only calls others meets the rule
    there."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    own = [key for key in BACKENDS if has(name, key)]
    composite = has(name, "CompositeExplicitAutograd") or not name.startswith("aten::")
    return ["CPU", *(key for key in own if key != "CPU")] if composite else own


# --- memory -----------------------------------------------------------------------------------------------------------


SLOTS = 6  # one for each tensor of a problem, and some to spare
MAP_FIXED, MAP_NORESERVE = 0x10, 0x4000
OUTSIDE = {"closed": NO_ACCESS, "readable": mmap.PROT_READ}


class Memory:
    """The memory files of the judge. Each tensor is mapped into a slot of its own, in the middle of addresses without
    access: however far an index is off, it meets none of the others."""

    def __init__(self, slot: int, narrow: int) -> None:
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.libc.mmap.restype = ctypes.c_void_p
        self.libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        self.libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        self.slot = slot
        try:
            self.base = self.map(None, SLOTS * slot, NO_ACCESS, -1, 0)
        except MemoryError:  # a limit of the caller's leaves no room for wide ones
            self.slot = narrow
            self.base = self.map(None, SLOTS * narrow, NO_ACCESS, -1, 0)
        self.laid: Any = None

    def map(self, address: int | None, size: int, access: int, fd: int, offset: int) -> int:
        kind = mmap.MAP_SHARED if fd >= 0 else mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
        found = self.libc.mmap(address, size, access, kind | (MAP_FIXED if address else 0), fd, offset)
        if found == ctypes.c_void_p(-1).value:
            raise MemoryError(f"no room for {size} bytes of arrays")
        return int(found)

    def lay(self, regions: list[dict[str, Any]], outside: str) -> dict[str, int]:
        """Where each array is from now on. Pages that stay where they were are left alone, so that they stay warm."""
        starts = [self.base + number * self.slot + self.slot // 2 for number in range(len(regions))]
        if self.laid != (regions, outside):
            self.laid = regions, outside
            around = OUTSIDE.get(outside, NO_ACCESS)
            for number, (start, region) in enumerate(zip(starts, regions, strict=True)):
                self.map(self.base + number * self.slot, self.slot, around, -1, 0)
                access = mmap.PROT_READ | (mmap.PROT_WRITE if region["writable"] else 0)
                self.map(start, region["size"], access, region["fd"], region["offset"])
                for fence in (start, start + region["size"] - mmap.PAGESIZE):
                    self.libc.mprotect(fence, mmap.PAGESIZE, OUTSIDE.get(outside, access))
        return {region["name"]: start + region["array"] for start, region in zip(starts, regions, strict=True)}


# machine -> code of write(fd, the second argument, 128), called by the system as a handler of signals
WRITERS = {
    "x86_64": lambda fd, write: struct.pack("<BIBIHQH", 0xBF, fd, 0xBA, 128, 0xB848, write, 0xE0FF),
    "aarch64": lambda fd, write: struct.pack("<IIIIQ", 0x52800000 | fd << 5, 0xD2801002, 0x58000050, 0xD61F0200, write),
}
SA_SIGINFO, SA_ONSTACK, SA_RESETHAND = 0x4, 0x08000000, -0x80000000


class _Action(ctypes.Structure):
    _fields_ = [
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ubyte * 128),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    ]


def report_faults(fd: int) -> None:
    """From now on a fault is written to `fd` as the system describes it, and then ends the process as ever. By native
    code, since nobody knows what state Python is in by then."""
    if platform.machine() not in WRITERS:
        return
    libc = ctypes.CDLL(None)
    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    page.write(WRITERS[platform.machine()](fd, ctypes.cast(libc.write, ctypes.c_void_p).value))
    code = ctypes.c_char.from_buffer(page)
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(code))  # it must outlive everything
    if libc.mprotect(ctypes.addressof(code), mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_EXEC):
        return
    action = _Action(ctypes.addressof(code), flags=SA_SIGINFO | SA_ONSTACK | SA_RESETHAND)
    for number in (signal.SIGSEGV, signal.SIGBUS):
        libc.sigaction(int(number), ctypes.byref(action), None)


# --- arrays of the kernel's kind --------------------------------------------------------------------------------------


def numpy_array(address: int, shape: list[int], dtype: str) -> Any:
    import numpy

    if dtype == "bfloat16":
        import ml_dtypes

        kind = numpy.dtype(ml_dtypes.bfloat16)
    else:
        kind = numpy.dtype(dtype)
    count = math.prod(shape)
    raw = (ctypes.c_ubyte * (count * kind.itemsize)).from_address(address)
    return numpy.frombuffer(raw, numpy.uint8).view(kind).reshape(shape)


def torch_tensor(address: int, shape: list[int], dtype: str) -> Any:
    torch = the_torch()

    kind = getattr(torch, dtype)
    count = math.prod(shape)
    raw = (ctypes.c_ubyte * (count * kind.itemsize)).from_address(address)
    return torch.frombuffer(raw, dtype=kind).reshape(shape)


# --- threads ----------------------------------------------------------------------------------------------------------

POOLS = re.compile(r"lib[gi]?omp|openblas|mkl_rt")
SETTERS = (
    "omp_set_num_threads",
    "MKL_Set_Num_Threads",
    *(f"{prefix}openblas_set_num_threads{bits}" for prefix in ("", "scipy_") for bits in ("", "64_")),
)


def use_threads(count: int) -> None:
    """Tells every pool of threads that is there by now, and those to come by the environment."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(count)
    if "torch" in sys.modules:
        the_torch().set_num_threads(count)
    with open("/proc/self/maps") as maps:
        paths = {line.split(maxsplit=5)[-1].strip() for line in maps if POOLS.search(os.path.basename(line))}
    for path in paths:
        library = ctypes.CDLL(path)
        for name in SETTERS:
            if hasattr(library, name):
                getattr(library, name)(ctypes.c_int(count))


def order_of_programs(backwards: bool) -> None:
    """In which order Triton's interpreter runs the programs of a grid; a GPU promises none."""
    interpreter = sys.modules.get("triton.runtime.interpreter")
    builder = getattr(interpreter, "interpreter_builder", None)
    if builder is None:
        return
    plain = type(builder).set_grid_idx

    def last_first(*at: int) -> None:
        plain(builder, *(size - 1 - index for size, index in zip(builder.grid_dim, at, strict=True)))

    if backwards:
        builder.set_grid_idx = last_first
    else:
        vars(builder).pop("set_grid_idx", None)


# --- kernels ----------------------------------------------------------------------------------------------------------


class Kernel:
    """Builds a call from a case; `prepare` returns what `call` runs."""

    def prepare(self, case: dict[str, Any], addresses: dict[str, int]) -> Callable[[], Any]:
        raise NotImplementedError


class Native(Kernel):
    """A shared library with `solution`."""

    def __init__(self, path: str) -> None:
        try:
            library = ctypes.CDLL(path)
            self.function = library.solution
        except AttributeError:
            raise Refused("wrong signature", 'the library has no symbol `solution` (C++ needs extern "C")') from None
        except NotAllowed:
            raise
        except OSError as error:
            raise Refused("compile error", f"not a library of this machine: {error}") from None
        self.function.restype = None
        self.fault = getattr(library, "convt3d_device_fault", None)  # of CUDA, see cuda.py
        self.banks = getattr(library, "convt3d_device_banks", None)
        self.arrays = getattr(library, "convt3d_device_arrays", None)
        for told in (self.fault, self.banks):
            if told is not None:
                told.restype = ctypes.c_char_p

    def prepare(self, case: dict[str, Any], addresses: dict[str, int]) -> Callable[[], Any]:
        args = [
            ctypes.c_void_p(addresses[name]) if kind == "[VAR]" else CTYPES[kind](case["values"][name])
            for name, kind in case["parameters"]
        ]

        if self.arrays is not None:  # of the device: the host may not touch them, and their ends are watched
            width = {"float64": 8, "float32": 4}.get(case["dtype"], 2)
            ends = [(addresses[name], math.prod(shape) * width) for name, shape in case["shapes"].items()]
            flat = [place for begin, size in ends for place in (begin, begin + size)]
            names = (ctypes.c_char_p * len(ends))(*(name.encode() for name in case["shapes"]))
            self.arrays(names, (ctypes.c_void_p * len(flat))(*flat), len(ends))

        def call() -> None:
            self.function(*args)
            if self.fault is not None and (said := self.fault().decode()):
                raise Refused(*said.split(": ", 1))

        return call


class Function(Kernel):
    """`solution(...)` of a Python file."""

    def __init__(self, function: Any, array: Callable[..., Any]) -> None:
        self.function, self.array = function, array

    def prepare(self, case: dict[str, Any], addresses: dict[str, int]) -> Callable[[], Any]:
        import inspect

        shapes = case["shapes"]
        args = [
            self.array(addresses[name], shapes[name], case["dtype"]) if kind == "[VAR]" else case["values"][name]
            for name, kind in case["parameters"]
        ]
        try:
            inspect.signature(self.function).bind(*args)
        except TypeError as error:
            raise Refused("wrong signature", f"solution takes {len(args)} arguments: {error}") from None
        except ValueError:  # a builtin without a signature: the call will tell
            pass
        return lambda: self.function(*args)


class Model(Kernel):
    """`ModelNew`: built from the case's sizes and scalars, given the weights, called with the input alone."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def prepare(self, case: dict[str, Any], addresses: dict[str, int]) -> Callable[[], Any]:
        torch = the_torch()
        tensors = {name: torch_tensor(addresses[name], shape, case["dtype"]) for name, shape in case["shapes"].items()}
        try:
            model = self.model(**case["constructor"])
        except TypeError as error:
            raise Refused("wrong signature", f"ModelNew takes {', '.join(case['constructor'])}: {error}") from None
        if not isinstance(model, torch.nn.Module):
            raise Refused("wrong signature", "ModelNew must be a torch.nn.Module")
        model = model.to(getattr(torch, case["dtype"])).eval()
        for name in case["weights"]:
            self._load(model, name, tensors[name])
        x, output = tensors["input"], tensors["output"]

        def call() -> None:
            with torch.no_grad():
                result = model(x)
            if not isinstance(result, torch.Tensor) or result.shape != output.shape:
                got = tuple(result.shape) if isinstance(result, torch.Tensor) else type(result).__name__
                raise Refused("wrong shape", f"forward returned {got}, not {tuple(output.shape)}")
            if result.dtype != output.dtype:
                raise Refused("wrong dtype", f"forward returned {result.dtype}, not {output.dtype}")
            output.copy_(result)

        return call

    def _load(self, model: Any, name: str, tensor: Any) -> None:
        """Into the parameter or buffer of that name, else into the one that alone has the right number of elements
        and shape."""
        torch = the_torch()

        known = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        words = {"kernel": ("kernel", "weight"), "conv_bias": ("conv_bias", "bias"), "scale": ("scale",)}[name]
        shapes = [tuple(tensor.shape), (tensor.numel(),)] if name != "kernel" else [tuple(tensor.shape)]
        fitting = [key for key, own in known.items() if tuple(own.shape) in shapes]
        named = [key for word in words for key in fitting if key.rpartition(".")[2] == word]
        if not named and len(fitting) != 1:
            found = ", ".join(f"{key} {tuple(own.shape)}" for key, own in known.items()) or "none"
            raise Refused("wrong signature", f"ModelNew needs one parameter for {name} {shapes[0]}; it has {found}")
        with torch.no_grad():
            target = known[(named or fitting)[0]]
            target.copy_(tensor.reshape(target.shape))


def equip(request: dict[str, Any]) -> None:
    """Before anything of the kernel's runs: a library that is missing now is no fault of its."""
    allow_torch = request["allow_torch"]
    if request["kind"] == "native":
        return forbid(ANSWERS, allow_torch)
    sys.path[:] = request["search"]
    uses_torch = request["torch"]
    for name in request["libraries"]:  # triton among them: it looks for libraries of its own, which the rules forbid
        importlib.import_module(name)
    if request["machine"]:
        use_machine(request["machine"])
    if "triton" in request["libraries"]:
        try_triton()
    if uses_torch:
        the_torch().set_num_threads(request["threads"])
        if not allow_torch:
            forbid_operators()
    return forbid(ANSWERS if uses_torch or allow_torch else (*ANSWERS, "torch"), uses_torch or allow_torch)


MACHINE = "triton_machine"  # the name of the package ptx/ here
COUNTING = """
import triton
import triton.language as tl

@triton.jit
def count(out, n):
    for i in range(n):
        tl.store(out + i, i)
"""


def use_machine(folder: str) -> None:
    """Triton's kernels are compiled, and what comes out is run by the package in this folder."""
    place = os.path.join(folder, "__init__.py")
    specification = importlib.util.spec_from_file_location(MACHINE, place, submodule_search_locations=[folder])
    assert specification is not None
    sys.modules[MACHINE] = importlib.util.module_from_spec(specification)
    importlib.import_module(f"{MACHINE}.driver").use(alone=True)


def watched(run: Callable[[], Any]) -> Callable[[], Any]:
    """With the machine's own word on a kernel's fault, whatever the caller of the kernel made of it."""
    driver = sys.modules.get(f"{MACHINE}.driver")

    def call() -> Any:
        try:
            return run()
        finally:
            fault = driver.faults.pop() if driver is not None and driver.faults else None
            if fault is not None:
                raise Refused(*fault)

    return call


def try_triton() -> None:
    """Releases of Triton and numpy that do not go together would fail in any kernel, and it would be blamed for it."""
    place, out = "counting", the_torch().zeros(3)
    space: dict[str, Any] = {"__name__": place}
    linecache.cache[place] = len(COUNTING), None, COUNTING.splitlines(True), place  # where Triton reads the source
    try:
        exec(compile(COUNTING, place, "exec"), space)
        space["count"][(1,)](out, 3)
        said = "" if out.tolist() == [0.0, 1.0, 2.0] else f"it counts {out.tolist()}"
    except Exception as error:
        said = f"{type(error).__name__}: {str(error)[:200]}"
    if said:
        names = ("triton", "numpy")
        how = "compiler" if MACHINE in sys.modules else "interpreter"
        versions = " and ".join(f"{name} {getattr(sys.modules.get(name), '__version__', '?')}" for name in names)
        raise Refused("crash", f"with {versions} Triton's {how} cannot run a kernel that only counts ({said})")


def load(request: dict[str, Any]) -> Kernel:
    if request["kind"] == "native":
        return Native(request["path"])
    space = run_module(request["path"])
    if callable(space.get("solution")):
        return Function(space["solution"], torch_tensor if request["torch"] else numpy_array)
    if callable(space.get("ModelNew")):
        return Model(space["ModelNew"])
    raise Refused("wrong signature", "the file defines neither solution(...) nor ModelNew")


def run_module(path: str) -> dict[str, Any]:
    """As an import would, under the name `kernel`; Triton reads the source of its functions by it."""
    specification = importlib.util.spec_from_file_location("kernel", path)
    if specification is None or specification.loader is None:
        raise Refused("compile error", "not a Python file")
    module = importlib.util.module_from_spec(specification)
    sys.modules["kernel"] = module
    sys.dont_write_bytecode = True
    specification.loader.exec_module(module)
    return vars(module)


# --- requests ---------------------------------------------------------------------------------------------------------


class Session:
    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.threads = 0
        self.kernel: Kernel | None = None
        self.run: Callable[[], Any] | None = None

    def obey(self, request: dict[str, Any]) -> dict[str, Any]:
        word = request["do"]
        if word == "equip":
            self.threads = request["threads"]
            equip(request)
        elif word == "load":
            self.kernel = load(request)
            return {"ok": True, "model": isinstance(self.kernel, Model)}
        elif word == "prepare" and self.kernel is not None:
            addresses = self.memory.lay(request["regions"], request["outside"])
            if request["threads"] != self.threads:
                self.threads = request["threads"]
                use_threads(self.threads)
            order_of_programs(request["backwards"])
            self.run = watched(self.kernel.prepare(request, addresses))
            return {"ok": True, "base": self.memory.base, "slot": self.memory.slot}
        elif word == "call" and self.run is not None:
            returned = self.run()
            if returned is not None:
                return {"ok": True, "returned": type(returned).__name__}
            if isinstance(self.kernel, Native) and self.kernel.banks is not None:
                return {"ok": True, "banks": self.kernel.banks().decode()}
        return {"ok": True}


def answer(session: Session, request: dict[str, Any]) -> dict[str, Any]:
    try:
        return session.obey(request)
    except Refused as refusal:
        return {"error": refusal.word, "detail": refusal.detail}
    except MemoryError as error:
        return {"error": "crash", "detail": f"out of memory: {error}".rstrip(": ")}
    except SyntaxError as error:
        return {"error": "compile error", "detail": "".join(traceback.format_exception_only(error)).strip()[-2000:]}
    except BaseException as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, NotAllowed):
            cause = cause.__cause__ or cause.__context__
        if cause is not None:
            return {"error": "not allowed", "detail": str(cause)}
        if isinstance(error, SystemExit):
            return {"error": "crash", "detail": f"the kernel ended the process (exit {error.code!r})"}
        where = "".join(
            f" (line {line} of {os.path.basename(frame.f_code.co_filename)})"
            for frame, line in list(traceback.walk_tb(error.__traceback__))[-1:]
        )
        missing = {"missing": error.name} if isinstance(error, ModuleNotFoundError) else {}
        return {"error": "crash", "detail": f"{type(error).__name__}: {str(error)[:1000]}{where}", **missing}


def main() -> None:
    requests = os.fdopen(int(sys.argv[1]), "rb", buffering=0)
    replies = int(sys.argv[2])
    report_faults(int(sys.argv[3]))
    session = Session(Memory(int(sys.argv[4]), int(sys.argv[5])))
    sys.modules["__main__"] = type(sys)("__main__")  # an import by the kernel finds nothing in it
    write, encode = os.write, json.dumps
    pending = b""
    while True:
        while b"\n" not in pending:
            data = requests.read(65536)
            if not data:
                os._exit(0)
            pending += data
        line, _, pending = pending.partition(b"\n")
        write(replies, encode(answer(session, json.loads(line))).encode() + b"\n")


if __name__ == "__main__":
    main()
