"""What a site says in words: samples are left out of it, what is wrong stays in it."""

from __future__ import annotations

import base64
import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedwild.sites.redaction import LONGEST_RUN, MAX_CHARACTERS, told_outside

VALUES = np.random.default_rng(0).random(64, dtype=np.float32)
STORED = (VALUES * 255).astype(np.uint8).tobytes()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", ""),
        ("ValueError: there are 3 clients", "ValueError: there are 3 clients"),
        ("first\n\n  second\tthird\n", "first second third"),
        ("at least 3 of 10 clients, not 2", "at least 3 of 10 clients, not 2"),
        ("two numbers, 1 and 2, or 3, 4", "two numbers, 1 and 2, or 3, 4"),
        ("classes class-0, class-1, class-2", "classes class-0, class-1, class-2"),
        ("mat1 and mat2 shapes (4x64 and 100x8)", "mat1 and mat2 shapes (4x64 and 100x8)"),
        ("fedwild 1.41.2 is not 1.42", "fedwild 1.41.2 is not 1.42"),
        ("either/or, a / b, N/A", "either/or, a / b, N/A"),
        ("class 'Straße 12' is not known", "class 'Straße 12' is not known"),
    ],
)
def test_words_names_and_single_numbers_stay(text: str, told: str) -> None:
    assert told_outside(text) == told


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("bad [0.1, 0.2, 0.3] here", "bad [...] here"),
        ("bad (3, 8, 8)", "bad [...]"),
        ("bad 1 2 3", "bad [...]"),
        ("bad -0.5;+.25;1e-5;7.", "bad [...]"),
        ("bad [[1, 2],\n [nan, -inf]]", "bad [...]"),
        ("bad {0: 0.5, 1: 0.25}", "bad [...]"),
        ("bad '0.1', '0.2', '0.3' here", "bad '[...]' here"),
        ("bad 0xff, 0x0A, 0x10", "bad [...]"),
        ("bad 10%, 20%, 30%", "bad [...]"),
        ("bad 0.1/0.2/0.3", "bad [...]"),
        ("bad 1j, 2j, 3j", "bad [...]"),
        ("bad [np.float32(0.1), np.float32(0.2), np.float32(0.3)] here", "bad [...] here"),
        ("bad [tensor(0.1000), tensor(0.2000), tensor(0.3000)] here", "bad [...] here"),
        ("0.25, 0.5, 0.75", "[...]"),
        ("one 1 two 1, 2, 3 three 3", "one 1 two [...] three 3"),
    ],
)
def test_three_numbers_in_a_row_are_left_out(text: str, told: str) -> None:
    assert told_outside(text) == told


@pytest.mark.parametrize(
    "printed",
    [
        str(VALUES),
        repr(VALUES),
        str(VALUES.reshape(8, 8)),
        str(VALUES.tolist()),
        str(list(VALUES)),
        str(torch.as_tensor(VALUES)),
        str(list(torch.as_tensor(VALUES))),
        str((VALUES * 255).astype(np.uint8)),
        str(dict(enumerate(VALUES.tolist()))),
        ",".join(map(str, VALUES.tolist())),
        "\n".join(map(str, VALUES.tolist())),
    ],
)
def test_no_way_of_printing_a_sample_tells_its_values(printed: str) -> None:
    told = told_outside(f"ValueError: cannot train on {printed} at all")
    assert told.startswith("ValueError: cannot train on ")
    assert len(told) < 100
    assert sum(str(round(float(value), 3)) in told for value in VALUES) == 0


@pytest.mark.parametrize(
    "encoded",
    [
        base64.b64encode(STORED).decode(),
        base64.urlsafe_b64encode(STORED).decode(),
        base64.b85encode(STORED).decode(),
        base64.encodebytes(STORED * 2).decode(),
        STORED.hex(),
        STORED.hex(" "),
        STORED.hex(":"),
        repr(STORED),
        repr(STORED)[2:40],
        repr(bytearray(STORED)),
        str(int.from_bytes(STORED, "big")),
        "a" * (LONGEST_RUN + 1),
    ],
)
def test_encoded_data_and_bytes_are_left_out(encoded: str) -> None:
    told = told_outside(f"ValueError: cannot read {encoded}")
    assert told.startswith("ValueError: cannot read ")
    assert "..." in told
    assert len(told) < 50


