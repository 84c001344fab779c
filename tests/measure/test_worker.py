"""A worker's process may end in any way: the caller keeps its own, is told, and goes on."""

import os
import select
import signal
import stat
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from measure import worker_jobs as jobs

from sovereign_lab.errors import LabError
from sovereign_lab.measure.worker import Worker, WorkerEnded, launch_words
from sovereign_lab.measure.worker.child import HEADER, frame


@pytest.fixture(scope="module")
def shared() -> Iterator[Worker]:
    """One worker for tests that leave it as it was, or dead."""
    with Worker("simt") as worker:
        yield worker


def works(worker: Worker) -> bool:
    """Whether the next call is answered."""
    return worker.call(jobs.echo, 1, a=2) == ((1,), {"a": 2})


def test_arguments_and_results_travel(shared: Worker) -> None:
    large = np.arange(5_000_000, dtype=np.float64)  # far more than a socket holds
    (back,), named = shared.call(jobs.echo, large, name=[1, "two"])
    assert np.array_equal(back, large) and named == {"name": [1, "two"]}


def test_device_and_model_are_the_workers_own(shared: Worker) -> None:
    assert shared.call(jobs.device_facts) == ("simt", True, True)
    assert shared.call(jobs.pid) not in (os.getpid(), None)


def test_a_lab_error_keeps_its_text_and_the_worker(shared: Worker) -> None:
    before = shared.call(jobs.pid)
    with pytest.raises(LabError, match=r"^no such thing!$") as caught:
        shared.call(jobs.refuse, "no such thing")
    assert not isinstance(caught.value, WorkerEnded)
    assert shared.call(jobs.pid) == before


def test_other_exceptions_come_back_with_their_place(shared: Worker) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        shared.call(jobs.mistake)
    assert "in mistake" in "".join(caught.value.__notes__)
    with pytest.raises(RuntimeError, match="cannot be sent from the worker"):
        shared.call(jobs.unsendable)
    assert works(shared)


