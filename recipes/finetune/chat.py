"""Conversations as tokens, and which of them are learnt: what the assistant says, and the end of its turn.

A template says itself what the assistant generates where it has ``{% generation %}`` markers. Where it
has none, an answer is what the template adds to the conversation before it with the assistant's header:

    before_i = render(messages[:i], add_generation_prompt=True)
    after_i  = render(messages[:i + 1])         learnt: after_i without before_i

That holds inside of the whole conversation only where ``render(messages)`` begins with every ``after_i``.
Templates that rewrite earlier turns (Qwen3 takes the thoughts out of them) do not; then every answer
becomes a sequence of its own, ``after_i``, which is what the model sees when it is used. (What this does
not do: tools, images.)
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from recipes.finetune import rows
from recipes.finetune.documents import require_text
from toolkit.errors import ToolkitError

Encoded = tuple[list[int], list[bool]]  # tokens of a sequence, and which of them are learnt
Span = tuple[int, int]  # characters: first, last + 1

MARKER = re.compile(r"\{%-?\s*generation\s*-?%\}")

TEMPLATES = Path(__file__).parent.parent / "chat_templates"
NOT_WRITTEN = "the chat template does not write what the assistant says"
SIMPLE = "simple"  # for tokenizers without a template: plain text, no new tokens


def shipped() -> list[str]:
    """Names of the templates that a contract can ask for."""
    return sorted(path.stem for path in TEMPLATES.glob("*.jinja"))


def template_of(tokenizer: Any) -> str:
    """The tokenizer's own template; of several the one named default; empty where it has none."""
    template = getattr(tokenizer, "chat_template", None) or ""
    if isinstance(template, Mapping):
        template = template.get("default", "")
    if not isinstance(template, str):
        raise ToolkitError(
            f"the tokenizer's chat template is {rows.kind(template)}, not text",
            remedy="correct chat_template in its tokenizer_config.json, or name one in the contract",
        )
    return template


def writes_begin(tokenizer: Any) -> bool:
    """Whether the tokenizer puts a begin token before a text."""
    begin = tokenizer.bos_token_id
    return begin is not None and begin in tokenizer.encode("", add_special_tokens=True)


def with_template(tokenizer: Any, name: str = "") -> str:
    """Give a tokenizer the shipped template of this name, or a plain one if it has none; returns what was done.

    The template is saved with the model. It begins with the begin token where the tokenizer writes one.
    """
    if not name and template_of(tokenizer):
        return ""
    text = (TEMPLATES / f"{name or SIMPLE}.jinja").read_text(encoding="utf-8").rstrip("\n")
    tokenizer.chat_template = ("{{- bos_token -}}" if writes_begin(tokenizer) else "") + text
    if name:
        return f"conversations are written with the chat template {name}"
    return "the tokenizer has no chat template: conversations are written with a plain one (recipes/chat_templates)"


def conversation(
    messages: Sequence[Mapping[str, Any]], tokenizer: Any, completion_only: bool = True
) -> Iterator[Encoded]:
    """The sequences to learn of a conversation: one, or one per answer; none where there is nothing to learn.

    Without ``completion_only`` every token of the conversation is learnt. Raises ToolkitError for messages of
    another form, and for a template that cannot write them.
    """
    check(messages)
    template = template_of(tokenizer)
    marked = completion_only and MARKER.search(template) is not None
    whole, spans = _render(messages, tokenizer, template, marked)
    if not completion_only:
        if whole:
            yield _tokens(whole, [(0, len(whole))], tokenizer)
        return
    answers = [at for at, message in enumerate(messages) if message["role"] == "assistant"]
    if marked:
        written = [(first, last) for first, last in spans if last > first]
        if not written and any(messages[at]["content"].strip() for at in answers):
            raise ToolkitError(NOT_WRITTEN, remedy="correct the {% generation %} markers of the tokenizer's template")
        if spans:
            yield _tokens(whole, _until_the_end(whole, spans, tokenizer), tokenizer)
        return
    texts = [_around(messages, at, tokenizer, template) for at in answers]
    if all(whole.startswith(after) for _, after in texts):
        spans = [(len(before), len(after)) for before, after in texts]
        if spans:
            yield _tokens(whole, _until_the_end(whole, spans, tokenizer), tokenizer)
        return
    for before, after in texts:
        yield _tokens(after, _until_the_end(after, [(len(before), len(after))], tokenizer), tokenizer)


def _until_the_end(text: str, spans: list[Span], tokenizer: Any) -> list[Span]:
    """Spans without the blanks after the end token (as chatml has a line end there), which nobody generates."""
    end = tokenizer.special_tokens_map.get("eos_token") or ""
    cut = [(first, first + len(text[first:last].rstrip())) for first, last in spans]
    return [
        short if end and text[slice(*short)].endswith(end) else span for span, short in zip(spans, cut, strict=True)
    ]


