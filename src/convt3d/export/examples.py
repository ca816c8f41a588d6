"""Callers of a library in C, C++ and Rust: each fills small arrays, runs, and prints the sum of the result."""

from __future__ import annotations

from string import Template

from ..spec.dtypes import DType
from .forms import SMALL, Subject, shapes_for

C = Template("""\
/* Runs $name on small arrays: cc example.c -I. lib$name.so -Wl,-rpath,'$$ORIGIN' -lm -pthread */

#include "$name.h"
#include <stdio.h>
#include <stdlib.h>

$number
static struct ${name}_array filled(int64_t b, int64_t c, int64_t d, int64_t h, int64_t w) {
    struct ${name}_array a = {0, {b, c, d, h, w}, {0}};
    int64_t count = b * c * d * h * w;
    a.data = malloc((size_t)count * sizeof(${name}_real));
    for (int64_t at = 0; at < count; at++)
        ((${name}_real *)a.data)[at] = real((double)(at * 37 % 11 - 5) / 8);
    return a;
}

int main(void) {
    struct ${name}_args args = {0};
$fills
    size_t bytes;
    int code = ${name}_output_shape(&args, args.output.shape);
    if (!code) {
        const int64_t *s = args.output.shape;
        args.output = filled(s[0], s[1], s[2], s[3], s[4]);
        code = ${name}_workspace(&args, &bytes);
    }
    if (!code) {
        args.workspace = malloc(bytes);
        args.workspace_bytes = bytes;
        code = ${name}_run(&args);
    }
    if (code) {
        fprintf(stderr, "$name: %s\\n", ${name}_message());
        return code;
    }
    double sum = 0;
    int64_t count = 1;
    for (int axis = 0; axis < 5; axis++)
        count *= args.output.shape[axis];
    for (int64_t at = 0; at < count; at++)
        sum += value(((${name}_real *)args.output.data)[at]);
    printf("%lld numbers, sum %.6f, %s\\n", (long long)count, sum, ${name}_isa());
$frees
    return 0;
}
""")

CPP = Template("""\
// Runs $name on small arrays: c++ -std=c++17 example.cpp -I. lib$name.so -Wl,-rpath,'$$ORIGIN' -pthread

#include "$name.h"
#include <cstdio>
#include <numeric>
#include <stdexcept>
#include <vector>

$number
struct Volume {
    std::vector<${name}_real> numbers;
    ${name}_array array{};

    Volume(int64_t b, int64_t c, int64_t d, int64_t h, int64_t w) : numbers(size_t(b * c * d * h * w)) {
        for (size_t at = 0; at < numbers.size(); at++)
            numbers[at] = real((double(at * 37 % 11) - 5) / 8);
        array = {numbers.data(), {b, c, d, h, w}, {}};
    }
};

static void check(int code) {
    if (code)
        throw std::runtime_error(${name}_message());
}

int main() {
$volumes
    ${name}_args args{};
$assigns
    check(${name}_output_shape(&args, args.output.shape));
    const int64_t *s = args.output.shape;
    Volume output(s[0], s[1], s[2], s[3], s[4]);
    args.output = output.array;
    check(${name}_run(&args));
    double sum = 0;
    for (${name}_real one : output.numbers)
        sum += value(one);
    std::printf("%zu numbers, sum %.6f, %s\\n", output.numbers.size(), sum, ${name}_isa());
}
""")

RUST = Template("""\
// Runs $name on small arrays: rustc example.rs -L. -l$name -C link-arg=-Wl,-rpath,'$$ORIGIN'

use std::ffi::{c_char, c_int, c_void, CStr};

#[repr(C)]
#[derive(Clone, Copy)]
struct Array {
    data: *mut c_void,
    shape: [i64; 5],
    strides: [i64; 5],
}

#[repr(C)]
struct Args {
$fields
    threads: c_int,
    workspace: *mut c_void,
    workspace_bytes: usize,
}

extern "C" {
    fn ${name}_run(args: *const Args) -> c_int;
    fn ${name}_output_shape(args: *const Args, shape: *mut i64) -> c_int;
    fn ${name}_message() -> *const c_char;
    fn ${name}_isa() -> *const c_char;
}

$number
fn filled(shape: [i64; 5]) -> Vec<$real> {
    let count: i64 = shape.iter().product();
    (0..count).map(|at| real((at * 37 % 11 - 5) as f64 / 8.0)).collect()
}

fn array(numbers: &mut [$real], shape: [i64; 5]) -> Array {
    Array { data: numbers.as_mut_ptr() as *mut c_void, shape, strides: [0; 5] }
}

fn check(code: c_int) {
    if code != 0 {
        panic!("{}", unsafe { CStr::from_ptr(${name}_message()) }.to_string_lossy());
    }
}

fn main() {
$lets
    let none = Array { data: std::ptr::null_mut(), shape: [0; 5], strides: [0; 5] };
    let mut args = Args {
$inits
        output: none,
$values        threads: 0,
        workspace: std::ptr::null_mut(),
        workspace_bytes: 0,
    };
    let mut shape = [0i64; 5];
    check(unsafe { ${name}_output_shape(&args, shape.as_mut_ptr()) });
    let mut output = filled(shape);
    args.output = array(&mut output, shape);
    check(unsafe { ${name}_run(&args) });
    let sum: f64 = output.iter().map(|one| value(*one)).sum();
    let isa = unsafe { CStr::from_ptr(${name}_isa()) }.to_string_lossy().into_owned();
    println!("{} numbers, sum {:.6}, {}", output.len(), sum, isa);
}
""")