def test_functions_of_no_module_are_refused(
    shared: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(LabError, match="functions that a module defines at its top level"):
        shared.call(lambda: 0)

    def cell() -> None: ...

    cell.__module__, cell.__qualname__ = "__main__", "cell"
    monkeypatch.setattr(sys.modules["__main__"], "cell", cell, raising=False)
    with pytest.raises(LabError, match=r"not those of a notebook's own cells.*cell"):
        shared.call(cell)
    assert works(shared)


def test_what_it_prints_is_kept(shared: Worker) -> None:
    shared.call(jobs.say, "hello")
    assert shared.output.splitlines() == ["hello", "hello past Python"]
    assert works(shared) and shared.output == ""


def test_the_time_limit_ends_a_step(shared: Worker) -> None:
    before = shared.call(jobs.pid)
    with pytest.raises(WorkerEnded, match=r"^Kernel k <<<1, 32>>> had not ended after 0.5 s") as e:
        shared.call(jobs.sleep_on, "Kernel k <<<1, 32>>>", time_limit=0.5)
    assert (e.value.reason, e.value.doing) == ("time limit", "Kernel k <<<1, 32>>>")
    assert shared.call(jobs.pid) != before


def test_each_step_has_the_limit_or_one_of_its_own(shared: Worker) -> None:
    assert shared.call(jobs.sleep_in_steps, 4, 1.0, time_limit=3.5) == 4
    with pytest.raises(WorkerEnded, match=r"^Compiling k.cu had not ended after 0.25 s"):
        shared.call(jobs.sleep_on, "Compiling k.cu", 0.25)
    assert works(shared)


@pytest.mark.parametrize("which", [signal.SIGSEGV, signal.SIGABRT, signal.SIGFPE, signal.SIGILL])
def test_a_crash_is_told(shared: Worker, which: signal.Signals) -> None:
    with pytest.raises(WorkerEnded, match=rf"end_by\(\) crashed its process \({which.name}\)") as e:
        shared.call(jobs.end_by, which)
    assert (e.value.reason, e.value.signal) == ("crash", which.name)
    assert works(shared)


def test_an_exit_is_told(shared: Worker) -> None:
    with pytest.raises(WorkerEnded, match="ended its process, with exit status 3") as caught:
        shared.call(jobs.leave, 3)
    assert caught.value.reason == "crash"
    assert works(shared)


def test_a_crash_that_an_earlier_call_may_have_caused_is_not_blamed_on_this_one() -> None:
    with Worker("simt") as worker:
        first = worker.call(jobs.crash_when_used)
        assert worker.call(jobs.crash_when_used) != first


def test_a_worker_that_retires_answers_first(shared: Worker) -> None:
    before = shared.call(jobs.retiring_pid)
    assert shared.call(jobs.pid) != before


def test_killed_while_idle_or_at_work(shared: Worker) -> None:
    os.kill(shared.call(jobs.pid), signal.SIGKILL)
    assert works(shared)
    with pytest.raises(
        WorkerEnded, match=r"\(SIGKILL\), as the system does when memory runs out"
    ) as e:
        shared.call(jobs.end_by, signal.SIGKILL)  # as the system does when memory is short
    assert (e.value.reason, e.value.signal) == ("memory", "SIGKILL")
    assert works(shared)


@pytest.mark.parametrize(
    "message",
    [
        b"\xff" * 64,
        HEADER.pack(5, 0) + b"12345",
        frame("no answer"),
        HEADER.pack(4, zlib.crc32(b"1234")) + b"1234",
    ],
    ids=["length", "checksum", "type", "pickle"],
)
def test_an_answer_that_is_none_is_a_crash(shared: Worker, message: bytes) -> None:
    with pytest.raises(WorkerEnded, match="the answer made no sense") as caught:
        shared.call(jobs.damage, message)
    assert caught.value.reason == "crash"
    assert works(shared)


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS limits no process's memory")
def test_memory_has_a_limit() -> None:
    with Worker("simt", memory_limit=4 << 30) as worker:
        assert worker.call(jobs.take_memory, 1 << 20) == 1
        with pytest.raises(
            WorkerEnded, match=r"^The call of take_memory\(\) ran out of memory"
        ) as e:
            worker.call(jobs.take_memory, 5 << 30)
        assert e.value.reason == "memory"
        assert works(worker)


def test_an_allocation_that_fails_in_a_kernel_is_memory_running_out(shared: Worker) -> None:
    with pytest.raises(WorkerEnded, match=r"ran out of memory(.|\n)*std::bad_alloc'$") as caught:
        shared.call(jobs.abort_without_memory)
    assert (caught.value.reason, caught.value.signal) == ("memory", "SIGABRT")
    assert works(shared)


def test_a_gpu_left_unusable_ends_the_worker(shared: Worker) -> None:
    before = shared.call(jobs.pid)
    with pytest.raises(WorkerEnded, match=r"left the GPU unusable.*cudaErrorIllegalAddress") as e:
        shared.call(jobs.poisoned)
    assert e.value.reason == "gpu"
    assert shared.call(jobs.pid) != before


def test_an_interrupt_ends_the_work_and_not_the_worker(shared: Worker) -> None:
    before = shared.call(jobs.pid)
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        timer.start()
        shared.call(jobs.sleep_on, "Kernel k <<<1, 32>>>")
    assert shared.call(jobs.pid) != before


def held(fifo: Path) -> int:
    """A pipe to read from, until all who hold it open have ended."""
    os.mkfifo(fifo)
    assert stat.S_ISFIFO(fifo.stat().st_mode)
    return os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)


