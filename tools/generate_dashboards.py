"""Writes deploy/grafana/dashboards/*.json from the panels below; `--check` compares with what is committed.

Every query is one that tests/e2e/test_prometheus.py asks of a real Prometheus.
"""

from __future__ import annotations

import sys
from pathlib import Path

from grafana_foundation_sdk.builders.dashboard import AnnotationQuery, Dashboard, QueryVariable
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import VariableRefresh, VariableSort

from tools.dashboard_panels import SOURCE, Query, bars, board, listing, number, series

TARGET = Path(__file__).resolve().parents[1] / "deploy" / "grafana" / "dashboards"
PAIR = '{pair="$pair"}'


def _drift_marks(made: Dashboard, selector: str) -> None:
    for kind, colour in (("pair", "red"), ("workload", "yellow")):
        mark = AnnotationQuery().name(f"{kind} drift").enable(True).icon_color(colour).datasource(SOURCE)
        made.annotation(mark.expr(f'increase(acceptd_drifts_total{{kind="{kind}"{selector}}}[1m]) > 0'))


def fleet() -> Dashboard:
    """All pairs at a glance."""
    made = board(
        "acceptd-fleet", "acceptd: fleet", "All model pairs: are the estimates right, what drifted, what it earns."
    )
    _drift_marks(made, "")
    panels = [
        number("Pairs", "Model pairs known.", "short", Query("acceptd_pairs")),
        number("Workers", "Workers connected.", "short", Query("sum(acceptd_workers)")),
        number("Quarantined", "Workers not learned from.", "short", Query("sum(acceptd_workers_quarantined)")),
        number("Observations", "Graded draft tokens learned from.", "cps", Query("sum(acceptd:observations:rate5m)")),
        number("Alerts", "Alerts that fire.", "short", Query('sum(ALERTS{alertstate="firing"}) or vector(0)')),
        number(
            "Time saved",
            "Verification time that trimming saves, by the workers' cost tables, a second of wall time.",
            "percentunit",
            Query("sum(rate(acceptd_worker_verification_saved_seconds_total[5m]))"),
        ),
        listing(
            "The estimates of each pair",
            "Slope, acceptance, calibration and age of each pair.",
            Query("sum by (pair) (acceptd_slope)", "slope"),
            Query("acceptd:acceptance:ratio5m", "acceptance"),
            Query("sum by (pair) (acceptd_workers)", "workers"),
            Query("sum by (pair) (acceptd_ece)", "calibration error"),
            Query("sum by (pair) (acceptd_coefficients_age_seconds)", "age, seconds"),
        ),
        series(
            "Slope",
            "By pair. A pair keeps its slope: a step is another pair.",
            "short",
            Query("acceptd_slope", "{{pair}}"),
        ),
        series(
            "Calibration error",
            "Expected calibration error of the latest round, by pair. Below 0.01 is good, above 0.05 alerts.",
            "percentunit",
            Query("acceptd_ece", "{{pair}}"),
            low=0,
        ),
        series(
            "Acceptance",
            "Share of graded draft tokens that were accepted.",
            "percentunit",
            Query("acceptd:acceptance:ratio5m", "{{pair}}"),
        ),
        series(
            "Evidence of drift",
            "1 names it. Pair: the slope; workload: intercepts or features.",
            "short",
            Query("max by (pair, kind) (acceptd_drift_score)", "{{pair}} {{kind}}"),
            low=0,
        ),
    ]
    for panel in panels:
        made.with_panel(panel)
    return made


