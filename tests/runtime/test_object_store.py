"""Durable storage on a real S3 server, with what goes wrong on the way: no half copy is ever taken for a whole."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests import finetune_runs
from toolkit.cli.ckpt import command
from toolkit.errors import NoFeasiblePlan, ToolkitError
from toolkit.runtime import checkpoint, storage
from toolkit.runtime.saver import start_from_durable
from toolkit.runtime.together import ALONE

pytestmark = pytest.mark.slow  # it imports botocore

BLOCK = 5 * 2**20  # of an upload in parts: the smallest that S3 takes
UPLOAD = """
import sys, time
from pathlib import Path
from toolkit.runtime import storage
original, count = storage._pump, iter(range(100))
def slow(source, sink):
    if next(count) == int(sys.argv[3]):  # at this file: half of it, then for ever
        sink.write(source.read({half}))
        print("in the middle", flush=True)
        time.sleep(600)
    return original(source, sink)
storage._pump = slow
storage.upload(Path(sys.argv[1]), sys.argv[2])
"""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    from moto.server import ThreadedMotoServer

    made = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    made.start()
    host, port = made.get_host_and_port()
    yield f"http://{host}:{port}"
    made.stop()


@pytest.fixture
def far(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    import fsspec

    for name, value in (
        ("AWS_ENDPOINT_URL", server),
        ("AWS_ACCESS_KEY_ID", "key"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
        ("AWS_DEFAULT_REGION", "us-east-1"),
    ):
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(fsspec.config.conf, "s3", {"default_block_size": BLOCK})
    bucket = f"s3://{tmp_path.name.replace('_', '-').lower()}"
    fsspec.filesystem("s3", skip_instance_cache=True).mkdir(bucket)
    return f"{bucket}/run"


def run_of(folder: Path, *steps: int) -> Path:
    for step in steps:
        path = checkpoint.begin(folder, step)
        for name in ("a", "b/large", "c"):
            (path / name).parent.mkdir(exist_ok=True)
            (path / name).write_bytes(os.urandom(12 * 2**20 if "large" in name else 100))
        checkpoint.commit(path, {"step": step})
    return folder


def call(*arguments: object) -> str:
    done = CliRunner().invoke(command, [str(each) for each in arguments])
    assert done.exit_code == 0, (done.output, done.exception)
    return done.output


def test_there_and_back(far: str, tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", 1, 2, 3)
    for step in (1, 2, 3):
        storage.upload(run / f"checkpoint-{step}", far)
    assert json.loads(call("list", far, "--json"))["newest_valid"] == "checkpoint-3"
    assert call("prune", far) == "deleted checkpoint-1\n"
    wanted = {name: (run / "checkpoint-3" / name).read_bytes() for name in ("a", "b/large", "c")}
    shutil.rmtree(run)
    assert start_from_durable(run, far, ALONE) == "checkpoint-3"
    assert not checkpoint.verify(run / "checkpoint-3")
    assert {name: (run / "checkpoint-3" / name).read_bytes() for name in wanted} == wanted


@pytest.mark.parametrize("place", [0, 1, 2], ids=["large", "small", "last"])
def test_an_upload_that_is_killed_is_never_seen_as_whole(place: int, far: str, tmp_path: Path) -> None:
    """SIGKILL in the middle of a file, of an upload in parts too: the copy before is the newest; it can be redone."""
    run = run_of(tmp_path / "run", 1, 2)
    storage.upload(run / "checkpoint-1", far)
    code = UPLOAD.replace("{half}", str(7 * 2**20 if place == 0 else 50))
    environment = finetune_runs.environment(FSSPEC_S3=json.dumps({"default_block_size": BLOCK}))
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(run / "checkpoint-2"), far, str(place)],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert process.stdout is not None and process.stdout.readline() == "in the middle\n"
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert storage.newest(far) == "checkpoint-1"
    if place:  # else there is no object of it yet
        found = {row["name"]: row for row in json.loads(call("list", far, "--json"))["checkpoints"]}
        assert [row["valid"] for row in found.values()] == [True, False]
        assert found["checkpoint-2"]["damage"][0]["file"] == "manifest.json"
    shutil.rmtree(run)
    assert start_from_durable(run, far, ALONE) == "checkpoint-1"
    storage.upload(run_of(tmp_path / "again", 2) / "checkpoint-2", far)
    assert storage.newest(far, deep=True) == "checkpoint-2"


@pytest.mark.parametrize("how", ["flipped", "truncated", "missing"])
def test_what_changes_there_is_found(how: str, far: str, tmp_path: Path) -> None:
    import fsspec

    run = run_of(tmp_path / "run", 1, 2)
    for step in (1, 2):
        storage.upload(run / f"checkpoint-{step}", far)
    other, victim = fsspec.filesystem("s3", skip_instance_cache=True), f"{far}/checkpoint-2/c"
    content = other.cat_file(victim)
    changed = {"flipped": bytes([content[0] ^ 1]) + content[1:], "truncated": content[:-1], "missing": None}[how]
    other.rm_file(victim) if changed is None else other.pipe_file(victim, changed)
    assert [(each.file, each.kind) for each in storage.damage(f"{far}/checkpoint-2", deep=True)] == [("c", how)]
    done = CliRunner().invoke(command, ["verify", far])
    assert isinstance(done.exception, NoFeasiblePlan) and "checkpoint-2: broken" in done.output
    shutil.rmtree(run)
    assert start_from_durable(run, far, ALONE) == "checkpoint-1"  # found out on the way, where the size is right


def test_a_server_that_is_not_there_is_a_sentence(far: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fsspec

    run = run_of(tmp_path / "run", 1)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setitem(fsspec.config.conf, "s3", {"default_block_size": BLOCK, "use_listings_cache": False})
    since = time.monotonic()
    for action in (lambda: storage.names(far), lambda: storage.upload(run / "checkpoint-1", far)):
        with pytest.raises(ToolkitError, match=r"s3://.*127.0.0.1:9"):
            action()
    done = CliRunner().invoke(command, ["list", far])
    assert isinstance(done.exception, ToolkitError)
    assert time.monotonic() - since < 300


def test_a_bucket_that_is_not_there(far: str, tmp_path: Path) -> None:
    assert storage.names("s3://nobody-has-made-it/run") == []
    with pytest.raises(ToolkitError, match="nobody-has-made-it"):
        storage.read("s3://nobody-has-made-it/run/checkpoint-1")
