import dataclasses

import pytest

from coarse.errors import ConfigError
from coarse.protocol.config import Config, FixedRouting, Launch, MeasuredRouting, load_config
from coarse.protocol.units import KIB, MIB


@pytest.fixture
def write(tmp_path):
    def write_text(text):
        path = tmp_path / "coarse.toml"
        path.write_text(text)
        return path

    return write_text


def test_an_empty_mapping_gives_the_defaults():
    assert Config.from_mapping({}) == Config()


def test_every_key_of_a_file_arrives(write):
    path = write(
        'mode = "allreduce"\npolicy = "paper"\npartition = "1:1"\ndevice_capacity_bytes = 1048576\n'
        'collective = "ring"\nnum_sync_groups = 4\nbucket_bytes = 65536\nstall_timeout_s = 5\n'
        "startup_timeout_s = 2.5\n"
        '[routing]\npolicy = "fixed"\nthreshold_bytes = 0\npartition_bytes = 4096\n'
        "bandwidth_proxy = 1\n"
    )
    assert Config.from_toml(path) == Config(
        mode="allreduce",
        policy="paper",
        partition="1:1",
        device_capacity_bytes=MIB,
        collective="ring",
        num_sync_groups=4,
        bucket_bytes=64 * KIB,
        stall_timeout_s=5,
        startup_timeout_s=2.5,
        routing=FixedRouting(threshold_bytes=0, partition_bytes=4096, bandwidth_proxy=1),
    )


@pytest.mark.parametrize("device", ["/dev/full", "/dev/zero"])
def test_a_file_without_an_end_is_refused(device):
    with pytest.raises(ConfigError, match=f"{device}: longer than 16777216 characters"):
        Config.from_toml(device)


def test_a_config_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().mode = "allreduce"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("mode", "corse"),
        ("mode", ["coarse"]),
        ("policy", "simulate"),
        ("collective", "tree"),
        ("partition", ""),
        ("partition", 3),
        ("device_capacity_bytes", 0),
        ("device_capacity_bytes", 1e9),
        ("num_sync_groups", 0),
        ("num_sync_groups", True),
        ("bucket_bytes", "4 MiB"),
        ("stall_timeout_s", 0),
        ("stall_timeout_s", float("inf")),
        ("startup_timeout_s", float("nan")),
        ("startup_timeout_s", "60"),
        ("routing", "measured"),
        ("launch", {"devices": 2}),
    ],
)
def test_a_wrong_value_is_refused_with_its_key_and_what_came(key, value):
    with pytest.raises(ConfigError, match=f"{key} must be") as caught:
        Config(**{key: value})
    assert caught.value.key == key
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize(
    "values",
    [
        {"tie_tolerance": -0.1},
        {"min_partition_bytes": 0},
        {"min_partition_bytes": 2 * MIB, "max_partition_bytes": MIB},
        {"profile_every_steps": 0},
        {"profile_every_steps": 2.5},
    ],
)
def test_measured_routing_refuses_what_cannot_work(values):
    with pytest.raises(ConfigError):
        MeasuredRouting(**values)


@pytest.mark.parametrize(
    "values", [{"threshold_bytes": -1}, {"partition_bytes": 0}, {"latency_proxy": -1}]
)
def test_fixed_routing_refuses_what_cannot_work(values):
    with pytest.raises(ConfigError):
        FixedRouting(**{"threshold_bytes": 0, "partition_bytes": 1, **values})


def test_an_unknown_key_is_refused_with_the_nearest_names():
    with pytest.raises(
        ConfigError, match=r"argument: unknown key 'num_sync_group'.*num_sync_groups"
    ):
        Config.from_mapping({"num_sync_group": 2})


def test_an_unknown_key_of_a_file_is_refused_with_its_line(write):
    path = write('# a comment\nmode = "coarse"\n\nstal_timeout_s = 3\n')
    with pytest.raises(ConfigError, match=r"coarse\.toml:4: unknown key 'stal_timeout_s'"):
        Config.from_toml(path)


def test_a_file_says_how_many_devices_start_beside_workers(write):
    config = Config.from_toml(write("[launch]\ndevices = 3\n"))
    assert config.launch == Launch(devices=3)
    assert Config.from_mapping(config.to_mapping()) == config


def test_a_file_names_the_hosts_of_torchruns_nodes(write):
    config = Config.from_toml(write('[launch]\nhosts = ["a", "b"]\n'))
    assert config.launch.hosts == ("a", "b")
    assert Config.from_mapping(config.to_mapping()) == config


