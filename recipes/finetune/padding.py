"""The padding token, which is never the end token.

Where both are one token, whoever hides the padding from the loss (as collators do, by its number) hides the
end too, and the model never learns to stop. This program hides by place, not by number, but the tokenizer
is saved with the model and used by others after it.
"""

from __future__ import annotations

from typing import Any

# what tokenizers keep for it, or keep unused
NAMES = (
    "<pad>",
    "[PAD]",
    "<|pad|>",
    "<|padding|>",
    "<|finetune_right_pad_id|>",
    "<|reserved_special_token_0|>",
    "<|extra_0|>",
    "<unk>",
    "[UNK]",
    "<|endoftext|>",
)
NEW = "<|padding|>"


def settle(tokenizer: Any, vocabulary: int) -> tuple[int, str]:
    """Give the tokenizer a padding token that is neither end nor begin; returns its number and what was done.

    ``vocabulary`` is the number of rows of the model's embedding. In this order: the tokenizer's own; a token
    kept for it, or unused; a new one in a row that the model has to spare. Where there is none of these, the
    sequences are filled with an ordinary token, and the tokenizer is left without a padding token.
    """
    taken = {tokenizer.eos_token_id, tokenizer.bos_token_id}
    own = tokenizer.pad_token_id
    if own is not None and own not in taken:
        return own, ""
    why = "the tokenizer pads with its end token" if own is not None else "the tokenizer has no padding token"
    known = tokenizer.get_vocab()
    for name in NAMES:
        if name in known and known[name] < vocabulary and known[name] not in taken:
            tokenizer.pad_token = name
            return known[name], f"{why}; {name} is used instead"
    if len(tokenizer) < vocabulary:
        tokenizer.add_special_tokens({"pad_token": NEW})
        return tokenizer.pad_token_id, f"{why}; {NEW} was added, in a row that the model has to spare"
    tokenizer.pad_token = None
    filler = next(token for token in range(vocabulary) if token not in taken)
    return (
        filler,
        f"{why}, and the model no row to spare: sequences are filled with token {filler}, outside of the loss",
    )
