"""The engine with AVX2 forced, beside a loop of AVX2 multiply-adds that touches registers only. Run by engine.py."""

from __future__ import annotations

import ctypes
import json
import statistics
import time

import numpy as np
from llvmlite import ir

import convt3d
from convt3d.emit.ir import define
from convt3d.emit.values import F32, I64, PTR, constant, vector
from convt3d.plan.machine import machine
from convt3d.plan.plan import make_plan
from convt3d.run.build import compile_ir, load
from convt3d.spec.dtypes import DTYPES

CHAINS, LANES = 12, 8


def register_loop() -> ctypes._CFuncPtr:
    """void f(ptr out, i64 turns): CHAINS independent sums of LANES numbers, one multiply-add each in a turn."""
    module = ir.Module("registers")
    b = define(module, "registers", [("out", PTR), ("turns", I64)])
    start = [constant(vector(F32, LANES), float(n)) for n in range(CHAINS)]
    with b.loop_carrying(0, b.args["turns"], 1, start) as (_, sums):
        factor = constant(vector(F32, LANES), 0.5)
        sums.next = [b.fma(value, factor, factor) for value in sums.values]
    total = sums.result[0]
    for value in sums.result[1:]:
        total = b.add(total, value)
    b.store(total, b.args["out"], 0)
    b.ret()
    code = load(compile_ir(str(module)).object_code, ["registers"])
    return code.function("registers", ctypes.c_void_p, ctypes.c_int64)


def main() -> None:
    assert machine().isa == "avx2"
    loop, out, turns = register_loop(), np.zeros(LANES, np.float32), 20_000_000
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((1, 32, 16, 32, 32), np.float32), rng.standard_normal((32, 64, 4, 4, 4), np.float32)
    pipeline = convt3d.Pipeline(convt3d.ConvTranspose3d(2, 1), convt3d.LayerNorm(), convt3d.GELU())
    y = pipeline(x, w)
    work = make_plan(pipeline, x.shape, (w.shape,), DTYPES["float32"]).work.needed
    rates, limits = [], []
    for _ in range(7):
        begin = time.perf_counter()
        loop(out.ctypes.data, turns)
        limits.append(2 * CHAINS * LANES * turns / (time.perf_counter() - begin) / 1e9)
        begin = time.perf_counter()
        pipeline(x, w, out=y)
        rates.append(work / (time.perf_counter() - begin) / 1e9)
    shares = [rate / limit for rate, limit in zip(rates, limits, strict=True)]
    figures = {"gflops": rates, "registers": limits, "share": shares}
    print(json.dumps({name: statistics.median(values) for name, values in figures.items()}))


if __name__ == "__main__":
    main()
