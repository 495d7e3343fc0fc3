"""The tokenizer of a contract, by name, path or its model's: the same for both programs and their preparations."""

from __future__ import annotations

from typing import Any

from recipes import hub
from recipes.byte_tokenizer import ByteTokenizer
from recipes.model_source import hub_or_path
from toolkit.errors import ToolkitError
from toolkit.plan import Plan
from toolkit.registry.files import expanded, is_there


def load_tokenizer(plan: Plan) -> Any:
    """The contract's tokenizer: ``byte``, a name or path, or the model's own."""
    name = plan.contract.tokenizer or hub_or_path(plan)
    if not name:
        raise ToolkitError(
            f"the contract has no tokenizer and its model {plan.contract.model!r} is only a shape",
            remedy="set tokenizer to byte, or to a hub name or a path",
        )
    tokenizer = tokenizer_named(name)
    if tokenizer.eos_token_id is None:
        raise ToolkitError(
            f"the tokenizer {name!r} has no end token, so no document would end",
            remedy="use one whose tokenizer_config.json names an eos_token",
        )
    return tokenizer


def tokenizer_named(name: str) -> Any:
    """``byte``, a folder, or a hub name; raises ToolkitError for what cannot be loaded."""
    if name == "byte":
        return ByteTokenizer()
    path = expanded(name)
    there, like_a_path = is_there(path), name.startswith((".", "~", "/"))
    if like_a_path and not there or there and not path.is_dir():
        raise ToolkitError(
            f"cannot load the tokenizer {name!r}: {'it is no folder' if there else 'it does not exist'}",
            remedy="give byte, a folder with tokenizer.json and tokenizer_config.json, or a hub name",
        )
    from transformers import AutoTokenizer

    if not there:
        hub.settle()
    try:
        return AutoTokenizer.from_pretrained(str(path) if there else name)
    except Exception as error:  # the libraries raise many kinds, down to a bare Exception for a damaged file
        raise ToolkitError(
            f"cannot load the tokenizer {name!r}: {' '.join(str(error).split()) if there else hub.reason(error)}",
            remedy="check the name, or the files of the folder: tokenizer.json and tokenizer_config.json",
        ) from error


def require_rows(tokenizer: Any, vocabulary: int) -> None:
    """Raise ToolkitError unless the model's embedding has a row for each token."""
    if len(tokenizer) > vocabulary:
        raise ToolkitError(
            f"the tokenizer has {len(tokenizer)} tokens, the model's vocabulary {vocabulary}",
            remedy="use the model's own tokenizer",
        )
