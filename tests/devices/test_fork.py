"""A fork into streams: what runs in a branch comes after what was launched before it, and before what follows."""

from collections import deque
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest

from sovereign_lab.devices import Device
from sovereign_lab.devices.cuda import CudaDevice
from sovereign_lab.devices.device import Kernel
from sovereign_lab.engine.forward import Call
from sovereign_lab.errors import LabError
from sovereign_lab.measure.streams import met, schedule

# Reads at once and writes late, so that whoever does not wait for it reads what was there before.
SLOW = """
extern "C" __global__ void slow_sum(const float* from, float* to, int count, float plus, int work) {
  const volatile float* now = from;
  float sum = plus, one = 1;
  for (int i = 0; i < count; i++) sum += now[i];
  for (int i = 0; i < work; i++) one = one * 0.999f + 0.001f;
  to[0] = one > 2 ? -1 : sum;
}
"""
LAYERS = 3


def work(device: Device) -> int:
    """Steps of the loop: milliseconds of a GPU, nothing to wait for on the SIMT device."""
    return 3_000_000 if device.properties.kind == "cuda" else 10


def launch_layers(device: Device, kernel: Kernel, x: object, parts: object, n: int) -> None:
    """x += 1, then a fork that makes x, x + 1 and x + 2 of it, then x = their sum; again and again."""
    for _ in range(LAYERS):
        device.launch(kernel, 1, 1, [x, x, 1, np.float32(1), n])
        with device.fork(3) as streams:
            for i, stream in enumerate(streams):
                args = [x, parts[i : i + 1], 1, np.float32(i), n]  # type: ignore[index]
                device.launch(kernel, 1, 1, args, stream=stream)
        device.launch(kernel, 1, 1, [parts, x, 3, np.float32(0), n])


def expected(x: float) -> float:
    for _ in range(LAYERS):
        x = 3 * (x + 1) + 3
    return x


@pytest.fixture
def kernel(any_device: Device) -> Kernel:
    return any_device.compile(SLOW, name="slow_sum.cu")


def test_branches_wait_and_are_waited_for(any_device: Device, kernel: Kernel) -> None:
    x = any_device.array(np.array([2], np.float32))
    parts = any_device.array(np.full(3, np.nan, np.float32))
    launch_layers(any_device, kernel, x, parts, work(any_device))
    assert any_device.to_host(x)[0] == expected(2)


def test_a_fork_within_a_capture_is_part_of_every_replay(
    any_device: Device, kernel: Kernel
) -> None:
    x = any_device.array(np.array([2], np.float32))
    parts = any_device.array(np.full(3, np.nan, np.float32))
    with any_device.capture() as capture:
        launch_layers(any_device, kernel, x, parts, work(any_device))
    assert any_device.to_host(x)[0] == 2  # recorded, not run
    for start in (5, 7):
        any_device.update(parts, np.full(3, np.nan, np.float32))
        any_device.update(x, np.array([start], np.float32))
        capture.replay()
        assert any_device.to_host(x)[0] == expected(start)


def test_forks_of_more_branches_follow_forks_of_fewer(any_device: Device, kernel: Kernel) -> None:
    n = work(any_device)
    x = any_device.array(np.array([1], np.float32))
    for branches in (1, 4, 2):
        parts = any_device.array(np.full(branches, np.nan, np.float32))
        with any_device.fork(branches) as streams:
            assert len(streams) == branches
            for i, stream in enumerate(streams):
                args = [x, parts[i : i + 1], 1, np.float32(0), n]
                any_device.launch(kernel, 1, 1, args, stream=stream)
        any_device.launch(kernel, 1, 1, [parts, x, branches, np.float32(0), n])
    assert any_device.to_host(x)[0] == 8


@pytest.mark.parametrize("captured", [False, True])
def test_an_exception_inside_a_fork_leaves_the_device_usable(
    any_device: Device, kernel: Kernel, captured: bool
) -> None:
    x = any_device.array(np.array([2], np.float32))
    parts = any_device.array(np.full(3, np.nan, np.float32))

    def fail() -> None:
        with any_device.fork(3) as streams:
            args = [x, parts[:1], 1, np.float32(0), 1]
            any_device.launch(kernel, 1, 1, args, stream=streams[0])
            any_device.launch(kernel, 1, 1, [x], stream=streams[1])

    with pytest.raises(LabError, match="takes 5 arguments"):
        if captured:
            with any_device.capture():
                fail()
        else:
            fail()
    launch_layers(any_device, kernel, x, parts, work(any_device))
    assert any_device.to_host(x)[0] == expected(2)
    test_a_fork_within_a_capture_is_part_of_every_replay(any_device, kernel)


@pytest.mark.parametrize("captured", [False, True])
def test_branches_of_a_gpu_run_at_the_same_time(any_device: Device, captured: bool) -> None:
    """Two kernels that each wait for a sign of the other: the first in line never gets one."""
    assert met(any_device, captured) == (2 if any_device.properties.kind == "cuda" else 1)


# ---- what a fork asks of CUDA, on machines without a GPU too ----


@dataclass
class LoggedStream:
    """Stands in for a CUDA stream: writes down what it is asked to wait for."""

    name: str
    log: list[str]

    def wait_event(self, event: "LoggedEvent") -> None:
        self.log.append(f"{self.name} waits for {event.recorded}")


@dataclass
class LoggedEvent:
    """Stands in for a CUDA event: writes down in which stream it is recorded."""

    log: list[str]
    recorded: str = "nothing"

    def record(self, stream: LoggedStream) -> None:
        self.recorded = stream.name
        self.log.append(f"record in {stream.name}")


def test_events_of_a_fork_on_cuda() -> None:
    log: list[str] = []
    made: list[LoggedStream] = []

    def stream(non_blocking: bool) -> LoggedStream:
        made.append(LoggedStream(f"branch {len(made)}", log))
        return made[-1]

    cuda = SimpleNamespace(
        Stream=stream,
        Event=lambda disable_timing: LoggedEvent(log),
        memory=SimpleNamespace(OutOfMemoryError=MemoryError),
        runtime=SimpleNamespace(CUDARuntimeError=ZeroDivisionError),
        driver=SimpleNamespace(CUDADriverError=ZeroDivisionError),
    )
    device = object.__new__(CudaDevice)
    device._cupy, device._stream = SimpleNamespace(cuda=cuda), LoggedStream("main", log)
    device._branches, device._forked, device._recent = [], None, deque()
    for _ in range(2):
        log.clear()
        with device.fork(2) as streams:
            assert list(streams) == made
            log.append("launches")
        assert log == [
            "record in main",
            "branch 0 waits for main",
            "branch 1 waits for main",
            "launches",
            "record in branch 0",
            "main waits for branch 0",
            "record in branch 1",
            "main waits for branch 1",
        ]
    counted = schedule([Call("add", {}, 0), Call("add", {}, 1)])
    assert counted.records == sum("record" in line for line in log)
    assert counted.waits == sum("waits" in line for line in log)
