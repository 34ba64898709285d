"""The data sets that fedwild knows by name, and the addresses of their official files."""

from __future__ import annotations

from dataclasses import dataclass

DIGITS = tuple(str(digit) for digit in range(10))


@dataclass(frozen=True)
class Download:
    """One official file with its published checksum."""

    url: str
    md5: str

    @property
    def file(self) -> str:
        """The name of the file, which is the last part of its address."""
        return self.url.rpartition("/")[2].partition("?")[0]


@dataclass(frozen=True)
class DataEntry:
    """One data set. shape: of a loaded sample; classes: names, or () if only the file has them.

    is_generated: it is drawn, not downloaded. stand_in: a generated data set that replaces it where it is missing.
    """

    name: str
    summary: str
    shape: tuple[int, ...]
    class_count: int
    train: int
    test: int
    licence: str
    classes: tuple[str, ...] = ()
    downloads: tuple[Download, ...] = ()
    is_generated: bool = False
    stand_in: str | None = None


def _idx(base: str, *md5: str) -> tuple[Download, ...]:
    names = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    return tuple(Download(f"{base}{name}-ubyte.gz", m) for name, m in zip(names, md5, strict=True))


_LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass"
_ZENODO = "https://zenodo.org/records/10519652/files"

_DOWNLOADS = {
    "mnist": _idx(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "d53e105ee54ea40749a09fcbcd1e9432",
        "9fb629c4189551a2d022fa330f9573f3",
        "ec29112dd5afa0611ce80d1b7f02629c",
    ),
    "fashion-mnist": _idx(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "25c81989df183df01b3e8a0aad5dffbe",
        "bef4ecab320f06d8554ea6380940ec79",
        "bb300cfdad3c16e7a12a480ee83cd310",
    ),
    "cifar-10": (
        Download("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),
    ),
    "cifar-100": (
        Download("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"),
    ),
    "svhn": (
        Download("http://ufldl.stanford.edu/housenumbers/train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373"),
        Download("http://ufldl.stanford.edu/housenumbers/test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3"),
    ),
    "usps": (
        Download(f"{_LIBSVM}/usps.bz2", "ec16c51db3855ca6c91edd34d0e9b197"),
        Download(f"{_LIBSVM}/usps.t.bz2", "8ea070ee2aca1ac39742fdd1ef5ed118"),
    ),
    "blood-mnist": (Download(f"{_ZENODO}/bloodmnist.npz?download=1", "7053d0359d879ad8a5505303e11de1dc"),),
    "organ-mnist-3d": (Download(f"{_ZENODO}/organmnist3d.npz?download=1", "a0c5a1ff56af4f155c46d46fbb45a2fe"),),
    "tiny-imagenet": (
        Download("http://cs231n.stanford.edu/tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de"),
    ),
}


STAND_INS = {"synth-digits": "rendered-digits"}


def _split(names: str) -> tuple[str, ...]:
    return tuple(names.split(", "))


_CLASSES = {
    **dict.fromkeys(("digits", "mnist", "svhn", "usps", "mnist-m", "synth-digits", "rendered-digits"), DIGITS),
    "fashion-mnist": _split("T-shirt/top, Trouser, Pullover, Dress, Coat, Sandal, Shirt, Sneaker, Bag, Ankle boot"),
    "cifar-10": _split("airplane, automobile, bird, cat, deer, dog, frog, horse, ship, truck"),
    "blood-mnist": _split(
        "basophil, eosinophil, erythroblast, immature granulocytes, lymphocyte, monocyte, neutrophil, platelet"
    ),
    "organ-mnist-3d": _split(
        "liver, kidney-right, kidney-left, femur-right, femur-left, bladder, heart, lung-right, lung-left, spleen, "
        "pancreas"
    ),
    "amazon-reviews": ("negative", "positive"),
}


def _entry(
    name: str, summary: str, shape: tuple[int, ...], class_count: int, train: int, test: int, licence: str
) -> DataEntry:
    classes, downloads = _CLASSES.get(name, ()), _DOWNLOADS.get(name, ())
    return DataEntry(
        *(name, summary, shape, class_count, train, test, licence, classes, downloads),
        is_generated=name in STAND_INS.values(),
        stand_in=STAND_INS.get(name),
    )


_CIFAR = "no licence stated; cite Krizhevsky 2009"
_AMAZON = "word counts of product reviews, four product domains"
_RENDERED = "digits in random fonts and colours, drawn on demand; stands in for SynthDigits"
_MNIST_M = "backgrounds for non-commercial research only"
_IMAGENET = "ImageNet's terms: non-commercial research"

_ENTRIES = (
    _entry("digits", "8x8 handwritten digits, included in scikit-learn", (1, 8, 8), 10, 1346, 451, "CC BY 4.0 (UCI)"),
    _entry("mnist", "handwritten digits", (1, 28, 28), 10, 60000, 10000, "CC BY-SA 3.0"),
    _entry("fashion-mnist", "articles of clothing", (1, 28, 28), 10, 60000, 10000, "MIT"),
    _entry("cifar-10", "small photographs of objects and animals", (3, 32, 32), 10, 50000, 10000, _CIFAR),
    _entry("cifar-100", "small photographs, 100 fine classes", (3, 32, 32), 100, 50000, 10000, _CIFAR),
    _entry(
        "svhn", "house number digits from street views", (3, 32, 32), 10, 73257, 26032, "non-commercial research only"
    ),
    _entry(
        "usps", "handwritten digits from envelopes", (1, 16, 16), 10, 7291, 2007, "no licence stated; cite Hull 1994"
    ),
    _entry("mnist-m", "MNIST digits on photograph backgrounds", (3, 32, 32), 10, 60000, 10000, _MNIST_M),
    _entry("synth-digits", "rendered digits on noise", (3, 32, 32), 10, 479400, 9553, "no licence stated"),
    _entry("rendered-digits", _RENDERED, (3, 32, 32), 10, 10000, 2000, "generated; fonts of DejaVu, STIX and BaKoMa"),
    _entry("blood-mnist", "blood cells under the microscope (MedMNIST)", (3, 28, 28), 8, 13671, 3421, "CC BY 4.0"),
    _entry("organ-mnist-3d", "organs in CT volumes (MedMNIST)", (1, 28, 28, 28), 11, 1132, 610, "CC BY 4.0"),
    _entry("tiny-imagenet", "small images of 200 ImageNet classes", (3, 64, 64), 200, 100000, 10000, _IMAGENET),
    _entry("amazon-reviews", _AMAZON, (5000,), 2, 8000, 19677, "research; cite Blitzer et al. 2007"),
)

DATASETS: dict[str, DataEntry] = {entry.name: entry for entry in _ENTRIES}