def read(descriptor: int) -> bytes:
    """What comes next, within 30 s; b"" at the end."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    assert poll.poll(30_000), "nothing came, and somebody still holds the pipe"
    return os.read(descriptor, 100)


def test_what_it_has_started_ends_with_it(shared: Worker, tmp_path: Path) -> None:
    pipe = held(tmp_path / "fifo")
    with pytest.raises(WorkerEnded):
        shared.call(jobs.hold_open, str(tmp_path / "fifo"), time_limit=2)
    folder = read(pipe).decode()
    assert Path(folder).name.startswith("sovereign-worker-")
    assert read(pipe) == b"" and not Path(folder).exists()
    os.close(pipe)


def test_it_ends_with_a_parent_that_is_killed(tmp_path: Path, repository: Path) -> None:
    pipe = held(tmp_path / "fifo")
    code = (
        "import sys; sys.path[:0] = sys.argv[2:]\n"
        "from measure import worker_jobs\nfrom sovereign_lab.measure.worker import Worker\n"
        "Worker('simt').call(worker_jobs.hold_open, sys.argv[1], time_limit=600)"
    )
    places = [str(repository), str(repository / "tests")]
    parent = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "fifo"), *places])
    folder = read(pipe).decode()
    assert Path(folder).is_dir()
    parent.kill()
    parent.wait()
    assert read(pipe) == b"" and not Path(folder).exists()
    os.close(pipe)


def test_it_leaves_no_files() -> None:
    with Worker("simt") as worker:
        folder = Path(worker.call(jobs.temporary_folder))
        assert folder.is_dir()
        with pytest.raises(WorkerEnded):
            worker.call(jobs.leave, 1)
        assert not folder.exists()
        folder = Path(worker.call(jobs.temporary_folder))
    assert not folder.exists()


def test_threads_take_turns(shared: Worker) -> None:
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda i: shared.call(jobs.echo, i), range(40)))
    assert results == [((i,), {}) for i in range(40)]


@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_fork_of_the_parent_has_a_worker_of_its_own(shared: Worker) -> None:
    before = shared.call(jobs.pid)
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if shared.call(jobs.pid) != before else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert shared.call(jobs.pid) == before


def test_it_starts_ahead_and_again_after_close() -> None:
    worker = Worker("simt")
    worker.start()
    assert works(worker)
    worker.close()
    assert works(worker)
    worker.close()


def test_launch_shapes_in_words() -> None:
    assert launch_words("k", 4, (32, 2)) == "Kernel k <<<4, (32, 2)>>>"
    assert launch_words("k", (1, 2, 3), 32) == "Kernel k <<<(1, 2, 3), 32>>>"


def test_progress_is_each_step_in_the_callers_thread(shared: Worker) -> None:
    told: list[tuple[str, int]] = []
    shared.call(
        jobs.sleep_in_steps, 3, 0.0, on_progress=lambda what: told.append((what, threading.get_ident()))
    )  # fmt: skip
    assert [what for what, _ in told][-3:] == ["Step 0", "Step 1", "Step 2"]
    assert {thread for _, thread in told} == {threading.get_ident()}


def test_a_callback_that_fails_ends_the_work_and_not_the_worker(shared: Worker) -> None:
    def fail(what: str) -> None:
        raise ValueError(what)

    before = shared.call(jobs.pid)
    with pytest.raises(ValueError, match="The call of sleep_on"):
        shared.call(jobs.sleep_on, "Kernel k <<<1, 32>>>", on_progress=fail)
    assert shared.call(jobs.pid) != before


def test_a_call_is_cancelled_from_another_thread(shared: Worker) -> None:
    shared.cancel()  # nothing runs: the next call is not meant
    before = shared.call(jobs.pid)
    working = threading.Event()

    def watch(what: str) -> None:
        if what == "Kernel k <<<1, 32>>>":
            working.set()

    with ThreadPoolExecutor(2) as pool:
        call = pool.submit(shared.call, jobs.sleep_on, "Kernel k <<<1, 32>>>", on_progress=watch)
        assert working.wait(30)
        waiting = pool.submit(shared.call, jobs.pid)  # its turn has not come
        shared.cancel()
        with pytest.raises(WorkerEnded, match=r"^Kernel k <<<1, 32>>> was cancelled") as caught:
            call.result(30)
        assert waiting.result(30) != before
    assert (caught.value.reason, caught.value.doing) == ("cancelled", "Kernel k <<<1, 32>>>")
    assert works(shared)


def test_a_call_can_be_cancelled_while_its_worker_starts() -> None:
    with Worker("simt") as worker:
        with pytest.raises(WorkerEnded, match="was cancelled"):
            worker.call(jobs.pid, on_progress=lambda what: worker.cancel())
        assert works(worker)