def answer(messages: Sequence[Mapping[str, Any]], first: int, tokenizer: Any) -> Encoded:
    """A conversation of which everything from message ``first`` on is learnt: one answer of a pair.

    Raises ToolkitError as :func:`conversation` does.
    """
    check(messages)
    template = template_of(tokenizer)
    whole, _ = _render(messages, tokenizer, template)
    before = _render(messages[:first], tokenizer, template, prompt=True)[0] if first else ""
    if first and not whole.startswith(before):
        before, _ = _render(messages[:first], tokenizer, template)
    if not whole.startswith(before):
        raise ToolkitError(
            "the chat template rewrites the conversation before the answer", remedy="use another template or other rows"
        )
    if len(whole) == len(before):
        raise ToolkitError(NOT_WRITTEN, remedy="use another template: chat_template in the contract")
    return _tokens(whole, [(len(before), len(whole))], tokenizer)


def _around(messages: Sequence[Mapping[str, Any]], at: int, tokenizer: Any, template: str) -> tuple[str, str]:
    """The conversation up to an answer, and with it."""
    after, _ = _render(messages[: at + 1], tokenizer, template)
    if at == 0:  # many templates look at the first message, and there is none before it
        return "", after
    before, _ = _render(messages[:at], tokenizer, template, prompt=True)
    if not after.startswith(before):
        before, _ = _render(messages[:at], tokenizer, template)  # a template whose prompt is not what it writes
    if not after.startswith(before):
        raise ToolkitError(
            "the chat template does not mark what the assistant says, and rewrites the conversation before it",
            remedy="put {% generation %} and {% endgeneration %} around it in the tokenizer's template",
        )
    if messages[at]["content"].strip() and not after[len(before) :].strip():
        raise ToolkitError(NOT_WRITTEN, remedy="use another template: chat_template in the contract")
    return before, after


def check(messages: Sequence[Mapping[str, Any]]) -> None:
    """Raise ToolkitError unless there are messages, each with a role and text."""
    for number, message in enumerate(messages, start=1):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            found = rows.columns(message) if isinstance(message, Mapping) else rows.kind(message)
            raise ToolkitError(f"message {number} has {found}", remedy="a message has role and content")
        content = message.get("content")
        if not isinstance(content, str):
            what = f"is {rows.kind(content)}, not text" if "content" in message else "is not there"
            raise ToolkitError(
                f"the content of message {number} ({message['role']}) {what}",
                remedy="this program trains on text: correct or remove the row",
            )
        require_text(content, f"message {number}")
    if not messages:
        raise ToolkitError("the conversation has no messages", remedy="remove the row")


def _render(
    messages: Sequence[Mapping[str, Any]], tokenizer: Any, template: str, marked: bool = False, prompt: bool = False
) -> tuple[str, list[Span]]:
    from transformers.utils.chat_template_utils import render_jinja_template

    plain = [{name: value for name, value in message.items() if value is not None} for message in messages]
    try:
        texts, spans = render_jinja_template(
            conversations=[plain],
            chat_template=template,
            return_assistant_tokens_mask=marked,
            add_generation_prompt=prompt,
            **tokenizer.special_tokens_map,
        )
    except Exception as error:  # a template is a program of its own, and may fail as any
        roles = ", ".join(str(message["role"]) for message in messages)
        raise ToolkitError(
            f"the chat template cannot write the roles {roles}: {error or type(error).__name__}",
            remedy="change the rows or the template",
        ) from error
    return texts[0], [(first, last) for first, last in spans[0]] if marked else []


def _tokens(text: str, spans: list[Span], tokenizer: Any) -> Encoded:
    """Every token that overlaps a span is learnt, and the end token that follows one.

    Where no end token follows the last answer, one is added: a model that has not learnt to stop does not.
    """
    tokens, places = _offsets(text, spans, tokenizer)
    begins, ends = places[:, 0], places[:, 1]  # in order, as the spans are
    learnt = np.zeros(len(tokens), bool)
    for first, last in spans:
        learnt[np.searchsorted(ends, first, side="right") : np.searchsorted(begins, last, side="left")] = True
    stops = np.asarray(tokens) == tokenizer.eos_token_id
    learnt[1:] |= stops[1:] & learnt[:-1]
    answer = spans[-1][0] if spans else 0
    if not stops[np.searchsorted(ends, answer, side="right") :].any():
        return [*tokens, tokenizer.eos_token_id], [*learnt.tolist(), True]
    return tokens, learnt.tolist()


def _offsets(text: str, spans: list[Span], tokenizer: Any) -> tuple[list[int], np.ndarray]:
    """Tokens, and the characters [first, last + 1] of each."""
    try:
        encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        return list(encoded["input_ids"]), np.asarray(encoded["offset_mapping"], np.int64).reshape(-1, 2)
    except NotImplementedError:  # a tokenizer in Python: cut the text where learning begins and ends
        tokens: list[int] = []
        places: list[Span] = []
        cuts = sorted({0, len(text), *(edge for span in spans for edge in span)})
        for first, last in zip(cuts, cuts[1:], strict=False):
            piece = tokenizer.encode(text[first:last], add_special_tokens=False)
            tokens += piece
            places += [(first, last)] * len(piece)
        return tokens, np.asarray(places, np.int64).reshape(-1, 2)
