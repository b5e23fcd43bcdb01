"""What publishers offer: the files of each dataset, their addresses and their checksums. Nothing but facts.

Checksums of unpacked files were computed from genuine copies; those of packed downloads are the publishers' own.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Published:
    """The files of one dataset, as its publisher offers them."""

    folder: str  #: below the data folder
    url: str  #: what a download's name is put behind
    files: Mapping[str, str]  #: each unpacked file: its sha256
    downloads: Mapping[str, str]  #: what is on offer: the publisher's checksum of it, as pooch writes it ("md5:…")

    @property
    def archive(self) -> str | None:
        """The download that holds all files, if there is one."""
        return next((name for name in self.downloads if name.endswith(".tar.gz")), None)

    def download(self, file: str) -> str:
        """The download that brings `file`."""
        offered = next((name for name in (file, f"{file}.gz", self.archive) if name in self.downloads), None)
        assert offered is not None, f"nothing brings {file}"
        return offered


def _idx_files(folder: str, url: str, sha256: tuple[str, ...], md5: tuple[str, ...]) -> Published:
    names = (
        "train-images-idx3-ubyte",
        "train-labels-idx1-ubyte",
        "t10k-images-idx3-ubyte",
        "t10k-labels-idx1-ubyte",
    )
    files = dict(zip(names, sha256, strict=True))
    return Published(folder, url, files, {f"{name}.gz": f"md5:{sum_}" for name, sum_ in zip(names, md5, strict=True)})


_A9A = {
    "a9a": "f5d5ffd8d865ff41328e7ee043e4b020816914ff6843ff15b98905ddbedce906",
    "a9a.t": "1f448a153f0320399a7e40836eb207655b0bde0f21fc941cc472193daa9f5de9",
}

_DOLLY = {"databricks-dolly-15k.jsonl": "2df9083338b4abd6bceb5635764dab5d833b393b55759dffb0959b6fcbf794ec"}

#: By the dataset's name in a configuration.
PUBLISHED: dict[str, Published] = {
    "a9a": Published(
        folder="a9a",
        url="https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/",
        files=_A9A,
        downloads={name: f"sha256:{sum_}" for name, sum_ in _A9A.items()},  # offered unpacked
    ),
    "mnist": _idx_files(
        folder="mnist",
        url="https://ossci-datasets.s3.amazonaws.com/mnist/",
        sha256=(
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        ),
        md5=(
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
    ),
    "fashion-mnist": _idx_files(
        folder="fashion-mnist",
        url="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        sha256=(
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        ),
        md5=(
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
    ),
    "cifar10": Published(
        folder="cifar-10",
        url="https://www.cs.toronto.edu/~kriz/",
        files={
            "cifar-10-batches-bin/data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
            "cifar-10-batches-bin/data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
            "cifar-10-batches-bin/data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
            "cifar-10-batches-bin/data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
            "cifar-10-batches-bin/data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
            "cifar-10-batches-bin/test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
        },
        downloads={"cifar-10-binary.tar.gz": "md5:c32a1d4ab5d03f1284b67883e8d87530"},
    ),
    "dolly": Published(
        folder="dolly",
        url="https://huggingface.co/datasets/databricks/databricks-dolly-15k/resolve/main/",
        files=_DOLLY,
        downloads={name: f"sha256:{sum_}" for name, sum_ in _DOLLY.items()},
    ),
}