# Numbers of 16 bits have no type of their own: these fill in whole numbers of eighths, whose bits are found exactly.
_C_PLAIN = """\
static ${name}_real real(double x) { return (${name}_real)x; }
static double value(${name}_real x) { return x; }
"""
_C_HALF = """\
/* The bits of a number: $digits digits of a fraction, exponents from $bias. Only small numbers are made here. */
static ${name}_real real(double x) {
    uint16_t sign = x < 0 ? 0x8000 : 0;
    int exponent = $bias;
    if (x == 0)
        return sign;
    for (x = x < 0 ? -x : x; x < 1; x *= 2)
        exponent--;
    for (; x >= 2; x /= 2)
        exponent++;
    return (uint16_t)(sign | exponent << $digits | (int)((x - 1) * (1 << $digits)));
}

static double value(${name}_real bits) {
    int exponent = (bits & 0x7fff) >> $digits, whole = bits & ((1 << $digits) - 1);
    double x = exponent ? 1 + (double)whole / (1 << $digits) : 2 * (double)whole / (1 << $digits);
    for (; exponent > $bias; exponent--)
        x *= 2;
    for (; exponent < $bias; exponent++)
        x /= 2;
    return bits >> 15 ? -x : x;
}
"""
_RUST_PLAIN = """\
fn real(x: f64) -> $real {
    x as $real
}

fn value(x: $real) -> f64 {
    x as f64
}
"""
_RUST_HALF = """\
/// The bits of a number: $digits digits of a fraction. Only small numbers are made here.
fn real(x: f64) -> u16 {
    let bits = (x as f32).to_bits();
    let exponent = ((bits >> 23) & 255) as i32 - 127 + $bias;
    let sign = ((bits >> 16) & 0x8000) as u16;
    if x == 0.0 { sign } else { sign | (exponent << $digits) as u16 | ((bits & 0x7fffff) >> (23 - $digits)) as u16 }
}

fn value(bits: u16) -> f64 {
    let (exponent, whole) = (((bits & 0x7fff) >> $digits) as i32, (bits & ((1 << $digits) - 1)) as f64);
    let fraction = whole / (1u32 << $digits) as f64;
    let size = if exponent > 0 { 1.0 + fraction } else { 2.0 * fraction };
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    sign * size * 2f64.powi(exponent - $bias)
}
"""
_REALS = {"float32": "f32", "float64": "f64", "float16": "u16", "bfloat16": "u16"}
_HALVES = {"float16": {"digits": "10", "bias": "15"}, "bfloat16": {"digits": "7", "bias": "127"}}


def examples(subject: Subject, dtype: DType) -> dict[str, str]:
    """By the names of their files."""
    shapes, values = _arguments(subject)
    half = dtype.name in _HALVES
    words = {"name": subject.name, "real": _REALS[dtype.name], **_HALVES.get(dtype.name, {})}
    number = {
        "c": Template(_C_HALF if half else _C_PLAIN).substitute(words),
        "rust": Template(_RUST_HALF if half else _RUST_PLAIN).substitute(words),
    }
    told = {name: ", ".join(map(str, shape)) for name, shape in shapes.items()}
    held = (*told, "output")
    set_c = [f"    args.{name} = {value};" for name, value in values.items()]
    integers = set(subject.integers)
    fields = [f"    {name}: Array," for name in held]
    fields += [f"    {name}: {'i64' if name in integers else 'f64'}," for name in values]
    return {
        "example.c": C.substitute(
            words,
            number=number["c"],
            fills="\n".join([*(f"    args.{name} = filled({shape});" for name, shape in told.items()), *set_c]),
            frees="\n".join(f"    free({one});" for one in (*(f"args.{name}.data" for name in held), "args.workspace")),
        ),
        "example.cpp": CPP.substitute(
            words,
            number=number["c"],
            volumes="    Volume " + ", ".join(f"{name}({shape})" for name, shape in told.items()) + ";",
            assigns="\n".join([*(f"    args.{name} = {name}.array;" for name in told), *set_c]),
        ),
        "example.rs": RUST.substitute(
            words,
            number=number["rust"],
            fields="\n".join(fields),
            lets="\n".join(f"    let mut {name} = filled([{shape}]);" for name, shape in told.items()),
            inits="\n".join(f"        {name}: array(&mut {name}, [{shape}])," for name, shape in told.items()),
            values="".join(f"        {name}: {_rust(name, value, integers)},\n" for name, value in values.items()),
        ),
    }


def _rust(name: str, value: float, integers: set[str]) -> str:
    return str(int(value)) if name in integers else repr(float(value))


def _arguments(subject: Subject) -> tuple[dict[str, tuple[int, ...]], dict[str, float]]:
    """Shapes of the arrays, and the parameters."""
    problem = subject.problem
    if problem is not None:
        given, tensors = problem.sample, problem.shapes(problem.sample)
        shapes = {name: tensors[name] for name in ("input", *subject.operands)}
        values = {name: given[name] for name, _ in subject.parameters}
    else:
        x, operands = shapes_for(subject.pipeline, SMALL)
        shapes, values = {"input": x, **dict(zip(subject.operands, operands, strict=True))}, {}
    return {name: (*shape, *(1,) * (5 - len(shape))) for name, shape in shapes.items()}, values
