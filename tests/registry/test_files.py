"""Look-up by name: reading only the files that can hold a name finds the same as reading all of them."""

import pytest

from toolkit.registry import files


@pytest.mark.parametrize("kind", ["models", "accelerators", "clusters"])
def test_every_name_and_alias_is_found_without_reading_everything(kind: str) -> None:
    found = files.entries(kind)
    assert found
    for key, entry in found.items():
        assert files.find(kind, key) == entry
        for alias in entry.values.get("aliases", []):
            assert files.find(kind, alias) == entry
    assert files.find(kind, "no-such-name") is None


def test_an_own_entry_hides_a_shipped_one(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "mine.toml").write_text('name = "gpt2"\nmodel_type = "gpt2"\nn_layer = 3\n')
    monkeypatch.setenv("TOOLKIT_DATA", str(tmp_path))
    entry = files.find("models", "GPT2")
    assert entry is not None
    assert entry.values["n_layer"] == 3
