"""``toolkit ckpt`` on whatever a name can stand for: exit code 0, 1 or 2, and where not 0 sentences with a remedy."""

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.cli.test_ckpt import run_of
from tests.cli.test_ckpt_convert import refused
from tests.runtime.test_found import hugging_face
from tests.runtime.test_unreadable import as_nobody
from toolkit.cli.ckpt import command
from toolkit.errors import NoFeasiblePlan, ToolkitError
from toolkit.runtime import folders

PLAIN = ("list", "list --json", "verify", "latest", "latest --write", "prune --dry-run", "prune --keep 1 --broken")
CONVERT = ("hugging-face", "deepspeed-universal", "megatron")
GIVEN_UP = 30  # seconds: what waits for a pipe would wait for ever


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that everybody may look into; pytest's own let nobody in."""
    folder = Path(tempfile.mkdtemp(prefix="places-"))
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def ended(name: str | Path, *words: str) -> str:
    """Exit code and what was said, in a process that is killed where it waits."""
    return as_nobody(lambda: _ended(os.fspath(name), words))


def _ended(name: str, words: tuple[str, ...]) -> str:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(GIVEN_UP)
    done = CliRunner(charset="utf-8").invoke(command, [words[0], name, *words[1:]])
    error = done.exception
    if isinstance(error, ToolkitError):
        assert all(problem.remedy and "\n" not in problem.message for problem in error.problems), error
        return f"{error.exit_code} {error}"
    if isinstance(error, OSError):  # which main tells in a sentence; better ones are those of the command
        return f"2 {error!r}"
    assert error is None or isinstance(error, SystemExit), error
    return f"{done.exit_code} {done.output}"


def everything(name: str | Path) -> dict[str, str]:
    """What all commands say of it."""
    said = {words: ended(name, *words.split()) for words in PLAIN}
    target = tempfile.mkdtemp(prefix="places-")
    said |= {form: ended(name, "convert", f"{target}/out", "--to", form) for form in CONVERT}
    Path(target).rmdir()  # nothing has been left there
    assert all(text[:2] in ("0 ", "1 ", "2 ") for text in said.values()), said
    return said


def nothing(folder: Path) -> Path:
    return folder / "nothing"


def a_file(folder: Path) -> Path:
    (folder / "file").write_text("x")
    return folder / "file"


def below_a_file(folder: Path) -> Path:
    return a_file(folder) / "run"


def a_dangling_link(folder: Path) -> Path:
    (folder / "link").symlink_to(folder / "gone")
    return folder / "link"


def a_loop_of_links(folder: Path) -> Path:
    (folder / "a").symlink_to("b")
    (folder / "b").symlink_to("a")
    return folder / "a"


def a_pipe(folder: Path) -> Path:
    os.mkfifo(folder / "pipe")
    return folder / "pipe"


def an_unreadable_folder(folder: Path) -> Path:
    (run_of(folder / "run", 1)).chmod(0)
    return folder / "run"


def below_an_unreadable_folder(folder: Path) -> Path:
    run_of(folder / "above" / "run", 1)
    (folder / "above").chmod(0)
    return folder / "above" / "run"


NO_FOLDERS: dict[Callable[[Path], Path], str] = {
    nothing: "nothing is not there",
    a_file: "file is a file, not a folder",
    below_a_file: "Not a directory",
    a_dangling_link: "link is a link to what is not there",
    a_loop_of_links: "Too many levels of symbolic links",
    a_pipe: "pipe is not a folder",
    an_unreadable_folder: "run: Permission denied",
    below_an_unreadable_folder: "above/run: Permission denied",
}


@pytest.mark.parametrize("make", NO_FOLDERS, ids=lambda make: make.__name__)
def test_what_is_no_folder_is_told_by_every_command(make: Callable[[Path], Path], place: Path) -> None:
    for said in everything(make(place)).values():
        assert said.startswith("2 ") and NO_FOLDERS[make] in said


@pytest.mark.parametrize(("name", "why"), [("", "empty name"), ("a\0b", "null byte"), ("x" * 300, "name too long")])
def test_what_is_no_name(name: str, why: str) -> None:
    for said in everything(name).values():
        assert said.startswith("2 ") and why in said and len(said) < 500


def test_an_empty_folder(place: Path) -> None:
    said = everything(place)
    assert said["list"].startswith("0 no checkpoints in") and said["latest"].startswith("1 no checkpoints in")
    for words in ("verify", "prune --dry-run", "prune --keep 1 --broken"):
        assert said[words].startswith("2 no checkpoints in")
    assert "is no checkpoint that can be converted" in said["megatron"]


def test_a_run_is_not_converted_and_its_newest_valid_checkpoint_named(place: Path) -> None:
    run_of(place / "run", 1, 2, 10)
    (place / "run" / "checkpoint-10" / "state.bin").write_bytes(b"")
    for folder in (place / "run", place):  # a plan's folder holds the run
        for form in CONVERT:
            said = ended(folder, "convert", "x", "--to", form)
            assert "the newest valid one is checkpoint-2" in said and f"{place / 'run' / 'checkpoint-2'} DST" in said
    hugging_face(place / "trainer" / "checkpoint-5")
    assert "the newest valid one is checkpoint-5" in refused(place / "trainer", "x", "--to", "hugging-face")


