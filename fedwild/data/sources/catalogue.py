"""The data sets that fedwild knows by name, and the addresses of their official files."""

from __future__ import annotations

from dataclasses import dataclass

DIGITS = tuple(str(digit) for digit in range(10))


@dataclass(frozen=True)
class Download:
    """One official file with its published checksum."""

    url: str
    file: str
    md5: str


@dataclass(frozen=True)
class DataEntry:
    """One data set. shape: of a loaded sample; classes: names, or () if only the file has them."""

    name: str
    summary: str
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    class_count: int
    train: int
    test: int
    licence: str
    downloads: tuple[Download, ...] = ()


def _idx(base: str, *md5: str) -> tuple[Download, ...]:
    names = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    return tuple(Download(f"{base}{name}-ubyte.gz", f"{name}-ubyte.gz", m) for name, m in zip(names, md5, strict=True))


def _one(url: str, file: str, md5: str) -> Download:
    return Download(url + file, file, md5)


def _zenodo(file: str, md5: str) -> tuple[Download, ...]:
    return (Download(f"https://zenodo.org/records/10519652/files/{file}?download=1", file, md5),)


_ENTRIES = (
    DataEntry(
        "digits",
        "8x8 handwritten digits, included in scikit-learn",
        (1, 8, 8),
        DIGITS,
        10,
        1346,
        451,
        "CC BY 4.0 (UCI)",
    ),
    DataEntry(
        "mnist",
        "handwritten digits",
        (1, 28, 28),
        DIGITS,
        10,
        60000,
        10000,
        "CC BY-SA 3.0",
        _idx(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
    ),
    DataEntry(
        "fashion-mnist",
        "articles of clothing",
        (1, 28, 28),
        (
            "T-shirt/top",
            "Trouser",
            "Pullover",
            "Dress",
            "Coat",
            "Sandal",
            "Shirt",
            "Sneaker",
            "Bag",
            "Ankle boot",
        ),
        10,
        60000,
        10000,
        "MIT",
        _idx(
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
    ),
    DataEntry(
        "cifar-10",
        "small photographs of objects and animals",
        (3, 32, 32),
        ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
        10,
        50000,
        10000,
        "no licence stated; cite Krizhevsky 2009",
        (
            _one(
                "https://www.cs.toronto.edu/~kriz/",
                "cifar-10-binary.tar.gz",
                "c32a1d4ab5d03f1284b67883e8d87530",
            ),
        ),
    ),
    DataEntry(
        "cifar-100",
        "small photographs, 100 fine classes",
        (3, 32, 32),
        (),
        100,
        50000,
        10000,
        "no licence stated; cite Krizhevsky 2009",
        (
            _one(
                "https://www.cs.toronto.edu/~kriz/",
                "cifar-100-binary.tar.gz",
                "03b5dce01913d631647c71ecec9e9cb8",
            ),
        ),
    ),
    DataEntry(
        "svhn",
        "house number digits from street views",
        (3, 32, 32),
        DIGITS,
        10,
        73257,
        26032,
        "non-commercial research only",
        (
            _one(
                "http://ufldl.stanford.edu/housenumbers/",
                "train_32x32.mat",
                "e26dedcc434d2e4c54c9b2d4a06d8373",
            ),
            _one(
                "http://ufldl.stanford.edu/housenumbers/",
                "test_32x32.mat",
                "eb5a983be6a315427106f1b164d9cef3",
            ),
        ),
    ),
    DataEntry(
        "usps",
        "handwritten digits from envelopes",
        (1, 16, 16),
        DIGITS,
        10,
        7291,
        2007,
        "no licence stated; cite Hull 1994",
        (
            _one(
                "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass/",
                "usps.bz2",
                "ec16c51db3855ca6c91edd34d0e9b197",
            ),
            _one(
                "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass/",
                "usps.t.bz2",
                "8ea070ee2aca1ac39742fdd1ef5ed118",
            ),
        ),
    ),
    DataEntry(
        "mnist-m",
        "MNIST digits on photograph backgrounds",
        (3, 32, 32),
        DIGITS,
        10,
        60000,
        10000,
        "backgrounds for non-commercial research only",
    ),
    DataEntry("synth-digits", "rendered digits on noise", (3, 32, 32), DIGITS, 10, 479400, 9553, "no licence stated"),
    DataEntry(
        "blood-mnist",
        "blood cells under the microscope (MedMNIST)",
        (3, 28, 28),
        (
            "basophil",
            "eosinophil",
            "erythroblast",
            "immature granulocytes",
            "lymphocyte",
            "monocyte",
            "neutrophil",
            "platelet",
        ),
        8,
        13671,
        3421,
        "CC BY 4.0",
        _zenodo("bloodmnist.npz", "7053d0359d879ad8a5505303e11de1dc"),
    ),
    DataEntry(
        "organ-mnist-3d",
        "organs in CT volumes (MedMNIST)",
        (1, 28, 28, 28),
        (
            "liver",
            "kidney-right",
            "kidney-left",
            "femur-right",
            "femur-left",
            "bladder",
            "heart",
            "lung-right",
            "lung-left",
            "spleen",
            "pancreas",
        ),
        11,
        1132,
        610,
        "CC BY 4.0",
        _zenodo("organmnist3d.npz", "a0c5a1ff56af4f155c46d46fbb45a2fe"),
    ),
    DataEntry(
        "tiny-imagenet",
        "small images of 200 ImageNet classes",
        (3, 64, 64),
        (),
        200,
        100000,
        10000,
        "ImageNet's terms: non-commercial research",
        (_one("http://cs231n.stanford.edu/", "tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de"),),
    ),
    DataEntry(
        "amazon-reviews",
        "word counts of product reviews, four product domains",
        (5000,),
        ("negative", "positive"),
        2,
        8000,
        19677,
        "research; cite Blitzer et al. 2007",
    ),
)

DATASETS: dict[str, DataEntry] = {entry.name: entry for entry in _ENTRIES}
