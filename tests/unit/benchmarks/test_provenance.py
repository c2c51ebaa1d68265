from benchmarks.provenance import machine


def test_the_machine_has_cores_and_memory():
    found = machine()
    assert found["num_cores"] >= 1
    assert found["memory_bytes"] > 2**20
