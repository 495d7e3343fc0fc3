"""Training sequences from indexed token files: megatron-core's own ``GPTDataset``, memory-mapped.

The library shuffles the documents of each epoch, joins them, cuts the stream every ``sequence_length`` tokens and
shuffles the cuts (``megatron/core/datasets/gpt_dataset.py``), all from the seed, the sequence length and the number of
samples of the whole run: so sample ``i`` is fixed by the contract. A resumed run asks for sample
``step x global batch`` and goes on. Rank 0 writes the order into the output directory and the others map it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from megatron.core.datasets.indexed_dataset import IndexedDataset
from megatron.core.datasets.utils import Split

from recipes import ranks, schedule
from recipes.model_source import hub_or_path
from recipes.pretrain.config import CoreConfig
from recipes.pretrain.data import Data, Windows, require_known
from recipes.pretrain.soundness import require_sound
from recipes.pretrain.tokens import HELD_OUT, beside, fingerprint, load_tokenizer, read_manifest
from toolkit.errors import ToolkitError
from toolkit.plan import Plan
from toolkit.recipe import Contract
from toolkit.registry.files import expanded


class _Made:
    """What the library asks a tokenizer for when the tokens are made already. It has no padding token."""

    def __init__(self, sha256: str, vocabulary: int, end: int) -> None:
        self.unique_identifiers = {"sha256": sha256}  # enters the name of the stored order
        self.vocab_size, self.eod = vocabulary, end


class Indexed:
    """The sequences of a run over one indexed file, in the library's order."""

    def __init__(
        self, dataset: Any, sequence_length: int, epoch: int, samples: int, largest: int | None = None
    ) -> None:
        self.dataset, self.sequence_length, self.epoch, self.samples = dataset, sequence_length, epoch, samples
        self.largest = largest  # token that there is, by the manifest

    def __len__(self) -> int:
        return self.epoch

    def sample(self, index: int) -> np.ndarray:
        """The ``sequence_length + 1`` tokens of sample ``index`` of the run; after its last one come the first again.

        The library's order is made for so many samples and no more; a run reads on where it has left some out.
        """
        item = self.dataset[index % self.samples]
        tokens = np.append(item["tokens"].numpy(), item["labels"][-1:].numpy())
        if self.largest is not None and not 0 <= tokens.min() <= tokens.max() <= self.largest:
            raise ToolkitError(
                f"sample {index} holds token {tokens.max()}, and the data's largest is {self.largest} by its manifest",
                remedy="its .bin is damaged: prepare the data again",
            )
        return tokens


def load(plan: Plan, core: CoreConfig, contract: Contract, folder: Path, rank: int) -> Data:
    """The run's data from ``contract.dataset`` as a prefix.

    Raises ToolkitError for files of another tokenizer, with less than one sequence, or that cannot be mapped.
    """
    prefix = str(expanded(contract.dataset))
    manifest = read_manifest(prefix)
    name = contract.tokenizer or hub_or_path(plan)
    if not name:
        raise ToolkitError(
            f"the contract has no tokenizer and its model {contract.model!r} is only a shape",
            remedy=f"set tokenizer to {manifest.tokenizer!r}, which made {prefix}",
        )
    if fingerprint(load_tokenizer(name)) != manifest.tokenizer_sha256:
        raise ToolkitError(
            f"{prefix} was made with the tokenizer {manifest.tokenizer!r}, not with {name!r}",
            remedy="prepare the data with the contract's tokenizer, or set the contract's tokenizer to the data's",
        )
    require_known(plan, manifest.largest)
    ranks.on_first_rank(lambda: require_sound(prefix, manifest), rank)
    length, seed = core.training.sequence_length, core.training.seed
    epoch = max(0, (manifest.tokens - 1) // length)
    if not epoch:
        raise ToolkitError(
            f"dataset {prefix!r} has {manifest.tokens} tokens, one sequence needs {length + 1}",
            remedy="give more text, or a smaller sequence_length",
        )
    steps = schedule.total_steps(contract, epoch)
    cache = folder / "data"

    def build() -> Any:
        try:
            tokens = IndexedDataset(prefix)
            config = GPTDatasetConfig(
                random_seed=seed,
                sequence_length=length,
                blend=([prefix], None),
                split="1,0,0",
                path_to_cache=str(cache),
                tokenizer=_Made(f"{manifest.tokenizer_sha256} {manifest.sha256}", plan.model.vocab_size, manifest.end),
                reset_position_ids=False,
                reset_attention_mask=False,
                eod_mask_loss=False,
                create_attention_mask=False,
            )
            documents = np.arange(len(tokens), dtype=np.int32)
            samples = steps * contract.global_batch_size
            return GPTDataset(tokens, prefix, documents, samples, Split.train, config)
        except (OSError, ValueError, AssertionError) as error:
            raise ToolkitError(
                f"cannot map {prefix} or the order in {cache}: {error}",
                remedy=f"both must be on storage that all nodes share; remove {cache} if it is damaged",
            ) from error

    def write_order() -> None:
        build()

    ranks.on_first_rank(write_order, rank)
    train = Indexed(build(), length, epoch, steps * contract.global_batch_size, manifest.largest)
    return Data(train, _held_out(prefix, manifest.held_out_tokens, length), steps, manifest.sha256)


def _held_out(prefix: str, count: int, length: int) -> Windows | None:
    """Held-out documents one after another, mapped; None where they do not fill one sequence."""
    if count <= length:
        return None
    dtype = IndexedDataset(prefix + HELD_OUT).index.dtype
    return Windows(np.memmap(beside(prefix, f"{HELD_OUT}.bin"), dtype, "r"), length, None)