def pair() -> Dashboard:
    """Everything about one pair."""
    made = board("acceptd-pair", "acceptd: pair", "One model pair: coefficients, calibration, drift, budget.")
    made.with_variable(
        QueryVariable("pair")
        .label("Pair")
        .query("label_values(acceptd_slope, pair)")
        .datasource(SOURCE)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
    )
    _drift_marks(made, ',pair="$pair"')
    error = f"acceptd_slope_standard_error{PAIR}"
    panels = [
        number("Slope", "Of the straight line in force.", "short", Query(f"acceptd_slope{PAIR}"), decimals=3),
        number("Calibration error", "Of the latest round.", "percentunit", Query(f"acceptd_ece{PAIR}"), decimals=2),
        number(
            "Acceptance", "Over five minutes.", "percentunit", Query(f"acceptd:acceptance:ratio5m{PAIR}"), decimals=1
        ),
        number("Age", "Of the coefficients in force.", "s", Query(f"acceptd_coefficients_age_seconds{PAIR}")),
        number("Workers", "Connected.", "short", Query(f"acceptd_workers{PAIR}")),
        number("Version", "Counter of the version in force.", "short", Query(f"acceptd_version_counter{PAIR}")),
        series(
            "Slope",
            "With two standard errors either side.",
            "short",
            Query(f"acceptd_slope{PAIR}", "slope"),
            Query(f"acceptd_slope{PAIR} + on (pair) 2 * {error}", "+2σ"),
            Query(f"acceptd_slope{PAIR} - on (pair) 2 * {error}", "−2σ"),
        ),
        series("Intercepts", "By position, nats.", "short", Query(f"acceptd_intercept{PAIR}", "{{position}}")),
        series(
            "Evidence of drift",
            "1 names it. Pair: the slope; workload: intercepts or features.",
            "short",
            Query(f"acceptd_drift_score{PAIR}", "{{kind}}"),
            low=0,
        ),
        series(
            "Log-loss",
            "Of the latest round, nats an observation, scored before it was learned from.",
            "short",
            Query(f"acceptd_log_loss{PAIR}", "log-loss"),
        ),
        bars(
            "Reliability: observed acceptance by confidence",
            "Of the latest round; bin 0 is 0 to 1/15. Next to the mean confidence of the bin.",
            "percentunit",
            Query(f"acceptd_reliability_predicted{PAIR}", "{{bin}} predicted"),
            Query(f"acceptd_reliability_observed{PAIR}", "{{bin}} observed"),
            width=24,
        ),
        series(
            "Gap by position",
            "Mean confidence minus acceptance of the latest round.",
            "percentunit",
            Query(f"acceptd_position_gap{PAIR}", "{{position}}"),
        ),
        series(
            "Calibration error by position",
            "And of the survival products, which the budget adds up.",
            "percentunit",
            Query(f"acceptd_position_ece{PAIR}", "{{position}}"),
            Query(f"acceptd_survival_ece{PAIR}", "survival"),
            low=0,
        ),
        series(
            "Ranking",
            "Area under the ROC curve, by position.",
            "short",
            Query(f"acceptd_position_auc{PAIR}", "{{position}}"),
        ),
        series(
            "Evidence",
            "Effective number of observations behind the coefficients, by position.",
            "short",
            Query(f"acceptd_evidence{PAIR}", "{{position}}"),
            low=0,
        ),
        series(
            "Draft tokens",
            "Scheduled, verified, accepted, and verified by exploration alone.",
            "cps",
            *(
                Query(f"rate(acceptd_worker_{name}_total{PAIR}[5m])", name)
                for name in ("scheduled", "verified", "accepted", "explored")
            ),
            low=0,
        ),
        series(
            "What trimming earns and costs",
            "Verification time saved and added by exploration, by the cost tables; accepted tokens lost, by "
            "confidences and by verdicts on blocks verified whole.",
            "short",
            Query(f"rate(acceptd_worker_verification_saved_seconds_total{PAIR}[5m])", "seconds saved a second"),
            Query(f"rate(acceptd_worker_explored_seconds_total{PAIR}[5m])", "seconds explored a second"),
            Query(f"rate(acceptd_worker_lost_accepted_total{PAIR}[5m])", "tokens lost a second"),
            Query(f"rate(acceptd_worker_judged_lost_total{PAIR}[5m])", "tokens lost a second, by verdicts"),
            low=0,
        ),
        series(
            "Steps cut short",
            "Share of steps that verified nothing, or were clamped to one sampler chunk.",
            "cps",
            Query(f"rate(acceptd_worker_zero_budget_steps_total{PAIR}[5m])", "budget 0"),
            Query(f"rate(acceptd_worker_clamped_steps_total{PAIR}[5m])", "clamped"),
            low=0,
        ),
        series(
            "Refits",
            "Rounds refitted, and held back by reason.",
            "cps",
            Query(f"rate(acceptd_refits_total{PAIR}[5m])", "refitted"),
            Query(
                f"sum(rate(acceptd_refits_held_total{PAIR}[5m])) or 0 * rate(acceptd_refits_total{PAIR}[5m])", "held"
            ),
            low=0,
        ),
    ]
    for panel in panels:
        made.with_panel(panel)
    return made


