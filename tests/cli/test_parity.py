"""``toolkit parity``: what is refused before anything runs, and that plans are of one experiment."""

from __future__ import annotations

import pytest

from toolkit.cli.main import main
from toolkit.cli.parity import plans_of


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nosuch"], "nosuch"),
        (["tiny", "--against", "tp2"], "no tp"),
        (["tiny-pretrain", "--against", "zero3"], "ZeRO-1"),
        (["tiny-pretrain", "--against", "tp2,seven"], "'seven' is not a layout"),
        (["tiny", "--against", "ep2"], "no ep"),
        (["tiny-pretrain", "--against", "tp3"], "tp3"),
        (["tiny", "--against", ""], "names no layout"),
        (["tiny", "--against", " , "], "names no layout"),
        (["sft-tulu-3-8b", "--against", "ddp2"], "of each worker, which has 8 GiB"),
        (["tiny/plan.json"], "cannot read the recipe"),
    ],
)
def test_what_cannot_be_compared_is_said(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["parity", *arguments])
    said = capsys.readouterr().err
    assert left.value.code in (1, 2) and words in said and "Traceback" not in said


@pytest.mark.parametrize(("recipe", "layouts"), [("tiny", "zero1,ddp2"), ("tiny-pretrain", "tp2+sp,pp2,cp2,tp2+pp2")])
def test_only_the_layout_differs(recipe: str, layouts: str) -> None:
    reference, plans = plans_of(recipe, layouts, {"cluster": "local-cpu"})
    assert reference.strategy.dp == reference.strategy.tp == reference.cluster.num_gpus == 1
    for name, plan in plans.items():
        assert plan.contract == reference.contract and plan.contract.precision == "fp32"
        assert plan.cluster.num_gpus == (4 if name == "tp2+pp2" else 2)
