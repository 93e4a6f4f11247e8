"""Prefix entries on disk: one file each, checksummed, written by a rename, bounded in all."""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import struct
import tempfile
import time
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path

import numpy as np
import numpy.typing as npt

MAGIC = b"MTLQPFX\0"
VERSION = 1
SUFFIX = ".prefix"
PARTIAL = ".partial"  # being written
TORSO_S = 3600  # after which its writer has died
DEFAULT_MAX_BYTES = 8 << 30
# magic, version, number of tokens, number of payload bytes, identity, digest of tokens, of payload
HEADER = struct.Struct("<8sIIQ32s32s32s")

log = logging.getLogger(__name__)


class PrefixStore:
    """A directory of prefix entries of one model; other models' files may lie beside them.

    Nothing that goes wrong here stops the engine: a file that cannot be read, is damaged or is not
        ours is left alone with a warning.
    """

    def __init__(
        self,
        directory: str | Path,
        identity: bytes,
        *,
        max_bytes: int = DEFAULT_MAX_BYTES,
    ):
        """`identity` stands for the model and the layout of what is stored: other files never
        match.
        """
        self.directory = Path(directory).expanduser()
        self.max_bytes = max_bytes
        self._identity = blake2b(identity, digest_size=32).digest()
        self._name = self._identity[:8].hex()
        self.directory.mkdir(parents=True, exist_ok=True)

    def index(self) -> Iterator[tuple[Path, npt.NDArray[np.int32]]]:
        """The entries of this model, oldest first, with their tokens; payloads are not read."""
        for path, _ in self._files(f"{self._name}-*{SUFFIX}"):
            try:
                with path.open("rb") as file:
                    num_tokens, _, token_digest, _ = self._read_header(file.read(HEADER.size))
                    raw = file.read(4 * num_tokens)
                if len(raw) != 4 * num_tokens or _digest(raw) != token_digest:
                    raise ValueError("its tokens are damaged")
                yield path, np.frombuffer(raw, np.dtype("<i4")).astype(np.int32)
            except (OSError, ValueError) as error:
                log.warning("prefix cache: %s is ignored: %s", path, error)

    def load(self, path: Path, parts: Sequence[npt.NDArray[np.uint8]]) -> bool:
        """Fills `parts` from a file; False, with a warning, if it does not hold exactly that."""
        try:
            with path.open("rb") as file:
                num_tokens, payload_bytes, _, expected = self._read_header(file.read(HEADER.size))
                if payload_bytes != sum(part.nbytes for part in parts):
                    raise ValueError(f"{payload_bytes} bytes of payload do not fit this model")
                file.seek(4 * num_tokens, os.SEEK_CUR)
                digest = blake2b(digest_size=32)
                for part in parts:
                    if file.readinto(part.data) != part.nbytes:
                        raise ValueError("it is cut off")
                    digest.update(part.data)
            if digest.digest() != expected:
                raise ValueError("its checksum is wrong")
            os.utime(path)
            return True
        except (OSError, ValueError) as error:
            log.warning("prefix cache: %s is ignored: %s", path, error)
            return False

    def save(
        self,
        key: bytes,
        tokens: npt.NDArray[np.int32],
        parts: Sequence[npt.NDArray[np.uint8]],
    ) -> Path | None:
        """Writes an entry and returns its file; None, with a warning, if the disk refused it."""
        path = self.directory / f"{self._name}-{key.hex()}{SUFFIX}"
        raw = tokens.astype(np.dtype("<i4")).tobytes()
        digest = blake2b(digest_size=32)
        for part in parts:
            digest.update(part.data)
        payload_bytes = sum(part.nbytes for part in parts)
        header = HEADER.pack(
            MAGIC,
            VERSION,
            len(tokens),
            payload_bytes,
            self._identity,
            _digest(raw),
            digest.digest(),
        )
        num_bytes = len(header) + len(raw) + payload_bytes
        if num_bytes > self.max_bytes:
            log.warning(
                "prefix cache: an entry of %d bytes exceeds the %d bytes of %s",
                num_bytes, self.max_bytes, self.directory,
            )  # fmt: skip
            return None
        try:
            self._make_room(num_bytes)
            self._write(path, [header, raw, *(part.data for part in parts)])
            return path
        except OSError as error:
            log.warning("prefix cache: %s was not written: %s", path, error)
            return None

    def _write(self, path: Path, parts: Sequence[bytes | memoryview]) -> None:
        handle, name = tempfile.mkstemp(dir=self.directory, suffix=PARTIAL)
        try:
            with os.fdopen(handle, "wb") as file:
                for part in parts:
                    file.write(part)
            os.replace(name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise

    def _make_room(self, num_bytes: int) -> None:
        """Deletes the files that were not used for longest, of any model, and old torsos."""
        for path, about in self._files(f"*{PARTIAL}"):
            if time.time() - about.st_mtime > TORSO_S:
                path.unlink(missing_ok=True)
        files = self._files(f"*-*{SUFFIX}")
        excess = sum(about.st_size for _, about in files) + num_bytes - self.max_bytes
        for path, about in files:
            if excess <= 0:
                break
            path.unlink(missing_ok=True)
            excess -= about.st_size

    def _files(self, pattern: str) -> list[tuple[Path, os.stat_result]]:
        """Matching files, least recently used first. Another process may delete one meanwhile."""
        found = []
        for path in self.directory.glob(pattern):
            with contextlib.suppress(OSError):
                about = path.stat()
                if stat.S_ISREG(about.st_mode):
                    found.append((path, about))
        return sorted(found, key=lambda file: file[1].st_mtime_ns)

    def _read_header(self, raw: bytes) -> tuple[int, int, bytes, bytes]:
        """Number of tokens, payload bytes, digests of both."""
        if len(raw) != HEADER.size:
            raise ValueError("it is cut off")
        magic, version, num_tokens, payload, identity, tokens, content = HEADER.unpack(raw)
        if magic != MAGIC:
            raise ValueError("it is not a prefix entry")
        if version != VERSION:
            raise ValueError(f"its version is {version}, this program reads {VERSION}")
        if identity != self._identity:
            raise ValueError("it belongs to another model")
        return num_tokens, payload, tokens, content


def _digest(raw: bytes) -> bytes:
    return blake2b(raw, digest_size=32).digest()
