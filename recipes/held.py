"""Bytes that a training step holds, by part, and its peak: what :mod:`recipes.profiled` counts in the last step.

A ``watch`` is its Stopwatch: it knows the optimizers that were seen to step, and whether they are on a GPU.
"""

from __future__ import annotations

import gc
from typing import Any


def parts(watch: Any) -> dict[str, int]:
    """Bytes of storages on the device: of parameters, of gradients, of optimizer states and master copies."""
    import torch

    from toolkit.verify.audit import bytes_by_part, holders

    modules = [each for each in gc.get_objects() if issubclass(type(each), torch.nn.Module)]
    device = "cuda" if watch.on_gpu else "cpu"
    engine = next((each for each in modules if type(each).__name__ == "DeepSpeedEngine"), None)
    if engine is not None:  # which keeps everything in buffers of its own
        own = holders(engine)
        names = {"parameters": ("parameters", "secondary"), "gradients": ("gradients",), "optimizer": ("optimizer",)}
        return bytes_by_part(
            {
                f"{name}_bytes": [t for part in held for t in own[part] if t.device.type == device]
                for name, held in names.items()
            }
        )
    parameters = {id(p): p for module in modules for p in module.parameters(recurse=False)}
    gradients = [getattr(p, name, None) for p in parameters.values() for name in ("grad", "main_grad")]
    states = []
    for optimizer in watch.optimizers.values():
        for state in list(optimizer.state.values()):
            states += state.values() if isinstance(state, dict) else []
        for group in optimizer.param_groups:
            gradients += [p.grad for p in group["params"] if id(p) not in parameters]
            states += group["params"]
    found = {"parameters_bytes": list(parameters.values()), "gradients_bytes": gradients, "optimizer_bytes": states}
    return bytes_by_part(
        {
            name: [t for t in tensors if isinstance(t, torch.Tensor) and t.device.type == device]
            for name, tensors in found.items()
        }
    )


class Memory:
    """The peak of one step."""

    def __init__(self, watch: Any) -> None:
        import torch

        from toolkit.verify.live import LiveBytes

        gc.collect()
        self.watch, self.parts = watch, parts(watch)
        if watch.on_gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            return
        tensors = [t for t in gc.get_objects() if issubclass(type(t), torch.Tensor) and t.device.type == "cpu"]
        self.live = LiveBytes()
        self.live.hold(tensors)
        self.live.reset()
        self.live.__enter__()

    def report(self) -> dict[str, int]:
        """Bytes by part, the peak, and on a GPU what the allocator had reserved then."""
        if not self.watch.on_gpu:
            self.live.__exit__(None, None, None)
            peaks = {"peak_bytes": self.live.peak}
        else:
            cuda = self.watch.torch.cuda
            cuda.synchronize()
            peaks = {"peak_bytes": cuda.max_memory_allocated(), "reserved_bytes": cuda.max_memory_reserved()}
        return self.parts | peaks | {"gradients_at_update_bytes": self.watch.gradients_at_update}
