"""Kernels that do what they must not, each with what the learner is told. Nothing here may cost them their notebook.

Every kernel stands in the place of `double_all`: y[i] = 2 * x[i] for n = 64 elements, in one block of 64 threads.
`attempt` compiles one and launches it once, in a worker.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from sovereign_lab.devices.signature import parse_signature
from sovereign_lab.errors import LabError
from sovereign_lab.measure.sanitizer import sanitize
from sovereign_lab.measure.worker import device, doing, launch_words, retire

N = 64
MARGIN = 256  # elements before and behind each array that nobody may touch
CANARY = np.float32(-12345.0)
SIGNATURE = "double_all(const float* x, float* y, int n)"
PARAMETERS = "const float* x, float* y, int n"
HEAD = f'extern "C" __global__ void double_all({PARAMETERS})'
GOOD = f"""{HEAD} {{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2.0f * x[i];
}}
"""


@dataclass(frozen=True)
class Hostile:
    """A kernel and what is told of it, on the SIMT device.

    `told`: a pattern of the message; `reason` that of WorkerEnded, None for a LabError that leaves the worker alive.
    `where`: a pattern of what the sanitizer finds. `seconds`: to compile it, if not the default.
    """

    name: str
    source: str
    told: str
    reason: Literal["time limit", "crash"] | None = None
    where: str | None = None
    grid: int | tuple[int, ...] = 1
    block: int | tuple[int, ...] = N
    shared_bytes: int = 0
    cooperative: bool = False
    seconds: float = 60.0


def body(text: str) -> str:
    """A kernel of the right signature; `i` is the thread's index."""
    return f"{HEAD} {{\n    int i = threadIdx.x;\n    {text}\n}}\n"


FOREVER = "volatile int forever = 1; while (forever) { }"
HUNG = r"Kernel double_all <<<1, 64>>> had not ended after 1 s"
CRASHED = r"Kernel double_all <<<1, 64>>> crashed its process \(SIG"

