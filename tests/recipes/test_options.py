"""Options of the training programs: whatever stands there is a value in its range, or a sentence that names it."""

import argparse
import importlib
import math
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from recipes import option_table, options
from recipes.option_table import remarks, require_reachable
from recipes.options import Parser
from tests.recipes.test_program import PROGRAMS, start
from toolkit.errors import ToolkitError

PARSERS = {"finetune": option_table.finetune(), "pretrain": option_table.pretrain()}
ALL = [(which, name) for which, parser in PARSERS.items() for name in parser.table]
ODD = st.one_of(
    st.text(max_size=12),
    st.integers().map(str),
    st.floats().map(str),
    st.sampled_from(["", " ", "nan", "inf", "-inf", "1e400", "0", "-0", "-1", "1e3", "٣", "1_0", "None", "--", "-x", "s3://",
                     "://", "\0", "9" * 5000, "true", "skip", "x://y", "file:///tmp", "=", "2**3", "0x10", "²"]),
)  # fmt: skip


def read(*words: str, which: str = "finetune") -> argparse.Namespace:
    return PARSERS[which].read(["--plan", "plan.json", *words])


def problems(*words: str, which: str = "finetune") -> str:
    with pytest.raises(ToolkitError) as found:
        read(*words, which=which)
    assert found.value.exit_code == 2
    assert all(problem.remedy for problem in found.value.problems)
    return str(found.value)


@drawn(st.sampled_from(ALL), ODD, st.booleans())
def test_any_text_as_any_value_is_in_range_or_a_sentence_that_names_the_option(
    of: tuple[str, str], text: str, is_joined: bool
) -> None:
    which, name = of
    try:
        found = read(*([f"{name}={text}"] if is_joined else [name, text]), which=which)
    except ToolkitError as error:
        assert error.exit_code == 2
        assert any(name in problem.message or repr(text) in problem.message for problem in error.problems)
        assert all(problem.remedy and "\n" not in problem.remedy for problem in error.problems)
        return
    value = getattr(found, PARSERS[which].table[name].key)
    if isinstance(value, (int, float)):
        assert math.isfinite(value) and 0 <= value <= 1e12
    else:
        assert str(value) == (str(Path(text)) if isinstance(value, Path) else text)


@drawn(st.lists(st.tuples(st.sampled_from(ALL), ODD), max_size=8))
def test_every_wrong_option_is_told_and_no_other_at_once(words: list[tuple[tuple[str, str], str]]) -> None:
    """Each alone, and all of them together."""

    def wrong_alone(name: str, text: str) -> bool:
        try:
            parser.table[name].read(text)  # type: ignore[misc]
        except ValueError:
            return True
        return False

    parser = PARSERS["finetune"]
    mine = {name: text for (_, name), text in words if name in parser.table and parser.table[name].read is not None}
    told: list[str] = []
    try:
        parser.read(["--plan=plan.json", *(f"{name}={text}" for name, text in mine.items())])
    except ToolkitError as error:
        told = [problem.message for problem in error.problems]
    wrong = {name for name, text in mine.items() if wrong_alone(name, text)}
    assert {message.split()[0] for message in told if " is '" in message or ' is "' in message} == wrong


@pytest.mark.parametrize("which", PARSERS)
def test_every_option_has_a_default_in_its_own_range_and_stands_in_the_help(which: str) -> None:
    parser = PARSERS[which]
    shown = parser.usage()
    for option in parser.table.values():
        assert f"  {option.name}" in shown
        if option.read is not None and option.default not in (options.REQUIRED, None, "") and option.key != "max_steps":
            assert option.read(str(option.default)) == option.default
    assert read(which=which).max_steps == 0  # to the end


@pytest.mark.parametrize(
    "word",
    [
        "--spike-deviations=inf", "--spike-deviations=nan", "--spike-deviations=0", "--spike-window=2",
        "--skip-batches=0", "--setbacks=0", "--setbacks=-1", "--setbacks=1.5", "--on-nan=warn", "--on-spike=",
        "--straggler-factor=inf", "--straggler-factor=1", "--straggler-every=-1", "--straggler-windows=0",
        "--hang-at-most=0", "--hang-at-most=-5", "--hang-at-most=inf", "--hang-after=nan", "--hang-after=0.5",
        "--start-limit=0", "--start-limit=-1", "--start-limit=1e300", "--save-steps=-1", "--max-steps=1.5",
        "--max-steps=0", "--max-steps=1e3", "--keep=0", "--keep-every=-2", "--eval-steps=-1", "--durable=",
        "--durable=folder", "--durable=nothing://x", "--output-dir=", "--plan=", "--trace=", "--async-save=yes",
    ],
)  # fmt: skip
def test_what_has_been_taken_once_and_is_no_value(word: str) -> None:
    name, _, text = word.partition("=")
    assert problems(word).startswith(f"{name} is {text!r}\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--hang-after", "60", "--hang-at-most", "30"], "--hang-at-most 30 is less than --hang-after 60"),
        (["--hang-after", "3600"], "--hang-at-most 1800 is less than --hang-after 3600"),
        (["--save-steps", "0", "--keep-every", "5"], "--keep-every is 5 with --save-steps 0"),
        (["--on-spike", "skip", "--trace", "t"], "--trace t and --on-spike skip"),
        (["--output", "elsewhere"], "there is no option '--output'"),  # launch.sh looks for whole words
        (["--bogus"], "there is no option '--bogus'"),
        (["--sve-steps", "5"], "did you mean --save-steps?"),
        (["word"], "there is no option 'word'"),
        (["--keep"], "--keep has no value\n  give one: --keep N"),
        (["--keep", "--async-save"], "--keep has no value"),
    ],
)
def test_what_does_not_go_together_and_what_is_no_option(words: list[str], said: str) -> None:
    assert said in problems(*words)


