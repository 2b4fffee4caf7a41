"""The hook's settings: where they come from, and one clear line for what is wrong."""

from __future__ import annotations

import pytest

from acceptd.errors import ConfigError
from vllm_client_hook import config


def test_nothing_set_means_no_address():
    settings = config.load({})
    assert settings.address == ""
    assert settings.enabled
    assert settings.worker_name


def test_the_environment_wins_over_the_file(tmp_path):
    file = tmp_path / "hook.toml"
    file.write_text('address = "10.0.0.1:50051"\nworkload = "chat"\nagreement_timeout = 30\n')
    settings = config.load({"ACCEPTD_HOOK_CONFIG": str(file), "ACCEPTD_WORKLOAD": "code", "ACCEPTD_ENABLED": "off"})
    assert (settings.address, settings.workload) == ("10.0.0.1:50051", "code")
    assert settings.agreement_timeout == 30
    assert not settings.enabled


def test_additional_config_sets_switch_and_label_alone():
    base = config.load({"ACCEPTD_ADDRESS": "host:1"})
    assert config.with_additional(base, {"acceptd": {"workload": "chat"}}).workload == "chat"
    assert not config.with_additional(base, {"acceptd": {"enabled": False}}).enabled
    assert config.with_additional(base, {"other": 1}) == base
    assert config.with_additional(base, None) == base
    with pytest.raises(ConfigError, match=r"additional_config\.acceptd\.address; accepted there: enabled and workload"):
        config.with_additional(base, {"acceptd": {"address": "elsewhere:1"}})
    with pytest.raises(ConfigError, match=r"additional_config\.acceptd\.enabled is 'yes'; accepted: bool"):
        config.with_additional(base, {"acceptd": {"enabled": "yes"}})
    with pytest.raises(ConfigError, match=r"additional_config\.acceptd is 1"):
        config.with_additional(base, {"acceptd": 1})


@pytest.mark.parametrize(
    "address", ["host:1", "127.0.0.1:50051", "[::1]:50051", "unix:/run/acceptd.sock", "dns:///a:1"]
)
def test_addresses(address):
    assert config.load({"ACCEPTD_ADDRESS": address}).address == address


@pytest.mark.parametrize(
    ("environment", "line"),
    [
        ({"ACCEPTD_ADDRESS": "nohost"}, r"ACCEPTD_ADDRESS is 'nohost'; accepted: host:port"),
        ({"ACCEPTD_ADDRESS": "http://host:1"}, r"ACCEPTD_ADDRESS is 'http://host:1'"),
        ({"ACCEPTD_WORKER": "w\x1b[31m"}, r"ACCEPTD_WORKER is 'w\\x1b\[31m'; accepted: printable"),
        ({"ACCEPTD_WORKLOAD": "x" * 65}, r"ACCEPTD_WORKLOAD has 65 bytes; accepted: at most 64"),
        ({"ACCEPTD_FEATURES": "all"}, r"ACCEPTD_FEATURES is 'all'; accepted: x or full"),
        ({"ACCEPTD_ENABLED": "maybe"}, r"ACCEPTD_ENABLED is 'maybe'; accepted: true or false"),
        ({"ACCEPTD_AGREEMENT_TIMEOUT": "soon"}, r"ACCEPTD_AGREEMENT_TIMEOUT is 'soon'; accepted: a number"),
        ({"ACCEPTD_AGREEMENT_TIMEOUT": "0"}, r"ACCEPTD_AGREEMENT_TIMEOUT is 0; accepted: seconds above 0"),
        ({"ACCEPTD_AGREEMENT_TIMEOUT": "nan"}, r"ACCEPTD_AGREEMENT_TIMEOUT is nan"),
        ({"ACCEPTD_TOKEN_FILE": "/nowhere/token"}, r"ACCEPTD_TOKEN_FILE names '/nowhere/token', which is not a file"),
        ({"ACCEPTD_CERT_FILE": __file__}, r"belong together"),
        (
            {"ACCEPTD_CERT_FILE": __file__, "ACCEPTD_KEY_FILE": __file__},
            r"ACCEPTD_CERT_FILE without ACCEPTD_CA_FILE; accepted: both",
        ),
        ({"ACCEPTD_HOOK_CONFIG": "/nowhere.toml"}, r"ACCEPTD_HOOK_CONFIG names '/nowhere.toml', which cannot be read"),
    ],
)
def test_a_wrong_value_is_one_line_with_its_key(environment, line):
    with pytest.raises(ConfigError, match=line) as raised:
        config.load(environment)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("adress = 'host:1'", r"key 'adress'; accepted: address, "),
        ("enabled = 'yes'", r"enabled is 'yes'; accepted: bool"),
        ("address = ", r"not TOML"),
    ],
)
def test_a_wrong_file_is_one_line_with_its_path(tmp_path, text, line):
    file = tmp_path / "hook.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=line) as raised:
        config.load({"ACCEPTD_HOOK_CONFIG": str(file)})
    assert str(file) in str(raised.value)