HOSTILE = (
    # Hangs.
    Hostile("hang in one lane", body(f"if (i == 5) {{ {FOREVER} }}"), HUNG, "time limit", "spin"),
    Hostile("hang in all lanes", body(FOREVER), HUNG, "time limit", "spin"),
    Hostile(
        "hang before a barrier",
        body(f"if (i == 0) {{ {FOREVER} }}\n    __syncthreads();\n    y[i] = 2.0f * x[i];"),
        HUNG,
        "time limit",
    ),
    Hostile(
        "wait for a flag that nobody sets",
        body("while (*(volatile float*)x != -1.0f) { }\n    y[i] = 2.0f * x[i];"),
        HUNG,
        "time limit",
    ),
    Hostile("barriers without end", body("while (true) __syncthreads();"), HUNG, "time limit"),
    Hostile(
        "print without end",
        body('while (true) printf("%d\\n", i);'),
        HUNG + r"(.|\n)*It printed last:\n0\n0",
        "time limit",
    ),
    # Memory that is not the kernel's.
    Hostile(
        "write near, behind the end",
        body("y[i + 1] = 2.0f * x[i];"),
        r"wrote out of bounds: 1 element behind `y`",
        where="out of bounds",
    ),
    Hostile(
        "write near, before the start",
        body("y[i - 1] = 2.0f * x[i];"),
        r"wrote out of bounds: 1 element before `y`",
        where="out of bounds",
    ),
    Hostile(
        "write far",
        body("y[i + (1ll << 42)] = 2.0f * x[i];"),
        CRASHED,
        "crash",
        "out of bounds",
    ),
    Hostile(
        "read far", body("y[i] = 2.0f * x[i - (1ll << 42)];"), CRASHED, "crash", "out of bounds"
    ),
    Hostile(
        "null pointer",
        body("((float*)(size_t)(n - 64))[i] = x[i];"),
        CRASHED,
        "crash",
        "out of bounds",
    ),
    Hostile(
        "a pointer that was an index",
        body("*(float*)(size_t)(n * 64 + 4 * i) = x[i];"),
        CRASHED,
        "crash",
        "out of bounds",
    ),
    Hostile(
        "misaligned float4",
        body("*(float4*)(y + 1) = make_float4(1, 2, 3, 4);"),
        r"not a multiple of 16 bytes",
    ),
    Hostile(
        "write to an input", body("y[i] = 2.0f * x[i];\n    ((float*)x)[i] = 0;"), "changed `x`"
    ),
    # Shared memory.
    Hostile(
        "300 KB of static shared memory",
        body(
            "__shared__ float big[76800];\n    big[n * i] = x[i];\n    __syncthreads();\n    y[i] = big[n * (63 - i)];"
        ),
        r"307200 bytes of shared memory a block; a GPU has at most",
    ),
    Hostile(
        "300 KB of dynamic shared memory",
        body("extern __shared__ float big[];\n    big[i] = x[i];\n    y[i] = 2.0f * big[i];"),
        r"307200 bytes of shared memory a block",
        shared_bytes=307200,
    ),
    # Launch shapes.
    Hostile(
        "2,048 threads", GOOD, r"a block of 2048 threads; a GPU takes at most 1,024", block=2048
    ),
    Hostile(
        "a grid of zero",
        GOOD,
        r"Kernel double_all: a grid has one to three sizes of at least 1; got 0",
        grid=0,
    ),
    Hostile(
        "a block of zero",
        GOOD,
        r"Kernel double_all: a block has one to three sizes of at least 1; got 0",
        block=0,
    ),
    Hostile(
        "a cooperative grid too large",
        GOOD,
        r"a cooperative launch keeps all 6,400,000 threads resident",
        grid=100000,
        cooperative=True,
    ),
    # Signatures.
    Hostile(
        "wrong name",
        GOOD.replace("double_all", "halve_all"),
        r"expected double_all\(const float\* x.*came halve_all\(",
    ),
    Hostile(
        "wrong types",
        GOOD.replace("const float* x", "const double* x"),
        r"expected double_all\(const float\* x.*came double_all\(const double\* x",
    ),
    Hostile(
        "a parameter missing",
        GOOD.replace(", int n", "").replace("i < n", "i < 64"),
        r"came double_all\(const float\* x, float\* y\)",
    ),
    Hostile("a type that nobody can pass", GOOD.replace("int n", "bool n"), r"has the type `bool`"),
    Hostile("a pointer to pointers", GOOD.replace("float* y", "float** y"), r"`float\*\* y`"),
    Hostile(
        "two kernels", GOOD + GOOD.replace("double_all", "again"), r"found 2: double_all, again"
    ),
    Hostile("no kernel", GOOD.replace("__global__ ", ""), r"Expected one kernel.*found 0"),
    # Barriers and shuffles.
    Hostile(
        "missing barrier",
        body("__shared__ float s[64];\n    s[63 - i] = x[63 - i];\n    y[i] = 2.0f * s[i];"),
        r"`y\[0\]` is nan; expected 0",
        where="race",
    ),
    Hostile(
        "shuffle by half a warp",
        body("if (i % 32 < 16) y[i] = __shfl_sync(0xffffffff, x[i], 0);"),
        r"lanes 16-31 never came to __shfl_sync at kernel.cu:3",
    ),
    Hostile(
        "shuffle against a barrier",
        body(
            "if (i % 32 < 16) y[i] = __shfl_sync(0xffffffff, x[i], 31);\n    else __syncthreads();"
        ),
        r"__shfl_sync",
    ),
    Hostile(
        "a mask without the caller",
        body("y[i] = __shfl_sync(0x0000ffff, x[i], 0);"),
        r"does not include the lane that calls it",
    ),
    # Values.
    Hostile("NaN", body("y[i] = 0.0f / (x[i] - x[i]);"), r"`y\[0\]` is nan; expected 0"),
    Hostile("nothing written", body(""), r"`y\[0\]` is nan; expected 0", where="unwritten"),
    Hostile("wrong values", body("y[i] = 3.0f * x[i];"), r"`y\[1\]` is 3.0; expected 2.0"),
    # What ends a process.
    Hostile(
        "recursion without end",
        "__device__ __attribute__((noinline)) int deeper(volatile int* depth) {\n"
        "    volatile int here = *depth + 1;\n    return deeper(&here) + here;\n}\n"
        + body("volatile int depth = 0;\n    y[i] = deeper(&depth);"),
        CRASHED,
        "crash",
    ),
    Hostile(
        "locals of 64 KB",
        body("volatile float a[16384];\n    a[i] = x[i];\n    y[i] = a[63 - i];"),
        r"local variables take \d+ bytes a thread",
    ),
    Hostile(
        "exit", body("exit(3);"), r"<<<1, 64>>> ended its process, with exit status 3", "crash"
    ),
    Hostile("abort", body("abort();"), CRASHED + "ABRT", "crash"),
    Hostile(
        "trap",
        body("if (i == 5) __trap();"),
        r"thread \(5,0,0\).*__trap at kernel.cu:3",
        where="trap",
    ),
    Hostile("trap of the host", body("__builtin_trap();"), CRASHED + "(ILL|TRAP)", "crash"),
    Hostile(
        "all memory",  # malloc ends with nullptr, as on a GPU
        body(
            "while (true) {\n        volatile float* p = (float*)malloc(1 << 30);\n"
            "        p[i] = x[i];\n        y[i] += p[i];\n    }"
        ),
        CRASHED,
        "crash",
    ),
    Hostile(
        "a constructor that aborts",
        "__attribute__((constructor)) static void f() { abort(); }\n" + GOOD,
        r"Compiling kernel.cu crashed its process \(SIGABRT\)",
        "crash",
    ),
    # Syntax errors of ten kinds.
    Hostile(
        "semicolon missing", body("y[i] = 2.0f * x[i]"), r"kernel.cu:3:\d+: error: expected .*;"
    ),
    Hostile(
        "brace missing",
        GOOD[: GOOD.rindex("}")],
        r"kernel.cu:3:\d+: error: expected a `}`: .*still open\n +3 \|     if \(i < n\) y\[i\] = 2.0f \* x\[i\];$",
    ),
    Hostile(
        "parenthesis missing", body("y[i] = 2.0f * (x[i];"), r"kernel.cu:3:\d+: error: expected"
    ),
    Hostile("name unknown", body("y[i] = 2.0f * z[i];"), r"kernel.cu:3:\d+: error: .*z"),
    Hostile("type unknown", body("flaot v = x[i];"), r"kernel.cu:3:\d+: error: .*flaot"),
    Hostile(
        "comment without end", body("/* y[i] = 2.0f * x[i];"), r"error: unterminated .*comment"
    ),
    Hostile(
        "string without end",
        body('printf("%d, i);'),
        r"kernel.cu:3:\d+: .*(missing terminating|expected)",
    ),
    Hostile("#endif missing", "#if 1\n" + GOOD, r"error: unterminated (#if|conditional)"),
    Hostile(
        "header unknown",
        '#include "nowhere.h"\n' + GOOD,
        r"nowhere.h.* (No such file|file not found)",
    ),
    Hostile("constant written", body("const int c = 1;\n    c = 2;"), r"kernel.cu:4:\d+: error"),
    Hostile("arguments of a call missing", body("y[i] = fmaxf(x[i]);"), r"kernel.cu:3:\d+: error"),
    # What keeps a compiler busy.
    Hostile(
        "a header of itself",
        "#include __FILE__\n" + GOOD,
        r"does not compile:\n.*(nested|No such|not found)",
    ),
    Hostile(
        "templates without end",
        "template <int A, int B> struct Tree { static const int n = Tree<A + 1, 2 * B>::n + "
        "Tree<A + 1, 2 * B + 1>::n; };\ntemplate <int B> struct Tree<26, B> { static const int n = 1; };\n"
        + body("y[i] = Tree<0, 0>::n;"),
        r"Compiling kernel.cu had not ended after 2 s",
        "time limit",
        seconds=2.0,
    ),
)


