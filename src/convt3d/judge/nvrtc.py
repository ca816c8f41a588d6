"""CUDA C++ through NVIDIA's own compiler, NVRTC, without a toolkit or a GPU: registers, spills and shared memory.

NVRTC (the package nvidia-cuda-nvrtc; CUDA's headers are in nvidia-cuda-runtime, -crt and -cccl) takes device code only,
so functions that launch or call the runtime are blanked out. It runs in a process of its own: this file is also a
script, `nvrtc.py SOURCE OPTION...`, which prints a line of JSON for each architecture.
"""

from __future__ import annotations

import ctypes
import glob
import json
import os
import re
import sys
from typing import Any

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
PACKAGES = "convt3d[cuda]: nvidia-cuda-nvrtc, nvidia-cuda-runtime, nvidia-cuda-crt and nvidia-cuda-cccl"
_HOST = re.compile(r"<<<|\bcuda[A-Z]\w*\s*\(|\bsolution\s*\(")
_KERNEL = re.compile(
    r"Compiling entry function '(\w+)'.*?(\d+) bytes spill stores, (\d+) bytes spill loads.*?"
    r"Used (\d+) registers([^\n]*)",
    re.DOTALL,
)
_SHARED = re.compile(r"(\d+) bytes smem")
_MANGLED = re.compile(r"_Z(?:N\w*?)?(\d+)(\w+)")
# What files include that only the host needs; the device has its own.
_EMPTY = (
    "cuda_runtime.h", "cuda_runtime_api.h", "device_launch_parameters.h", "cuda.h", "cstdio", "stdio.h", "cstdlib",
    "stdlib.h", "cmath", "math.h", "algorithm", "iostream", "vector", "string", "cstring", "string.h", "cassert",
    "assert.h",
)  # fmt: skip
_SIZES = "typedef unsigned long size_t; typedef long ptrdiff_t;"
_INTEGERS = "".join(
    f"typedef signed {kind} int{bits}_t; typedef unsigned {kind} uint{bits}_t; "
    for bits, kind in ((8, "char"), (16, "short"), (32, "int"), (64, "long"))
)
_FLOATS = """#define FLT_MAX 3.402823466e+38f
#define FLT_MIN 1.175494351e-38f
#define FLT_EPSILON 1.192092896e-07f
#define DBL_MAX 1.7976931348623157e+308
#define DBL_EPSILON 2.2204460492503131e-16
"""
_MATHEMATICS = (
    "-DINFINITY=__int_as_float(0x7f800000)",
    "-DNAN=__int_as_float(0x7fffffff)",
    "-DM_PI=3.14159265358979323846",
)
_LIMITS = "#define INT_MAX 2147483647\n#define INT_MIN (-INT_MAX - 1)\n#define UINT_MAX 4294967295u\n"
# What device code takes of C++'s own library, as NVIDIA has it for devices.
_STANDARD = ("array", "concepts", "functional", "limits", "tuple", "type_traits", "utility")
_HEADERS = {
    **dict.fromkeys(_EMPTY, ""),
    **{name: f"#include <cuda/std/{name}>\nnamespace std {{ using namespace cuda::std; }}\n" for name in _STANDARD},
    **dict.fromkeys(("cstddef", "stddef.h"), _SIZES),
    **dict.fromkeys(("cstdint", "stdint.h"), _INTEGERS),
    **dict.fromkeys(("cfloat", "float.h"), _FLOATS),
    **dict.fromkeys(("climits", "limits.h"), _LIMITS),
}


def library() -> str | None:
    """Where NVRTC is: in the package, or where the loader finds it."""
    for folder in sys.path:
        for pattern in ("nvidia/cu*/lib/libnvrtc.so.*", "nvidia/cuda_nvrtc/lib/libnvrtc.so.*"):
            found = [path for path in sorted(glob.glob(os.path.join(folder, pattern))) if "alt" not in path]
            if found:
                return found[-1]
    return None


