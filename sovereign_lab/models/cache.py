"""The user's cache of model files, in which a file is there whole or not at all."""

import contextlib
import errno
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import platformdirs

from sovereign_lab.errors import LabError

_FULL = (errno.ENOSPC, errno.EDQUOT)
_ABANDONED = 24 * 3600  # seconds after which a part file can only be from a run that was killed


def cache_dir() -> Path:
    """Where the lab keeps model files: `sovereign-lab` in the user's cache (XDG_CACHE_HOME)."""
    return Path(platformdirs.user_cache_dir("sovereign-lab"))


@contextlib.contextmanager
def whole_or_nothing(target: Path, nbytes: int = 0) -> Iterator[Path]:
    """A temporary path beside `target`, which takes its name when the block ends well.

    nbytes is the space that will be needed; a disk that lacks it is reported before the block runs.
    If the block ends with an exception, an interrupt included, nothing stays behind. A full disk or
    a directory that cannot be written becomes a LabError.
    """
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        _prepare(target, f".{target.name}.*.part", nbytes)
        yield part
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        part.replace(target)
    except OSError as error:
        raise unwritable(target, error) from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


@contextlib.contextmanager
def work_directory(target: Path, nbytes: int) -> Iterator[Path]:
    """A temporary directory on the disk of `target`, for what it is made from; gone with the block.

    nbytes is the most space that will be needed at a time, `target` included. A full disk or a
    directory that cannot be written becomes a LabError about `target`.
    """
    prefix = f".{target.name}.making-"
    try:
        _prepare(target, f"{prefix}*", nbytes)
        with tempfile.TemporaryDirectory(prefix=prefix, dir=target.parent) as directory:
            yield Path(directory)
    except OSError as error:
        raise unwritable(target, error) from error


def unwritable(target: Path, error: OSError) -> LabError:
    """The sentence for an OSError met while writing `target`."""
    # NumPy reports a write that came out short by its byte counts alone.
    if error.errno in _FULL or (error.errno is None and "written" in str(error)):
        return LabError(
            f"the disk is full, so {target} could not be written; nothing was left behind: "
            "free some space, or set XDG_CACHE_HOME to a directory on another disk"
        )
    return LabError(f"{target} could not be written: {error.strerror or error}")


def _prepare(target: Path, leftovers: str, nbytes: int) -> None:
    """Make the directory, clear it of what a killed run left, and see that nbytes are free."""
    target.parent.mkdir(parents=True, exist_ok=True)
    for path in target.parent.glob(leftovers):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _ABANDONED:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    if shutil.disk_usage(target.parent).free < nbytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
