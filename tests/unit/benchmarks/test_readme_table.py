"""The README's figures and the tables of docs/benchmarks.md say what the results say, misses included."""

import pytest

from benchmarks.headlines import HEADLINES, counts_of, figures_of, headlines_of
from benchmarks.readme_table import (
    BEGIN,
    CLAIMS,
    END,
    README,
    RESULTS,
    TABLES,
    read_results,
    section_of,
    with_section,
)
from benchmarks.rendering import RESULTS_FOLDER
from benchmarks.targets import (
    JUDGES,
    LARGE,
    judge_accuracy,
    judge_degradation,
    judge_emulation,
    judge_first_names,
    judge_idle,
    judge_policies,
    judge_simulator,
    judge_step,
    judge_sync,
)
from benchmarks.verdicts import at_least, judge

AT_LEAST_TWICE = at_least(2)


def sync_result(workload="98MiB", *, faster=7.0, memcpys=1.2, num_rounds=7):
    ratio = {"times_faster_than_gloo": faster, "times_faster_than_open_mpi": faster, "memcpys": memcpys}
    return {
        "rows": [{"workload": workload, "num_rounds": num_rounds}],
        "ratios": [{"workload": workload, "contender": "coarse, device", **ratio}],
    }


def step_result(*, coarse, ddp, memcpys=20.0):
    added = {"unsynchronised": 0.0, "DDP": ddp, "coarse": coarse}
    return {
        "rows": [
            {"rows_per_worker": 8, "contender": name, "unsynchronised_memcpys": memcpys, "added_share": share}
            for name, share in added.items()
        ]
    }


def test_a_target_is_reached_only_where_every_place_reaches_it():
    assert judge("t", AT_LEAST_TWICE, {"a": 2.0, "b": 3.0}, ["a", "b"]).reached == "yes"
    assert judge("t", AT_LEAST_TWICE, {"a": 1.99, "b": 3.0}, ["a", "b"]).reached == "no (a)"


def test_a_target_without_a_result_is_not_reached():
    assert judge("t", AT_LEAST_TWICE, {"a": 2.0}, ["a", "b"]).reached == "not measured (b)"
    for judged in JUDGES.values():
        assert all(verdict.reached.startswith("not measured") for verdict in judged(None))


def test_a_miss_outweighs_what_is_not_measured():
    assert judge("t", AT_LEAST_TWICE, {"a": 1.0}, ["a", "b"]).reached == "no (a)"


def test_a_synchronisation_above_its_memcpys_is_a_miss():
    in_memcpys = judge_sync(sync_result(memcpys=1.31))[2]
    assert in_memcpys.missed == ("98MiB",)
    assert set(in_memcpys.absent) == set(LARGE) - {"98MiB"}


def test_a_trial_of_few_rounds_decides_nothing():
    assert not judge_sync(sync_result(num_rounds=3))[0].found


@pytest.mark.parametrize(("coarse", "ddp", "reached"), [(0.05, 0.2, ("yes", "yes")), (0.11, 0.2, ("no", "no")),
                                                        (0.08, 0.1, ("yes", "no"))])  # fmt: skip
def test_a_step_is_held_to_its_own_limit_and_to_half_of_ddp(coarse, ddp, reached):
    verdicts = judge_step(step_result(coarse=coarse, ddp=ddp))
    assert tuple(verdict.reached.split()[0] for verdict in verdicts) == reached


def test_a_step_shorter_than_ten_memcpys_is_not_judged():
    assert judge_step(step_result(coarse=0.9, ddp=0.9, memcpys=9.9))[0].reached.startswith("not measured")


def test_nothing_is_half_of_what_ddp_adds_where_it_adds_nothing():
    assert judge_step(step_result(coarse=0.01, ddp=-0.01))[1].reached == "no (batch 8)"


def test_an_idle_device_is_held_to_five_milliseconds_a_second():
    (verdict,) = judge_idle({"rows": [{"device": 0, "cpu_s_per_s": 0.0004}, {"device": 1, "cpu_s_per_s": 0.006}]})
    assert verdict.reached == "no (device 1)"


def test_new_names_are_held_to_their_time_and_to_their_number():
    (verdict,) = judge_first_names({"num_names": 2000, "median_first_s": 0.31})
    assert verdict.reached == "no (2,000 names)"
    (verdict,) = judge_first_names({"num_names": 200, "median_first_s": 0.01})
    assert verdict.reached.startswith("no")


def test_only_what_stands_between_the_markers_is_replaced():
    text = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    assert with_section(text, "new") == f"before\n{BEGIN}\nnew\n{END}\nafter\n"
    assert with_section(with_section(text, "x"), "y") == with_section(text, "y")


