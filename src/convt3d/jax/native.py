"""The function that XLA calls, in LLVM IR: a call that was recorded is done again here, without Python.

A record (jax/records.py) is a kernel's table with the addresses in it that a call fills in, and copies of the operands
that its packed weights were made from. All bits of the operands are compared first. Calls without a record, with other
operands, or beside a call that uses the record just now, go to Python.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import jax

from ..cpu.runtime.build import Code
from ..cpu.runtime.compiled import compiled
from .frame import MAJOR, METADATA

STATE = "convt3d_jax_state"
# Words of the state: where Python is called, how often numbers of threads were set, slots of records less one; slots.
CALLBACK, CHANGES, MASK, SLOTS = range(4)
# Words of a record.
RECORD = (
    *("high", "low", "busy", "changes", "function", "launch", "boxes", "workers", "threads", "turns"),
    *("table", "counter", "kept", "kept_count", "places", "place_count", "marks", "mark_count"),
)
# Of a frame, in bytes.
_ARGUMENTS, _RESULTS, _ATTRIBUTES = 72, 112, 160

_FIELDS = "\n".join(f"  %{name}.at = getelementptr i64, ptr %record, i64 {at}" for at, name in enumerate(RECORD))
_IR = """
@{state} = external global [0 x i64]
declare i32 @memcmp(ptr, ptr, i64)

; The memory of an argument (number >= 0) or of the result (-1).
define internal ptr @memory(ptr %frame, i64 %number) {{
entry:
  %is.result = icmp slt i64 %number, 0
  %offset = select i1 %is.result, i64 {results}, i64 {arguments}
  %index = select i1 %is.result, i64 0, i64 %number
  %items.at = getelementptr i8, ptr %frame, i64 %offset
  %items = load ptr, ptr %items.at
  %item.at = getelementptr ptr, ptr %items, i64 %index
  %item = load ptr, ptr %item.at
  %data.at = getelementptr i64, ptr %item, i64 3
  %data = load ptr, ptr %data.at
  ret ptr %data
}}

; An attribute that is an integer.
define internal i64 @number(ptr %frame, i64 %index) {{
entry:
  %items.at = getelementptr i8, ptr %frame, i64 {attributes}
  %items = load ptr, ptr %items.at
  %item.at = getelementptr ptr, ptr %items, i64 %index
  %item = load ptr, ptr %item.at
  %value.at = getelementptr i64, ptr %item, i64 1
  %value = load ptr, ptr %value.at
  %number = load i64, ptr %value
  ret i64 %number
}}

; Takes a record for oneself: 1, or 0 where somebody has it.
define i64 @claim(ptr %record) {{
entry:
{fields}
  %claim = cmpxchg ptr %busy.at, i64 0, i64 1 acq_rel acquire
  %claimed = extractvalue {{ i64, i1 }} %claim, 1
  %answer = zext i1 %claimed to i64
  ret i64 %answer
}}

define void @release(ptr %record) {{
entry:
{fields}
  store atomic i64 0, ptr %busy.at release, align 8
  ret void
}}

; Whether the record, which is ours, gave the result.
define internal i1 @replay(ptr %frame, ptr %record) {{
entry:
{fields}
  %changes.state.at = getelementptr i64, ptr @{state}, i64 {changes}
  %changes.now.at = load ptr, ptr %changes.state.at
  %changes.now = load atomic i64, ptr %changes.now.at monotonic, align 8
  %changes = load i64, ptr %changes.at
  %as.before = icmp eq i64 %changes.now, %changes
  %kept = load ptr, ptr %kept.at
  %kept.count = load i64, ptr %kept_count.at
  br i1 %as.before, label %compare, label %no
compare:  ; kept: number of the argument, where its copy is, bytes
  %one = phi i64 [ 0, %entry ], [ %one.next, %compared ]
  %more = icmp ult i64 %one, %kept.count
  br i1 %more, label %look, label %fill
look:
  %triple = mul i64 %one, 3
  %argument.at = getelementptr i64, ptr %kept, i64 %triple
  %argument = load i64, ptr %argument.at
  %copy.at = getelementptr i64, ptr %argument.at, i64 1
  %copy = load ptr, ptr %copy.at
  %bytes.at = getelementptr i64, ptr %argument.at, i64 2
  %bytes = load i64, ptr %bytes.at
  %given = call ptr @memory(ptr %frame, i64 %argument)
  %different = call i32 @memcmp(ptr %given, ptr %copy, i64 %bytes)
  %same = icmp eq i32 %different, 0
  br i1 %same, label %compared, label %no
compared:
  %one.next = add i64 %one, 1
  br label %compare
fill:
  %places = load ptr, ptr %places.at
  %place.count = load i64, ptr %place_count.at
  br label %filling
filling:  ; places: where an address goes, whose it is
  %place = phi i64 [ 0, %fill ], [ %place.next, %put ]
  %unfilled = icmp ult i64 %place, %place.count
  br i1 %unfilled, label %put, label %run
put:
  %pair = mul i64 %place, 2
  %word.at = getelementptr i64, ptr %places, i64 %pair
  %word = load ptr, ptr %word.at
  %whose.at = getelementptr i64, ptr %word.at, i64 1
  %whose = load i64, ptr %whose.at
  %address = call ptr @memory(ptr %frame, i64 %whose)
  store ptr %address, ptr %word
  %place.next = add i64 %place, 1
  br label %filling
run:
  %counter = load ptr, ptr %counter.at
  store i64 0, ptr %counter
  %function = load ptr, ptr %function.at
  %table = load ptr, ptr %table.at
  %threads = load i64, ptr %threads.at
  %alone = icmp eq i64 %threads, 1
  br i1 %alone, label %by.oneself, label %together
by.oneself:
  call void %function(ptr %table, i64 0)
  br label %ran
together:
  %launch = load ptr, ptr %launch.at
  %boxes = load ptr, ptr %boxes.at
  %workers = load i64, ptr %workers.at
  %turns = load i64, ptr %turns.at
  call void %launch(ptr %boxes, i64 %workers, ptr %function, ptr %table, i64 %threads, i64 %turns)
  br label %ran
ran:
  %marks = load ptr, ptr %marks.at
  %mark.count = load i64, ptr %mark_count.at
  br label %marked
marked:  ; samples that the kernel has left out
  %sample = phi i64 [ 0, %ran ], [ %sample.next, %clean ]
  %missing = phi i64 [ 0, %ran ], [ %missing.next, %clean ]
  %unseen = icmp ult i64 %sample, %mark.count
  br i1 %unseen, label %clean, label %seen
clean:
  %mark.at = getelementptr i64, ptr %marks, i64 %sample
  %mark = load i64, ptr %mark.at
  store i64 0, ptr %mark.at
  %missing.next = or i64 %missing, %mark
  %sample.next = add i64 %sample, 1
  br label %marked
seen:
  %complete = icmp eq i64 %missing, 0
  ret i1 %complete
no:
  ret i1 false
}}

