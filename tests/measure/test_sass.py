"""Machine code by source line: kinds, widths, inlined helpers, rendering."""

import pytest

from sovereign_lab.devices.device import Source
from sovereign_lab.errors import LabError
from sovereign_lab.measure.static import sass as sass_module
from sovereign_lab.measure.static.nvrtc import Cubin, compile_cubin, why_no_nvrtc
from sovereign_lab.measure.static.sass import Sass, disassemble, why_no_sass

WHY_NOT = why_no_nvrtc() or why_no_sass()
needs_sass = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))


def sass_of(text: str, arch: int = 90, name: str = "mine.cu") -> Sass:
    return disassemble(compile_cubin(Source(text, name, {}), arch), text)


@needs_sass
@pytest.mark.parametrize("arch", [75, 90, 120])
def test_widths_of_global_accesses(arch: int) -> None:
    widths = {
        "unsigned char": 1,
        "signed char": 1,
        "short": 2,
        "__half": 2,
        "int": 4,
        "float2": 8,
        "double": 8,
        "float4": 16,
    }
    # A barrier keeps each pair in its line: what lies behind it does not move before it.
    pairs = "".join(
        f"  (({type}*)y)[{128 * i} + threadIdx.x] = ((const {type}*)x)[{128 * i} + threadIdx.x]; __syncthreads();\n"
        for i, type in enumerate(widths)
    )
    found = sass_of(
        "#include <cuda_fp16.h>\n"
        f'extern "C" __global__ void f(const void* x, void* y) {{\n{pairs}}}',
        arch,
    )
    times = {width: list(widths.values()).count(width) for width in widths.values()}
    assert found.counts("load", "global") == found.counts("store", "global") == times
    assert [(w.line, w.kind, w.widths) for w in found.widths if w.space == "global"] == [
        (line, kind, ((width, 1),))
        for line, width in enumerate(widths.values(), 3)
        for kind in ("load", "store")
    ]


@needs_sass
def test_shared_memory_barriers_shuffles_and_atomics_by_line() -> None:
    found = sass_of("""extern "C" __global__ void f(const float* x, float* y) {
  __shared__ float s[64];
  s[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  float v = s[63 - threadIdx.x];
  v += __shfl_xor_sync(~0u, v, 1);
  bool any = __any_sync(~0u, v > 0);
  if (any) atomicAdd(y, v);
}""")
    wanted = {
        3: {("load", "global"), ("store", "shared")},
        4: {("barrier", "block")},
        5: {("load", "shared")},
        6: {("shuffle", "warp")},
        7: {("vote", "warp")},
        8: {("atomic", "global")},
    }
    for line, what in wanted.items():
        assert {(i.kind, i.space) for i in found.by_line[line] if i.kind} >= what, line


@needs_sass
def test_spilled_registers_are_local_memory() -> None:
    loads = "".join(f"float v{i} = x[{i} * 1024 + threadIdx.x];" for i in range(128))
    uses = "".join(f"sum = sum * v{i} + v{127 - i};" for i in range(128))
    found = sass_of(
        'extern "C" __global__ void __launch_bounds__(1024) f(const float* x, float* y) {\n'
        f"{loads}\n__syncthreads();\nfloat sum = 0;\n{uses}\ny[threadIdx.x] = sum;\n}}"
    )
    assert found.counts("store", "local") and found.counts("load", "local")


@needs_sass
def test_copies_past_registers_and_matrix_loads() -> None:
    found = sass_of("""extern "C" __global__ void f(const float4* x, float4* y) {
  __shared__ float4 s[32];
  unsigned to = (unsigned)__cvta_generic_to_shared(s + threadIdx.x);
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" :: "r"(to), "l"(x + threadIdx.x));
  asm volatile("cp.async.wait_all;" ::: "memory");
  __syncwarp();
  uint4 v;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
      : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(to));
  y[threadIdx.x] = make_float4(v.x, v.y, v.z, v.w);
}""")
    assert found.counts("load", "global") == {16: 1}
    # LDSM; the `@!PT LDS` that ptxas puts before a cp.async are never executed and do not count
    assert found.counts("load", "shared") == {16: 1}
    assert found.counts("store", "global") == {16: 1}


@needs_sass
@pytest.mark.parametrize("name", ["mine.cu", "add/0_mine.cu", "cell [1] (2)"])
def test_a_helper_counts_where_the_kernel_s_own_file_has_it(name: str) -> None:
    text = """#include "warp.cuh"
__device__ __forceinline__ float twice(const float* p) {
  return 2 * *p;
}
extern "C" __global__ void f(const float* x, float* y) {
  float v = twice(x + threadIdx.x);
  v = warp_sum(v);
  y[threadIdx.x] = v;
}"""
    found = sass_of(text, name=name)
    places = {(i.kind, i.line) for i in found.instructions if i.kind}
    assert places == {("load", 3), ("shuffle", 7), ("store", 8)}


@needs_sass
def test_rendering_puts_instructions_beside_their_line() -> None:
    found = sass_of("""extern "C" __global__ void f(const float* x, float* y) {
  if (threadIdx.x < 9) y[threadIdx.x] = x[threadIdx.x];
}""")
    lines = str(found).splitlines()
    at = next(i for i, line in enumerate(lines) if "if (threadIdx.x < 9)" in line)
    assert [line.strip() for line in lines[at + 1 : at + 3]] == ["| LDG.E", "| STG.E"]
    html = found._repr_html_()
    assert "threadIdx.x &lt; 9" in html and "LDG.E<br>STG.E" in html


def test_where_nvdisasm_is_absent_one_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sass_module, "find_program", lambda name: None)
    assert "pip install 'sovereign-lab[static]'" in str(why_no_sass())
    cubin = Cubin("f", 90, 8, 0, 0, 0, 0, 0, "f.cu", b"")
    with pytest.raises(LabError, match="nvdisasm is not installed"):
        disassemble(cubin, "")


@needs_sass
def test_what_is_no_cubin_is_refused() -> None:
    cubin = Cubin("f", 90, 8, 0, 0, 0, 0, 0, "f.cu", b"not a cubin")
    with pytest.raises(LabError, match="nvdisasm cannot read f for sm_90"):
        disassemble(cubin, "")