@pytest.mark.parametrize("url", ["s3://bucket/checkpoint-1", "file:///tmp/checkpoint-1"])
def test_what_is_in_durable_storage_is_not_converted(url: str) -> None:
    assert f"{url} is a URL" in ended(url, "convert", "out", "--to", "hugging-face")


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("file", "exists"), ("file/out", "file is a file, not a folder"), ("file/a/b", "file is a file, not a folder"),
        ("locked/out", "locked is read-only, or not yours"), ("", "no name of a folder"), ("x" * 256, "too long"),
        ("loop/out", "Too many levels"), ("s3://bucket/out", "is a URL"),
    ],
)  # fmt: skip
def test_where_nothing_can_be_written(target: str, why: str, place: Path) -> None:
    source = place / "model"
    source.mkdir()
    for name in ("config.json", "model.safetensors"):
        (source / name).write_text("{}")
    (place / "file").write_text("")
    (place / "locked").mkdir(mode=0o555)
    (place / "loop").symlink_to("loop")
    given = target if "://" in target or not target else f"{place}/{target}"
    said = ended(source, "convert", given, "--to", "hugging-face")
    assert said.startswith("2 ") and why in said and ".partial." not in said
    assert not list(place.glob(".*"))


def test_links_pipes_and_odd_names_in_a_run(place: Path) -> None:
    """Each by itself beside a whole checkpoint: that one stays the newest valid one, and nothing waits."""

    def link_in(run: Path) -> None:
        (run / "checkpoint-1" / "me").symlink_to("me")

    def folder_in_itself(run: Path) -> None:
        (run / "checkpoint-1" / "up").symlink_to("..")

    def loop_beside(run: Path) -> None:
        (run / "checkpoint-9").symlink_to("checkpoint-9")

    def file_beside(run: Path) -> None:
        (run / "checkpoint-9").write_text("x")

    def pipe_in(run: Path) -> None:
        os.mkfifo(run / "checkpoint-1" / "pipe")

    def pipe_for_latest(run: Path) -> None:
        (run / "latest").unlink()
        os.mkfifo(run / "latest")

    def folder_for_latest(run: Path) -> None:
        (run / "latest").unlink()
        (run / "latest" / "x").mkdir(parents=True)

    def newlines(run: Path) -> None:
        (run / "checkpoint-1" / "a\nb").write_text("")
        (run / "checkpoint-2\n").mkdir()

    def bytes_that_are_no_text(run: Path) -> None:
        (run / os.fsdecode(b"checkpoint-\xff")).mkdir()

    def a_huge_number(run: Path) -> None:
        (run / f"checkpoint-{'9' * 200}").mkdir()

    for odd in (link_in, folder_in_itself, loop_beside, file_beside, pipe_in, pipe_for_latest, folder_for_latest,
                newlines, bytes_that_are_no_text, a_huge_number):  # fmt: skip
        run = run_of(place / odd.__name__, 1)
        odd(run)
        said = {words: ended(run, words) for words in ("list", "verify", "latest", "prune")}
        assert said["latest"].startswith(f"0 {run}/checkpoint-1\n"), (odd.__name__, said["latest"])
        assert "newest complete: checkpoint-1" in said["list"], (odd.__name__, said["list"])
    assert "a\\nb: " in ended(place / "newlines", "verify")


def test_a_pipe_for_a_file_of_a_checkpoint(place: Path) -> None:
    for name in ("manifest.json", "state.bin"):
        run = run_of(place / name, 1)
        (run / "checkpoint-1" / name).unlink()
        os.mkfifo(run / "checkpoint-1" / name)
        said = everything(run)
        assert said["verify"].startswith("1 ") and said["list"].startswith("1 ")
        assert name in ended(run / "checkpoint-1", "list", "--json") and said["latest"].startswith("1 ")


def test_what_may_be_read_and_not_written(place: Path) -> None:
    run = run_of(place / "run", 1, 2, 3)
    (run / "latest").write_text("checkpoint-1\n")
    run.chmod(0o555)
    assert f"cannot write {run}/latest: Permission denied" in ended(run, "latest", "--write")
    (run / "latest").chmod(0o444)
    said = ended(run, "prune", "--keep", "1")
    assert said.startswith("2 cannot delete") and "checkpoint-2: Permission denied" in said
    assert sorted(path.name for path in run.glob("checkpoint-*")) == ["checkpoint-1", "checkpoint-2", "checkpoint-3"]


def test_a_name_is_shown_on_one_line() -> None:
    assert folders.shown("a/b c-é") == "a/b c-é"
    assert folders.shown("a\nb\x1b[31m\udcff") == "a\\nb\\x1b[31m\\udcff"


def test_nothing_there_is_no_finding() -> None:
    with pytest.raises(ToolkitError) as error:
        folders.require("/nowhere/at/all")
    assert not isinstance(error.value, NoFeasiblePlan)
