"""`torch.compile(model, backend="convt3d")` and `optimize(model)`: captured graphs, with pipelines in them."""

from __future__ import annotations

import gc
import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import entry_points
from inspect import signature
from typing import Any

import torch
from torch import fx, nn

from .ahead import compile_ahead
from .attention import in_pieces
from .between import with_convolutions, without_convolutions
from .capture import Captured, capture, rewrite
from .constants import keep_constants
from .graphs import without_dropouts
from .inline import inline_modules
from .joined import join
from .upsample import Kernel, Padding, as_convolutions, as_functions

NAME, RESTS = "convt3d", ("eager", "inductor")
_GROUP = "torch_dynamo_backends"  # of entry points
_log = logging.getLogger(__name__)


def convt3d(
    gm: Any, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None, mode: Any = None
) -> Callable[..., Any]:
    """The backend: takes a graph of Dynamo's, gives a function that computes the same."""
    rest = checked_options(options or {}).get("rest", "eager")
    with no_collections():
        rewritten, found = fused(gm, rest)
        compile_ahead(found.fused)
    if rest == "inductor":
        from torch._inductor.compile_fx import compile_fx

        compiled: Callable[..., Any] = compile_fx(rewritten, list(example_inputs))
        return compiled
    forward: Callable[..., Any] = rewritten.forward
    return forward


