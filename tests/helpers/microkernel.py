"""A synthetic register-tile kernel: the shape of code `cpu/runtime/build.py` must compile fast and without spills.

`tile(rows, vectors, lanes)` is LLVM IR text for

    void tile(float *a, float *b, float *c, i64 depth, i64 repeat)
    c[rows][vectors * lanes] += sum over k of a[k][row] * b[k][vector * lanes]      (`repeat` times over)

`taps` steps of k are unrolled into one basic block; `depth` must be a multiple of it. `barrier` separates them for
LLVM's instruction scheduler. Addresses are written naively (index * pitch each time), as an emitter would: hoisting and
strength reduction are the compiler's duty.
"""

from __future__ import annotations

BARRIER = "  call void @llvm.codeview.annotation(metadata !0)"
BARRIER_DECLARATION = 'declare void @llvm.codeview.annotation(metadata)\n!0 = !{!"step"}'


def tile(rows: int, vectors: int, lanes: int, taps: int = 1, barrier: bool = False) -> str:
    vec = f"<{lanes} x float>"
    cells = [(i, j) for i in range(rows) for j in range(vectors)]
    lines: list[str] = []
    put = lines.append
    put(f"declare {vec} @llvm.fma.v{lanes}f32({vec}, {vec}, {vec})")
    put("define void @tile(ptr noalias %a, ptr noalias %b, ptr noalias %c, i64 %depth, i64 %repeat) {")
    put("entry:\n  br label %again")
    put("again:\n  %r = phi i64 [ 0, %entry ], [ %r.next, %done ]")
    for i, j in cells:
        put(f"  %c.at.{i}.{j} = getelementptr float, ptr %c, i64 {(i * vectors + j) * lanes}")
        put(f"  %c.{i}.{j} = load {vec}, ptr %c.at.{i}.{j}, align 4")
    put("  br label %step")
    put("step:\n  %k = phi i64 [ 0, %again ], [ %k.next, %step ]")
    for i, j in cells:
        put(f"  %t0.{i}.{j} = phi {vec} [ %c.{i}.{j}, %again ], [ %t{taps}.{i}.{j}, %step ]")
    for tap in range(taps):
        at = f"{tap}."
        put(f"  %k{tap} = add i64 %k, {tap}")
        for j in range(vectors):
            put(f"  %bk.{at}{j} = mul i64 %k{tap}, {vectors * lanes}\n  %bi.{at}{j} = add i64 %bk.{at}{j}, {j * lanes}")
            put(f"  %b.at.{at}{j} = getelementptr float, ptr %b, i64 %bi.{at}{j}")
            put(f"  %b.{at}{j} = load {vec}, ptr %b.at.{at}{j}, align 4")
        for i in range(rows):
            row = f"{at}{i}"
            put(f"  %ak.{row} = mul i64 %k{tap}, {rows}\n  %ai.{row} = add i64 %ak.{row}, {i}")
            put(f"  %a.at.{row} = getelementptr float, ptr %a, i64 %ai.{row}\n  %a.{row} = load float, ptr %a.at.{row}")
            put(f"  %one.{row} = insertelement {vec} poison, float %a.{row}, i64 0")
            put(f"  %all.{row} = shufflevector {vec} %one.{row}, {vec} poison, <{lanes} x i32> zeroinitializer")
            for j in range(vectors):
                operands = f"{vec} %all.{row}, {vec} %b.{at}{j}, {vec} %t{tap}.{i}.{j}"
                put(f"  %t{tap + 1}.{i}.{j} = call {vec} @llvm.fma.v{lanes}f32({operands})")
        if barrier:
            put(BARRIER)
    put(f"  %k.next = add nuw nsw i64 %k, {taps}\n  %more = icmp ult i64 %k.next, %depth")
    put("  br i1 %more, label %step, label %done\ndone:")
    for i, j in cells:
        put(f"  store {vec} %t{taps}.{i}.{j}, ptr %c.at.{i}.{j}, align 4")
    put("  %r.next = add nuw nsw i64 %r, 1\n  %again.more = icmp ult i64 %r.next, %repeat")
    put("  br i1 %again.more, label %again, label %exit\nexit:\n  ret void\n}")
    if barrier:
        put(BARRIER_DECLARATION)
    return "\n".join(lines)
