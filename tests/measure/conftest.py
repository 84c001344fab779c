"""What the tests of the instruments share."""

import shutil
from collections.abc import Iterator

import pytest

from sovereign_lab.devices.simt import builder


@pytest.fixture(params=["g++", "clang++"])
def compiler(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The compiler in use while a test runs: each of the two that instrument in ways of their own."""
    if not shutil.which(request.param):
        pytest.skip(f"{request.param} is not installed")
    monkeypatch.setenv("CXX", request.param)
    builder.find_compiler.cache_clear()
    yield request.param
    builder.find_compiler.cache_clear()
