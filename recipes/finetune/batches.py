"""Rows to what the model takes, so that no document sees its neighbour, and the proof on the model itself.

Position ids restart in every document. Transformers 5.24 makes attention stop there where neither an attention
mask nor a cache is given (the Trainer switches the cache off): sdpa and eager get a mask of blocks on the
diagonal (``masking_utils.find_packed_sequence_indices``), flash attention the lengths, which it finds out for
itself with one row only (``_is_packed_sequence``: ``batch_size != 1`` is never packed), so they are given.

That is a property of the model's code, not of this program: a model that mixes positions by other means (a
recurrence, a convolution) lets documents see one another all the same. So :func:`prove_isolation` asks it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from recipes.finetune.packing import IGNORED
from toolkit.errors import ToolkitError

PROBE = 8  # tokens of each document of the proof
REMEDY = "set packing to false: one document per sequence"


class Collate:
    """Rows of :class:`recipes.finetune.data.Sequences` as one batch."""

    def __init__(self, flash: bool = False, positions: bool = True) -> None:
        self.flash, self.positions = flash, positions

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """``input_ids``, ``labels`` and ``position_ids``; for flash attention also where documents begin and end."""
        import torch

        batch = {name: torch.from_numpy(np.stack([row[name] for row in rows]).astype(np.int64)) for name in rows[0]}
        if not self.positions:
            del batch["position_ids"]
        elif self.flash:
            starts = (batch["position_ids"].reshape(-1) == 0).nonzero().reshape(-1)
            edges = torch.cat([starts, torch.tensor([batch["position_ids"].numel()])]).to(torch.int32)
            longest = int(edges.diff().max())
            batch |= {"cu_seq_lens_q": edges, "cu_seq_lens_k": edges, "max_length_q": longest, "max_length_k": longest}
        return batch


def collate_for(model: Any) -> Collate:
    """What this model takes: some have no position ids (ALiBi, recurrences), and flash attention needs lengths."""
    import inspect

    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    positions = "position_ids" in inspect.signature(base.forward).parameters
    return Collate("flash" in str(getattr(model.config, "_attn_implementation", "")), positions)


def prove_isolation(model: Any, collate: Collate, vocabulary: int, length: int, device: Any) -> None:
    """Run the model on two rows whose first documents differ; raises ToolkitError where the second ones feel it.

    The difference of their logits is compared with that of the same rows read as one document each, where the
    second half must depend on the first: isolated is a difference below a twentieth of it (kernels may round
    differently, which is orders of magnitude less).
    """
    import torch

    if not collate.positions:
        raise ToolkitError("the model takes no position ids, so documents cannot be told apart in it", remedy=REMEDY)
    half = min(PROBE, length // 2)
    tokens = np.random.default_rng(0).integers(0, vocabulary, (2, 2 * half))
    tokens[1, half:] = tokens[0, half:]
    apart, joined = np.tile(np.arange(half), 2), np.arange(2 * half)
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            differences = []
            for positions in (apart, joined):
                rows = [{"input_ids": row, "position_ids": positions} for row in tokens]
                batch = {
                    name: value.to(device) if hasattr(value, "to") else value for name, value in collate(rows).items()
                }
                logits = model(**batch).logits[:, half:].float()
                differences.append((logits[0] - logits[1]).abs().max().item())
    finally:
        model.train(training)
    if not differences[0] <= 0.05 * differences[1]:
        raise ToolkitError(
            "documents that are packed into one sequence see one another in this model"
            f" (logits differ by {differences[0]:.2g}, by {differences[1]:.2g} where they may)",
            remedy=REMEDY,
        )


def nothing(width: int) -> dict[str, np.ndarray]:
    """A row that adds nothing to a loss: for ranks that have run out of held-out sequences."""
    return {
        "input_ids": np.zeros(width, np.int32),
        "labels": np.full(width, IGNORED, np.int32),
        "position_ids": np.arange(width, dtype=np.int32),
    }
