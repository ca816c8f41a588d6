"""A pipeline that callers can call and ask what it will do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..cpu.plan.explain import explain
from ..cpu.plan.plan import make_plan
from ..cpu.plan.sequence import explain_sequence, make_sequence
from ..errors import ArgumentTypeError, named
from ..spec import pipeline as spec
from ..spec.checks import answers, integer, is_a, one_of
from ..spec.dtypes import DTYPES
from .apply import apply, options_of
from .arrays import AnyArray, Array
from .prepared import Prepared


class Pipeline(spec.Pipeline):
    """Stages around a convolution, fused: `pipe(input, weight)` computes, `pipe.explain(...)` says how.

    Frozen and hashable; equal pipelines are interchangeable. Of several convolutions each is fused with the stages
    around it, and they run one after the other; values between them are stored in the type of the input.

    Parameters
    ----------
    *stages : Stage
        In the order of the computation; at least one of them is a ConvTranspose3d or a Conv3d.

    Attributes
    ----------
    stages : tuple of Stage
        As given.
    operand_names : tuple of str
        The tensors that a call takes after its input, in order. Those of a second convolution are weight_2 and bias_2.

    Raises
    ------
    convt3d.ArgumentError
        Stages that do not fit together.
    convt3d.ArgumentTypeError
        Something that is no stage.

    Examples
    --------
    >>> import convt3d
    >>> pipe = convt3d.Pipeline(convt3d.ConvTranspose3d(stride=2, bias=True), convt3d.Add("tensor"), convt3d.ReLU())
    >>> pipe.operand_names
    ('weight', 'bias', 'add_other')
    >>> conv = convt3d.Conv3d(padding=1, bias=True)
    >>> convt3d.Pipeline(conv, convt3d.ReLU(), conv, convt3d.Add("x"), convt3d.ReLU()).operand_names
    ('weight', 'bias', 'weight_2', 'bias_2')
    """

    __slots__ = ()

    def __call__(
        self,
        input: Array,
        *operands: AnyArray,
        out: Array | None = None,
        algorithm: str = "auto",
        precision: str = "full",
        **named_operands: AnyArray,
    ) -> Array:
        """The result of the stages.

        Parameters
        ----------
        input : array
            (B, C, D, H, W), or unbatched (C, D, H, W); any strides.
        *operands : array
            The tensors of `operand_names` in order; of the input's type.
        out : array, optional
            Takes the result in the place of a new array, and is returned.
        algorithm : str, default 'auto'
            "auto" takes the faster of "direct" (products summed one by one) and "winograd" (Winograd's method).
        precision : str, default 'full'
            "full" rounds no worse than direct summation; "fast" may, some ten times.
        **named_operands : array
            Those that are given by name.

        Returns
        -------
        array
            Of the kind and type of `input`. A reduction with keepdim=False has dropped its axes.

        Raises
        ------
        convt3d.Error
            ShapeError, DTypeError, ArgumentTypeError, OutputError, AllocationError: before anything is written.

        Examples
        --------
        >>> import numpy as np, convt3d
        >>> pipe = convt3d.Pipeline(convt3d.ConvTranspose3d(stride=2), convt3d.ReLU())
        >>> pipe(np.ones((1, 8, 3, 4, 5)), weight=np.ones((8, 4, 2, 2, 2))).shape
        (1, 4, 6, 8, 10)
        """
        with named("Pipeline"):
            options = options_of(algorithm, precision)
        tensors = self.bind("Pipeline", operands, named_operands)
        result: Array = apply("Pipeline", self, input, tensors, out, options)
        return result

    def prepare(
        self, *operands: AnyArray, algorithm: str = "auto", precision: str = "full", **named_operands: AnyArray
    ) -> Prepared:
        """The pipeline with its weights, to be called often.

        Parameters
        ----------
        *operands : array
            The tensors of `operand_names` in order, without those of the value's shape (of `Add("tensor")`, say), which
            the calls take.
        algorithm, precision : str
            As in a call.
        **named_operands : array
            Those that are given by name.

        Returns
        -------
        Prepared
            Call it with an input. It owns folded and packed weights, and sees when one has changed.

        Raises
        ------
        convt3d.Error
            ArgumentError, ArgumentTypeError, DTypeError. Shapes are checked by the calls.

        Examples
        --------
        >>> import numpy as np, convt3d
        >>> pipe = convt3d.Pipeline(convt3d.ConvTranspose3d(stride=2), convt3d.ReLU())
        >>> layer = pipe.prepare(np.ones((8, 4, 2, 2, 2)))
        >>> layer(np.ones((1, 8, 3, 4, 5))).shape
        (1, 4, 6, 8, 10)
        """
        names = tuple(slot.name for slot in self.slots if slot.operand.kind != "tensor")
        own = spec.bind("Pipeline.prepare", (), names, operands, named_operands)
        return Prepared(self, own, algorithm, precision)

    def explain(
        self,
        input: Sequence[int],
        weight: Sequence[int] | Sequence[Sequence[int]],
        dtype: str = "float32",
        *,
        algorithm: str = "auto",
        precision: str = "full",
    ) -> str:
        """What a call on arrays of these shapes does and costs.

        Parameters
        ----------
        input, weight : sequence of int
            The shapes: (B, C, D, H, W) or (C, D, H, W), and (Cin, Cout/groups, Kd, Kh, Kw), or of a Conv3d (Cout,
            Cin/groups, Kd, Kh, Kw). Of several convolutions, a sequence of the shapes of their weights.
        dtype : str, default 'float32'
            "float32", "float64", "float16" or "bfloat16".
        algorithm, precision : str
            As in a call.

        Returns
        -------
        str
            The stages as asked for and as they run, sweeps, tiles, memory and multiply-adds.

        Raises
        ------
        convt3d.Error
            ShapeError, ArgumentError, ArgumentTypeError: what the call would raise.

        Examples
        --------
        >>> import convt3d
        >>> pipe = convt3d.Pipeline(convt3d.ConvTranspose3d(stride=2), convt3d.ReLU())
        >>> pipe.explain((1, 8, 3, 4, 5), (8, 4, 2, 2, 2)).splitlines()[1]
        'asked:'
        """
        with named("Pipeline.explain"):
            chosen = DTYPES[one_of("Pipeline", "dtype", dtype, tuple(DTYPES))]
            shape, kernels = _sizes("input", input), self._kernels(weight)
            batched = (1, *shape) if len(shape) == 4 else shape
            options, operands = options_of(algorithm, precision), self.operand_shapes(batched, *kernels)
            if len(kernels) == 1:
                return explain(make_plan(self, batched, operands, chosen, options))
            return explain_sequence(make_sequence(self, batched, operands, chosen, options))

    def _kernels(self, weight: Sequence[Any]) -> list[tuple[int, ...]]:
        """The shapes of all weights."""
        count = len(self.convolutions)
        if count == 1:
            return [_sizes("weight", weight)]
        if is_a(weight, str) or not is_a(weight, Sequence) or len(weight) != count:
            rule = f"must be {count} shapes, one for each convolution"
            raise ArgumentTypeError("Pipeline.explain", "weight", weight, rule, "Pass [w.shape, w2.shape]")
        return [_sizes("weight", each) for each in weight]

    if not TYPE_CHECKING:  # tools see the signatures above
        __init__ = answers(spec.Pipeline.__init__, "Pipeline")
        __call__ = answers(__call__, "Pipeline")
        prepare = answers(prepare, "Pipeline.prepare")
        explain = answers(explain, "Pipeline.explain")


def _sizes(name: str, shape: Sequence[int]) -> tuple[int, ...]:
    if is_a(shape, str) or not is_a(shape, Sequence):
        raise ArgumentTypeError("Pipeline.explain", name, shape, "must be a shape", "Pass array.shape")
    return tuple(integer("Pipeline.explain", name, size, 0) for size in shape)