def test_bytes_that_were_taken_for_text_are_left_out_but_for_scraps() -> None:
    told = told_outside(f"cannot read {bytes(range(256)).decode('latin-1')}")
    assert told.startswith("cannot read ... ")
    assert not set(told) & {chr(code) for code in (*range(32), *range(127, 160))}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("No such file: '/home/ann/site a/img.png'", "No such file: 'img.png'"),
        ('File "data/ann/img.png" is broken', 'File "img.png" is broken'),
        ("cannot open /data/patients/ann/x.dcm: broken", "cannot open x.dcm: broken"),
        ("cannot open (/data/ann/x.dcm)", "cannot open (x.dcm)"),
        ("cannot open ~/ann/x.dcm", "cannot open x.dcm"),
        ("it can't open 'a/b', isn't it?", "it can't open 'b', isn't it?"),
        ("folder /data/patients/ is empty", "folder patients is empty"),
        (r"cannot open C:\data\ann\x.dcm now", "cannot open x.dcm now"),
        (r"cannot open 'C:\data\ann b\x.dcm' now", "cannot open 'x.dcm' now"),
        ("see https://example.org/help", "see https://example.org/help"),
    ],
)
def test_of_a_path_only_its_last_part_is_told(text: str, told: str) -> None:
    assert told_outside(text) == told


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            'Caught it.\nOriginal Traceback (most recent call last):\n  File "/a.py", line 3\nValueError: x',
            "Caught it.",
        ),
        ('Traceback (most recent call last):\n  File "/a.py", line 3\n    secret()\nValueError: x', "ValueError: x"),
    ],
)
def test_of_a_traceback_only_the_sentence_is_told(text: str, told: str) -> None:
    assert told_outside(text) == told


def test_a_long_text_is_cut() -> None:
    told = told_outside("word " * 1000)
    assert len(told) == MAX_CHARACTERS
    assert told.endswith("...")
    assert told_outside("w" * LONGEST_RUN) == "w" * LONGEST_RUN


@pytest.mark.parametrize("part", ["1, ", "(", "'/", "\\", "a.", "ff ", "b'", "np.float32(", "\n", "'\\x00"])
def test_even_a_hostile_text_takes_no_time(part: str) -> None:
    begin = time.process_time()
    assert len(told_outside(part * 300_000)) <= MAX_CHARACTERS
    assert time.process_time() - begin < 2


@given(st.text(max_size=2000))
def test_whatever_is_said_becomes_one_short_printable_line(text: str) -> None:
    told = told_outside(text)
    assert len(told) <= MAX_CHARACTERS
    assert told.isprintable()


@given(
    st.lists(st.floats(0, 1), min_size=3, max_size=200),
    st.sampled_from([", ", " ", ",", "\n", "; ", "  "]),
    st.sampled_from(["{:.4f}", "{:.8f}", "{:.2e}", "{}"]),
)
def test_no_list_of_numbers_is_told_however_it_is_written(values: list[float], between: str, form: str) -> None:
    told = told_outside(f"bad sample [{between.join(form.format(value) for value in values)}]")
    assert told in ("bad sample [...]", "bad sample ...")


@pytest.mark.parametrize("length", [1300, 5000, 100_000])
def test_bytes_are_left_out_however_long_they_are(length: int) -> None:
    secret = "secret words of a sample " * (length // 25)
    assert told_outside(f"cannot read b'{secret}'") == "cannot read ..."


def test_a_sites_own_name_is_no_literal() -> None:
    assert told_outside("b's key is not registered") == "b's key is not registered"
