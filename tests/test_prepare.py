"""stages/prepare.py: what it packs, and what it refuses to pack."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from numpy.typing import NDArray
from PIL import ExifTags, Image

from darkroom.errors import UserError
from darkroom.packed import SPLITS, PackedSet, open_packed
from download import download
from pipelines import REPOSITORY
from prepare import KEYS, prepare
from published_archives import cifar10_files, cifar100_files, mnist_files, pictures, sha256, svhn_files

FASHION = Path("/usr/share/datasets/fashion-mnist")
AS_SHIPPED: dict[str, Any] = {
    "image_size": "auto",
    "resize": "crop",
    "channels": "auto",
    "val_fraction": 0.1,
    "test_fraction": 0.4,
    "seed": 0,
    "on_bad_image": "error",
    "on_duplicate": "error",
}


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def run(raw: str | Path = "data/raw", into: str = ".", **changes: Any) -> dict[str, Any]:
    places = {"metrics": Path(into, "metrics/data.json"), "plots": Path(into, "plots/data")}
    return prepare(Path(raw), Path(into, "data/packed"), **places, **(AS_SHIPPED | changes))


def bring(name: str, folder: str | Path = "own") -> None:
    download(Path("data/raw"), name=name, source="", folder=Path(folder), root=Path.cwd())


def publish(name: str, files: Mapping[str, bytes]) -> None:
    """data/raw as download leaves it."""
    raw = Path("data/raw")
    raw.mkdir(parents=True)
    for file, content in files.items():
        (raw / file).write_bytes(content)
    manifest = {"name": name, "origin": "embedded", "files": {file: sha256(content) for file, content in files.items()}}
    (raw / "manifest.json").write_text(json.dumps(manifest))


def paint(path: str, seed: int, size: tuple[int, int] = (40, 30), **options: Any) -> Path:
    """A picture that no other seed gives."""
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    coarse = np.random.default_rng(seed).integers(0, 256, (3, 4, 3), np.uint8)
    Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC).save(file, **options)
    return file


def own_classes(*names: str, count: int = 10, folder: str = "own") -> None:
    for label, name in enumerate(names):
        for i in range(count):
            paint(f"{folder}/{name}/{i}.jpg", seed=1000 * label + i)


def sources(packed: str = "data/packed") -> dict[str, Any]:
    values: dict[str, Any] = json.loads(Path(packed, "splits.json").read_text())
    return values


def all_bytes(folder: str) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()
    }


def test_the_stage_takes_the_keys_that_dvc_yaml_lists() -> None:
    stages = yaml.safe_load((REPOSITORY / "dvc.yaml").read_text())["stages"]
    assert list(KEYS) == stages["prepare"]["params"]
    shipped = yaml.safe_load((REPOSITORY / "params.yaml").read_text())["data"]
    assert {key: shipped[key.removeprefix("data.")] for key in KEYS} == {
        f"data.{key}": value for key, value in AS_SHIPPED.items()
    }


# Digits


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    raw = tmp_path_factory.mktemp("digits") / "raw"
    download(raw, name="digits", source="", folder=Path(), root=Path())
    return raw


def test_digits_are_packed_as_they_are(digits: Path) -> None:
    numbers = run(digits)
    packed = open_packed(Path("data/packed"))
    assert numbers == json.loads(Path("metrics/data.json").read_text())
    assert (packed.meta.name, packed.meta.image_size, packed.meta.channels) == ("digits", 8, 1)
    assert packed.meta.classes == [str(i) for i in range(10)]
    assert [numbers[f"num_{split}"] for split in SPLITS] == [970, 108, 719]
    for name in SPLITS:
        split = packed.split(name)
        assert split.images.dtype == np.uint8
        assert split.images.shape == (numbers[f"num_{name}"], 8, 8, 1)
        assert split.labels.dtype == np.int64
        assert np.bincount(split.labels).tolist() == packed.meta.counts[name] == [c[name] for c in numbers["classes"]]
        assert len(sources()[name]) == len(split)
    assert numbers["sha256"] == packed.meta.sha256


def test_each_row_is_the_picture_that_splits_json_names(digits: Path) -> None:
    run(digits)
    packed = open_packed(Path("data/packed"))
    table = np.loadtxt(digits / "digits.csv", delimiter=",", dtype=int)
    for name in SPLITS:
        split = packed.split(name)
        rows = [int(source.removeprefix("train/")) for source in sources()[name]]
        assert np.array_equal(split.labels, table[rows, 64])
        assert np.array_equal(split.images.reshape(-1, 64), (table[rows, :64] * 255 + 8) // 16)


def test_statistics_are_those_of_the_training_split(digits: Path) -> None:
    run(digits)
    packed = open_packed(Path("data/packed"))
    pixels = packed.split("train").images / 255
    assert packed.meta.mean == pytest.approx([pixels.mean()], rel=1e-12)
    assert packed.meta.std == pytest.approx([pixels.std()], rel=1e-12)


def test_the_same_pictures_give_the_same_bytes_anywhere(digits: Path) -> None:
    run(digits, "first")
    run(digits, "second")
    assert all_bytes("first") == all_bytes("second")
    assert not [path for path in Path("first").rglob("*") if path.name.startswith(".")]


@pytest.mark.parametrize(
    "change", [{"seed": 1}, {"val_fraction": 0.2}, {"image_size": 9}, {"channels": 3}, {"resize": "pad"}]
)
def test_the_hash_of_the_whole_knows_what_changed(digits: Path, change: dict[str, Any]) -> None:
    assert run(digits)["sha256"] != run(digits, **change)["sha256"]


@pytest.mark.parametrize(("image_size", "channels"), [(16, 1), (4, 3), (11, 3)])
def test_another_size_keeps_the_splits(digits: Path, image_size: int, channels: int) -> None:
    run(digits)
    before = sources()
    run(digits, image_size=image_size, channels=channels)
    assert sources() == before
    images = open_packed(Path("data/packed")).split("val").images
    assert images.shape == (108, image_size, image_size, channels)
    if channels == 3:
        assert (images[..., 0] == images[..., 2]).all()


def test_contact_sheets_show_each_class(digits: Path) -> None:
    run(digits)
    sheets = sorted(path.name for path in Path("plots/data").iterdir())
    assert sheets == [f"{label:02d}-{label}.png" for label in range(10)]
    packed = open_packed(Path("data/packed"))
    train = packed.split("train")
    first = train.images[train.labels == 7][0, :, :, 0].repeat(8, 0).repeat(8, 1)
    sheet = np.asarray(Image.open("plots/data/07-7.png").convert("L"))
    assert np.array_equal(sheet[4 : 4 + 64, 4 : 4 + 64], first)


# Other published sets


def published_again(name: str) -> PackedSet:
    run()
    packed = open_packed(Path("data/packed"))
    assert packed.meta.name == name
    return packed


@pytest.mark.parametrize(
    ("name", "write", "size", "channels"),
    [
        ("mnist", mnist_files, 28, 1),
        ("fashion_mnist", mnist_files, 28, 1),
        ("cifar10", cifar10_files, 32, 3),
        ("svhn", svhn_files, 32, 3),
    ],
)
def test_a_published_test_split_stays_whole(name, write, size, channels) -> None:  # type: ignore[no-untyped-def]
    train, test = pictures(100, size, channels, 10), pictures(30, size, channels, 10, seed=1)
    publish(name, write(train, test))
    packed = published_again(name)
    assert np.array_equal(packed.split("test").images, test[0])
    assert np.array_equal(packed.split("test").labels, test[1])
    assert packed.meta.counts == {"train": [9] * 10, "val": [1] * 10, "test": [3] * 10}
    rows = [int(source.removeprefix("train/")) for source in sources()["train"]]
    assert np.array_equal(packed.split("train").images, train[0][rows])


def test_many_classes_share_few_sheets() -> None:
    publish("cifar100", cifar100_files(pictures(300, 32, 3, 100), pictures(100, 32, 3, 100, seed=1)))
    packed = published_again("cifar100")
    sheets = sorted(path.name for path in Path("plots/data").iterdir())
    assert len(sheets) == 20
    assert sheets[0] == "0000-0004.png"
    assert sheets[-1] == "0095-0099.png"
    assert len(packed.meta.classes) == 100


def test_what_a_published_set_has_twice_is_counted_not_refused(capsys: pytest.CaptureFixture[str]) -> None:
    train, test = pictures(100, 28, 1, 10), pictures(30, 28, 1, 10, seed=1)
    test[0][:2] = train[0][:2]
    publish("mnist", mnist_files(train, test))
    assert run()["num_duplicates"] == 2
    assert "2 pictures are in two splits, as published" in capsys.readouterr().out


def test_data_raw_that_is_missing_or_damaged_is_named() -> None:
    with pytest.raises(UserError, match=r"data/raw is missing: run dvc repro download"):
        run()
    publish("mnist", mnist_files(pictures(20, 28, 1, 10), pictures(10, 28, 1, 10)))
    labels = Path("data/raw/t10k-labels-idx1-ubyte")
    labels.write_bytes(b"damaged")
    with pytest.raises(UserError, match=f"{labels} is damaged .*: run dvc repro download"):
        run()
    labels.unlink()
    with pytest.raises(UserError, match=f"{labels} is missing: run dvc repro download"):
        run()
    Path("data/raw/manifest.json").write_text('{"other": 1}')
    with pytest.raises(UserError, match="of another version"):
        run()
    Path("data/raw/manifest.json").write_text("{")
    with pytest.raises(UserError, match=r"manifest\.json is damaged"):
        run()


@pytest.mark.fashion
@pytest.mark.skipif(
    not FASHION.is_dir() and not os.environ.get("CI"),
    reason="apt-get install dataset-fashion-mnist brings the pictures",
)
def test_fashion_mnist_is_packed_within_seconds() -> None:
    bring("fashion_mnist", FASHION)
    start = time.process_time()
    numbers = run()
    assert time.process_time() - start < 10
    assert [numbers[f"num_{split}"] for split in SPLITS] == [54_000, 6_000, 10_000]
    assert numbers["classes"][9] == {"name": "Ankle boot", "train": 5_400, "val": 600, "test": 1_000}
    assert numbers["mean"] == pytest.approx([0.286], abs=1e-3)
    assert numbers["std"] == pytest.approx([0.353], abs=1e-3)
    assert Path("plots/data/00-T-shirt_top.png").is_file()


# Own pictures


def test_own_pictures_are_split_and_packed(capsys: pytest.CaptureFixture[str]) -> None:
    own_classes("cat", "dog", "emu")
    bring("image_folder")
    numbers = run()
    assert numbers["classes"] == [{"name": name, "train": 5, "val": 1, "test": 4} for name in ("cat", "dog", "emu")]
    assert (numbers["image_size"], numbers["channels"]) == (64, 3)
    assert "pictures are made 64×64 (crop); data.image_size changes that" in capsys.readouterr().out
    names = [name for split in SPLITS for name in sources()[split]]
    assert sorted(names) == sorted(f"{name}/{i}.jpg" for name in ("cat", "dog", "emu") for i in range(10))


def test_own_splits_are_kept_and_what_lacks_is_held_out() -> None:
    own_classes("cat", "dog", folder="own/train")
    for i in range(3):
        paint(f"own/test/dog/{i}.png", seed=9000 + i)
    bring("image_folder")
    run(test_fraction=0.0)
    assert sources()["test"] == ["test/dog/0.png", "test/dog/1.png", "test/dog/2.png"]
    assert len(sources()["val"]) == 2
    assert open_packed(Path("data/packed")).split("test").labels.tolist() == [1, 1, 1]


def test_folders_without_a_test_fraction_have_nothing_to_evaluate() -> None:
    own_classes("cat", "dog")
    bring("image_folder")
    with pytest.raises(UserError, match=r"data\.test_fraction: 0 leaves no test pictures"):
        run(test_fraction=0.0)


def test_neither_the_order_of_the_folder_nor_its_place_matters(tmp_path: Path) -> None:
    own_classes("cat", "dog")
    bring("image_folder")
    run(into="first")
    paths = [path for path in Path("own").rglob("*") if path.is_file()]
    for path in random.Random(3).sample(paths, len(paths)):
        other = Path("elsewhere/sub", path.relative_to("own"))
        other.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, other)
    bring("image_folder", tmp_path / "elsewhere" / "sub")
    run(into="second")
    assert all_bytes("first") == all_bytes("second")


def test_litter_among_pictures_is_no_picture_and_no_class() -> None:
    own_classes("cat", "dog")
    for name in ("cat/._0.jpg", "cat/.DS_Store", ".ipynb_checkpoints/0.jpg", "dog/Thumbs.db", "dog/desktop.ini"):
        Path("own", name).parent.mkdir(exist_ok=True)
        Path("own", name).write_bytes(b"litter")
    bring("image_folder")
    assert run()["num_left_out"] == 0
    assert open_packed(Path("data/packed")).meta.classes == ["cat", "dog"]


def spoil() -> None:
    """Four files that are no whole picture."""
    whole = Path("own/cat/0.jpg").read_bytes()
    Path("own/cat/cut.jpg").write_bytes(whole[: len(whole) // 2])
    Path("own/cat/empty.png").write_bytes(b"")
    Path("own/dog/page.jpg").write_bytes(b"<!DOCTYPE html><html>404</html>")
    Path("own/dog/noise.bmp").write_bytes(bytes(range(256)))


def test_each_bad_picture_is_named_with_its_reason() -> None:
    own_classes("cat", "dog")
    spoil()
    bring("image_folder")
    with pytest.raises(UserError) as fault:
        run()
    lines = str(fault.value).splitlines()
    assert lines[0] == "4 of 24 files cannot be used:"
    assert lines[1].startswith("  cat/cut.jpg: is damaged (")
    assert lines[2:4] == ["  cat/empty.png: is empty (0 bytes)", f"  dog/noise.bmp: {lines[3].partition(': ')[2]}"]
    assert lines[4] == "  dog/page.jpg: is no picture but a web page or XML"
    assert lines[5].endswith("or set data.on_bad_image: skip to go on without them")
    assert not Path("data/packed").exists()


def test_bad_pictures_can_be_skipped_and_are_written_down(capsys: pytest.CaptureFixture[str]) -> None:
    own_classes("cat", "dog")
    bring("image_folder")
    run()
    before = {name: sources()[name] for name in SPLITS}
    spoil()
    bring("image_folder")
    assert run(on_bad_image="skip")["num_left_out"] == 4
    assert list(sources()["left_out"]) == ["cat/cut.jpg", "cat/empty.png", "dog/noise.bmp", "dog/page.jpg"]
    assert {name: sources()[name] for name in SPLITS} == before
    assert "4 of 24 files are skipped" in capsys.readouterr().out


def test_many_bad_pictures_are_listed_up_to_twenty() -> None:
    own_classes("cat", "dog")
    for i in range(30):
        Path(f"own/cat/bad{i:02d}.jpg").write_bytes(b"")
    bring("image_folder")
    with pytest.raises(UserError) as fault:
        run()
    lines = str(fault.value).splitlines()
    assert lines[0] == "30 of 50 files cannot be used:"
    assert lines[21] == "  and 10 more"
    assert len(lines) == 23


def test_a_class_without_a_picture_is_named() -> None:
    own_classes("cat", "dog")
    Path("own/emu").mkdir()
    bring("image_folder")
    with pytest.raises(UserError, match="no picture in emu"):
        run()


def test_a_class_of_nothing_but_bad_pictures_is_named() -> None:
    own_classes("cat", "dog")
    Path("own/emu").mkdir()
    Path("own/emu/1.jpg").write_bytes(b"")
    bring("image_folder")
    with pytest.raises(UserError, match="no picture to train on for emu"):
        run(on_bad_image="skip")


def test_nothing_but_bad_pictures() -> None:
    for name in ("cat", "dog"):
        Path("own", name).mkdir(parents=True)
        Path("own", name, "1.jpg").write_bytes(b"")
    bring("image_folder")
    with pytest.raises(UserError, match="no picture to train on for cat, dog"):
        run(on_bad_image="skip")


def test_labels_do_not_shift_where_validation_lacks_a_class(capsys: pytest.CaptureFixture[str]) -> None:
    own_classes("cat", "dog", "emu", folder="own/train")
    for i in range(3):
        paint(f"own/val/emu/{i}.png", seed=9000 + i)
        paint(f"own/test/{['cat', 'dog', 'emu'][i]}/{i}.png", seed=9100 + i)
    bring("image_folder")
    run()
    assert open_packed(Path("data/packed")).split("val").labels.tolist() == [2, 2, 2]
    assert "val has no picture of cat, dog: labels stay those of train" in capsys.readouterr().out


def duplicated() -> None:
    own_classes("cat", "dog", folder="own/train")
    paint("own/test/cat/a.jpg", seed=9000)
    paint("own/test/dog/a.jpg", seed=9001)
    shutil.copy("own/train/cat/3.jpg", "own/test/cat/copy.jpg")
    with Image.open("own/train/dog/4.jpg") as image:
        image.resize((64, 64)).save("own/train/dog/other.png")
        image.resize((64, 64)).save("own/test/dog/other.bmp")


def test_the_same_picture_in_two_splits_is_refused() -> None:
    duplicated()
    bring("image_folder")
    with pytest.raises(UserError) as fault:
        run()
    assert str(fault.value).splitlines() == [
        "2 pictures are in two splits, so that scores would be too good:",
        "  train/cat/3.jpg = test/cat/copy.jpg",
        "  train/dog/other.png = test/dog/other.bmp",
        "remove one of each, or set data.on_duplicate: allow to go on with them",
    ]
    assert not Path("data/packed").exists()


def test_the_same_picture_in_two_splits_may_be_allowed(capsys: pytest.CaptureFixture[str]) -> None:
    duplicated()
    bring("image_folder")
    assert run(on_duplicate="allow")["num_duplicates"] == 2
    assert "train/cat/3.jpg = test/cat/copy.jpg" in capsys.readouterr().out


def test_copies_within_a_class_never_end_in_two_splits() -> None:
    own_classes("cat", "dog")
    for i in range(10):
        for copy in range(3):
            shutil.copy(f"own/cat/{i}.jpg", f"own/cat/{i}-{copy}.jpg")
    bring("image_folder")
    for seed in range(5):
        assert run(seed=seed)["num_duplicates"] == 0


def test_a_picture_with_two_labels_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    own_classes("cat", "dog")
    shutil.copy("own/cat/0.jpg", "own/dog/same.jpg")
    bring("image_folder")
    assert run()["num_duplicates"] == 0
    assert "1 picture has two labels, such as cat/0.jpg = dog/same.jpg" in capsys.readouterr().out


def test_pictures_are_upright_and_of_all_kinds() -> None:
    own_classes("dog")
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    upright = paint("upright.png", seed=5, size=(64, 64))
    with Image.open(upright) as image:
        Path("own/cat").mkdir()
        image.transpose(Image.Transpose.ROTATE_90).save("own/cat/turned.png", exif=exif)
        image.convert("L").save("own/cat/grey.JPG")
        image.convert("CMYK").save("own/cat/cmyk.Jpeg")
        image.convert("RGBA").save("own/cat/alpha.PNG")
    bring("image_folder")
    run(on_duplicate="allow")
    packed = open_packed(Path("data/packed"))
    rows = {name: packed.split(split).images[i] for split in SPLITS for i, name in enumerate(sources()[split])}
    with Image.open(upright) as image:
        assert np.array_equal(rows["cat/turned.png"], np.asarray(image))
        assert np.array_equal(rows["cat/alpha.PNG"], np.asarray(image))
    assert (rows["cat/grey.JPG"][..., 0] == rows["cat/grey.JPG"][..., 1]).all()


def test_a_channel_of_one_value_has_no_deviation_of_zero() -> None:
    for label, name in enumerate(("cat", "dog")):
        for i in range(4):
            path = Path(f"own/{name}/{i}.png")
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (64, 64), (10 * label, 20 * i, 77)).save(path)
    bring("image_folder")
    numbers = run()
    assert numbers["std"][2] == 1.0
    assert numbers["mean"][2] == pytest.approx(77 / 255)
    assert min(numbers["std"]) > 0


def test_yesterdays_set_stays_when_todays_is_refused(digits: Path) -> None:
    run(digits)
    before = all_bytes("data/packed") | all_bytes("plots/data")
    own_classes("cat", "dog")
    Path("own/cat/empty.jpg").write_bytes(b"")
    bring("image_folder")
    with pytest.raises(UserError):
        run()
    assert all_bytes("data/packed") | all_bytes("plots/data") == before
    assert sorted(path.name for path in Path("data").iterdir()) == ["packed", "raw"]


def prepare_with_little_room(raw: str, limit: int) -> subprocess.CompletedProcess[str]:
    """With a real limit on what a file may hold, in a process of its own."""
    script = (
        "import resource; from pathlib import Path; from prepare import prepare\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))\n"
        f"prepare(Path({raw!r}), Path('data/packed'), metrics=Path('metrics/data.json'), "
        f"plots=Path('plots/data'), **{AS_SHIPPED!r})"
    )
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY / "stages")}
    return subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)


@pytest.mark.skipif(sys.platform == "win32", reason="no such limit there")
def test_a_full_disk_is_an_error_and_leaves_nothing(digits: Path) -> None:
    done = prepare_with_little_room(str(digits), 30_000)
    assert done.returncode == 1
    assert "UserError: data/packed: the file is too large" in done.stderr
    assert not [path for path in Path().rglob("*") if path.is_file()]


@pytest.mark.skipif(sys.platform == "win32", reason="no such limit there")
def test_a_disk_that_is_full_of_decoded_pictures_is_named() -> None:
    own_classes("cat", "dog")
    bring("image_folder")
    done = prepare_with_little_room("data/raw", 100_000)
    assert done.returncode == 1
    assert "images: the file is too large" in done.stderr
    assert [path.name for path in Path("data").iterdir()] == ["raw"]


# As a script


def script(tmp_path: Path, **data: Any) -> subprocess.CompletedProcess[str]:
    values = yaml.safe_load((REPOSITORY / "params.yaml").read_text())
    values["data"] |= data
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(values))
    command = [sys.executable, str(REPOSITORY / "stages" / "prepare.py")]
    return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)


def test_the_script_packs_and_says_where(tmp_path: Path) -> None:
    bring("digits")
    done = script(tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "wrote data/packed: digits, 10 classes, 8×8×1, 970 train, 108 val, 719 test",
        "wrote metrics/data.json, and 10 contact sheets in plots/data",
    ]
    assert done.stderr == ""


def test_the_script_says_what_is_missing_in_a_line(tmp_path: Path) -> None:
    done = script(tmp_path)
    assert done.returncode == 1
    assert done.stderr == "\nerror: data/raw is missing: run dvc repro download\n"


def test_a_fault_in_the_parameters_is_told_before_anything_is_imported(tmp_path: Path) -> None:
    start = time.monotonic()
    done = script(tmp_path, val_fraction=2)
    assert time.monotonic() - start < 3  # on a busy machine; a quarter of a second on a free one
    assert done.returncode == 1
    assert "data.val_fraction" in done.stderr


def test_the_packed_set_is_hashed_as_promised(digits: Path) -> None:
    """sha256 of what the pictures look like, then images and labels of each split."""
    run(digits)
    packed = open_packed(Path("data/packed"))
    look = {"classes": packed.meta.classes, "image_size": 8, "channels": 1, "resize": "crop"}
    digest = hashlib.sha256(json.dumps(look, sort_keys=True).encode())
    parts: list[NDArray[Any]] = [
        part for name in SPLITS for part in (packed.split(name).images, packed.split(name).labels)
    ]
    for part in parts:
        digest.update(part.tobytes())
    assert packed.meta.sha256 == digest.hexdigest()
