"""
Where the files of a run live: a local folder, or any place that pyarrow.fs opens (floor F2).

A file appears whole or not at all: locally by write to a hidden temporary name, fsync and rename; in an object store by the upload,
which is atomic there. Errors of the system become StoreError here and nowhere else.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.fs as pafs

from distbench.errors import StoreError

_URI = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]+://")
# An upload appears as one object there, and a rename would be a copy.
_OBJECT_STORES = frozenset(("s3", "gcs", "abfs"))
_DIRECTORY_MODE = 0o700
_FILE_MODE = 0o600
# Enough for run.json, levels.parquet, findings.json and the last parts of a run whose disk is full.
_RESERVE = ".reserve.tmp"
_RESERVE_BYTES = 512 * 1024


class Storage(Protocol):
    """The files below one root; names are relative, with forward slashes."""

    @property
    def uri(self) -> str:
        """Return the root as a user may be shown it, without credentials."""
        ...

    def create_root(self) -> None:
        """
        Create the root for this run alone.

        Raises:
            StoreError: it exists and is not an empty folder, or cannot be made or written to; one sentence.
        """
        ...

    def discard_root(self) -> None:
        """Remove a root that create_root made, where no file was put into it; else do nothing."""
        ...

    def reserve(self) -> None:
        """Set room aside for the end of the run, as far as the place can run full. Raises StoreError, as put."""
        ...

    def release(self) -> None:
        """Give the room set aside back; never raises, and a second call does nothing."""
        ...

    def put(self, name: str, data: bytes | pa.Buffer) -> None:
        """
        Write a file; it replaces one of the same name at once.

        Raises:
            StoreError: the disk or the store refuses; nothing torn is left under the name.
        """
        ...

    def get(self, name: str) -> bytes:
        """
        Return a file's bytes.

        Raises:
            StoreError: it is not there or cannot be read.
        """
        ...

    def open(self, name: str) -> pa.NativeFile:
        """Open a file for reading at random places; raises OSError."""
        ...

    def names(self, folder: str) -> list[str]:
        """Return the names of all files below a folder, sorted, hidden and temporary ones left out; [] where there is none."""
        ...

    def exists(self, name: str) -> bool:
        """Return whether a file or folder is there."""
        ...


def open_storage(path_or_uri: str | os.PathLike[str]) -> Storage:
    """
    Return the storage at a path or URI; nothing is created or checked yet.

    Raises:
        StoreError: the URI is of no kind that pyarrow knows, or its store cannot be reached.
    """
    text = os.fspath(path_or_uri)
    if not text:
        raise StoreError("the run directory's name is empty")
    if not _URI.match(text):
        return LocalStorage(Path(text))
    shown = without_credentials(text)
    try:
        filesystem, path = pafs.FileSystem.from_uri(text)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise StoreError(f"cannot open {shown}: {_reason(error).replace(text, shown)}") from None
    if isinstance(filesystem, pafs.LocalFileSystem):
        return LocalStorage(Path(path))
    return RemoteStorage(filesystem, path, shown)


def without_credentials(uri: str) -> str:
    """Return a URI without the user part and the query, where access keys may stand."""
    return re.sub(r"^([A-Za-z][A-Za-z0-9+.-]*://)[^/@]*@", r"\1", uri).split("?", 1)[0]


class LocalStorage:
    """Storage in a folder of this machine (or of a shared mount)."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._created = False

    @property
    def uri(self) -> str:
        """Return the path as it was given."""
        return str(self._root)

    def create_root(self) -> None:
        """Create the folder, or take an empty one; making "requests" in it is the claim that only one run can win."""
        root = self._root
        with _translated("cannot create the run directory", root):
            root.parent.mkdir(parents=True, exist_ok=True)
            try:
                root.mkdir(mode=_DIRECTORY_MODE)
                self._created = True
            except FileExistsError:
                self._check_empty()
        try:
            with _translated("cannot write to the run directory", root):
                try:
                    (root / "requests").mkdir(mode=_DIRECTORY_MODE)
                except FileExistsError:
                    raise StoreError(f"the run directory {root} was taken by another run just now") from None
                probe = root / ".probe.tmp"
                os.close(os.open(probe, os.O_CREAT | os.O_EXCL | os.O_WRONLY, _FILE_MODE))
                probe.unlink()
        except StoreError:
            self.discard_root()
            raise

    def _check_empty(self) -> None:
        if not self._root.is_dir():
            raise StoreError(
                f"the run directory {self._root} is a file; name a folder that is absent or empty"
            )
        if any(self._root.iterdir()):
            raise StoreError(f"the run directory {self._root} is not empty; name one that is absent or empty")

    def discard_root(self) -> None:
        """Remove "requests" and the folder itself (if we made it), as far as they are empty."""
        self.release()
        with contextlib.suppress(OSError):
            (self._root / "requests").rmdir()
            if self._created:
                self._root.rmdir()

    def reserve(self) -> None:
        """Fill a hidden file: only bytes that were written are bytes that the disk has."""
        path = self._root / _RESERVE
        with _translated("cannot write", path):
            _write_synced(path, os.urandom(_RESERVE_BYTES))

    def release(self) -> None:
        """Remove the hidden file."""
        with contextlib.suppress(OSError):
            (self._root / _RESERVE).unlink(missing_ok=True)

    def put(self, name: str, data: bytes | pa.Buffer) -> None:
        """Write under a hidden temporary name in the same folder, sync, rename, sync the folder."""
        path = self._root / name
        # Hidden and not *.parquet: no reader of the folder takes it for a part.
        temporary = path.with_name(f".{path.name}.tmp")
        with _translated("cannot write", path):
            self._make_folder(path.parent)
            try:
                _write_synced(temporary, data)
                temporary.replace(path)
            except BaseException:
                with contextlib.suppress(OSError):
                    temporary.unlink()
                raise
            _sync_folder(path.parent)

    def _make_folder(self, folder: Path) -> None:
        """Make a folder of the run, but not the run's root: where a share was unmounted, files would go to the disk beneath it."""
        if not (self._root / "requests").is_dir():
            raise StoreError(
                f"the run directory {self._root} is not there any more; was it moved, or its share unmounted?"
            )
        folder.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)

    def get(self, name: str) -> bytes:
        """Return a file's bytes."""
        with _translated("cannot read", self._root / name):
            return (self._root / name).read_bytes()

    def open(self, name: str) -> pa.NativeFile:
        """Map a file into memory."""
        return pa.memory_map(str(self._root / name), "r")

    def names(self, folder: str) -> list[str]:
        """Return the names of all files below a folder, sorted."""
        base = self._root / folder
        if not base.is_dir():
            return []
        with _translated("cannot list", base):
            found = [p.relative_to(self._root).as_posix() for p in base.rglob("*") if p.is_file()]
        return sorted(name for name in found if not _is_hidden(name))

    def exists(self, name: str) -> bool:
        """Return whether a file or folder is there."""
        return (self._root / name).exists()