def test_a_readme_without_markers_is_refused():
    with pytest.raises(ValueError, match="no lines"):
        with_section("text", "new")


def test_the_results_that_are_kept_can_be_shown():
    results = read_results(RESULTS_FOLDER)
    section = section_of(results)
    assert all(result["command"] in section for result in results.values())
    assert "Targets" in section_of({})


@pytest.mark.parametrize(("share", "total_s", "reached"), [(0.1, 59.0, ("yes",) * 3), (0.09, 61.0, ("no",) * 3)])
def test_the_simulator_is_held_to_a_share_of_a_bare_loop_and_to_a_minute(share, total_s, reached):
    rows = [{"case": "a", "share_of_loop": share}]
    result = {"rows": rows, "compiled": rows, "many": [{"case": "b", "total_s": total_s}]}
    verdicts = judge_simulator(result)
    assert tuple(verdict.reached.split()[0] for verdict in verdicts) == reached


def test_the_worst_emulated_transfer_of_a_machine_decides():
    rows = [{"machine": "m", "error": error} for error in (0.0, 2e-6, 1e-7)]
    (verdict,) = judge_emulation({"rows": rows})
    assert (verdict.reached, verdict.found) == ("no (m)", (("m", "2.00 ppm"),))


def test_one_cell_that_differs_from_its_simulation_is_a_miss():
    rows = [{"model": "m", "difference": difference} for difference in (0.0, 2e-9)]
    (verdict,) = judge_accuracy({"rows": rows})
    assert (verdict.reached, verdict.found) == ("no (m, 2 cells)", (("m, 2 cells", "2.00 ppb"),))


def test_the_worst_cell_of_a_model_decides_on_its_policies():
    rows = [{"model": "m", "auto_over_best": ratio, "auto_over_allreduce": 0.9} for ratio in (1.0, 1.04)]
    over_best, over_allreduce = judge_policies({"simulated": rows})
    assert (over_best.reached, over_allreduce.reached) == ("no (m, 2 cells)", "yes")


def test_an_emulated_run_that_was_late_has_not_followed_a_lost_link():
    row = {"kind": "emulated", "profile_share": 0.002, "iterations_until_changed": 3, "profile_every": 10,
           "after_s": 1.0, "best_s": 1.0}  # fmt: skip
    on_time, late = row | {"late_share": 0.01}, row | {"late_share": 0.011}
    cost, followed = judge_degradation({"rows": [on_time, late, row | {"kind": "simulated"}]})
    assert cost.reached == "yes"
    assert followed.missed == ("emulated, 2 runs",)


def test_the_readme_has_six_figures_with_their_kinds_commands_and_misses():
    lines = headlines_of(read_results(RESULTS_FOLDER), CLAIMS.read_text(encoding="utf-8")).splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert len(cells) == len(HEADLINES) + 1 == 6
    assert all(any(word in kind for word in ("measured", "emulated", "simulated")) for *_, kind, _ in cells)
    assert all(command.startswith("`make ") for *_, command in cells)
    assert {reached.split()[0] for *_, reached, _, _ in cells} == {"yes", "no"}


def test_a_figure_without_a_result_is_shown_as_not_measured():
    lines = headlines_of({}, "3 rows: 3 exact. A row").splitlines()[2:]
    assert all("not measured" in line for line in lines[:-1])
    assert "| 3 rows: 3 exact | yes |" in lines[-1]


def test_the_readme_names_each_miss_below_its_figures():
    table, _, missed = figures_of({}, "9 rows: 2 exact, 7 missed. A row").partition("\n\n")
    assert len(table.splitlines()) == 2 + len(HEADLINES) + 1
    assert missed == f"Missed: {lines_of_claims()} (target the paper's; 7 missed)."


def lines_of_claims() -> str:
    return headlines_of({}, "9 rows: 2 exact, 7 missed. A row").splitlines()[-1].split("|")[1].strip()


def test_claims_that_are_missed_are_counted_as_the_page_counts_them():
    assert counts_of("# A\n\n9 rows: 2 exact, 7 missed. A row\n") == "9 rows: 2 exact, 7 missed"
    assert "| no (7 missed) |" in headlines_of({}, "9 rows: 2 exact, 7 missed. A row")


def test_the_pages_show_the_results_that_are_kept():
    results = read_results(RESULTS_FOLDER)
    claims = CLAIMS.read_text(encoding="utf-8")
    assert figures_of(results, claims) in README.read_text(encoding="utf-8"), "run make readme"
    assert headlines_of(results, claims) in RESULTS.read_text(encoding="utf-8"), "run make readme"
    assert section_of(results) in TABLES.read_text(encoding="utf-8"), "run make readme"