def test_all_of_it_is_said_at_once_and_once_on_each_node(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(options.time, "sleep", slept.append)
    for rank in ("0", "1"):
        monkeypatch.setenv("LOCAL_RANK", rank)
        with pytest.raises(SystemExit) as left:
            option_table.pretrain().parse_args(["--keep", "0", "--merge", "--setbacks", "nan", "--durable", ""])
        told = capsys.readouterr()
        assert left.value.code == 2 and not told.out
        said = [line for line in told.err.splitlines() if line.startswith("error: ")]
        wanted = ["--keep is '0'", "there is no option '--merge'", "--setbacks is 'nan'", "--durable is ''"]
        assert said == [f"error: {each}" for each in [*wanted, "--plan is missing"]]
    assert slept == [options.SAID_BY_THE_FIRST]


def test_off_is_off_and_the_last_of_two_holds() -> None:
    given = read("--hang-after", "0", "--hang-at-most", "1", "--keep", "4", "--keep=3", "--straggler-every=0")
    assert (given.hang_after, given.hang_at_most, given.keep, given.straggler_every) == (0.0, 1.0, 3, 0)


@drawn(st.integers(1, 60), st.integers(1, 60), st.integers(1, 200))
def test_what_is_kept_for_good_is_reachable_exactly_where_nothing_is_said(every: int, save: int, total: int) -> None:
    """Checkpoints are made every ``save`` steps and at the end; of these the multiples of ``every`` stay."""
    given = read("--keep-every", str(every), "--save-steps", str(save))
    saved = {*range(save, total + 1, save), total}
    met = [step for step in saved if step % every == 0]
    try:
        require_reachable(given, total)
        assert met
    except ToolkitError as error:
        assert not met and f"--keep-every is {every} and --save-steps {save}" in str(error)
    asked = [step for step in range(every, total + 1, every) if step not in saved]
    if asked and met:
        assert remarks(given, total)


def test_what_the_length_of_the_run_says() -> None:
    with pytest.raises(ToolkitError, match=r"first step that is a multiple of both is 50, the run has 40") as found:
        require_reachable(read("--keep-every", "25", "--save-steps", "10", "--skip-batches", "41"), 40)
    assert len(found.value.problems) == 2 and "--skip-batches is 41, the run has 40" in str(found.value)
    require_reachable(read("--keep-every", "25", "--save-steps", "10"), 0)  # not known yet
    assert "only those of every 50" in remarks(read("--keep-every", "25", "--save-steps", "10"), 1000)[0]
    assert "it ends at step 7" in remarks(read("--keep-every", "50", "--save-steps", "10", "--max-steps", "7"), 7)[0]
    assert not remarks(read("--keep-every", "50", "--save-steps", "10"), 1000) and not remarks(read(), 3)


@pytest.mark.parametrize("which", PROGRAMS)
def test_a_program_refuses_options_the_plan_and_the_place_before_torch(which: str, tmp_path: Path) -> None:
    said = start(which, tmp_path, "--keep", "0", "--spike-deviations", "inf")
    assert said.count("error: ") == 2 and "--keep is '0'" in said and "--spike-deviations is 'inf'" in said
    said = start(which, tmp_path, "--skip-batches", "1000000", WORLD_SIZE="7")
    assert "--skip-batches is 1000000, the run has" in said and "7 process" in said


def test_the_table_brings_nothing_heavy() -> None:
    code = "import recipes.option_table, sys; print([m for m in ('torch', 'fsspec', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_two_options_of_one_name_are_a_fault_of_the_table() -> None:
    with pytest.raises(AssertionError):
        Parser("x", "x", [*option_table.SHARED, option_table.SHARED[0]])


@drawn(st.sampled_from(("finetune", "pretrain")), st.data())
def test_any_text_for_an_option_of_the_preparations_too(which: str, data: st.DataObject) -> None:
    table = importlib.import_module(f"recipes.{which}.prepare").TABLE
    words = [f"{option.name}={data.draw(ODD)}" for option in table]
    try:
        found = Parser("x", "x", table).read(words)
    except ToolkitError as error:
        assert all(problem.message.split()[0] in {option.name for option in table} for problem in error.problems)
        return
    assert all(value != "" for value in vars(found).values())
