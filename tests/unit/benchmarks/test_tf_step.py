"""What `tf_step.py` decides without TensorFlow: options, rows, verdicts."""

import json
import os
import socket
import subprocess
import sys

import numpy as np
import pytest

from benchmarks import tf_step
from benchmarks.tf_contenders import (
    CONTENDERS,
    FIT,
    OWN_MODES,
    PACK_BYTES,
    PACKED_PEER,
    PEER,
    UNSYNCHRONISED,
    Turn,
    environment_of,
    is_ours,
    pack_bytes_of,
    turns_of,
)
from benchmarks.tf_jobs import family_of, free_ports
from benchmarks.tf_overlap import overlap_row, overlap_table, pushes_table, share_before
from benchmarks.tf_rows import share_of_peer, step_rows, step_table
from benchmarks.tf_tables import tf_part
from benchmarks.tf_targets import judge_tf_step

TURNS = [Turn(UNSYNCHRONISED), Turn(PEER), Turn("coarse"), Turn(UNSYNCHRONISED, FIT), Turn("coarse", FIT)]


def rows_of(*seconds, num_rounds=7, size=8):
    elapsed_s = np.tile(np.array(seconds), (num_rounds, 1))
    return [row.as_json() for row in step_rows(size, 4 * 2**20, TURNS[: len(seconds)], elapsed_s, elapsed_s / 2)]


def test_all_contenders_run_by_default_and_the_unsynchronised_one_always():
    assert tuple(tf_step.parse_options([]).contenders) == CONTENDERS
    assert tf_step.parse_options(["--quick"]).num_rounds < tf_step.parse_options([]).num_rounds


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--contenders", "none,nccl"], "unknown contenders nccl"),
        (["--contenders", "coarse"], "'none' must be among"),
        (["--rows", "8,-1"], "positive numbers"),
        (["--rounds", "0"], "--rounds"),
        (["--inter-op", "0"], "--inter-op"),
    ],
)
def test_a_bad_option_is_refused_with_what_is_allowed(arguments, complaint, capsys):
    with pytest.raises(SystemExit):
        tf_step.parse_options(arguments)
    assert complaint in capsys.readouterr().err


def test_fit_is_a_turn_of_its_own_and_never_of_the_peer():
    turns = turns_of(CONTENDERS)
    assert [turn.contender for turn in turns if turn.loop == FIT] == [UNSYNCHRONISED, "coarse"]
    assert {turn.baseline for turn in turns} == {Turn(UNSYNCHRONISED), Turn(UNSYNCHRONISED, FIT)}
    assert len({turn.label for turn in turns}) == len(turns)


def test_only_the_peer_gets_a_cluster_and_both_workers_the_same():
    configs = [json.loads(environment_of(PEER, worker, [4001, 4002])["TF_CONFIG"]) for worker in (0, 1)]
    assert configs[0]["cluster"] == configs[1]["cluster"] == {"worker": ["127.0.0.1:4001", "127.0.0.1:4002"]}
    assert [config["task"]["index"] for config in configs] == [0, 1]
    assert not environment_of("coarse", 0, [4001, 4002])
    assert [pack_bytes_of(name) for name in (PEER, PACKED_PEER)] == [0, PACK_BYTES]
    assert [name for name in CONTENDERS if is_ours(name)] == list(OWN_MODES)


def test_what_a_turn_adds_counts_from_the_same_loop_without_synchronisation():
    rows = rows_of(0.1, 0.5, 0.2, 0.15, 0.3)
    assert [row["added_s"] for row in rows] == pytest.approx([0.0, 0.4, 0.1, 0.0, 0.15])
    assert share_of_peer(rows, PEER, "coarse") == {8: pytest.approx(0.25)}
    assert share_of_peer(rows, PEER, "coarse, fit") == {8: pytest.approx(0.375)}


def test_quartiles_of_what_is_added_are_taken_round_by_round():
    elapsed_s = np.array([[1.0, 1.1], [2.0, 2.2], [3.0, 3.3]])
    row = step_rows(1, 4, TURNS[:2], elapsed_s, elapsed_s)[1]
    assert (row.added_low_s, row.added_s, row.added_high_s) == pytest.approx((0.15, 0.2, 0.25))


def test_a_peer_that_adds_nothing_has_no_share():
    assert share_of_peer(rows_of(0.1, 0.1, 0.2), PEER, "coarse") == {}