@contextmanager
def no_collections() -> Iterator[None]:
    """Meanwhile, Python looks for no garbage: each time it would go through all objects of PyTorch, for a third of a
    second."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def checked_options(options: Mapping[str, Any]) -> dict[str, Any]:
    if set(options) - {"rest"} or options.get("rest", "eager") not in RESTS:
        raise ValueError(
            f"convt3d: options = {dict(options)}: may hold rest='eager' or rest='inductor' only. "
            "Write options={'rest': 'eager'}"
        )
    return dict(options)


def fused(gm: Any, rest: str = "eager") -> tuple[Any, Captured]:
    """A graph module with its pipelines. Should looking for them fail, it is the one given. Another compiler for the
    rest plans memory itself."""
    try:
        graph = fx.Graph()
        graph.output(graph.graph_copy(gm.graph, {}))
        inline_modules(graph, gm)
        without_dropouts(graph)
        if rest == "eager":
            as_convolutions(graph)
        found = capture(graph)
        if rest == "eager" and with_convolutions(graph, found):
            found = capture(graph)
        rewrite(graph, found)
        if rest == "eager":
            without_convolutions(graph)
            as_functions(graph)
            found.joined, found.pieces = join(graph), in_pieces(graph)
            gone = {*found.joined, *found.pieces, *keep_constants(graph, gm)}
            ours = (Kernel, Padding)
            found.rest = [node for node in found.rest if not (node in gone or isinstance(node.target, ours))]
        graph.lint()
        return fx.GraphModule(gm, graph), found
    except Exception as error:  # PyTorch's own computation is always there
        _log.warning("convt3d: a graph is left to PyTorch: %r", error)
        return gm, Captured(failed=repr(error))


def recompile_limit(model: Any) -> dict[str, int]:
    """An argument of `torch.compile`, where it has that. Dynamo computes code for which it has 8 graphs eagerly from
    then on. Where graphs break inside of modules, there is one for each module of a class."""
    if "recompile_limit" not in signature(torch.compile).parameters or not isinstance(model, nn.Module):
        return {}
    counts = Counter(type(module) for module in model.modules())
    return {"recompile_limit": torch._dynamo.config.recompile_limit + max(counts.values())}


def register() -> None:
    """Makes the name known to PyTorch. An installed package is found by its entry point when it is asked for; importing
    Dynamo here would take a second."""
    if "torch._dynamo" not in sys.modules and any(each.name == NAME for each in entry_points(group=_GROUP)):
        return
    from torch._dynamo.backends import registry

    if NAME not in registry._COMPILER_FNS:
        registry.register_backend(convt3d, name=NAME)


class Optimized(nn.Module):  # type: ignore[misc]
    """What `optimize` gives: a model that is computed through `torch.compile` with convt3d's backend.

    Its parameters, state_dict, attributes and modes are the model's. It can be copied and pickled.

    Parameters
    ----------
    model : nn.Module
        The model, which is not changed.
    rest : str, default 'eager'
        Who computes what is no pipeline: PyTorch operation by operation, or "inductor".
    dynamic : bool, optional
        As `torch.compile` takes it.

    Examples
    --------
    >>> import torch, convt3d.torch
    >>> model = torch.nn.Sequential(torch.nn.Conv3d(1, 4, 3), torch.nn.ReLU()).eval()
    >>> with torch.no_grad():
    ...     convt3d.torch.optimize(model)(torch.ones(1, 1, 5, 6, 7)).shape
    torch.Size([1, 4, 3, 4, 5])
    """

    def __init__(self, model: Any, rest: str = "eager", dynamic: bool | None = None) -> None:
        super().__init__()
        self.model = model
        self._how = {"options": checked_options({"rest": rest}), "dynamic": dynamic}
        self._compiled: Any = None
        self.training = model.training  # parts of the model may be in another mode

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        compiled = self._compiled
        if compiled is None:
            how = self._how | recompile_limit(self.model)
            compiled = self.__dict__["_compiled"] = torch.compile(self.model, backend=convt3d, **how)
        if compiled is self.model or torch.jit.is_tracing():
            return self.model(*args, **kwargs)
        from torch._dynamo.exc import TorchDynamoException

        try:
            return compiled(*args, **kwargs)
        except TorchDynamoException as error:
            failed = error
        result = self.model(*args, **kwargs)  # may refuse its arguments as well: then nothing is wrong with the capture
        _log.warning("convt3d: the model is left to PyTorch: %r", failed)
        self.__dict__["_compiled"] = self.model
        return result

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("model"), name)

    def __setattr__(self, name: str, value: Any) -> None:
        """What callers set belongs to the model: a new head, say."""
        if name in ("model", "training") or name[:1] == "_":
            super().__setattr__(name, value)
        else:
            setattr(self.model, name, value)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_compiled": None}

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.model.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.model.load_state_dict(*args, **kwargs)


def optimize(model: Any, example_inputs: Any = None, *, rest: str = "eager", dynamic: bool | None = None) -> Optimized:
    """A model whose convolutions, with what follows them, are computed by convt3d.

    Chains of operations around a Conv3d or a ConvTranspose3d become pipelines, however the model's code writes them;
    all else stays as it is. `explain` shows what became of a model. The model itself is not changed.

    Parameters
    ----------
    model : nn.Module
        Any model, in training or in eval.
    example_inputs : Tensor or tuple, optional
        What the model will be called with: it is called once, without gradients, so that later calls need not wait.
        A model in training is not called, since that could change it.
    rest : str, default 'eager'
        Who computes what is no pipeline: PyTorch operation by operation, or "inductor", which takes longer to compile.
    dynamic : bool, optional
        As `torch.compile` takes it. None: a size is a variable from the second value on that it has.

    Returns
    -------
    Optimized
        A module with the model's parameters.

    Raises
    ------
    ValueError
        Another `rest`.

    Examples
    --------
    >>> import torch, convt3d.torch
    >>> model = torch.nn.Sequential(torch.nn.Conv3d(1, 4, 3), torch.nn.InstanceNorm3d(4), torch.nn.ReLU()).eval()
    >>> fast = convt3d.torch.optimize(model)
    >>> with torch.no_grad():
    ...     fast(torch.ones(1, 1, 5, 6, 7)).shape
    torch.Size([1, 4, 3, 4, 5])
    """
    optimized = Optimized(model, rest, dynamic)
    if example_inputs is not None and not model.training:
        with torch.no_grad():
            optimized(*(example_inputs if isinstance(example_inputs, (tuple, list)) else (example_inputs,)))
    return optimized
