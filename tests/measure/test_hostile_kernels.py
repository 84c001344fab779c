"""Every hostile kernel gives a clear message, and the next good one works."""

import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import SimpleQueue

import pytest
from measure.hostile_kernels import GOOD, HOSTILE, Hostile, attempt, findings

from sovereign_lab.errors import LabError
from sovereign_lab.measure.worker import Worker, WorkerEnded

WELL = Hostile("good", GOOD, "")
TIME_LIMIT = 1.0  # of those that hang


@dataclass(frozen=True)
class Told:
    """What came of a kernel, and of the good one behind it in the same worker."""

    text: str
    reason: str | None
    next_call: str


def run(worker: Worker, hostile: Hostile) -> Told:
    """Attempt the kernel, then the good one."""
    text, reason = "", None
    try:
        limit = TIME_LIMIT if hostile.reason == "time limit" else 60
        text = worker.call(attempt, hostile, time_limit=limit)
    except LabError as error:
        text = str(error)
        reason = error.reason if isinstance(error, WorkerEnded) else None
    return Told(text, reason, worker.call(attempt, WELL, time_limit=60))


@pytest.fixture(scope="module")
def workers() -> Iterator[list[Worker]]:
    """As many as there are cores, two at most."""
    count = min(2, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2)
    made = [Worker("simt", TIME_LIMIT) for _ in range(count)]
    yield made
    for worker in made:
        worker.close()


@pytest.fixture(scope="module")
def told(workers: list[Worker]) -> dict[str, Told]:
    """All kernels, spread over the workers."""
    free: SimpleQueue[Worker] = SimpleQueue()
    for worker in workers:
        free.put(worker)

    def one(hostile: Hostile) -> Told:
        worker = free.get()
        try:
            return run(worker, hostile)
        finally:
            free.put(worker)

    with ThreadPoolExecutor(len(workers)) as pool:
        results = list(pool.map(one, HOSTILE))
    return {h.name: t for h, t in zip(HOSTILE, results, strict=True)}


@pytest.mark.parametrize("hostile", HOSTILE, ids=lambda h: h.name.replace(" ", "-"))
def test_it_is_told_and_the_next_call_works(hostile: Hostile, told: dict[str, Told]) -> None:
    result = told[hostile.name]
    assert re.search(hostile.told, result.text), result.text
    assert result.reason == hostile.reason
    assert result.next_call == "right"


@pytest.mark.parametrize(
    "hostile", [h for h in HOSTILE if h.where], ids=lambda h: h.name.replace(" ", "-")
)
def test_the_sanitizer_says_where(hostile: Hostile, workers: list[Worker]) -> None:
    found = workers[0].call(findings, hostile)
    assert any(re.match(hostile.where or "", f) for f in found), found


def test_the_table_is_whole() -> None:
    names = [h.name for h in HOSTILE]
    assert len(names) == len(set(names)) >= 40
    assert sum("error" in h.told or "missing" in h.name for h in HOSTILE) >= 10


COMPILER = r"""#!/bin/sh
case "$*" in
  *crashes.cpp*) echo "g++: internal compiler error: Segmentation fault signal terminated cc1plus" >&2; exit 4 ;;
  *dies.cpp*) kill -SEGV $$ ;;
  *hangs.cpp*) sleep 600 ;;
  *) exec g++ "$@" ;;
esac
"""


@pytest.fixture(scope="module")
def bad_compiler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    """A worker whose compiler fails at kernels of certain names."""
    folder = tmp_path_factory.mktemp("compiler")
    compiler = folder / "c++"
    compiler.write_text(COMPILER)
    compiler.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch, Worker("simt", TIME_LIMIT) as worker:
        patch.setenv("CXX", str(compiler))
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        yield worker


@pytest.mark.parametrize(
    "name, pattern, reason",
    [
        ("crashes.cu", r"crashes does not compile:\n.*internal compiler error", None),
        ("dies.cu", r"dies does not compile: .* was ended by signal 11", None),
        ("hangs.cu", r"Compiling hangs.cu had not ended after 1 s", "time limit"),
    ],
)
def test_a_compiler_that_fails(
    bad_compiler: Worker, name: str, pattern: str, reason: str | None
) -> None:
    hostile = Hostile(name, GOOD, pattern, seconds=1.0)
    with pytest.raises(LabError, match=pattern) as caught:
        bad_compiler.call(attempt, hostile, name)
    assert getattr(caught.value, "reason", None) == reason
    assert bad_compiler.call(attempt, WELL, time_limit=60) == "right"
