"""Writing: all or nothing, never a half file, never over something that is there."""

from pathlib import Path

import pytest

from toolkit.cli.files import require_place, write_files
from toolkit.errors import ToolkitError


def test_makes_the_directory_and_returns_paths_by_name(tmp_path: Path) -> None:
    paths = write_files(tmp_path / "a" / "b", {"z.json": "{}\n", "a.sh": "true\n"})
    assert [path.name for path in paths] == ["a.sh", "z.json"]
    assert (tmp_path / "a/b/z.json").read_text() == "{}\n"
    assert oct((tmp_path / "a/b/a.sh").stat().st_mode & 0o777) == "0o755"
    assert oct((tmp_path / "a/b/z.json").stat().st_mode & 0o777) == "0o644"


def test_every_existing_file_is_named_and_none_is_written(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ToolkitError) as caught:
        write_files(tmp_path, {"a": "new", "b": "new", "c": "new", "link": "new"})
    assert [each.message for each in caught.value.problems] == [f"3 files exist in {tmp_path}: a, b, link"]
    assert (tmp_path / "a").read_text() == "old" and not (tmp_path / "c").exists()


def test_force_replaces_also_a_link_and_not_what_it_points_to(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("old")
    (tmp_path / "a").symlink_to(tmp_path / "target")
    write_files(tmp_path, {"a": "new"}, force=True)
    assert (tmp_path / "target").read_text() == "old" and (tmp_path / "a").read_text() == "new"


def test_a_text_that_cannot_be_written_leaves_everything_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    with pytest.raises(ToolkitError, match="cannot write"):
        write_files(tmp_path, {"a": "new", "b": "\ud800"}, force=True)
    assert (tmp_path / "a").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/a", "../a"])
def test_names_are_plain(tmp_path: Path, name: str) -> None:
    with pytest.raises(ToolkitError, match="not a plain file name"):
        write_files(tmp_path / "out", {name: "x"})


def test_a_file_or_directory_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ToolkitError, match="is not a directory"):
        write_files(tmp_path / "file", {"a": "x"}, force=True)
    with pytest.raises(ToolkitError, match="cannot write"):
        write_files(tmp_path / "file" / "below", {"a": "x"}, force=True)
    (tmp_path / "a").mkdir()
    with pytest.raises(ToolkitError, match="is a directory"):
        write_files(tmp_path, {"a": "x"}, force=True)


def test_a_place_is_looked_at_before_the_work_and_nothing_is_left_there(tmp_path: Path) -> None:
    require_place(tmp_path / "a" / "b", ("x.json",))
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").write_text("mine")
    (tmp_path / "x.json").write_text("mine")
    for folder, said in (
        (tmp_path, "x.json exists"),
        (tmp_path / "file", "is not a directory"),
        (tmp_path / "file" / "b", "Not a directory"),
        (Path("/proc/nothing"), "cannot write"),
        (tmp_path / ("n" * 300), "too long"),
    ):
        with pytest.raises(ToolkitError, match=said):
            require_place(folder, ("x.json",))
    require_place(tmp_path, ("x.json",), force=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "x.json"]
