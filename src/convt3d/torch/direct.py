"""Whether PyTorch's dispatcher would hand a call to the CPU kernel untouched: then a small call may skip its 25 us.

It would if the tensors carry no keys but those of plain CPU tensors (lazy negation, batching, fake and functional
tensors, sparse layouts and subclasses add some) and the thread has set none (modes, transforms, tracing, autocast do).
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Any

import torch
from torch.autograd import forward_ad

_C: Any = torch._C


_raw: Any = getattr(_C.DispatchKeySet, "raw_repr", repr)  # torch 2.4 has no raw_repr


def _keys(*names: str) -> Any:
    key, keys = _C.DispatchKey, _C.DispatchKeySet
    return _raw(reduce(or_, (keys(getattr(key, name)) for name in names)))


_PLAIN_TENSORS = (_keys("CPU", "ADInplaceOrView", "AutogradCPU", "AutocastCPU"), _keys("CPU", "AutocastCPU"))
_PLAIN_THREADS = (_keys("BackendSelect", "ADInplaceOrView"), _keys("BackendSelect"))  # each second: inference mode

_NO_TENSORS = frozenset((int, float, tuple, str, type(None)))  # others are looked at more closely


def direct(arguments: tuple[Any, ...], recorded: bool = False) -> bool:
    """Whether nothing but the CPU kernel would see these arguments, or, where they may be `recorded`, nothing but it
    and autograd; lists of tensors are looked into."""
    if not plain_thread():
        return False
    recording = torch.is_grad_enabled() and not recorded
    for argument in arguments:
        if type(argument) is list:
            if not all(_untouched(each, recording) for each in argument):
                return False
        elif type(argument) not in _NO_TENSORS and not _untouched(argument, recording):
            return False
    return isinstance(arguments[0], torch.Tensor)


def plain_thread() -> bool:
    """Whether the thread has set none."""
    return (
        not torch.compiler.is_compiling()
        and _raw(_C._dispatch_tls_local_include_set()) in _PLAIN_THREADS
        and not torch.is_autocast_enabled("cpu")
        and not _C._is_torch_function_mode_enabled()
        and not torch.autograd._profiler_enabled()
        and forward_ad._current_level < 0
    )


def plain(tensor: Any) -> bool:
    """Whether it is a tensor that carries no other keys."""
    known = type(tensor) is torch.Tensor or type(tensor) is torch.nn.Parameter
    return known and _raw(_C._dispatch_keys(tensor)) in _PLAIN_TENSORS


def _untouched(tensor: Any, recording: bool) -> bool:
    return plain(tensor) and not (recording and tensor.requires_grad)
