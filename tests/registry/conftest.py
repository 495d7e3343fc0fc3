"""The registry tests see what ships, not what somebody keeps in their own folder."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def no_folder_of_ones_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOOLKIT_DATA", str(tmp_path_factory.mktemp("nothing")))
        yield