@pytest.mark.parametrize("hosts", ['"a"', "[]", '["a", "a"]', '["a", ""]', "[1]", '["a:2"]', '["a,b"]', '[":"]'])
def test_hosts_are_different_names(write, hosts):
    with pytest.raises(ConfigError, match=r"coarse\.toml:2: hosts must be a list of different host names"):
        Config.from_toml(write(f"[launch]\nhosts = {hosts}\n"))


def test_an_unknown_key_of_a_section_is_refused_with_its_line(write):
    path = write("[routing]\ntie_tolerance = 0.2\nmin_partition = 1\n")
    with pytest.raises(ConfigError, match=r"coarse\.toml:3: .*'routing\.min_partition'"):
        Config.from_toml(path)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("\nnum_sync_groups = 0\n", 2),
        ("\n\n[routing]\ntie_tolerance = -1\n", 4),
        ('[routing]\npolicy = "none"\n', 2),
        ("\nrouting.tie_tolerance = -1\n", 2),
        ("\nrouting = { tie_tolerance = -1 }\n", 2),
        ('\n[routing]\npolicy = "fixed"\nthreshold_bytes = 1\n', 2),
        ("[routing]\nthreshold_bytes = 1\n", 2),
        ("\nmode = \n", 2),
        ("\n[launch]\ndevices = 0\n", 3),
        ("\n[launch]\nworkers = 2\n", 3),
    ],
)
def test_a_wrong_value_of_a_file_is_refused_with_its_line(write, text, line):
    with pytest.raises(ConfigError, match=rf"coarse\.toml:{line}: "):
        Config.from_toml(write(text))


def test_keys_of_fixed_routing_without_its_policy_are_not_ignored():
    with pytest.raises(ConfigError, match='add policy = "fixed"'):
        Config.from_mapping({"routing": {"partition_bytes": 4096}})


def test_an_absent_file_is_named():
    with pytest.raises(ConfigError, match=r"absent\.toml: cannot be read"):
        Config.from_toml("absent.toml")


def test_a_partition_file_is_relative_to_the_file_that_names_it(write, tmp_path):
    config = Config.from_toml(write('partition = "nodes.toml"\n'))
    assert config.partition == str(tmp_path / "nodes.toml")


def test_no_argument_and_no_environment_gives_the_defaults():
    assert load_config(None, {}) == Config()


def test_a_config_is_taken_as_it_is():
    config = Config(num_sync_groups=3)
    assert load_config(config, {}) is config


def test_a_path_and_a_mapping_are_read_alike(write):
    path = write("num_sync_groups = 3\n")
    assert (
        load_config(path, {})
        == load_config(str(path), {})
        == load_config({"num_sync_groups": 3}, {})
    )


def test_the_environment_names_the_file(write):
    path = write("num_sync_groups = 3\n")
    assert load_config(None, {"COARSE_CONFIG": str(path)}).num_sync_groups == 3


def test_a_file_of_the_environment_that_an_argument_hides_is_not_silent(write):
    path = write("num_sync_groups = 3\n")
    with pytest.warns(UserWarning, match="COARSE_CONFIG=.* is skipped"):
        config = load_config({"num_sync_groups": 5}, {"COARSE_CONFIG": str(path)})
    assert config.num_sync_groups == 5


def test_the_environment_overrides_partition_mode_and_policy():
    environ = {"COARSE_PARTITION": "2:2", "COARSE_MODE": "dense", "COARSE_POLICY": "devices"}
    config = load_config({"partition": "1:3", "num_sync_groups": 3}, environ)
    assert config == Config(partition="2:2", mode="dense", policy="devices", num_sync_groups=3)


@pytest.mark.parametrize(("stated", "said"), [
    ("compute_scale = -1.0", "compute_scale must be a number above 0"),
    ('compute = "a", save_compute = "b"', "give one of the two"),
    ("node = 2", "unknown key 'node'; did you mean nodes"),
])  # fmt: skip
def test_a_wrong_setting_of_an_emulated_machine_is_named(stated, said):
    with pytest.raises(ConfigError, match=f"^COARSE_EMULATE: .*{said}"):
        load_config(None, {"COARSE_EMULATE": f'machine = "cxl-cz120", {stated}'})


def test_a_wrong_environment_variable_is_named():
    with pytest.raises(ConfigError, match="COARSE_MODE: mode must be"):
        load_config(None, {"COARSE_MODE": "fast"})


def test_something_else_as_a_configuration_is_refused():
    with pytest.raises(ConfigError, match="got int"):
        load_config(3, {})
