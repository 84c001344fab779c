"""What all tests share: the gpu marker, and the place of the repository."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sovereign_lab.devices import Device, open_device
from sovereign_lab.devices.cuda import why_no_gpu
from sovereign_lab.devices.simt.device import SimtDevice


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require-gpu",
        action="store_true",
        help="fail at once where no CUDA GPU can be used, in place of skipping the gpu tests",
    )


def pytest_configure(config: pytest.Config) -> None:
    reason = why_no_gpu() if config.getoption("--require-gpu") else None
    if reason:
        pytest.exit(f"no CUDA GPU can be used here: {reason}", returncode=1)
    _keep_to_one_core(os.environ.get("PYTEST_XDIST_WORKER", ""))


def _keep_to_one_core(worker: str) -> None:
    """Give each process of `pytest -n 2` a core of its own: two that spread over both would wait for each other.

    Where a GPU does the work, or a system has no such thing, everything stays as it is.
    """
    if worker.startswith("gw") and hasattr(os, "sched_setaffinity") and why_no_gpu():
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[int(worker[2:]) % len(cores)]})


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu")]
    reason = why_no_gpu() if marked else None
    if reason:
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=f"no CUDA GPU can be used here: {reason}"))


@pytest.fixture
def no_gpu() -> None:
    """For a test of what happens without a GPU: skipped where there is one."""
    if why_no_gpu() is None:
        pytest.skip("this machine has a CUDA GPU")


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session", params=["simt", pytest.param("cuda", marks=pytest.mark.gpu)])
def any_device(request: pytest.FixtureRequest) -> Device:
    """The SIMT device, and the GPU where there is one: what holds on one must hold on the other."""
    return open_device(request.param)


@pytest.fixture(scope="session")
def simt() -> SimtDevice:
    """A SIMT device on all cores."""
    return SimtDevice()
