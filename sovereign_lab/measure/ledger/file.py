"""The ledger's file: SQLite from the standard library, its schema, and the way from an old schema to the present one.

Every operation opens a connection of its own and ends with one transaction, so that notebooks may share a file and a
process may be killed at any moment. `application_id` says that a file is a ledger; no other file is ever written to.
"""

import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from sovereign_lab.errors import LabError

VARIABLE = "SOVEREIGN_LEDGER"
NAME = "sovereign-lab.sqlite3"
APPLICATION_ID = 0x534C4142  # "SLAB"
WAIT = 30.0  # seconds for another process that writes: it writes for milliseconds

# MIGRATIONS[n] takes a ledger of version n to version n + 1. A step that was released is never edited.
MIGRATIONS: tuple[Sequence[str], ...] = (
    (
        """CREATE TABLE experiments (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            state TEXT NOT NULL CHECK (state IN ('unfinished', 'measured', 'wrong', 'failed')),
            started TEXT NOT NULL,     -- UTC, ISO 8601
            ended TEXT,
            title TEXT NOT NULL,
            hypothesis TEXT NOT NULL,
            predicted REAL NOT NULL,   -- base ms / change ms
            baseline TEXT NOT NULL,    -- a phase of the ladder
            phase TEXT,                -- the phase that is the change; NULL where kernels are
            model TEXT NOT NULL,
            environment TEXT NOT NULL, -- JSON, of measure/environment.py
            position INTEGER NOT NULL,
            tokens INTEGER NOT NULL,   -- forward passes that a sample is the mean of
            checks TEXT,               -- JSON, of measure/experiment.py
            speedup REAL,              -- the median over the rounds, and its 95 % interval
            low REAL,
            high REAL,
            verdict TEXT CHECK (verdict IN ('keep', 'revert', 'no difference')),
            error TEXT                 -- why it failed
        )""",
        """CREATE TABLE kernels (
            experiment INTEGER NOT NULL REFERENCES experiments (id),
            op TEXT NOT NULL,
            name TEXT NOT NULL,
            threads INTEGER NOT NULL,
            rows_per_block INTEGER,    -- NULL: one block for everything
            shared_bytes INTEGER,      -- dynamic, a block; NULL: the variant works it out
            source TEXT NOT NULL,
            base_name TEXT NOT NULL,   -- '' where the baseline has no such op: a fused one
            base_source TEXT NOT NULL,
            PRIMARY KEY (experiment, op)
        )""",
        """CREATE TABLE samples (
            experiment INTEGER NOT NULL REFERENCES experiments (id),
            round INTEGER NOT NULL,
            base_ms REAL NOT NULL,
            change_ms REAL NOT NULL,
            PRIMARY KEY (experiment, round)
        )""",
        # Who changes their mind adds a line; the last one counts.
        """CREATE TABLE decisions (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            experiment INTEGER NOT NULL REFERENCES experiments (id),
            decision TEXT NOT NULL CHECK (decision IN ('keep', 'revert')),
            why TEXT NOT NULL,
            decided TEXT NOT NULL
        )""",
    ),
    (
        "ALTER TABLE kernels ADD COLUMN grid INTEGER",  # blocks; NULL: as many as cover the work
        "ALTER TABLE kernels ADD COLUMN cooperative INTEGER NOT NULL DEFAULT 0",
    ),
)


def ledger_path(path: str | Path | None = None) -> Path:
    """The file of the ledger: `path`, else SOVEREIGN_LEDGER, else sovereign-lab.sqlite3 in the current directory."""
    return Path(path or os.environ.get(VARIABLE) or NAME).expanduser().absolute()


@contextmanager
def opened(path: Path, write: bool = True) -> Iterator[sqlite3.Connection]:
    """A connection, to be used for one transaction: kept when the block ends well, undone when it does not.

    Makes the file where there is none and brings an old one to the present schema. Without `write`, a file that may
    not be written is read as it is. Raises LabError for a file that is damaged, or is no ledger, or of a later
    version, or cannot be read or written; such a file is left as it was.
    """
    try:
        with closing(_connect(path, write)) as connection:
            if _version(connection, path) < len(MIGRATIONS):
                _migrate(connection, path)
            connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
            try:
                yield connection
            except BaseException:
                _undo(connection)
                raise
            connection.execute("COMMIT")
    except (
        sqlite3.Error,
        OSError,
        UnicodeDecodeError,
    ) as error:  # the last where SQLite quotes damage
        raise LabError(sentence(path, error)) from error


def _connect(path: Path, write: bool) -> sqlite3.Connection:
    if not path.parent.is_dir():
        raise LabError(
            f"The ledger {path} has no folder to lie in; make the folder, or set {VARIABLE} to another path."
        )
    place = path.as_uri()
    if not write and not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
        # SQLite cannot put its two files beside one that others may still write to; one with none is at rest.
        at_rest = not path.with_name(f"{path.name}-wal").exists()
        place += "?mode=ro" + ("&immutable=1" if at_rest else "")
    connection = sqlite3.connect(place, timeout=WAIT, isolation_level=None, uri=True)
    connection.row_factory = sqlite3.Row
    return connection


def _version(connection: sqlite3.Connection, path: Path) -> int:
    """The version of the schema, 0 for a file without any. Raises LabError for what the lab must not touch."""
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    (program,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if tables == version == program == 0:
        return 0
    if program != APPLICATION_ID:
        raise LabError(
            f"{path} is a database of another program, and was left as it is; "
            f"set {VARIABLE} to a path of its own for the ledger."
        )
    if version > len(MIGRATIONS):
        raise LabError(
            f"The ledger {path} was written by a later version of the lab (schema {version}; this one knows "
            f"{len(MIGRATIONS)}), and was left as it is; update the lab, or set {VARIABLE} to another path."
        )
    (damage,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if damage != "ok":
        raise sqlite3.DatabaseError(damage)
    return int(version)


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Bring the file to the present schema, in one transaction; another process may do the same meanwhile."""
    _use_wal(connection)
    connection.execute("BEGIN IMMEDIATE")
    try:
        for step in MIGRATIONS[_version(connection, path) :]:
            for statement in step:
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
        connection.execute("COMMIT")
    except BaseException:
        _undo(connection)
        raise


def _undo(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:  # SQLite has undone it already where the disk is full
        connection.execute("ROLLBACK")


def _use_wal(connection: sqlite3.Connection) -> None:
    """Readers and a writer at once. The file remembers it; where its disk cannot, it stays as it is, as safe."""
    deadline = time.monotonic() + WAIT
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            # SQLite does not wait here, whatever its timeout.
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def sentence(path: Path, error: Exception) -> str:
    """What has happened to a ledger, and what a person can do about it; the error's own words stand behind."""
    words = str(error)
    if "locked" in words or "busy" in words:
        what, todo = f"is in use by another process, for {WAIT:g} s already", "try again"
    elif "readonly" in words or "read-only" in words:
        what, todo = "cannot be written", "make file and folder writable"
    elif "unable to open" in words or isinstance(error, OSError):
        what, todo = "cannot be opened", "see that it is a file which you may read and write"
    elif "full" in words:
        what, todo = "has no room on its disk", "free some space"
    else:
        what, todo = "is damaged, or no ledger, and was left as it is", "move it away"
    return f"The ledger {path} {what} ({words}); {todo}, or set {VARIABLE} to another path."