class RemoteStorage:
    """Storage behind a file system of pyarrow.fs, such as s3://bucket/folder."""

    def __init__(self, filesystem: pafs.FileSystem, root: str, shown: str) -> None:
        self._fs = filesystem
        self._base = root.rstrip("/")
        self._uri = shown
        self._is_object_store = filesystem.type_name in _OBJECT_STORES

    @property
    def uri(self) -> str:
        """Return the URI without credentials."""
        return self._uri

    def create_root(self) -> None:
        """Check that nothing is there and that a file can be made; object stores have no exclusive creation beyond that."""
        with _translated("cannot create the run directory", self._uri):
            info = self._fs.get_file_info(self._base)
            if info.type == pafs.FileType.File:
                raise StoreError(
                    f"the run directory {self._uri} is a file; name a folder that is absent or empty"
                )
            if self._list(""):
                raise StoreError(
                    f"the run directory {self._uri} is not empty; name one that is absent or empty"
                )
        self.put(".probe.tmp", b"probe")
        with _translated("cannot remove a file in the run directory", self._uri):
            self._delete(".probe.tmp")

    def discard_root(self) -> None:
        """Do nothing: a folder without files does not exist in an object store."""

    def reserve(self) -> None:
        """Do nothing: a store has no end that a run could reach."""

    def release(self) -> None:
        """Do nothing."""

    def put(self, name: str, data: bytes | pa.Buffer) -> None:
        """Upload directly to an object store; elsewhere write to a temporary name and move."""
        path = self._path(name)
        folder, _, file_name = path.rpartition("/")
        target = path if self._is_object_store else f"{folder}/.{file_name}.tmp"
        with _translated("cannot write", f"{self._uri}/{name}"):
            if not self._is_object_store:
                self._fs.create_dir(folder, recursive=True)
            with self._fs.open_output_stream(target) as stream:
                stream.write(data)
            if target != path:
                self._fs.move(target, path)

    def get(self, name: str) -> bytes:
        """Return a file's bytes."""
        with (
            _translated("cannot read", f"{self._uri}/{name}"),
            self._fs.open_input_stream(self._path(name)) as stream,
        ):
            data: bytes = stream.read()
        return data

    def open(self, name: str) -> pa.NativeFile:
        """Open a file for reading at random places."""
        return self._fs.open_input_file(self._path(name))

    def names(self, folder: str) -> list[str]:
        """Return the names of all files below a folder, sorted."""
        with _translated("cannot list", f"{self._uri}/{folder}"):
            return sorted(name for name in self._list(folder) if not _is_hidden(name))

    def exists(self, name: str) -> bool:
        """Return whether a file or folder is there."""
        with _translated("cannot look at", f"{self._uri}/{name}"):
            return self._fs.get_file_info(self._path(name)).type != pafs.FileType.NotFound

    def _delete(self, name: str) -> None:
        try:
            self._fs.delete_file(self._path(name))
        except OSError:
            # Arrow then makes an object for the folder, which some stores refuse; the file is gone all the same.
            if self._fs.get_file_info(self._path(name)).type != pafs.FileType.NotFound:
                raise

    def _path(self, name: str) -> str:
        return f"{self._base}/{name}" if name else self._base

    def _list(self, folder: str) -> list[str]:
        selector = pafs.FileSelector(self._path(folder), allow_not_found=True, recursive=True)
        infos = self._fs.get_file_info(selector)
        return [i.path[len(self._base) :].lstrip("/") for i in infos if i.type == pafs.FileType.File]


def _is_hidden(name: str) -> bool:
    return name.endswith(".tmp") or any(part.startswith(".") for part in name.split("/"))


def _write_synced(path: Path, data: bytes | pa.Buffer) -> None:
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, _FILE_MODE)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_folder(folder: Path) -> None:
    # Some mounts refuse to sync a folder; the file itself is safe then as far as that mount can make it.
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def _translated(what: str, where: object) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise StoreError(f"{what} {where}: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error).splitlines()[0] if str(error) else type(error).__name__
