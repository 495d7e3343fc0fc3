"""A hub that cannot be reached is found out once and at once, and told in a sentence."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from recipes import hub

ASK = """
import sys, time
from pathlib import Path
from recipes import tokenizer
from recipes.finetune import documents
from toolkit.errors import ToolkitError
for action in (
    lambda: tokenizer.tokenizer_named("someone/some-tokenizer"),
    lambda: next(documents.read_documents("someone/some-data")),
):
    try:
        action()
    except ToolkitError as error:
        print(error)
"""


@pytest.fixture
def closed() -> str:
    """An address where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"http://127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv(hub.OFFLINE, "")
    monkeypatch.setattr(constants, hub.OFFLINE, False)
    monkeypatch.setattr(hub, "_asked", {})
    monkeypatch.setattr(hub, "WAIT", 0.0)


@pytest.mark.usefixtures("asked")
def test_out_of_reach(closed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", closed)
    hub.settle()
    assert os.environ[hub.OFFLINE] == "1" and constants.HF_HUB_OFFLINE
    assert hub.reason(OSError("many\nlines")).startswith(
        f"{closed} cannot be reached (Connection refused), and it is not"
    )


@pytest.mark.usefixtures("asked")
def test_within_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        hub.settle()
    hub.settle()  # is not asked again
    assert not os.environ[hub.OFFLINE] and not constants.HF_HUB_OFFLINE
    assert hub.reason(OSError("many\nlines")) == "many lines"


@pytest.mark.parametrize(("name", "value"), [("HF_HUB_OFFLINE", "1"), ("https_proxy", "http://proxy:3128")])
@pytest.mark.usefixtures("asked")
def test_where_nothing_is_tried(name: str, value: str, closed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", closed)
    monkeypatch.setenv(name, value)
    hub.settle()
    assert hub._asked == {}


@pytest.mark.slow
def test_the_libraries_ask_no_more(closed: str, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    environment.pop("HF_HUB_OFFLINE", None)
    environment |= {"HF_ENDPOINT": closed, "HF_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, timeout=240, env=environment)
    assert done.returncode == 0 and "Retrying" not in done.stderr, done.stderr
    tokenizer, _, data, *_ = done.stdout.splitlines()
    because = (
        f"{closed} cannot be reached (Connection refused), and it is not among what this machine has downloaded before"
    )
    assert tokenizer == f"cannot load the tokenizer 'someone/some-tokenizer': {because}"
    assert data.startswith("dataset 'someone/some-data' is neither a local file nor") and data.endswith(because)