def test_the_table_has_a_line_for_each_turn_and_batch_size():
    columns, lines = step_table(rows_of(0.1, 0.5, 0.2) + rows_of(0.2, 0.6, 0.3, size=64))
    assert [line[:2] for line in lines[:3]] == [["none", "8"], [PEER, "8"], ["coarse", "8"]]
    assert len(lines) == 6
    assert {len(line) for line in lines} == {len(columns)}
    assert lines[2][4] == "100"
    assert "0.25x" in lines[2]


@pytest.mark.parametrize(("coarse_s", "reached"), [(0.3, "yes"), (0.31, "no (batch 8)")])
def test_coarse_is_held_to_half_of_what_the_peer_adds(coarse_s, reached):
    assert judge_tf_step({"rows": rows_of(0.1, 0.5, coarse_s)})[0].reached == reached


def test_a_trial_of_few_rounds_decides_nothing():
    assert judge_tf_step({"rows": rows_of(0.1, 0.5, 0.2, num_rounds=3)})[0].reached.startswith("not measured")


def test_a_family_is_a_process_and_its_children_and_empty_once_it_has_ended():
    sleeping = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    with subprocess.Popen([sys.executable, "-c", sleeping], stdin=subprocess.PIPE) as process:
        while len(family := family_of(process.pid)) < 2:
            os.sched_yield()
        assert family[0] == process.pid
        assert set(family) <= set(family_of(os.getpid()))
        process.communicate(b"\n")
    assert family_of(process.pid) == []


def test_free_ports_differ_and_can_be_taken():
    ports = free_ports(2)
    assert len(set(ports)) == 2
    for port in ports:
        socket.create_server(("127.0.0.1", port)).close()


def transfer(kind, bucket, begin_s, end_s, nbytes=100):
    return {"kind": kind, "bucket": bucket, "nbytes": nbytes, "begin_s": begin_s, "end_s": end_s}


STEP = {
    "backward_ended_s": 0.5,
    "end_s": 1.0,
    "transfers": [
        transfer("push", 1, 0.4, 0.6),
        transfer("push", 0, 0.2, 0.3),
        transfer("push", 2, 0.6, 0.7, nbytes=200),
        *(transfer("take", bucket, 0.7, 0.8 + bucket / 10) for bucket in range(3)),
    ],
}


def test_a_push_that_begins_before_backward_ends_overlaps_it_even_if_it_ends_later():
    assert share_before(STEP, "begin_s") == pytest.approx(0.5)
    assert share_before(STEP, "end_s") == pytest.approx(0.25)


def test_marks_of_steps_are_medians_and_pushes_are_in_the_order_of_time():
    late = {**STEP, "backward_ended_s": 0.7, "end_s": 2.0}
    row = overlap_row(2, 64, [STEP, STEP, late])
    assert (row.num_steps, row.num_buckets) == (3, 3)
    assert (row.first_push_s, row.last_push_s, row.backward_ended_s, row.end_s) == (0.2, 0.6, 0.5, 1.0)
    assert (row.first_result_s, row.push_s) == (0.8, pytest.approx(0.4))
    assert [nbytes for nbytes, _, _ in row.pushes] == [100, 100, 200]
    columns, (line,) = overlap_table([row.as_json()])
    assert len(columns) == len(line)
    assert line[:2] == ["2", "64"]
    assert "50 %" in line


def test_the_pushes_have_a_line_for_each_bucket_and_a_column_for_each_number_of_threads():
    rows = [overlap_row(num_threads, 64, [STEP]).as_json() for num_threads in (1, 2)]
    columns, lines = pushes_table(rows)
    assert columns == ["bucket", "MiB", "1 inter-op", "2 inter-op"]
    assert [line[0] for line in lines] == ["0", "1", "2"]
    assert lines[0][2:] == ["200 to 300", "200 to 300"]


def test_the_page_has_all_tables_or_says_that_nothing_was_measured():
    result = {
        "rows": rows_of(0.1, 0.5, 0.2),
        "overlap": [overlap_row(2, 64, [STEP]).as_json()],
        "machine": {"cpu_model": "CPU", "num_cores": 2},
        "versions": {"tensorflow": "2.21.0", "keras": "3.15.1"},
        "date": "2026-01-01T00:00",
        "num_inter_op_threads": 2,
    }
    assert tf_part(result).count("\n| --- |") == 3
    assert tf_part(None) == "Not measured yet."
