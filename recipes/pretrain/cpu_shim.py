"""Run megatron-core's own code on a machine without GPUs. Used only there; no GPU job imports this.

megatron-core 0.16.1 names the CUDA device in its source (``device="cuda"``, ``torch.cuda.current_device()``,
CUDA random states, streams). This module redirects those names to the CPU; nothing in the library is
edited and none of its classes is replaced, so schedules, optimizers and collectives (over gloo) are the
real ones. Call :func:`install` once per process, before a model is built.
"""

from __future__ import annotations

import os
import warnings
from typing import Any

os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # the library's jit_fuser is torch.compile: minutes on a CPU

import torch  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402

_installed: _CudaNamesToCpu | None = None


class _NoStream:
    """Stands for torch.cuda.Stream and Event: on a CPU all work is already in program order."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __enter__(self) -> _NoStream:
        return self

    def __exit__(self, *_: Any) -> None: ...

    def wait_stream(self, *_: Any, **__: Any) -> _NoStream:
        return self

    wait_event = record_event = synchronize = record = wait = wait_stream


def _is_cuda(value: object) -> bool:
    if isinstance(value, torch.device):
        return value.type == "cuda"
    return isinstance(value, str) and value.startswith("cuda")


class _CudaNamesToCpu(TorchFunctionMode):
    """``device="cuda"`` becomes the CPU, ``t.cuda()`` is ``t``, ``t.type()`` the name that the optimizers test for."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.type and len(args) == 1 and not kwargs:
            return func(*args).replace("torch.", "torch.cuda.", 1)  # clip_grads.py:167, optimizer.py:695
        if _is_cuda(kwargs.get("device")):
            kwargs = {**kwargs, "device": torch.device("cpu")}
        if kwargs.get("pin_memory"):
            kwargs = {**kwargs, "pin_memory": False}
        if any(_is_cuda(value) for value in args):
            args = tuple(torch.device("cpu") if _is_cuda(value) else value for value in args)
        return func(*args, **kwargs)


def install() -> None:
    """Redirect the CUDA names of this process; a second call does nothing, and so does one where there is a GPU."""
    global _installed
    if _installed is not None or torch.cuda.is_available():
        return
    # each rank would say at each start what it falls back to without Apex and Transformer Engine
    warnings.filterwarnings("ignore", category=UserWarning, module=r"megatron\.core")
    cuda: Any = torch.cuda
    no_stream = _NoStream()
    cuda.current_device = lambda: torch.device("cpu")
    cuda.synchronize = lambda *_, **__: None
    cuda.manual_seed = torch.manual_seed
    cuda.get_rng_state = lambda *_, **__: torch.get_rng_state()
    cuda.Stream = cuda.Event = _NoStream
    cuda.current_stream = cuda.default_stream = lambda *_, **__: no_stream
    cuda.stream = lambda _: no_stream

    import megatron.core.tensor_parallel.random as library_random
    import megatron.core.transformer.moe.token_dispatcher as dispatcher

    library_random._get_cuda_rng_state = lambda *_, **__: torch.get_rng_state()
    library_random._set_cuda_rng_state = lambda state, *_, **__: torch.set_rng_state(state)
    dispatcher.maybe_move_tensor_to_cpu = _splits_as_numpy
    _installed = _CudaNamesToCpu()
    _installed.__enter__()


def _splits_as_numpy(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
    """The library converts the sizes of an all-to-all to numpy only when they are on a GPU; gloo needs them too."""
    return tensor.numpy() if as_numpy and torch.is_tensor(tensor) else tensor