def includes() -> list[str]:
    """Folders with the headers of CUDA's runtime."""
    patterns = ("nvidia/cu*/include", "nvidia/cu*/include/cccl", "nvidia/cuda_*/include")
    return [path for folder in sys.path for one in patterns for path in glob.glob(os.path.join(folder, one))]


def device_source(text: str) -> tuple[str, list[str]]:
    """The file without functions of the host, lines where they were; kernels launched with template arguments, which
    exist only once somebody names them."""
    named = [" ".join(name.split()) for name in re.findall(r"([\w:]+\s*<[^<>;(){}]*>)\s*<<<", text)]
    for begin, end in reversed(_functions(text)):
        part = text[begin:end]
        if _HOST.search(part) and "__global__" not in part and "__device__" not in part:
            text = text[:begin] + re.sub(r"[^\n]", " ", part) + text[end:]
    return text, sorted(set(named))


def _functions(text: str) -> list[tuple[int, int]]:
    """Where definitions with a body begin and end that are in no other."""
    blank = re.sub(
        r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|^[ \t]*#(?:[^\n\\]|\\.)*', lambda m: re.sub(r"[^\n]", " ", m[0]), text,
        flags=re.DOTALL | re.MULTILINE,
    )  # fmt: skip
    found, depth, start, opened = [], 0, 0, False
    for at, letter in enumerate(blank):
        if letter == "{":
            opened = opened or (depth == 0 and ")" in blank[start:at])
            depth += 1
        elif letter == "}":
            depth -= 1
            if depth == 0:
                if opened:
                    found.append((start, at + 1))
                start, opened = at + 1, False
        elif letter == ";" and depth == 0:
            start = at + 1
    return found


def facts(log: str) -> dict[str, dict[str, int]]:
    """kernel -> registers, bytes spilled, bytes of shared memory, from what ptxas says."""
    found = {}
    for name, stores, loads, registers, rest in _KERNEL.findall(log):
        shared = _SHARED.search(rest)
        mangled = _MANGLED.match(name)
        short = mangled[2][: int(mangled[1])] if mangled else name
        found[short] = {
            "registers": int(registers),
            "spilled": int(stores) + int(loads),
            "shared": int(shared[1]) if shared else 0,
        }
    return found


def words(kernels: dict[str, dict[str, int]]) -> str:
    """For people."""
    return "; ".join(
        f"{name}: {one['registers']} registers, {one['spilled']} bytes spilled, {one['shared']} bytes of shared memory"
        for name, one in kernels.items()
    )


def compile_device(path: str, source: str, names: list[str], architecture: str, options: list[str]) -> tuple[bool, str]:
    """Whether NVRTC takes it, and what it and ptxas say."""
    nvrtc = ctypes.CDLL(path)
    program = ctypes.c_void_p()
    texts = (ctypes.c_char_p * len(_HEADERS))(*(text.encode() for text in _HEADERS.values()))
    titles = (ctypes.c_char_p * len(_HEADERS))(*(name.encode() for name in _HEADERS))
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", len(_HEADERS), texts, titles)
    for name in names:
        nvrtc.nvrtcAddNameExpression(program, name.encode())
    every = [
        f"--gpu-architecture={architecture}",
        "--ptxas-options=-v",
        "-default-device",
        "--std=c++20",
        "-w",
        *_MATHEMATICS,
        *options,
    ]
    given = (ctypes.c_char_p * len(every))(*(option.encode() for option in every))
    code = nvrtc.nvrtcCompileProgram(program, len(every), given)
    size = ctypes.c_size_t()
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return code == 0, log.value.decode(errors="replace")


def main() -> None:
    place, file, *options = sys.argv[1:]
    with open(file, encoding="utf-8-sig", errors="replace") as opened:
        source, names = device_source(opened.read())
    for architecture in ARCHITECTURES:
        taken, log = compile_device(place, source, names, architecture, options)
        first: Any = next((line for line in log.splitlines() if "error" in line), log[:300])
        said = {"architecture": architecture, "taken": taken, "kernels": facts(log), "error": "" if taken else first}
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
