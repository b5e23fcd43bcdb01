"""Folders of images: the folder that an image is in names its class, and the folder around that its client."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from depositum.bounded_reading import check_size, open_regular_file
from depositum.data.client_files import natural_order
from depositum.data.dataset import Dataset, Samples, pixels_to_floats, with_test_share
from depositum.errors import DataError
from depositum.validation import Description

#: Formats that are read, and how the names of their files end.
FORMATS = ("PNG", "JPEG", "BMP", "WEBP")
IMAGE_ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
#: Pixels of the largest image that is read; a small file can claim any number.
MOST_PIXELS = 1 << 26
#: Pillow's names of formats with 8 bits per channel or less; it would cut off the values of others.
_MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr")
#: Files that systems leave in folders.
_IGNORED = ("Thumbs.db", "desktop.ini")

Share = Annotated[float, Field(gt=0, lt=1)]


@dataclass(frozen=True)
class _ImageFile:
    path: Path
    class_name: str
    client: str | None


def user_images(
    path: str,
    size: Annotated[int, Field(ge=1, le=4096)],
    gray: bool = False,
    test: Annotated[str | Share | None, Description("a folder, or a share of the images between 0 and 1")] = None,
    test_seed: int = 0,
) -> Dataset:
    """Images in folders, as inputs `[N, 3, size, size]` with pixels in [0, 1].

    Parameters
    ----------
    path
        A folder with one folder per class, or with one folder per client that contains one per class.
    size
        Height and width that every image is resized to.
    gray
        Whether images have one channel instead of three.
    test
        Another folder with one folder per class, or the share of the images, of every class, that are test data.
    test_seed
        The seed by which the share is drawn.
    """
    files = _image_files(Path(path))
    held_out = _image_files(Path(test)) if isinstance(test, str) else []
    if held_out and held_out[0].client is not None:
        raise DataError(f"{test}: has folders in its folders; test data has one folder per class")
    channels = 1 if gray else 3
    count = len(files) + len(held_out)
    check_size(
        f"{path}: {count} images of {size}×{size} pixels", 5 * count * channels * size * size
    )  # bytes and floats
    class_names = sorted({file.class_name for file in (*files, *held_out)}, key=natural_order)
    dataset = Dataset(
        path,
        _samples(files, class_names, size, channels),
        _samples(held_out, class_names, size, channels) if held_out else None,
        classes=len(class_names),
        class_names=tuple(class_names),
        **_clients(files),
    )
    return with_test_share(dataset, test, test_seed) if isinstance(test, float) else dataset


def _resolve_arguments(arguments: Mapping[str, Any], base: Path | None, clients: int | None) -> dict[str, Any]:
    """The arguments with absolute paths of existing folders."""
    resolved = dict(arguments)
    for argument in ("path", "test"):
        if isinstance(given := arguments.get(argument), str):
            folder = (base or Path()) / Path(given).expanduser()
            if not folder.is_dir():
                raise DataError(f"{folder}: no such folder")
            resolved[argument] = str(folder)
    return resolved


user_images.path_arguments = ("path", "test")  # type: ignore[attr-defined]
user_images.one_path = True  # type: ignore[attr-defined]
user_images.resolve_arguments = _resolve_arguments  # type: ignore[attr-defined]


def _image_files(folder: Path) -> list[_ImageFile]:
    """All images, by client and class; folders that contain both images and folders are refused."""
    found = []
    for outer in _folders(folder):
        inner = _folders(outer)
        found += [_ImageFile(file, part.name, outer.name) for part in inner for file in _images(part)]
        images = [_ImageFile(file, outer.name, None) for file in _images(outer)]
        if inner and images:
            raise DataError(f"{outer}: contains both images and folders")
        found += images
    if not found:
        layout = "one folder per class, or one per client that contains one per class"
        raise DataError(f"{folder}: contains no images in folders; it must have {layout}")
    if len({file.client is None for file in found}) > 1:
        raise DataError(f"{folder}: some of its folders contain images, and others folders; use one layout")
    return found


def _folders(folder: Path) -> list[Path]:
    visible = [path for path in _entries(folder) if path.is_dir()]
    return sorted(visible, key=lambda path: natural_order(path.name))


def _images(folder: Path) -> Iterator[Path]:
    for path in sorted(_entries(folder), key=lambda path: natural_order(path.name)):
        if path.suffix.lower() in IMAGE_ENDINGS:
            yield path
        elif not path.is_dir() and path.name not in _IGNORED:
            raise DataError(f"{path}: images are {', '.join(IMAGE_ENDINGS)} files; convert it, or remove it")


def _entries(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if not path.name.startswith(".")]
    except OSError as error:
        raise DataError(f"{folder}: cannot be read ({error.strerror})") from None


def _clients(files: Sequence[_ImageFile]) -> dict[str, Any]:
    """The fields of a dataset about clients: their images and names; none if the folders are classes."""
    owners = [file.client for file in files if file.client is not None]
    if not owners:
        return {}
    names = list(dict.fromkeys(owners))  # in the order of the folders
    index = np.array([names.index(owner) for owner in owners])
    parts = tuple(np.flatnonzero(index == client) for client in range(len(names)))
    return {"clients": parts, "client_names": tuple(names)}


def _samples(files: Sequence[_ImageFile], class_names: Sequence[str], size: int, channels: int) -> Samples:
    pixels = np.empty((len(files), channels, size, size), np.uint8)
    for row, file in zip(pixels, files, strict=True):
        row[:] = _read_pixels(file.path, size, channels)
    label = {name: k for k, name in enumerate(class_names)}
    return Samples(pixels_to_floats(pixels), torch.tensor([label[file.class_name] for file in files]))


def _read_pixels(path: Path, size: int, channels: int) -> NDArray[np.uint8]:
    """The pixels of one image, `[channels, size, size]`."""
    from PIL import Image  # few runs need it

    with open_regular_file(path) as file, warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # the limit here is lower
        try:
            with Image.open(file, formats=FORMATS) as image:
                if image.width * image.height > MOST_PIXELS:
                    raise Image.DecompressionBombError
                if image.mode not in _MODES:
                    raise DataError(f"{path}: has pixels of the kind {image.mode!r}; save it with 8 bits per channel")
                small = image.convert("L" if channels == 1 else "RGB").resize((size, size), Image.Resampling.BILINEAR)
                array = np.asarray(small, dtype=np.uint8)
        except DataError:
            raise
        except Image.DecompressionBombError:
            raise DataError(f"{path}: has more than the {MOST_PIXELS:,} pixels that are read") from None
        except Exception:  # Pillow raises errors of many types for damaged files
            raise DataError(f"{path}: is damaged or not an image") from None
    return array.reshape(size, size, channels).transpose(2, 0, 1)
