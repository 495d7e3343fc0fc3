"""Conversations: exactly which tokens are learnt, with every kind of chat template."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recipes.byte_tokenizer import BEGIN, END, SPECIAL_TOKENS, ByteTokenizer
from recipes.finetune import chat, checks, data
from tests import finetune_runs
from toolkit.errors import ToolkitError
from toolkit.recipe import Contract

TALK = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "Hé?"},
    {"role": "assistant", "content": "Hello"},
    {"role": "user", "content": "Bye"},
    {"role": "assistant", "content": "So long"},
]
# as SmolLM2 and Qwen2.5 have it: no marks of what is generated
UNMARKED = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<end>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
# as Qwen3 does: thoughts are taken out of all turns but the last
REWRITING = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' }}"
    "{% if message['role'] == 'assistant' and loop.last %}{{ '(thinks)' }}{% endif %}"
    "{{ message['content'] + '<end>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def tokenizer(template: str = "") -> ByteTokenizer:
    made = ByteTokenizer()
    made.chat_template = template or None
    return made


def text(tokens: list[int]) -> str:
    return "".join(SPECIAL_TOKENS.get(token) or bytes([token]).decode("latin-1") for token in tokens)


def learnt(encoded: chat.Encoded) -> list[str]:
    """The runs of learnt tokens, as text."""
    tokens, flags = encoded
    edges = np.flatnonzero(np.diff([False, *flags, False]))
    return [text(tokens[first:last]) for first, last in edges.reshape(-1, 2).tolist()]


def test_the_plain_template_learns_the_answers_and_their_ends() -> None:
    plain = tokenizer()
    assert "no chat template" in chat.with_template(plain)
    (encoded,) = chat.conversation(TALK, plain)
    assert encoded[0][0] == BEGIN and encoded[0][-1] == END
    assert text(encoded[0]) == (
        "<begin>### system\nBe kind.\n\n### user\nH\xc3\xa9?\n\n### assistant\nHello<end>\n\n"
        "### user\nBye\n\n### assistant\nSo long<end>"
    )
    assert learnt(encoded) == ["Hello<end>", "So long<end>"]


@pytest.mark.parametrize("name", chat.shipped())
def test_shipped_templates_agree_with_what_they_prompt(name: str) -> None:
    """Without its marks, read by what it adds to a conversation, a template learns the same, and at most a line end."""
    marked = tokenizer()
    assert name in chat.with_template(marked, name)
    plain = tokenizer(marked.chat_template.replace("{%- generation -%}", "").replace("{%- endgeneration -%}", ""))
    (one,), (other,) = chat.conversation(TALK, marked), chat.conversation(TALK, plain)
    assert learnt(one)[0] in ("Hello<end>", "Hello<|im_end|>")
    assert [part.rstrip("\n") for part in learnt(other)][0] == learnt(one)[0]
    assert text(one[0]).startswith("<begin>") and text(one[0]).count("<begin>") == 1


def test_without_marks_an_answer_is_what_it_adds_to_the_conversation() -> None:
    (encoded,) = chat.conversation(TALK, tokenizer(UNMARKED))
    assert learnt(encoded) == ["Hello<end>", "So long<end>"]
    assert text(encoded[0]).endswith("<|user|>Bye<end><|assistant|>So long<end>")


def test_a_template_that_rewrites_earlier_turns_makes_a_sequence_of_every_answer() -> None:
    first, second = chat.conversation(TALK, tokenizer(REWRITING))
    assert learnt(first) == ["(thinks)Hello<end>"]
    assert learnt(second) == ["(thinks)So long<end>"]
    assert text(second[0]).endswith("<|assistant|>Hello<end><|user|>Bye<end><|assistant|>(thinks)So long<end>")


def test_everything_is_learnt_where_that_is_the_contract() -> None:
    (encoded,) = chat.conversation(TALK, tokenizer(UNMARKED), completion_only=False)
    assert all(encoded[1]) and text(encoded[0]).startswith("<|system|>Be kind.<end>")


def test_the_end_is_always_learnt() -> None:
    bare = "{% for message in messages %}{{ message['role'][0] + ':' + message['content'] + '\n' }}{% endfor %}"
    (encoded,) = chat.conversation(TALK, tokenizer(bare))
    assert learnt(encoded)[-1].endswith("So long\n<end>")
    outside = (
        "{% for message in messages %}{% if message['role'] == 'assistant' %}"
        "{% generation %}{{ message['content'] }}{% endgeneration %}{{ '<end>' }}"
        "{% else %}{{ message['content'] }}{% endif %}{% endfor %}"
    )
    (encoded,) = chat.conversation(TALK, tokenizer(outside))
    assert learnt(encoded) == ["Hello<end>", "So long<end>"]  # though the template does not mark the ends


def test_a_tokenizer_that_does_not_tell_places_learns_the_same() -> None:
    class Python(ByteTokenizer):
        def __call__(self, text: str, **options: Any) -> Any:
            raise NotImplementedError("return_offset_mapping is not available when using Python tokenizers")

    for template in (UNMARKED, REWRITING):
        there, here = Python(), tokenizer(template)
        there.chat_template = template
        assert list(chat.conversation(TALK, there)) == list(chat.conversation(TALK, here))


def test_nothing_to_learn_is_no_sequence() -> None:
    for template in (UNMARKED, REWRITING):
        assert list(chat.conversation(TALK[:2], tokenizer(template))) == []
    plain = tokenizer()
    chat.with_template(plain)
    assert list(chat.conversation(TALK[:2], plain)) == []


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([{"from": "human", "value": "x"}], "message 1 has from .text., value .text."),
        ([{"role": "user", "content": "x"}, "y"], "message 2 has text"),
        ([{"role": "user", "content": [{"type": "image"}]}], "the content of message 1 .user. is a list, not text"),
        ([{"role": "assistant", "content": None}], "the content of message 1 .assistant. is null"),
        ([{"role": "user"}], "the content of message 1 .user. is not there"),
        ([{"role": "user", "content": "a \ud83d"}], "message 1 holds U.D83D, half of a pair"),
        ([], "no messages"),
    ],
)
def test_messages_of_another_form_are_refused(messages: list[Any], message: str) -> None:
    with pytest.raises(ToolkitError, match=message):
        list(chat.conversation(messages, tokenizer(UNMARKED)))


def test_a_template_that_cannot_write_them_is_refused_with_the_row(tmp_path: Path) -> None:
    strict = tokenizer("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(ToolkitError, match="cannot write the roles system, user, .*: roles must alternate"):
        list(chat.conversation(TALK, strict))
    path = tmp_path / "rows.jsonl"
    path.write_text('{"messages": [{"role": "user", "content": "x"}]}')
    with pytest.raises(ToolkitError, match="row 1 of the dataset: the chat template cannot"):
        data.build(Contract(dataset=str(path), completion_only=True), strict, 0)


def test_answers_that_change_what_is_before_them_are_refused() -> None:
    counting = "{{ messages | length }}{% for message in messages %}{{ message['content'] }}{% endfor %}"
    with pytest.raises(ToolkitError, match="rewrites the conversation before it"):
        list(chat.conversation(TALK, tokenizer(counting)))


@pytest.mark.parametrize(
    "template",
    [
        "{{ 1 // 0 }}",
        "{% for n in range(10**9) %}x{% endfor %}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
        "{{ messages[77].content }}",
        "{{ broken",
        "{{ nothing_such() }}",
    ],
)
def test_whatever_a_template_fails_with_is_a_sentence(template: str) -> None:
    with pytest.raises(ToolkitError, match="the chat template cannot write the roles system, user"):
        list(chat.conversation(TALK, tokenizer(template)))


@pytest.mark.parametrize(
    "template",
    [
        "hello",
        "{% for m in messages %}{% if m.role != 'assistant' %}{{ m.content }}<end>{% endif %}{% endfor %}",
        "{% for m in messages %}{% generation %}{% endgeneration %}{{ m.content }}<end>{% endfor %}",
    ],
)
def test_a_template_without_the_answers_is_refused(template: str) -> None:
    """It would teach ends alone, and say that all went well."""
    with pytest.raises(ToolkitError, match="does not write what the assistant says"):
        list(chat.conversation(TALK, tokenizer(template)))
    with pytest.raises(ToolkitError, match="does not write what the assistant says|rewrites"):
        chat.answer(TALK, 4, tokenizer("hello"))


def test_a_template_that_is_no_text_is_refused() -> None:
    odd = tokenizer()
    odd.chat_template = 3  # type: ignore[assignment]
    with pytest.raises(ToolkitError, match="chat template is a number, not text"):
        chat.with_template(odd)


@pytest.mark.parametrize("marked", [True, False])
def test_the_line_end_after_the_end_token_is_not_learnt(marked: bool) -> None:
    """Nobody generates it: generation stops at the end token."""
    said = "{% generation %}{{ message['content'] + '<end>\n' }}{% endgeneration %}"
    plain = "{{ message['content'] + '<end>\n' }}"
    template = (
        "{% for message in messages %}{{ '<|' + message['role'] + '|>' }}{% if message['role'] == 'assistant' %}"
        + (said if marked else plain)
        + "{% else %}"
        + plain
        + "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
    )
    (encoded,) = chat.conversation(TALK, tokenizer(template))
    assert learnt(encoded) == ["Hello<end>", "So long<end>"]
    assert text(encoded[0]).endswith("So long<end>\n")


def test_a_template_that_is_not_shipped_is_refused() -> None:
    made = finetune_runs.tiny_plan(chat_template="zephir")
    with pytest.raises(ToolkitError, match="'zephir' is not one of chatml, simple, tulu, zephyr"):
        checks.check(made, 2, None)


@pytest.mark.slow
def test_the_labels_are_those_of_transformers(tmp_path: Path) -> None:
    """The library's own mask of what the assistant generates, from the tokenizer that is saved with the model."""
    from transformers import AutoTokenizer

    plain = tokenizer()
    chat.with_template(plain)
    plain.save_pretrained(tmp_path)
    library = AutoTokenizer.from_pretrained(tmp_path)
    theirs = library.apply_chat_template(TALK, return_dict=True, return_assistant_tokens_mask=True)
    for mine in (plain, library):
        (encoded,) = chat.conversation(TALK, mine)
        assert encoded[0] == list(theirs["input_ids"])
        assert [int(flag) for flag in encoded[1]] == list(theirs["assistant_masks"])
