"""``toolkit models`` as a user runs it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PUBLISHED = json.loads((Path(__file__).parents[1] / "published" / "parameter_counts.json").read_text())["models"]


@pytest.fixture(autouse=True)
def no_folder_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLKIT_DATA", str(tmp_path / "nothing"))


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "toolkit", "models", *argv], capture_output=True, text=True)


def test_the_list_names_counts_and_sources() -> None:
    done = run()
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["NAME", "TOTAL", "ACTIVE", "TYPE", "SOURCE"]
    assert any(line.startswith("mixtral-8x7b ") and " 46.7B " in line and " 12.9B " in line for line in lines)
    assert len({line.index("config.json of") for line in lines if "config.json of" in line}) == 1  # aligned


def test_the_list_as_json() -> None:
    rows = {row["name"]: row for row in json.loads(run("--json").stdout)}
    for row in PUBLISHED:
        assert rows[row["name"]]["total_parameters"] == row["total"]
        assert rows[row["name"]]["active_parameters"] == row.get("active", row["total"])


def test_one_model_as_text() -> None:
    done = run("gpt-oss-20b")
    assert done.returncode == 0
    words = done.stdout.split()
    assert "20,914,757,184" in words
    assert "4,187,440,704" in words
    assert done.stderr == ""


def test_one_model_as_json() -> None:
    document = json.loads(run("llama-3.1-70b", "--json").stdout)
    assert document["name"] == "llama-3.1-70b"
    assert document["total_parameters"] == document["active_parameters"] == 70_553_706_496
    assert sum(document["by_part"].values()) == document["total_parameters"]
    assert document["shape"]["num_key_value_heads"] == 8
    assert document["notes"] == []


def test_the_users_own_config(tmp_path: Path) -> None:
    row = next(row for row in PUBLISHED if row["name"] == "gemma-3-4b")
    (tmp_path / "config.json").write_text(json.dumps(row["config"]))
    for path in (tmp_path, tmp_path / "config.json"):
        document = json.loads(run(str(path), "--json").stdout)
        assert document["total_parameters"] == row["total"]
        assert document["by_part"]["vision"] == 416_866_032


def test_problems_are_sentences_and_exit_2(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama", "hidden_size": -4, "num_hidden_layers": "two"}')
    done = run(str(tmp_path))
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert "hidden_size is -4" in done.stderr
    assert "num_hidden_layers is 'two'" in done.stderr
    assert "vocab_size is missing" in done.stderr
    unknown = run("llama-2-8b")
    assert (unknown.returncode, unknown.stdout) == (2, "")
    assert "did you mean" in unknown.stderr


def test_counting_needs_no_framework() -> None:
    code = (
        "import sys\nfrom toolkit.cli.main import main\n"
        "try:\n    main(['models', 'deepseek-v3'])\nexcept SystemExit:\n    pass\n"
        "print({'torch', 'transformers', 'numpy', 'rich', 'yaml'} & {m.split('.')[0] for m in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"
