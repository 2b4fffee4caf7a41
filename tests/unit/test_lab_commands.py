"""`acceptd replay`, `features` and `roles` as a person or a program calls them."""

import json
import sys

import pytest
from matplotlib.image import imread
from synthetic_trace import K, columns, write

from estimator_service.cli.app import run

PICTURES = ["auc-by-position.png", "coefficients.png", "log-loss.png", "reliability.png"]


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    parts = [columns(1500, 1, workload="code"), columns(1500, 2, workload="chat", temperature=0.3)]
    return str(write(tmp_path_factory.mktemp("t") / "t.parquet", parts)[0])


def test_replay_prints_tables(trace, capsys):
    assert run(["replay", trace, "--round", "500"]) == 0
    out, error = capsys.readouterr()
    assert error == ""
    for word in ("link+segments", "gap closed", "100.0 %", "chat", "0.3", "AUC by position", "rounds of 500 blocks"):
        assert word in out


def test_replay_prints_json_alone(trace, capsys):
    assert run(["replay", trace, "--json", "--estimator", "line,raw", "-e", "oracle"]) == 0
    out, error = capsys.readouterr()
    result = json.loads(out)
    assert error == ""
    assert (result["trace"], result["round"]) == (trace, 640)
    assert list(result["estimators"]) == ["raw", "line", "oracle"]
    assert len(result["estimators"]["raw"]["by_position"]) == K


def test_replay_draws_pictures(trace, capsys, tmp_path):
    assert run(["replay", trace, "--round", "300", "--plot", str(tmp_path / "plots")]) == 0
    assert sorted(path.name for path in (tmp_path / "plots").iterdir()) == PICTURES
    for name in PICTURES:
        image = imread(tmp_path / "plots" / name)
        height, width, _ = image.shape
        assert min(height, width) > 500
        assert image[..., :3].std() > 0.05, f"{name} is empty"
    assert "reliability.png" in capsys.readouterr().out


def test_a_replay_without_coefficients_has_no_picture_of_them(trace, tmp_path):
    assert run(["replay", trace, "-e", "raw", "--plot", str(tmp_path)]) == 0
    assert "coefficients.png" not in {path.name for path in tmp_path.iterdir()}


def test_features(trace, capsys):
    assert run(["features", trace]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert next(line for line in lines if "lossy" in line).split()[:2] == ["logit", "q_sampled"]
    assert run(["features", trace, "--json"]) == 0
    features = json.loads(capsys.readouterr().out)["features"]
    assert [name for name, row in features.items() if not row["lossless"]] == ["logit q_sampled"]
    assert set(features["margin"]) == {"lossless", "observations", "auc", "fitted_auc", "log_loss", "slope"}


def test_roles_of_several_traces(trace, capsys, tmp_path):
    other = str(write(tmp_path / "other.parquet", [columns(800, 3, workload="math")])[0])
    assert run(["roles", trace, other]) == 0
    out = capsys.readouterr().out
    for word in ("t: code", "other: math", "position 3", "correlation of β₀ with entropy"):
        assert word in out
    assert run(["roles", trace, other, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [role["workload"] for role in result["roles"]] == ["code", "chat", "math"]
    assert set(result["spread"]) == {"slope", "intercepts", "entropy_and_first_intercept", "entropy_and_slope"}


@pytest.mark.parametrize("command", ["replay", "features", "roles"])
def test_a_broken_trace_is_one_line_on_stderr(command, capsys, tmp_path):
    path = tmp_path / "none.parquet"
    assert run([command, str(path)]) == 1
    assert capsys.readouterr() == ("", f"error: {path}: no such file; accepted: a Parquet file of acceptd-trace/1\n")
    path.write_text("not parquet")
    assert run([command, str(path)]) == 1
    out, error = capsys.readouterr()
    assert (out, error.count("\n")) == ("", 1)
    part = columns(50)
    part["logit_qmax"][3, 0] = float("nan")
    write(path, [part])
    assert run([command, str(path)]) == 1
    expected = f"error: {path}: column logit_qmax, row 3, position 0 is nan; accepted: -40 to 40\n"
    assert capsys.readouterr() == ("", expected)


def test_an_empty_trace_is_refused(capsys, tmp_path):
    path, _ = write(tmp_path / "t.parquet", [{name: values[:0] for name, values in columns(10).items()}])
    assert run(["replay", str(path)]) == 1
    assert capsys.readouterr().err == f"error: {path}: no block; accepted: at least one\n"


def test_an_unknown_estimator_is_one_line(trace, capsys):
    assert run(["replay", trace, "-e", "magic"]) == 1
    assert capsys.readouterr().err.startswith("error: estimator 'magic' is unknown; accepted: raw, round, line")


def test_a_directory_that_cannot_be_written_is_one_line(trace, capsys, tmp_path):
    (tmp_path / "file").write_text("")
    assert run(["replay", trace, "-e", "raw", "--plot", str(tmp_path / "file")]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1


@pytest.mark.parametrize("arguments", [["replay"], ["replay", "t", "--round", "0"], ["features"], ["roles"]])
def test_misuse_exits_with_2(arguments, capsys):
    assert run(arguments) == 2
    assert capsys.readouterr().out == ""


def test_without_the_extra_the_command_says_what_to_install(trace, capsys, monkeypatch):
    for name in [name for name in sys.modules if name.startswith(("pyarrow", "estimator_service.lab"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert run(["replay", trace]) == 1
    expected = 'error: pyarrow is not installed; this command needs: pip install "acceptd[lab]"\n'
    assert capsys.readouterr() == ("", expected)
