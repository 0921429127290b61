"""The files that leave, at work where this project is not: plain Python, C++ with LibTorch, a browser.

The programs are those of docs/elsewhere. All say the classes that PyTorch says, for real pictures.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import ExifTags, Image
from torch.utils import cpp_extension

from darkroom.exporting.description import Description
from darkroom.exporting.formats import FORMATS, write_formats
from darkroom.exporting.source import source_of
from darkroom.models import NetworkSpec, Preprocessing, SavedModel, build_network
from darkroom.pictures import read_picture
from darkroom.serving.predictor import Predictor
from digits import fit_digits, pack_digits
from pipelines import REPOSITORY
from screenshots import chromium

PROGRAMS = REPOSITORY / "docs/elsewhere"
WEB = "onnxruntime-web@1.30.0"
WEB_FILES = ("ort.wasm.bundle.min.mjs", "ort-wasm-simd-threaded.wasm")
FETCHED = REPOSITORY / "tests/.npm"
"""what npm brings, kept from run to run and by no git"""

Answers = list[tuple[str, float]]
"""a picture's class and its probability"""


@dataclass(frozen=True)
class Exported:
    """A folder with a model's files and pictures of its size: 00.png and 00.pnm, 01.png and so on."""

    folder: Path
    saved: SavedModel
    expected: Answers
    """what PyTorch says of the pictures"""

    def pictures(self, suffix: str) -> list[str]:
        return [str(path) for path in sorted(self.folder.glob(f"??.{suffix}"))]


def write_exported(folder: Path, saved: SavedModel, images: NDArray[np.uint8]) -> Exported:
    """`images`: N×H×W×C."""
    batch = np.array(images.transpose(0, 3, 1, 2), order="C")
    assert not write_formats(folder, source_of(saved, opset=18, calibration=batch), list(FORMATS))
    for i, pixels in enumerate(images):
        picture = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
        picture.save(folder / f"{i:02}.png")
        picture.save(folder / f"{i:02}.pnm", format="PPM")
    with torch.inference_mode():
        rows = torch.softmax(saved.build()(torch.from_numpy(batch)) / saved.temperature, dim=1)
    return Exported(folder, saved, [(saved.classes[int(row.argmax())], float(row.max())) for row in rows])


