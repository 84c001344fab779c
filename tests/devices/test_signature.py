"""Typed launches: every wrong argument is refused with a sentence that names the parameter."""

import re

import numpy as np
import pytest

from sovereign_lab.devices import Device
from sovereign_lab.devices.signature import parse_signature
from sovereign_lab.errors import LabError

SOURCE = """
// extern "C" __global__ void not_this(int a) {}
extern "C" __global__ void __launch_bounds__(128, 2) f(const float* __restrict__ x,   // [n]
                                                       float *y, const block_q4_0* W, KV* cache, int n, float scale,
                                                       unsigned long long seed) {}
"""


def test_signature_is_read_from_the_source() -> None:
    s = parse_signature(SOURCE, {"KV": "half"})
    assert str(s) == (
        "f(const float* x, float* y, const block_q4_0* W, half* cache, int n, float scale, unsigned long long seed)"
    )
    assert [p.dtype.name for p in s.parameters] == [
        "float32",
        "float32",
        "uint8",
        "float16",
        "int32",
        "float32",
        "uint64",
    ]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("__global__ void f(int a) {}", "Expected one kernel"),
        (
            'extern "C" __global__ void f(int a) {}\nextern "C" __global__ void g(int a) {}',
            "found 2: f, g",
        ),
        ('extern "C" __global__ void f(Widget* a) {}', "has the type `Widget`"),
        ('extern "C" __global__ void f(float** a) {}', "cannot read the parameter"),
        ('extern "C" __global__ void f(float& a) {}', "cannot read the parameter"),
    ],
)
def test_what_cannot_be_launched_is_refused(source: str, message: str) -> None:
    with pytest.raises(LabError, match=re.escape(message)):
        parse_signature(source)


def test_wrong_arguments_are_refused(any_device: Device) -> None:
    d = any_device
    kernel = d.compile(
        'extern "C" __global__ void f(const float* x, int n, float s, const float4* v) {}'
    )
    x, v = d.array(np.zeros(8, np.float32)), d.array(np.zeros(8, np.float32))
    d.launch(kernel, 1, 1, [x, 8, np.float32(1), v])
    wrong = {
        "takes 4 arguments (x, n, s, v); 3 came": [x, 8, np.float32(1)],
        "`const float* x`: expected an array of float32, got float64": [
            d.array(np.zeros(8)),
            8,
            np.float32(1),
            v,
        ],
        "`const float* x`: expected an array of this device": [[1.0], 8, np.float32(1), v],
        "`const float* x`: the array of shape (4,) is a view": [x[::2], 8, np.float32(1), v],
        "`float s`: expected a float32, got a Python float; pass np.float32(value)": [x, 8, 1.0, v],
        "`float s`: expected a float32, got a float64": [x, 8, np.float64(1), v],
        "`int n`: expected a int32, got a Python float": [x, 8.0, np.float32(1), v],
        "`int n`: expected a int32, got a int64": [x, np.int64(8), np.float32(1), v],
        "`int n`: 4294967296 does not fit int32": [x, 2**32, np.float32(1), v],
        "`int n`: expected a int32, got a Python bool": [x, True, np.float32(1), v],
        "expected a multiple of 4 float32 elements, got 7": [
            x,
            8,
            np.float32(1),
            d.array(np.zeros(7, np.float32)),
        ],
    }
    for message, args in wrong.items():
        with pytest.raises(LabError, match=re.escape(message)):
            d.launch(kernel, 1, 1, args)


@pytest.mark.parametrize(
    ("grid", "block"), [(0, 32), (1, 0), (1, 2048), ((1, 1, 1, 1), 1), (1, (64, 32, 1))]
)
def test_wrong_launch_shapes_are_refused(any_device: Device, grid: int, block: int) -> None:
    kernel = any_device.compile('extern "C" __global__ void f(int n) {}')
    with pytest.raises(LabError, match=r"block|grid"):
        any_device.launch(kernel, grid, block, [1])


def test_more_shared_memory_than_there_is(any_device: Device) -> None:
    kernel = any_device.compile('extern "C" __global__ void f(int n) {}')
    with pytest.raises(LabError, match="bytes of shared memory"):
        any_device.launch(kernel, 1, 1, [1], shared_bytes=10**6)
