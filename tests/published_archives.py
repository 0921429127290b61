"""Small sets in the published formats, packed as the real ones are, and a web server that gives them, or fails to."""

from __future__ import annotations

import gzip
import hashlib
import io
import struct
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
from numpy.typing import NDArray

from darkroom.sources.catalogue import Archive, PublishedSet

Labelled = tuple[NDArray[np.uint8], NDArray[np.int64]]


def pictures(count: int, size: int, channels: int, classes: int, seed: int = 0) -> Labelled:
    """`count` different pictures of noise; labels go round, so that each class has its share."""
    pixels = np.random.default_rng(seed).integers(0, 256, (count, size, size, channels), np.uint8)
    return pixels, np.arange(count, dtype=np.int64) % classes


def idx(array: NDArray[np.uint8]) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}i", *array.shape) + array.tobytes()


def mnist_files(train: Labelled, test: Labelled) -> dict[str, bytes]:
    files = {}
    for name, (images, labels) in {"train": train, "t10k": test}.items():
        files[f"{name}-images-idx3-ubyte"] = idx(images[..., 0])
        files[f"{name}-labels-idx1-ubyte"] = idx(labels.astype(np.uint8))
    return files


def _text(value: bytes) -> bytes:
    """A str of Python 2."""
    return b"U" + bytes([len(value)]) + value if len(value) < 256 else b"T" + struct.pack("<i", len(value)) + value


def _number(value: int) -> bytes:
    return b"J" + struct.pack("<i", value)


def _array(array: NDArray[np.uint8]) -> bytes:
    """numpy.core.multiarray._reconstruct(ndarray, (0,), 'b'), then its state: version, shape, dtype, order, bytes."""
    new = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\0\x85U\x01b\x87R"
    dtype = b"cnumpy\ndtype\nU\x02u1K\0K\x01\x87R(K\x03U\x01|NNN" + _number(-1) + _number(-1) + b"K\0tb"
    shape = b"(" + b"".join(_number(size) for size in array.shape) + b"t"
    return new + b"(K\x01" + shape + dtype + b"\x89" + _text(array.tobytes()) + b"tb"


def python2_pickle(values: dict[bytes, Any]) -> bytes:
    """What cPickle of Python 2 wrote with protocol 2, in the operations that CIFAR's batches use."""

    def value(content: Any) -> bytes:
        if isinstance(content, np.ndarray):
            return _array(content)
        if isinstance(content, list):
            return b"](" + b"".join(value(item) for item in content) + b"e"
        return _text(content) if isinstance(content, bytes) else _number(int(content))

    items = b"".join(_text(key) + value(content) for key, content in values.items())
    return b"\x80\x02}(" + items + b"u."


def _planes(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return images.transpose(0, 3, 1, 2).reshape(len(images), -1)


def cifar10_files(train: Labelled, test: Labelled) -> dict[str, bytes]:
    """Five batches and one, each a fifth of the training pictures."""
    parts = zip(np.array_split(train[0], 5), np.array_split(train[1], 5), strict=True)
    batches = {f"data_batch_{i}": part for i, part in enumerate(parts, 1)} | {"test_batch": test}
    files = {
        name: python2_pickle({b"batch_label": name.encode(), b"data": _planes(images), b"labels": labels.tolist()})
        for name, (images, labels) in batches.items()
    }
    names = b"airplane automobile bird cat deer dog frog horse ship truck".split()
    return files | {"batches.meta": python2_pickle({b"label_names": names, b"num_vis": 3072})}


def cifar100_files(train: Labelled, test: Labelled) -> dict[str, bytes]:
    files = {
        name: python2_pickle(
            {b"fine_labels": labels.tolist(), b"coarse_labels": (labels // 5).tolist(), b"data": _planes(images)}
        )
        for name, (images, labels) in {"train": train, "test": test}.items()
    }
    return files | {"meta": python2_pickle({b"fine_label_names": [b"class %d" % i for i in range(100)]})}


def svhn_files(train: Labelled, test: Labelled) -> dict[str, bytes]:
    import scipy.io

    files = {}
    for name, (images, labels) in {"train": train, "test": test}.items():
        content = io.BytesIO()
        y = np.where(labels == 0, 10, labels).astype(np.uint8)[:, None]
        scipy.io.savemat(content, {"X": images.transpose(1, 2, 3, 0), "y": y}, do_compression=True)
        files[f"{name}_32x32.mat"] = content.getvalue()
    return files


def tar_gz(folder: str, files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, content in {"readme.html": b"<html>", **files}.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def gzipped_set(files: dict[str, bytes], *addresses: str) -> tuple[PublishedSet, dict[str, bytes]]:
    """The catalogue's entry for files that are published one by one, and what lies at its addresses."""
    archives = tuple(Archive(f"{name}.gz", {name: sha256(content)}) for name, content in files.items())
    return PublishedSet(addresses, archives), {f"{name}.gz": gzip.compress(content) for name, content in files.items()}


def tarred_set(
    name: str, folder: str, files: dict[str, bytes], *addresses: str
) -> tuple[PublishedSet, dict[str, bytes]]:
    contents = {file: sha256(content) for file, content in files.items()}
    return PublishedSet(addresses, (Archive(name, contents),)), {name: tar_gz(folder, files)}


def plain_set(files: dict[str, bytes], *addresses: str) -> tuple[PublishedSet, dict[str, bytes]]:
    return PublishedSet(addresses, tuple(Archive(name, {name: sha256(file)}) for name, file in files.items())), files


class Site:
    """What a web server has, how it behaves, and what it was asked."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.ranges = True
        """whether it can go on in the middle of a file"""
        self.troubles: list[int | str] = []
        """for the next requests: a status, `drop` half-way, or `ok`"""
        self.requests: list[tuple[str, str | None]] = []
        """(file, Range) of each request"""
        self.address = ""


@contextmanager
def serve() -> Iterator[Site]:
    """A site on this machine."""
    site = Site()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            name = self.path.rpartition("/")[2]
            asked = self.headers.get("Range")
            site.requests.append((name, asked))
            trouble = site.troubles.pop(0) if site.troubles else "ok"
            if isinstance(trouble, int) or name not in site.files:
                self.send_error(trouble if isinstance(trouble, int) else 404)
                return
            content, start = site.files[name], 0
            if asked and site.ranges:
                start = int(asked.removeprefix("bytes=").removesuffix("-"))
                if start >= len(content):
                    self.send_error(416)
                    return
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            else:
                self.send_response(200)
            rest = content[start:]
            self.send_header("Content-Length", str(len(rest)))
            self.end_headers()
            self.wfile.write(rest[: len(rest) // 2] if trouble == "drop" else rest)
            self.close_connection = trouble == "drop"

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    site.address = f"http://127.0.0.1:{server.server_address[1]}/sets/"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