def attempt(hostile: Hostile, name: str = "kernel.cu") -> str:
    """Compile the kernel, launch it once and check what it did; "right" where nothing is wrong.

    Raises LabError with what is.
    """
    here = device()
    signature = parse_signature(hostile.source)
    if str(signature) != SIGNATURE:
        raise LabError(f"{name}: expected {SIGNATURE}; there came {signature}.")
    doing(f"Compiling {name}", hostile.seconds)
    kernel = here.compile(hostile.source, name=name)
    x = np.arange(N, dtype=np.float32)
    arrays = {"x": x, "y": np.full(N, np.nan, np.float32)}
    held = {k: here.array(np.pad(v, MARGIN, constant_values=CANARY)) for k, v in arrays.items()}
    inside = slice(MARGIN, MARGIN + N)
    here.synchronize()
    doing(launch_words(kernel.name, hostile.grid, hostile.block))
    here.launch(
        kernel,
        hostile.grid,
        hostile.block,
        [*(a[inside] for a in held.values()), N],
        hostile.shared_bytes,
        hostile.cooperative,
    )
    here.synchronize()
    after = {k: here.to_host(a) for k, a in held.items()}
    for parameter, values in after.items():
        touched = np.flatnonzero(np.delete(values != CANARY, inside))
        if touched.size:
            retire()
            side = "before" if touched[0] < MARGIN else "behind"
            plural = "s" if touched.size > 1 else ""
            raise LabError(
                f"Kernel {kernel.name} wrote out of bounds: {touched.size} element{plural} {side} `{parameter}`."
            )
    if not np.array_equal(after["x"][inside], x):
        raise LabError(f"Kernel {kernel.name} changed `x`, its input.")
    wrong = np.flatnonzero(~(after["y"][inside] == 2 * x))
    if wrong.size:
        i = int(wrong[0])
        raise LabError(
            f"Kernel {kernel.name}: `y[{i}]` is {after['y'][inside][i]}; expected {2 * x[i]}."
        )
    return "right"


def findings(hostile: Hostile) -> list[str]:
    """What the sanitizer says of the kernel, a sentence a finding."""
    doing("The sanitizer's run of double_all", 60)
    args = {"x": np.arange(N, dtype=np.float32), "y": np.full(N, np.nan, np.float32), "n": N}
    report = sanitize(
        hostile.source,
        hostile.grid,
        hostile.block,
        args,
        outputs=("y",),
        uninitialised=("y",),
        timeout=0.5,
    )
    return [str(f) for f in report.findings]
