"""The real training programs with one real fault in them: ``python -m tests.verify.parity.faulty FAULT ARGUMENTS``.

The faults are the functions of :mod:`tests.verify.parity.faults`; each works in this process only.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from types import ModuleType

from tests.verify.parity.faults import experts, megatron, modelling, reducing, samples, updating


def _of(*modules: ModuleType) -> dict[str, Callable[[], None]]:
    return {
        name: function
        for module in modules
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__ and not name.startswith("_")
    }


FINETUNE = _of(reducing, samples, updating, modelling)
PRETRAIN = _of(megatron, experts)


def main() -> int:
    """Put the fault in, then run the program that it is a fault of."""
    fault, arguments = sys.argv[1], sys.argv[2:]
    if fault in FINETUNE:
        FINETUNE[fault]()
        from recipes.finetune import train

        return train.main(arguments)
    if "CUDA_VISIBLE_DEVICES" not in os.environ:
        from recipes.pretrain import machine

        machine.on_cpu()  # the library is imported below, and must find the shim
    PRETRAIN[fault]()
    from recipes.pretrain import train as pretrain

    return pretrain.main(arguments)


if __name__ == "__main__":
    from recipes import program

    program.leave(main())