@pytest.fixture(scope="module")
def grey(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """A network that knows the digits."""
    packed = pack_digits(tmp_path_factory.mktemp("packed"), size=16)
    named = replace(fit_digits(packed), classes=[f"ziffer {i} ß" for i in range(10)])
    return write_exported(tmp_path_factory.mktemp("grey"), named, packed.split("test").images[:30])


@pytest.fixture(scope="module")
def colour(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """A network that has learnt nothing, on coloured clouds: classes as they fall."""
    spec = NetworkSpec("resnet", 8, (1, 1), 0.0, 3, 24, 7)
    coarse = np.random.default_rng(0).integers(0, 256, (30, 4, 4, 3), np.uint8)
    clouds = [np.asarray(Image.fromarray(pixels).resize((24, 24), Image.Resampling.BICUBIC)) for pixels in coarse]
    images = np.stack(clouds)
    preprocessing = Preprocessing(24, 3, "stretch", [0.4, 0.5, 0.6], [0.2, 0.25, 0.3])

    def saved(weights: dict[str, torch.Tensor]) -> SavedModel:
        return SavedModel.of(
            network=spec, weights=weights, classes=[f"class {i}" for i in range(7)], preprocessing=preprocessing,
            temperature=0.1, run_id="2" * 32, data_sha256="3" * 64, made_with={},
        )  # fmt: skip

    with torch.random.fork_rng(), torch.inference_mode():
        torch.manual_seed(0)
        weights = build_network(spec).state_dict()
        logits = saved(weights).build()(torch.from_numpy(np.array(images.transpose(0, 3, 1, 2), order="C")))
        weights["head.bias"] -= logits.mean(0)  # so that no class wins on all of them
    return write_exported(tmp_path_factory.mktemp("colour"), saved(weights), images)


@pytest.fixture(params=["grey", "colour"])
def exported(request: pytest.FixtureRequest) -> Exported:
    found: Exported = request.getfixturevalue(request.param)
    assert len({name for name, _ in found.expected}) > 3, "pictures of several classes"
    return found


def needs(program: str, package: str) -> None:
    if not shutil.which(program):
        assert not os.environ.get("CI"), f"CI has to install {package}"
        pytest.skip(f"needs {program}: apt-get install {package}")


def answers(lines: str) -> Answers:
    """Lines of path, class and probability."""
    return [(name, float(share)) for _, name, share in (line.split("\t") for line in lines.splitlines())]


def same(found: Answers, expected: Answers, tolerance: float = 1e-5) -> bool:
    assert [name for name, _ in found] == [name for name, _ in expected]
    assert [share for _, share in found] == pytest.approx([share for _, share in expected], abs=tolerance)
    return True


# Python without this project


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A place for packages that holds onnxruntime, numpy and Pillow, and nothing else."""
    place = tmp_path_factory.mktemp("bare")
    for package in ("onnxruntime", "numpy", "PIL"):
        spec = importlib.util.find_spec(package)
        assert spec
        assert spec.origin
        real = Path(spec.origin).parent
        libraries = {"numpy": "numpy.libs", "PIL": "pillow.libs"}.get(package, "")
        for path in (real, real.parent / libraries):
            if path.name in (package, libraries) and path.is_dir():
                (place / path.name).symlink_to(path)
    return place


BARE = """
import importlib.util, runpy, sys
sys.path.append(sys.argv[1])
there = [name for name in ("torch", "onnx", "darkroom", "mlflow", "google.protobuf") if importlib.util.find_spec(name.split(".")[0])]
assert not there, there
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run_bare(bare: Path, script: Path, *arguments: str | Path) -> str:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    command = [sys.executable, "-I", "-S", "-X", "utf8", "-c", BARE, str(bare), str(script), *map(str, arguments)]
    done = subprocess.run(command, env=clean, capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_python_program_says_what_pytorch_says(exported: Exported, bare: Path) -> None:
    lines = run_bare(bare, PROGRAMS / "classify.py", exported.folder / "model.onnx", *exported.pictures("png"))
    assert same(answers(lines), exported.expected)


def test_it_runs_the_file_in_8_bits_too(grey: Exported, bare: Path) -> None:
    lines = run_bare(bare, PROGRAMS / "classify.py", grey.folder / "model.int8.onnx", *grey.pictures("png"))
    equal = [found[0] == expected[0] for found, expected in zip(answers(lines), grey.expected, strict=True)]
    assert np.mean(equal) > 0.9


READ_BACK = """
import json, sys, zipfile
import onnxruntime
found = {}
for path in sys.argv[1:]:
    if path.endswith(".onnx"):
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        found[path] = dict(session.get_modelmeta().custom_metadata_map)
    else:
        with zipfile.ZipFile(path) as archive:
            (name,) = [name for name in archive.namelist() if name.endswith("/extra/darkroom.json")]
            found[path] = json.loads(archive.read(name))
print(json.dumps(found))
"""


def test_every_file_says_all_that_is_needed_to_use_it(exported: Exported, bare: Path, tmp_path: Path) -> None:
    (tmp_path / "read_back.py").write_text(READ_BACK)
    files = [exported.folder / FORMATS[name].file for name in ("onnx", "int8", "torchscript")]
    found = json.loads(run_bare(bare, tmp_path / "read_back.py", *files))
    saved = exported.saved
    said = {
        "classes": saved.classes, **asdict(saved.preprocessing), "temperature": saved.temperature, "run_id": saved.run_id,
        "data_sha256": saved.data_sha256, "model_sha256": saved.model_sha256,
    }  # fmt: skip
    for file, about in found.items():
        values = {
            key: json.loads(text) if key not in TEXTS and isinstance(text, str) else text for key, text in about.items()
        }
        writers = {"torch", "onnx", "onnxscript"} | ({"onnxruntime"} if "int8" in file else set())
        assert values.pop("versions").keys() == writers, file
        assert values == {"darkroom_format": 1, **said}, file


TEXTS = {name for name, kind in Description.__annotations__.items() if kind == "str"}


def variants(folder: Path, image: Image.Image) -> dict[str, Path]:
    """One grey picture in many files."""
    grey = image.convert("L")
    rgb = grey.convert("RGB")
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    lying = rgb.transpose(Image.Transpose.ROTATE_90)
    written: dict[str, tuple[Image.Image, dict[str, Any]]] = {
        "grey.png": (grey, {}),
        "rgb.png": (rgb, {}),
        "grey.jpg": (grey, {"quality": 100}),
        "rgb.jpg": (rgb, {"quality": 100, "subsampling": 0}),
        "rgba.png": (rgb.convert("RGBA"), {}),
        "grey_alpha.png": (grey.convert("LA"), {}),
        "palette.png": (grey.convert("P"), {}),
        "cmyk.jpg": (rgb.convert("CMYK"), {"quality": 100, "subsampling": 0}),
        "cmyk.tiff": (rgb.convert("CMYK"), {}),
        "lying.jpg": (lying, {"quality": 100, "subsampling": 0, "exif": exif}),
        "lying.png": (lying, {"exif": exif}),
        "deep.png": (Image.fromarray(np.asarray(grey).astype(np.uint16) * 257), {}),
        "deep.tiff": (Image.fromarray(np.asarray(grey).astype(np.uint16) * 257), {}),
    }
    for name, (picture, options) in written.items():
        picture.save(folder / name, **options)
    return {name: folder / name for name in written}


@pytest.mark.parametrize("size", [(16, 16), (48, 32), (200, 320)])
def test_one_picture_in_any_file_gets_one_answer(
    grey: Exported, bare: Path, tmp_path: Path, size: tuple[int, int]
) -> None:
    """Of the model's size, and larger, where it is made square; through training's reader and through the program."""
    with Image.open(grey.folder / "03.png") as picture:
        files = variants(tmp_path, picture.resize(size, Image.Resampling.BICUBIC))
    predictor = Predictor(grey.folder / "model.onnx", threads=1)
    about = predictor.description
    alone = answers(run_bare(bare, PROGRAMS / "classify.py", grey.folder / "model.onnx", *files.values()))
    for (name, path), (said, share) in zip(files.items(), alone, strict=True):
        pixels = read_picture(path, image_size=about.image_size, channels=about.channels, resize=about.resize)
        (row,) = predictor.probabilities(np.array(pixels.transpose(2, 0, 1)[None], order="C"))
        assert predictor.classes[row.argmax()] == said, f"{name}: training's reader and the program"
        assert row.max() == pytest.approx(share, abs=1e-5), f"{name}: training's reader and the program"
        assert said == alone[0][0], name
        assert share == pytest.approx(alone[0][1], abs=0.05), name  # a JPEG rounds


# C++


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """docs/elsewhere/classify.cpp, built against the LibTorch of pip's torch."""
    needs("g++", "g++")
    built = tmp_path_factory.mktemp("built") / "classify"
    folders = cpp_extension.library_paths()
    subprocess.run(
        [
            "g++", "-std=c++20", f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
            *(f"-I{folder}" for folder in cpp_extension.include_paths()), PROGRAMS / "classify.cpp", "-o", built,
            *(option for folder in folders for option in (f"-L{folder}", f"-Wl,-rpath,{folder}")),
            "-Wl,--unresolved-symbols=ignore-in-shared-libs", "-ltorch", "-ltorch_cpu", "-lc10",
        ],
        check=True,
    )  # fmt: skip
    return built


def test_the_c_program_says_what_pytorch_says(exported: Exported, program: Path) -> None:
    command = [program, exported.folder / "model.ts", *exported.pictures("pnm")]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    assert same(answers(done.stdout), exported.expected)


# The browser


@pytest.fixture(scope="module")
def web_files() -> list[Path]:
    """onnxruntime-web's files, fetched once."""
    needs("chromium", "chromium")
    files = [FETCHED / WEB / name for name in WEB_FILES]
    if not all(path.exists() for path in files):
        needs("npm", "npm")
        (FETCHED / WEB).mkdir(parents=True, exist_ok=True)
        done = subprocess.run(["npm", "pack", "--silent", WEB], cwd=FETCHED, capture_output=True, text=True)
        if done.returncode:
            assert not os.environ.get("CI"), done.stderr
            pytest.skip(f"npm pack {WEB}: {done.stderr.strip()}")
        archive = FETCHED / done.stdout.split()[-1]
        with tarfile.open(archive) as packed:
            for path in files:
                member = packed.extractfile(f"package/dist/{path.name}")
                assert member
                path.write_bytes(member.read())
        archive.unlink()
    return files


@pytest.fixture
def address(exported: Exported, web_files: list[Path], tmp_path: Path) -> Iterator[str]:
    """A server on this machine of the page, the model and the pictures."""
    for path in (PROGRAMS / "classify.html", *web_files, exported.folder / "model.onnx", *exported.pictures("png")):
        shutil.copy(path, tmp_path)
    handler = partial(Silent, directory=tmp_path)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


class Silent(SimpleHTTPRequestHandler):
    def log_message(self, *_arguments: object) -> None:
        pass


def test_the_page_says_what_pytorch_says(exported: Exported, address: str) -> None:
    names = [Path(path).name for path in exported.pictures("png")]
    with chromium() as browser:
        browser.open(f"{address}/classify.html?{'&'.join(names)}", until=("ready",))
        rows = browser.evaluate(
            "[...document.querySelectorAll('tr')].map(row => [...row.cells].map(cell => cell.textContent))"
        )
    assert [row[0] for row in rows] == names
    assert same([(row[1], float(row[2])) for row in rows], exported.expected)
