"""Numbered equations: code and docs/maths.md hold the same set and text, and a trace records values."""

import importlib
import pkgutil
import re
from pathlib import Path

import toolkit.calibrate
import toolkit.estimate
import toolkit.intervals
import toolkit.verify.parity
from toolkit.equation import EQUATIONS, trace

MATHS = Path(__file__).resolve().parent.parent / "docs" / "maths.md"


def load_all() -> None:
    for package in (toolkit.estimate, toolkit.intervals, toolkit.calibrate, toolkit.verify.parity):
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{package.__name__}.{module.name}")


def test_every_equation_is_in_the_document_and_the_other_way_round() -> None:
    load_all()
    written = set(re.findall(r"^\|?\s*\**\[?([PAMFCTERSN]\d+[a-z]?)\]?\**", MATHS.read_text(), flags=re.M))
    assert set(EQUATIONS) == written


def plain(text: str) -> str:
    """An equation without what the code and the document write differently: products, blanks, Greek letters."""
    for sign, word in (("σ", "sigma"), ("φ", "phi"), ("Σ", "sum")):
        text = text.replace(sign, word)
    return re.sub(r"[\s*·]", "", text)


def test_the_document_writes_each_equation_as_the_code_does() -> None:
    load_all()
    rows = dict(re.findall(r"^\| ([PAMFCTERSN]\d+) \| (.*?) \|", MATHS.read_text(), flags=re.M))
    different = {
        anchor: (function.equation, rows[anchor])  # type: ignore[attr-defined]
        for anchor, function in EQUATIONS.items()
        if plain(function.equation) not in map(plain, re.findall(r"`([^`]*)`", rows[anchor]))  # type: ignore[attr-defined]
    }
    assert different == {}


def test_every_equation_has_a_source() -> None:
    load_all()
    without = [anchor for anchor, function in EQUATIONS.items() if "source" not in (function.__doc__ or "").lower()]
    assert without == []


def test_a_trace_records_inputs_and_results_outer_first() -> None:
    load_all()
    from toolkit.estimate.layer_parameters import embedding

    assert embedding(10, 4) == 40
    with trace() as steps:
        embedding(vocab_size=10, embedding_size=4)
    assert [(s.anchor, s.inputs, s.result) for s in steps] == [
        (EQUATIONS[steps[0].anchor].anchor, {"vocab_size": 10, "embedding_size": 4}, 40)  # type: ignore[attr-defined]
    ]
