"""A manifest survives the way to the disk unchanged, or says so."""

import hashlib
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coarse.errors import CheckpointError, SnapshotError
from coarse.protocol.dtypes import DType
from coarse.snapshots.files.manifest import (
    Manifest,
    PartEntry,
    PieceEntry,
    check_metadata,
    decode_manifest,
    entry_of,
)
from coarse.snapshots.files.pieces import TensorPiece, whole_tensor

SUM = "0" * 64


def piece(name="w", first=0, numel=6, shape=(2, 3), dtype="float32"):
    return PieceEntry(name=name, dtype=dtype, shape=shape, first=first, numel=numel)


def part(*pieces, index=0):
    return PartEntry(file=f"part-{index:04d}.safetensors", nbytes=10, sha256=SUM, pieces=pieces)


def manifest(*parts, step=3, metadata=None):
    return Manifest(step=step, metadata=metadata or {}, parts=parts)


def test_a_manifest_comes_back_as_it_was():
    metadata = {
        "loss": 0.1,
        "best": math.inf,
        "name": "\u00fc\ud800",
        "groups": [{"lr": 1e-3, "0": None}],
    }
    written = manifest(
        part(piece(numel=2)), part(piece(first=2, numel=4), index=1), metadata=metadata
    )
    assert decode_manifest(written.encode(), "here") == written


def test_a_part_entry_travels_as_text():
    entry = part(piece(), piece("scalar", 0, 1, ()))
    assert PartEntry.from_json(entry.to_json()) == entry


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        ([piece(numel=2), piece(first=3, numel=3)], r"elements \[2, 3\) of 'w' are missing"),
        ([piece(numel=3), piece(first=2, numel=4)], r"elements \[2, 3\) of 'w' came twice"),
        ([piece(numel=5)], "elements from 5 on of 'w' are missing"),
        ([piece(), piece(dtype="int32")], r"'w' disagree: float32\[2, 3\] and int32\[2, 3\]"),
    ],
)
def test_pieces_must_cover_each_tensor_once(pieces, message):
    with pytest.raises(ValueError, match=message):
        manifest(*(part(one, index=index) for index, one in enumerate(pieces)))


def test_a_part_file_is_named_once():
    with pytest.raises(ValueError, match="named twice"):
        manifest(part(piece()), part(piece("v")))


def test_a_part_cannot_hold_two_pieces_under_one_name():
    with pytest.raises(ValueError, match=r"cannot hold 'w\[0:2\]'"):
        manifest(part(piece(numel=2), piece("w[0:2]"), piece(first=2, numel=4)))


def test_whole_tensors_keep_name_and_shape_and_runs_of_elements_are_flat():
    assert (piece().stored_name, piece().stored_shape) == ("w", (2, 3))
    assert (piece(first=2, numel=3).stored_name, piece(first=2, numel=3).stored_shape) == (
        "w[2:5]",
        (3,),
    )


@given(data=st.data())
def test_a_change_of_any_bit_shows(data):
    raw = bytearray(
        manifest(part(piece()), metadata={"loss": 0.25, "name": "r\u00e9sum\u00e9"}).encode()
    )
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(CheckpointError, match=r"ckpt/manifest\.json: wanted"):
        decode_manifest(bytes(raw), "ckpt/manifest.json")


@given(data=st.data())
def test_a_cut_at_any_byte_shows(data):
    raw = manifest(part(piece())).encode()
    with pytest.raises(CheckpointError, match=r"ckpt/manifest\.json: wanted"):
        decode_manifest(raw[: data.draw(st.integers(0, len(raw) - 1))], "ckpt/manifest.json")


@pytest.mark.parametrize(
    "raw",
    [
        b"[]",
        b'{"name": "my app"}',
        b"null",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"format": "coarse-checkpoint"}',
    ],
)
def test_foreign_files_are_refused(raw):
    with pytest.raises(CheckpointError, match="here: wanted"):
        decode_manifest(raw, "here")


@pytest.mark.parametrize(
    "changes",
    [
        {"step": -1},
        {"step": "3"},
        {"metadata": []},
        {"parts": 5},
        {"parts": [{"file": "../part-0000.safetensors", "nbytes": 1, "sha256": SUM, "pieces": []}]},
        {
            "parts": [
                {"file": "part-0000.safetensors", "nbytes": 1, "sha256": "short", "pieces": []}
            ]
        },
        {"parts": [{"nbytes": 1}]},
    ],
)
def test_what_another_program_wrote_in_our_form_is_checked_all_the_same(changes):
    document = json.loads(manifest(part(piece())).encode()) | changes
    del document["sha256"]
    forged = {**document, "sha256": _sha256(document)}
    with pytest.raises(CheckpointError, match="wanted a step, metadata and parts"):
        decode_manifest(json.dumps(forged, indent=1).encode() + b"\n", "here")


def _sha256(document):
    return hashlib.sha256(json.dumps(document, indent=1).encode() + b"\n").hexdigest()


def test_a_newer_format_names_its_version(monkeypatch):
    monkeypatch.setattr("coarse.snapshots.files.manifest.FORMAT_VERSION", 2)
    raw = manifest(part(piece())).encode()
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match="wanted format version 1, got 2; read it with"):
        decode_manifest(raw, "here")


LOOP: dict = {}
LOOP["loop"] = LOOP


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"a": np.zeros(2)}, "not JSON serializable"),
        ({"state": {0: 1}}, r"metadata\['state'\]: keys must be strings, got 0"),
        ({"groups": [{"x": {1: 2}}]}, r"metadata\['groups'\]\[0\]\['x'\]: keys"),
        (LOOP, "recursion"),
    ],
)
def test_metadata_that_would_not_come_back_is_refused(metadata, message):
    with pytest.raises(SnapshotError, match=message):
        check_metadata(metadata)


def test_an_entry_describes_its_piece():
    whole = whole_tensor("b", np.zeros((2, 3), np.uint16), DType.BFLOAT16)
    assert entry_of(whole) == piece("b", dtype="bfloat16")
    some = TensorPiece(
        name="w", dtype=DType.FLOAT32, shape=(2, 3), data=np.zeros(8, np.uint8), first=4
    )
    assert entry_of(some) == piece(first=4, numel=2)


@pytest.mark.parametrize(
    ("data", "first", "error"),
    [
        (np.zeros(6, np.int32), 0, TypeError),
        (np.zeros(6, np.float32), 1, ValueError),
        (np.zeros(6, np.float32), -1, ValueError),
        (np.zeros(7, np.uint8), 0, ValueError),
    ],
)
def test_a_piece_that_does_not_fit_its_tensor_is_refused(data, first, error):
    with pytest.raises(error, match="'w'"):
        TensorPiece(name="w", dtype=DType.FLOAT32, shape=(2, 3), data=data, first=first)
