"""The README is true: its outputs are real, its commands exist, its links lead somewhere."""

import re
from pathlib import Path

from tests.readme_outputs import README, ROOT, output_of, rendered
from toolkit.cli.main import COMMANDS


def test_outputs_are_what_the_commands_print_now() -> None:
    text = README.read_text()
    assert rendered(text) == text, "run: make golden"


def test_every_command_is_in_the_table_and_the_other_way_round() -> None:
    named = set(re.findall(r"`toolkit (\w+)", README.read_text()))
    assert named == set(COMMANDS)


def test_links_lead_somewhere() -> None:
    for page in (README, ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "recipes").rglob("*.md")):
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_versions_are_the_pinned_ones() -> None:
    pins = dict(re.findall(r'"([\w-]+)==([\d.]+)"', (ROOT / "pyproject.toml").read_text()))
    text = README.read_text()
    spelled = {"deepspeed": "DeepSpeed"}
    for name, version in pins.items():
        assert f"{spelled.get(name, name)} {version}" in text, f"{name} {version} is pinned but not in README.md"


def test_make_targets_of_the_readme_exist() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.M))
    pages = README.read_text() + (ROOT / "CONTRIBUTING.md").read_text()
    used = set(re.findall(r"(?:`|^)make ([\w-]+)", pages, flags=re.M))
    assert used <= targets


def test_the_project_names_no_machine_paths() -> None:
    for path in [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "slurm").rglob("*"),
        *(ROOT / "ds_configs").rglob("*"),
    ]:
        if Path(path).is_file():
            assert "/root/" not in path.read_text(), path
            assert str(ROOT) not in path.read_text(), path


def test_the_pages_of_docs_are_reachable() -> None:
    text = README.read_text()
    for page in (ROOT / "docs").glob("*.md"):
        assert f"](docs/{page.name})" in text, page.name


def test_an_output_is_printed_the_same_twice() -> None:
    command = "toolkit plan --params 7B --gpus 8 --top 1"  # no time of its own, which would differ
    assert output_of(command) == output_of(command)