define ptr @execute(ptr %frame) {{
entry:
  %extension.at = getelementptr i64, ptr %frame, i64 1
  %extension = load ptr, ptr %extension.at
  %extended = icmp ne ptr %extension, null
  br i1 %extended, label %ask, label %call
ask:
  %kind.at = getelementptr i64, ptr %extension, i64 1
  %kind = load i32, ptr %kind.at
  %asked = icmp eq i32 %kind, {metadata}
  br i1 %asked, label %answer, label %call
answer:  ; the version of the interface
  %metadata.at = getelementptr i64, ptr %extension, i64 3
  %metadata = load ptr, ptr %metadata.at
  %major.at = getelementptr i64, ptr %metadata, i64 3
  store i32 {major}, ptr %major.at
  %minor.at = getelementptr i32, ptr %major.at, i64 1
  store i32 {minor}, ptr %minor.at
  ret ptr null
call:
  %high = call i64 @number(ptr %frame, i64 0)
  %low = call i64 @number(ptr %frame, i64 1)
  %mask.at = getelementptr i64, ptr @{state}, i64 {mask}
  %mask = load i64, ptr %mask.at
  br label %seek
seek:
  %turn = phi i64 [ %low, %call ], [ %turn.next, %other ]
  %slot = and i64 %turn, %mask
  %slot.index = add i64 %slot, {slots}
  %slot.at = getelementptr i64, ptr @{state}, i64 %slot.index
  %slot.word = load atomic i64, ptr %slot.at acquire, align 8
  %record = inttoptr i64 %slot.word to ptr
  %there = icmp ne i64 %slot.word, 0
  br i1 %there, label %found, label %python
found:
{fields}
  %its.high = load i64, ptr %high.at
  %its.low = load i64, ptr %low.at
  %high.same = icmp eq i64 %its.high, %high
  %low.same = icmp eq i64 %its.low, %low
  %both = and i1 %high.same, %low.same
  br i1 %both, label %take, label %other
other:
  %turn.next = add i64 %turn, 1
  br label %seek
take:
  %claimed = call i64 @claim(ptr %record)
  %ours = icmp eq i64 %claimed, 1
  br i1 %ours, label %try, label %python
try:
  %done = call i1 @replay(ptr %frame, ptr %record)
  call void @release(ptr %record)
  br i1 %done, label %end, label %python
end:
  ret ptr null
python:
  %callback.at = getelementptr i64, ptr @{state}, i64 {callback}
  %callback = load ptr, ptr %callback.at
  %error = call ptr %callback(ptr %frame)
  ret ptr %error
}}
"""


def handler_ir(minor: int) -> str:
    """For the minor version of XLA's interface."""
    offsets = {"arguments": _ARGUMENTS, "results": _RESULTS, "attributes": _ATTRIBUTES}
    words = {"callback": CALLBACK, "changes": CHANGES, "mask": MASK, "slots": SLOTS}
    return _IR.format(state=STATE, fields=_FIELDS, metadata=METADATA, major=MAJOR, minor=minor, **offsets, **words)


@cache
def handler(state: int) -> Code:
    """`execute`, `claim` and `release`, for the state at an address."""
    import hashlib

    text = handler_ir(_minor())
    key = f"jax handler {hashlib.sha256(text.encode()).hexdigest()}"
    return compiled(key, lambda: text, ("execute", "claim", "release"), given={STATE: state}, name="jax handler")


def _minor() -> int:
    """Of the interface, as the header says that comes with XLA."""
    header = Path(jax.ffi.include_dir(), "xla", "ffi", "api", "c_api.h").read_text(encoding="utf-8")
    return int(header.partition("#define XLA_FFI_API_MINOR ")[2].split()[0])
