"""Every host compiler gives the same device: right kernels, told deadlocks, the same exact counts."""

import shutil
import sys
from collections.abc import Iterator
from importlib.util import find_spec

import numpy as np
import pytest

from sovereign_lab.devices.simt import builder
from sovereign_lab.devices.simt.device import SimtDevice
from sovereign_lab.errors import LabError
from sovereign_lab.kernels.cases import cases
from sovereign_lab.kernels.registry import OPS
from sovereign_lab.measure.memory_trace import trace

COMPILERS = {
    "g++": shutil.which("g++"),
    "clang++": shutil.which("clang++"),
    "zig": find_spec("ziglang") and f"{sys.executable} -m ziglang c++",
}


@pytest.fixture(params=COMPILERS)
def compiler(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The compiler in use while a test runs."""
    command = COMPILERS[request.param]
    if not command:
        pytest.skip(f"{request.param} is not installed")
    monkeypatch.setenv("CXX", command)
    builder.find_compiler.cache_clear()
    yield request.param
    builder.find_compiler.cache_clear()


def test_kernels_are_right(compiler: str) -> None:
    assert builder.find_compiler().family in compiler.replace("g++", "gcc")
    device = SimtDevice()
    for op in (OPS["gemv_q4_0"], OPS["attention"], OPS["argmax"]):
        for variant in op.variants.values():
            kernel = device.compile(variant.path, {"KV": "half"})
            for case in cases(op, np.random.default_rng()):
                arrays = {
                    k: device.array(v) if isinstance(v, np.ndarray) else v for k, v in case.items()
                }
                grid = op.grid(variant, case)
                device.launch(kernel, grid, variant.threads, list(arrays.values()))
                (name,) = op.outputs
                expected = op.expected(variant, case)[name]
                np.testing.assert_allclose(arrays[name], expected, rtol=1e-4, atol=1e-4)


BRACES = """// doubles
extern "C" __global__ void k(int* out, int n) {
  if (n > 0) { out[0] = 2;
}

"""


@pytest.mark.parametrize("build", ["plain", "traced", "sanitized"])
def test_a_missing_brace_is_told_at_the_kernels_end(compiler: str, build: builder.Build) -> None:
    """And nothing of the lines that stand behind the kernel, where compilers notice it."""
    with pytest.raises(LabError) as caught:
        builder.build_kernel(BRACES, "kernel.cu", {}, build)
    assert str(caught.value).splitlines() == [
        "kernel does not compile:",
        "kernel.cu:4:1: error: expected a `}`: the source ends here, and a `{` is still open",
        "    4 | }",
    ]


def test_what_is_wrong_before_a_missing_brace_is_told_too(compiler: str) -> None:
    with pytest.raises(LabError) as caught:
        builder.build_kernel(BRACES.replace("out[0]", "nonsense[0]"), "kernel.cu", {})
    told = str(caught.value)
    assert (
        "kernel.cu:3:" in told and "nonsense" in told and "kernel.cu:4:1: error: expected" in told
    )
    assert "simt" not in told
    with pytest.raises(LabError) as caught:  # what never ended hides the brace
        builder.build_kernel(BRACES.replace("// doubles", "/* doubles"), "kernel.cu", {})
    assert "kernel.cu:1:1: error: unterminated" in str(caught.value).replace("conditional ", "")


def test_broken_kernels_are_told(compiler: str) -> None:
    device = SimtDevice()
    for body, message in {
        "if (threadIdx.x < 3) __syncwarp();": "lanes 3-31 have exited",
        "*(float4*)(out + 1) = make_float4(1, 2, 3, 4);": "not a multiple of 16 bytes",
        "out[0] = nonsense;": "nonsense",
        "volatile float a[9000]; a[threadIdx.x] = 1; out[0] = a[5];": "local variables take",
    }.items():
        source = f'extern "C" __global__ void f(float* out) {{ {body} }}'
        with pytest.raises(LabError, match=message):
            kernel = device.compile(source)
            device.launch(kernel, 1, 32, [device.empty(64, np.float32)])


def test_counts_are_exact(compiler: str) -> None:
    if compiler == "zig" and not shutil.which("addr2line"):
        pytest.skip("addr2line is not installed")
    op = OPS["gemv_q4_0"]
    args = {
        "W": np.zeros(64 * 64 * 18, np.uint8),
        "x": np.zeros(64 * 32, np.float32),
        "y": np.zeros(64, np.float32),
        "rows": 64,
        "blocks_per_row": 64,
    }
    for name, expected in {"warp_per_row": (6272, 170240), "coalesced": (12288, 26368)}.items():
        variant = op.variant(name)
        t = trace(variant.path, op.grid(variant, args), variant.threads, args)
        assert (t.requests("load"), t.sectors("load")) == expected
