from benchmarks.provenance import cpu_model, machine


def test_the_processor_is_named_as_the_kernel_names_it():
    assert cpu_model("processor\t: 0\nmodel name\t: Some CPU @ 2.0GHz\nflags\t: x\n") == "Some CPU @ 2.0GHz"


def test_a_kernel_that_names_no_processor_still_gives_an_architecture():
    assert cpu_model("processor: 0\n")


def test_the_machine_has_cores_and_memory():
    found = machine()
    assert found["num_cores"] >= 1
    assert found["memory_bytes"] > 2**20
