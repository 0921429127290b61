"""The published sets: where they lie, in which files, and the sha256 of what these decode to.

Checksums are of the decoded content, never of the container: the same pictures packed again (as Debian packs
Fashion-MNIST) are the same pictures. A new set is an entry in CATALOGUE and a reader in `data`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath


@dataclass(frozen=True)
class Archive:
    """A file as it is published, and what is in it."""

    name: str
    """at the address and in a local folder"""
    contents: dict[str, str]
    """file name -> sha256 of its content"""


@dataclass(frozen=True)
class PublishedSet:
    addresses: tuple[str, ...]
    """folders on the web that hold the archives, the set's own first; empty for what scikit-learn brings along"""
    archives: tuple[Archive, ...]

    @property
    def contents(self) -> dict[str, str]:
        """file name -> sha256, for the whole set"""
        return {name: sha256 for archive in self.archives for name, sha256 in archive.contents.items()}


def _gzipped(name: str, sha256: str) -> Archive:
    return Archive(f"{name}.gz", {name: sha256})


def _plain(name: str, sha256: str) -> Archive:
    return Archive(name, {name: sha256})


CATALOGUE: dict[str, PublishedSet] = {
    "digits": PublishedSet(
        (),
        (_gzipped("digits.csv", "6ebb3d2fee246a4e99363262ddf8a00a3c41bee6014c373ed9d9216ba7f651b8"),),
    ),
    "mnist": PublishedSet(
        (
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
        (
            _gzipped("train-images-idx3-ubyte", "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"),
            _gzipped("train-labels-idx1-ubyte", "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"),
            _gzipped("t10k-images-idx3-ubyte", "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"),
            _gzipped("t10k-labels-idx1-ubyte", "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"),
        ),
    ),
    "fashion_mnist": PublishedSet(
        (
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
        ),
        (
            _gzipped("train-images-idx3-ubyte", "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888"),
            _gzipped("train-labels-idx1-ubyte", "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9"),
            _gzipped("t10k-images-idx3-ubyte", "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b"),
            _gzipped("t10k-labels-idx1-ubyte", "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"),
        ),
    ),
    "cifar10": PublishedSet(
        ("https://www.cs.toronto.edu/~kriz/",),
        (
            Archive(
                "cifar-10-python.tar.gz",
                {
                    "data_batch_1": "54636561a3ce25bd3e19253c6b0d8538147b0ae398331ac4a2d86c6d987368cd",
                    "data_batch_2": "766b2cef9fbc745cf056b3152224f7cf77163b330ea9a15f9392beb8b89bc5a8",
                    "data_batch_3": "0f00d98ebfb30b3ec0ad19f9756dc2630b89003e10525f5e148445e82aa6a1f9",
                    "data_batch_4": "3f7bb240661948b8f4d53e36ec720d8306f5668bd0071dcb4e6c947f78e9682b",
                    "data_batch_5": "d91802434d8376bbaeeadf58a737e3a1b12ac839077e931237e0dcd43adcb154",
                    "test_batch": "f53d8d457504f7cff4ea9e021afcf0e0ad8e24a91f3fc42091b8adef61157831",
                    "batches.meta": "f962466ef690d46b226450fb9aadc74ba4bc64a76aa526b5827fe4bc5c7125cb",
                },
            ),
        ),
    ),
    "cifar100": PublishedSet(
        ("https://www.cs.toronto.edu/~kriz/",),
        (
            Archive(
                "cifar-100-python.tar.gz",
                {
                    "train": "735e79b04f092ca3d2e6d07f368c0a7d70d48c48d28865950cc24454cf45129b",
                    "test": "4b67687d9933c4db8f0831104447f15b93774f4f464bd0516f0f0f2ac83b7864",
                    "meta": "a5d4786345c961390f865e93b434dbd5c6904ce880667e0cb888c97d449f28b9",
                },
            ),
        ),
    ),
    "svhn": PublishedSet(
        ("http://ufldl.stanford.edu/housenumbers/",),
        (
            _plain("train_32x32.mat", "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8"),
            _plain("test_32x32.mat", "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b"),
        ),
    ),
}


def same_name(path: PurePath) -> str:
    """The published spelling of a file's name: some copies write `train-images.idx3-ubyte`."""
    return path.name.replace(".idx", "-idx")


def set_of(sha256: str) -> str | None:
    """The set that has a file of this content."""
    return next((name for name, entry in CATALOGUE.items() if sha256 in entry.contents.values()), None)
