"""Functions, structured control flow and memory: the branches and phis of all kernels.

A `Builder` emits into one function.  Loops and conditionals are context managers; values which change in a loop are
carried in SSA registers, never through memory.  Loads and stores address memory as (pointer, offset in elements), need
no more alignment than one element has, and take an optional stride and an optional count of lanes that exist.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from llvmlite import ir

from .values import (
    ALL_INSTRUCTIONS,
    I32,
    I64,
    PTR,
    VOID,
    Instructions,
    Number,
    Values,
    constant,
    declare,
    element_of,
    mangled,
    size_of,
    vector,
    width_of,
)


def define(
    module: ir.Module,
    name: str,
    arguments: Sequence[tuple[str, ir.Type]],
    returns: ir.Type = VOID,
    *,
    noalias: Sequence[str] = (),
    cpu: str = "",
    features: str = "",
    prefer_vector_width: int | None = None,
    internal: bool = False,
    instructions: Instructions = ALL_INSTRUCTIONS,
    builder: type[Builder] | None = None,
) -> Builder:
    """Start a function and return a Builder at its entry, or another kind of builder.

    The arguments named in `noalias` point to disjoint memory.
    """
    function = ir.Function(module, ir.FunctionType(returns, [type_ for _, type_ in arguments]), name)
    function.linkage = "internal" if internal else "external"
    function.attributes.add("nounwind")
    text_attributes = {"target-cpu": cpu, "target-features": features, "prefer-vector-width": prefer_vector_width}
    for key, value in text_attributes.items():
        if value:  # llvmlite accepts only a fixed list of attribute names: go around its check
            set.add(function.attributes, f'"{key}"="{value}"')
    for argument, (argument_name, _) in zip(function.args, arguments, strict=False):
        argument.name = argument_name
        if argument_name in noalias:
            argument.add_attribute("noalias")
    return (builder or Builder)(ir.IRBuilder(function.append_basic_block("entry")), instructions)


class Carried:
    """The values a loop carries: `values` in the body, `next` to be assigned by the body, `result` after the loop."""

    def __init__(self, values: list[ir.Value]):
        self.values = values
        self.next: Sequence[Number] | None = None
        self.result: list[ir.Value] = []


class Arm:
    """One side of an if_else: enter it with `with`; what it assigns to `values` is found merged in `merged` later."""

    def __init__(self, builder: Builder, block: ir.Block, end: ir.Block):
        self._builder, self._block, self._end = builder, block, end
        self.values: Sequence[ir.Value] = ()
        self.merged: list[ir.Value] = []
        self.last_block: ir.Block | None = None

    def __enter__(self) -> Arm:
        self._builder.raw.position_at_end(self._block)
        return self

    def __exit__(self, error_type: object, *_: object) -> None:
        if error_type is None:
            self.last_block = self._builder.raw.block
            self._builder.raw.branch(self._end)


class _Callee(NamedTuple):
    """What llvmlite asks a called function for, of a pointer that has no type of its own."""

    pointer: ir.Value
    function_type: ir.FunctionType

    def get_reference(self) -> str:
        return str(self.pointer.get_reference())


class Builder(Values):
    """Emits one function; see `define`."""

    def __init__(self, raw: ir.IRBuilder, instructions: Instructions = ALL_INSTRUCTIONS):
        super().__init__(raw, instructions)
        self.function: ir.Function = raw.function
        self.args: dict[str, ir.Argument] = {argument.name: argument for argument in raw.function.args}

    # ---- control flow ------------------------------------------------------------------------------------------

    @contextmanager
    def loop(self, start: Number, stop: Number, step: Number = 1) -> Iterator[ir.Value]:
        """Run the body for i = start, start + step, ... while i < stop; the step is positive."""
        with self.loop_carrying(start, stop, step, []) as (i, carried):
            carried.next = []
            yield i

    @contextmanager
    def loop_carrying(
        self, start: Number, stop: Number, step: Number, initial: Sequence[ir.Value]
    ) -> Iterator[tuple[ir.Value, Carried]]:
        """A counted loop with values held in registers; a loop which never runs results in the initial values."""
        raw = self.raw
        start, stop, step = self.i64(start), self.i64(stop), self.i64(step)
        before = raw.block
        body = raw.append_basic_block("loop")
        done = raw.append_basic_block("done")
        raw.cbranch(raw.icmp_signed("<", start, stop), body, done)
        raw.position_at_end(body)
        i = raw.phi(I64)
        carried = Carried([raw.phi(value.type) for value in initial])
        yield i, carried
        if carried.next is None or len(carried.next) != len(initial):
            raise ValueError(f"the loop body must assign {len(initial)} values to carried.next")
        following = [self.lift(value, first.type) for value, first in zip(carried.next, initial, strict=False)]
        next_i = raw.add(i, step, flags=["nsw"])
        last = raw.block
        raw.cbranch(raw.icmp_signed("<", next_i, stop), body, done)
        raw.position_at_end(done)
        for phi, first, later in zip([i, *carried.values], [start, *initial], [next_i, *following], strict=False):
            phi.add_incoming(first, before)
            phi.add_incoming(later, last)
        carried.result = [
            self._phi(first.type, (first, before), (later, last))
            for first, later in zip(initial, following, strict=False)
        ]

    @contextmanager
    def drawn_from(self, counter: ir.Value, items: ir.Value) -> Iterator[ir.Value]:
        """Run the body for every item number this worker draws from the shared counter before it reaches `items`."""
        raw = self.raw
        draw, body, done = (raw.append_basic_block(name) for name in ("draw", "item", "done"))
        raw.branch(draw)
        raw.position_at_end(draw)
        item = self.fetch_add(counter)
        raw.cbranch(raw.icmp_signed("<", item, items), body, done)
        raw.position_at_end(body)
        yield item
        raw.branch(draw)
        raw.position_at_end(done)

    @contextmanager
    def if_(self, condition: ir.Value) -> Iterator[None]:
        """Run the body if true; the body may end in `ret`."""
        then = self.raw.append_basic_block("then")
        end = self.raw.append_basic_block("endif")
        self.raw.cbranch(condition, then, end)
        self.raw.position_at_end(then)
        yield
        if not self.raw.block.is_terminated:
            self.raw.branch(end)
        self.raw.position_at_end(end)

    @contextmanager
    def if_else(self, condition: ir.Value) -> Iterator[tuple[Arm, Arm]]:
        """Enter both arms with `with`; values they assign to `arm.values` are merged into `then.merged` afterwards."""
        then, otherwise, end = (self.raw.append_basic_block(name) for name in ("then", "else", "endif"))
        self.raw.cbranch(condition, then, otherwise)
        arms = Arm(self, then, end), Arm(self, otherwise, end)
        yield arms
        if any(arm.last_block is None for arm in arms) or len(arms[0].values) != len(arms[1].values):
            raise ValueError("both arms of if_else must be entered, and give equally many values")
        self.raw.position_at_end(end)
        merged = [
            self._phi(pair[0].type, *zip(pair, (arm.last_block for arm in arms), strict=False))
            for pair in zip(arms[0].values, arms[1].values, strict=False)
        ]
        arms[0].merged = arms[1].merged = merged

    def _phi(self, type_: ir.Type, *incoming: tuple[ir.Value, ir.Block]) -> ir.Value:
        phi = self.raw.phi(type_)
        for value, block in incoming:
            phi.add_incoming(value, block)
        return phi

    def call_address(self, pointer: ir.Value, types: Sequence[ir.Type], *arguments: Number) -> None:
        """The function at an address, which takes these types and returns nothing."""
        callee = _Callee(pointer, ir.FunctionType(VOID, types))
        self.raw.call(callee, [self.lift(value, type_) for value, type_ in zip(arguments, types, strict=True)])

    def ret(self, value: Number | None = None) -> None:
        if value is None:
            self.raw.ret_void()
        else:
            self.raw.ret(self.lift(value, self.function.function_type.return_type))

    # ---- memory ------------------------------------------------------------------------------------------------

    def at(self, pointer: ir.Value, offset: Number, element: ir.Type) -> ir.Value:
        """The address `offset` elements further; it may lie outside of the array as long as nothing is read there."""
        if isinstance(offset, int) and offset == 0:
            return pointer
        return self.raw.gep(pointer, [self.i64(offset)], source_etype=element)

    def either(self, condition: ir.Value, pointer: ir.Value, other: ir.Value) -> ir.Value:
        """The one pointer or the other."""
        return self.raw.select(condition, pointer, other)

    def accessed(
        self, pointer: ir.Value, offset: Number, element: ir.Type, width: int, count: Number | None, what: str
    ) -> ir.Value:
        """The address, for a load or store (`what`) of `width` elements of which `count` are there."""
        return self.at(pointer, offset, element)

    def first_lanes(self, width: int, count: Number) -> ir.Value:
        """Mask of the lanes with index < count; any i64 count from -2^31 up will do."""
        clamped = self.lift(self.cast(self.i64(self.min(count, width)), I32), vector(I32, width))
        return self.compare("<", constant(vector(I32, width), list(range(width)) if width > 1 else 0), clamped)

    def load(
        self,
        pointer: ir.Value,
        offset: Number,
        element: ir.Type,
        width: int = 1,
        *,
        stride: Number = 1,
        count: Number | None = None,
    ) -> ir.Value:
        """Lane k is the element at offset + k * stride; of the lanes >= count nothing is read and they are zero."""
        type_, size = vector(element, width), size_of(element)
        if isinstance(count, int):  # no mask, see `store`
            places = [self.add(offset, self.mul(stride, lane)) for lane in range(min(count, width))]
            lanes = [self.load(pointer, place, element) for place in places]
            return self.join(lanes + [constant(element, 0)] * (width - len(lanes)))
        if width == 1 and count is not None:
            with self.if_else(self.compare(">", count, 0)) as (present, absent):
                with present:
                    present.values = [self.load(pointer, offset, element)]
                with absent:
                    absent.values = [constant(element, 0)]
            return present.merged[0]
        if width > 1 and not _is_one(stride):
            if count is None:
                offsets = [self.add(offset, self.mul(stride, lane)) for lane in range(width)]
                return self.join([self.load(pointer, place, element) for place in offsets])
            addresses = self._addresses(pointer, offset, element, stride, width)
            mask = self.first_lanes(width, count)
            return self._masked("gather", type_, [addresses], size, mask, [constant(type_, 0)])
        address = self.accessed(pointer, offset, element, width, count, "load")
        if count is not None:
            return self._masked("load", type_, [address], size, self.first_lanes(width, count), [constant(type_, 0)])
        return self.raw.load(address, align=size, typ=type_)

    def store(
        self, value: ir.Value, pointer: ir.Value, offset: Number, *, stride: Number = 1, count: Number | None = None
    ) -> None:
        """Lane k goes to the element at offset + k * stride; the lanes >= count are not written."""
        element, width = element_of(value.type), width_of(value.type)
        size = size_of(element)
        if isinstance(count, int):
            # LLVM stores the one lane of a constant mask as wide as it was before it was narrowed: beyond the element.
            for lane in range(min(count, width)):
                self.store(self.lane(value, lane), pointer, self.add(offset, self.mul(stride, lane)))
        elif width == 1 and count is not None:
            with self.if_(self.compare(">", count, 0)):
                self.store(value, pointer, offset)
        elif width > 1 and not _is_one(stride):
            if count is None:
                for lane in range(width):
                    self.store(self.lane(value, lane), pointer, self.add(offset, self.mul(stride, lane)))
            else:
                self.store_scattered(value, pointer, offset, stride, count, width)
        elif count is not None:
            address = self.accessed(pointer, offset, element, width, count, "store")
            self._masked("store", VOID, [value, address], size, self.first_lanes(width, count))
        else:
            self.raw.store(value, self.accessed(pointer, offset, element, width, None, "store"), align=size)

    def store_scattered(
        self, value: ir.Value, pointer: ir.Value, offset: Number, stride: Number, count: Number, width: int
    ) -> None:
        element = element_of(value.type)
        addresses = self._addresses(pointer, offset, element, stride, width)
        self._masked("scatter", VOID, [value, addresses], size_of(element), self.first_lanes(width, count))

    def to_boundary(self, pointer: ir.Value, offset: Number, element: ir.Type, width: int) -> ir.Value:
        """Elements from an offset to the next address at which a vector of `width` of them is aligned."""
        size = size_of(element)
        address = self.raw.ptrtoint(self.at(pointer, offset, element), I64)
        return self.sdiv(self.bits("and_", self.sub(0, address), size * width - 1), size)

    def store_past_caches(self, value: ir.Value, pointer: ir.Value, offset: Number) -> None:
        """A whole vector to an aligned address, of memory that is not read again soon: no line is fetched for it. Other
        threads may rely on it only after `fence`."""
        element, width = element_of(value.type), width_of(value.type)
        address = self.accessed(pointer, offset, element, width, None, "store")
        if self.instructions.narrowing_store and size_of(element) == 2:
            words = vector(I32, width // 2)  # LLVM sees no further than the empty instruction
            opaque = self.raw.asm(ir.FunctionType(words, [words]), "", "=x,0", [self.raw.bitcast(value, words)], False)
            value = self.raw.bitcast(opaque, value.type)
        store = self.raw.store(value, address, align=size_of(element) * width)
        store.set_metadata("nontemporal", self.function.module.add_metadata([constant(I32, 1)]))

    def fence(self, x86: bool) -> None:
        """All stores before it come first, for every thread. LLVM does not say that its fences hold for stores past the
        caches; on x86 an instruction of its own does."""
        if x86:
            self.raw.call(declare(self.function.module, "llvm.x86.sse.sfence", []), [])
        self.raw.fence("seq_cst")

    def _addresses(self, pointer: ir.Value, offset: Number, element: ir.Type, stride: Number, width: int) -> ir.Value:
        """Vector of the addresses of every lane."""
        steps = self.mul(constant(vector(I64, width), range(width)), stride)
        base = self.splat(self.at(pointer, offset, element), width)
        return self.raw.gep(base, [steps], source_etype=element)

    def _masked(
        self,
        operation: str,
        returns: ir.Type,
        arguments: list[ir.Value],
        size: int,
        mask: ir.Value,
        otherwise: Sequence[ir.Value] = (),
    ) -> ir.Value:
        """llvm.masked.load/store/gather/scatter; the alignment operand is upgraded by LLVM >= 22, needed before."""
        operands = [*arguments, I32(size), mask, *otherwise]
        overloads = [value.type for value in ([*arguments] if returns == VOID else [*otherwise, *arguments])]
        name = ".".join(["llvm.masked", operation, *map(mangled, overloads)])
        return self.raw.call(declare(self.module, name, [value.type for value in operands], returns), operands)

    def fetch_add(self, pointer: ir.Value, amount: Number = 1) -> ir.Value:
        """Atomically add to the i64 at the pointer and return what it held: draws the next piece of shared work."""
        address = self.accessed(pointer, 0, I64, 1, None, "store")
        return self.raw.atomic_rmw("add", address, self.i64(amount), "monotonic")

    def prefetch(
        self, pointer: ir.Value, offset: Number, element: ir.Type, *, for_write: bool = False, locality: int = 3
    ) -> None:
        """Hint that the element will be used soon; locality 0 (once) to 3 (keep in all cache levels)."""
        function = declare(self.module, "llvm.prefetch.p0", [PTR, I32, I32, I32])
        self.raw.call(function, [self.at(pointer, offset, element), I32(int(for_write)), I32(locality), I32(1)])


def _is_one(stride: Number) -> bool:
    return isinstance(stride, int) and stride == 1