def service() -> Dashboard:
    """The service's own health."""
    made = board("acceptd-service", "acceptd: service", "Streams, store, latency and process of the service.")
    panels = [
        number("Up", "1 while Prometheus can scrape the service.", "short", Query('up{job="acceptd"}')),
        number("Store", "1 while the store commits.", "short", Query("acceptd_store_up")),
        number("Epoch", "Of the store; grows at every start.", "short", Query("acceptd_epoch")),
        number("Memory", "Resident.", "bytes", Query('process_resident_memory_bytes{job="acceptd"}')),
        number("Store failures", "Transactions that failed.", "short", Query("acceptd_store_failures_total")),
        number("Files open", "Of the process.", "short", Query('process_open_fds{job="acceptd"}')),
        series(
            "Update latency",
            "From the push of coefficients to the worker's acknowledgement.",
            "s",
            Query("histogram_quantile(0.5, sum by (le) (rate(acceptd_update_seconds_bucket[5m])))", "median"),
            Query("max(acceptd:update_seconds:p99_5m)", "99 %, worst pair"),
            low=0,
        ),
        series(
            "Refit time",
            "Over all pairs.",
            "s",
            Query("histogram_quantile(0.5, sum by (le) (rate(acceptd_refit_seconds_bucket[5m])))", "median"),
            Query("histogram_quantile(0.99, sum by (le) (rate(acceptd_refit_seconds_bucket[5m])))", "99 %"),
            low=0,
        ),
        series(
            "Stream traffic",
            "Bytes of messages.",
            "Bps",
            Query("rate(acceptd_stream_bytes_total[5m])", "{{direction}}"),
            low=0,
        ),
        series(
            "Refused and excluded",
            "Batches refused by the service, blocks excluded by workers.",
            "cps",
            Query("sum(rate(acceptd_rejected_batches_total[5m])) or vector(0)", "batches refused"),
            Query("sum(rate(acceptd_excluded_blocks_total[5m])) or vector(0)", "blocks excluded"),
            low=0,
        ),
        series("Workers", "Connected, by pair.", "short", Query("acceptd_workers", "{{pair}}"), low=0),
        series(
            "Answers to pushes",
            "By answer.",
            "cps",
            Query("sum by (answer) (rate(acceptd_updates_total[5m]))", "{{answer}}"),
            low=0,
        ),
        series(
            "Store commits", "Transactions.", "cps", Query("rate(acceptd_store_commits_total[5m])", "commits"), low=0
        ),
        series(
            "CPU", "Cores in use.", "short", Query('rate(process_cpu_seconds_total{job="acceptd"}[5m])', "CPU"), low=0
        ),
    ]
    for panel in panels:
        made.with_panel(panel)
    return made


def rendered() -> dict[str, str]:
    """File name → JSON of each dashboard."""
    boards = {"fleet.json": fleet(), "pair.json": pair(), "service.json": service()}
    return {
        name: JSONEncoder(sort_keys=True, indent=2, ensure_ascii=False).encode(made.build()) + "\n"
        for name, made in boards.items()
    }


def main() -> int:
    """Exit status: 1 if `--check` found a difference."""
    files = rendered()
    if "--check" in sys.argv[1:]:
        stale = [n for n, text in files.items() if not (TARGET / n).exists() or (TARGET / n).read_text() != text]
        extra = [path.name for path in TARGET.glob("*.json") if path.name not in files]
        for name in stale + extra:
            print(f"deploy/grafana/dashboards/{name} differs: run python -m tools.generate_dashboards")
        return 1 if stale or extra else 0
    TARGET.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (TARGET / name).write_text(text)
        print(f"wrote deploy/grafana/dashboards/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
