"""Random states of each rank, saved with a checkpoint: dropout goes on as if the run had not been interrupted."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from megatron.core import tensor_parallel


def seed(number: int) -> None:
    """Begin Python's and NumPy's numbers too: nothing draws from them here, but every checkpoint holds their states."""
    random.seed(number)
    np.random.seed(number % 2**32)
    tensor_parallel.model_parallel_cuda_manual_seed(number)


def save(folder: Path, rank: int) -> None:
    """Write ``rng_state_R.pth``; every rank calls it."""
    states: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "cpu": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
        "tracker": tensor_parallel.get_cuda_rng_tracker().get_states(),  # of dropout inside and outside of tp regions
    }
    torch.save(states, folder / f"rng_state_{rank}.pth")


def load(folder: Path, rank: int) -> bool:
    """Take them up again; False where this rank had none. For runs on as many ranks, and the same degrees, only."""
    path = folder / f"rng_state_{rank}.pth"
    if not path.exists():
        return False
    states = torch.load(path, weights_only=False, map_location="cpu")  # not only tensors; its sum has been checked
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["cpu"])
    if states["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
    tensor_parallel.get_cuda_rng_tracker().set_states(states["tracker"])
    return True
