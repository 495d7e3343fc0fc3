"""Random numbers of a run's dropout: other ones on each rank, and the same after a restart.

The Trainer seeds every rank alike, so ranks would drop the same units of different samples. A rank of a run that starts
anew, or goes on with another number of ranks than saved, draws from a seed made of the contract's, the step and its
own rank; one that goes on with as many ranks takes up its own saved state.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments


def seed_rank(seed: int, step: int, rank: int) -> None:
    """Seed all generators of this process for what it draws after ``step``."""
    words = np.random.SeedSequence([seed, step, rank]).generate_state(3)
    random.seed(int(words[0]))
    np.random.seed(int(words[1]))
    torch.manual_seed(int(words[2]))  # of every GPU of this process too


class OwnRandomNumbers(TrainerCallback):
    """Seeds the ranks when training begins; the Trainer then loads saved states, where they are this layout's."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """The model is made by now."""
        seed_rank(self.seed, state.global_step, args.process_index)
