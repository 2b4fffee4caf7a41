"""Settings: where they come from, and what a wrong one says."""

from __future__ import annotations

import dataclasses

import pytest

from acceptd.errors import ConfigError
from estimator_service.config import load_settings, parse_address
from vllm_client_hook.config import HookSettings


def test_flags_come_before_the_environment_and_that_before_the_file(tmp_path):
    file = tmp_path / "acceptd.toml"
    file.write_text('round_blocks = 1\nround_seconds = 2.5\nlisten = "127.0.0.1:1"\ndurability = "strict"\n')
    settings = load_settings(
        {"listen": "127.0.0.1:3", "round_seconds": None},
        config=file,
        environ={"ACCEPTD_LISTEN": "127.0.0.1:2", "ACCEPTD_ROUND_BLOCKS": "7", "PATH": "/bin"},
    )
    assert settings.listen == "127.0.0.1:3"
    assert settings.round_blocks == 7
    assert settings.round_seconds == 2.5
    assert settings.durability == "strict"


def test_the_environment_can_name_the_file(tmp_path):
    file = tmp_path / "acceptd.toml"
    file.write_text("round_blocks = 9")
    assert load_settings(environ={"ACCEPTD_CONFIG": str(file)}).round_blocks == 9


@pytest.mark.parametrize(
    ("flags", "environ", "toml", "parts"),
    [
        ({"round_blocks": 0}, {}, None, ["flags", "round_blocks", "0", "greater than or equal to 1"]),
        ({"listen": "nowhere"}, {}, None, ["flags", "listen", "HOST:PORT"]),
        ({"listen": "127.0.0.1:70000"}, {}, None, ["listen", "65535"]),
        ({"listen": ""}, {}, None, ["listen", "HOST:PORT"]),
        ({"method": "magic"}, {}, None, ["flags", "method", "'auto', 'line' or 'round'"]),
        ({}, {"ACCEPTD_ROUND_BLOCKS": "many"}, None, ["environment", "round_blocks", "'many'", "integer"]),
        ({}, {"ACCEPTD_LISTNE": "x"}, None, ["ACCEPTD_LISTNE", "did you mean ACCEPTD_LISTEN"]),
        ({}, {"ACCEPTD_ROUND_BLOKS": "5"}, None, ["ACCEPTD_ROUND_BLOKS", "did you mean ACCEPTD_ROUND_BLOCKS"]),
        ({}, {}, "round_bloks = 5", ["round_bloks is not a setting", "did you mean round_blocks"]),
        ({}, {}, "qqqq = 5", ["qqqq is not a setting", "accepted: ", "round_blocks"]),
        ({}, {}, "round_blocks =", ["config file", "accepted: TOML"]),
        ({}, {}, "publish_min_change = 2", ["acceptd.toml", "publish_min_change = 2", "less than or equal to 1"]),
        ({"listen": "0.0.0.0:1"}, {}, None, ["listen", "beyond this machine", "insecure = true"]),
        ({"metrics_listen": "[::]:1"}, {}, None, ["metrics_listen", "beyond this machine"]),
        ({"listen": "example.org:1"}, {}, None, ["beyond this machine"]),
        (
            {"heartbeat_seconds": 31},
            {},
            None,
            ["heartbeat_seconds is 31", "at most 30", "coefficients_max_age_seconds"],
        ),
        ({}, {}, "coefficients_max_age_seconds = 6", ["heartbeat_seconds is 5", "at most 3"]),
        ({"nothing": 1}, {}, None, ["flags", "nothing is not a setting"]),
    ],
)
def test_a_wrong_setting_is_one_line_with_source_key_and_what_is_accepted(tmp_path, flags, environ, toml, parts):
    file = None
    if toml is not None:
        file = tmp_path / "acceptd.toml"
        file.write_text(toml)
    with pytest.raises(ConfigError) as error:
        load_settings(flags, config=file, environ=environ)
    assert "\n" not in str(error.value)
    for part in parts:
        assert part in str(error.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"config file .*none\.toml: No such file"):
        load_settings(config=tmp_path / "none.toml", environ={})


def test_the_hooks_variables_are_none_of_ours():
    environ = {"ACCEPTD_ADDRESS": "10.0.0.1:50051", "ACCEPTD_WORKLOAD": "code"}
    assert load_settings(environ=environ).listen == "127.0.0.1:50051"


def test_beyond_loopback_needs_insecure():
    assert load_settings({"listen": "0.0.0.0:1", "insecure": True}, environ={}).insecure
    for listen in ("127.8.8.8:1", "[::1]:1", "localhost:1"):
        assert load_settings({"listen": listen}, environ={}).listen == listen


def test_addresses():
    assert str(parse_address("[::1]:5")) == "[::1]:5"
    assert parse_address("host:0").port == 0


@pytest.mark.parametrize("field", dataclasses.fields(HookSettings), ids=lambda field: field.name)
def test_the_hooks_variables_are_no_misspelt_settings(field):
    assert load_settings(environ={f"ACCEPTD_{field.name.upper()}": "x"}) == load_settings(environ={})
