"""The kinds of panel that the dashboards are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from grafana_foundation_sdk.builders import bargauge, stat, table, timeseries
from grafana_foundation_sdk.builders.common import ReduceDataOptions, VizLegendOptions
from grafana_foundation_sdk.builders.dashboard import Dashboard
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.models.common import LegendDisplayMode, LegendPlacement
from grafana_foundation_sdk.models.dashboard import DataSourceRef, DataTransformerConfig
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

SOURCE = DataSourceRef(type_val="prometheus", uid="prometheus")
LATEST = ReduceDataOptions().calcs(["lastNotNull"])


@dataclass(frozen=True)
class Query:
    """PromQL and the legend of its series."""

    expr: str
    legend: str = ""


def _queries(panel, queries: Sequence[Query], *, instant: bool = False):
    for i, query in enumerate(queries):
        target = Dataquery().expr(query.expr).ref_id(chr(ord("A") + i)).datasource(SOURCE)
        target = target.legend_format(query.legend or "__auto")
        panel.with_target(target.instant() if instant else target.range())
    return panel


def series(title: str, text: str, unit: str, *queries: Query, width: int = 12, low: float | None = None):
    """Lines over time."""
    panel = timeseries.Panel().title(title).description(text).unit(unit).span(width).height(8).datasource(SOURCE)
    panel.fill_opacity(0).legend(
        VizLegendOptions().display_mode(LegendDisplayMode.LIST).placement(LegendPlacement.BOTTOM).show_legend(True)
    )
    if low is not None:
        panel.min(low)
    return _queries(panel, queries)


def number(title: str, text: str, unit: str, query: Query, *, width: int = 4, decimals: int | None = None):
    """One value now."""
    panel = (
        stat.Panel()
        .reduce_options(LATEST)
        .title(title)
        .description(text)
        .unit(unit)
        .span(width)
        .height(4)
        .datasource(SOURCE)
    )
    if decimals is not None:
        panel.decimals(decimals)
    return _queries(panel, (query,), instant=True)


def bars(title: str, text: str, unit: str, *queries: Query, width: int = 12):
    """One bar a series, now."""
    panel = (
        bargauge.Panel()
        .reduce_options(LATEST)
        .min(0)
        .title(title)
        .description(text)
        .unit(unit)
        .span(width)
        .height(8)
        .datasource(SOURCE)
    )
    return _queries(panel, queries, instant=True)


def listing(title: str, text: str, *columns: Query):
    """A table of values now, a row for each pair; the queries have no label but `pair`."""
    panel = table.Panel().title(title).description(text).span(24).height(9).datasource(SOURCE)
    names = {}
    for i, column in enumerate(columns):
        letter = chr(ord("A") + i)
        target = Dataquery().expr(column.expr).ref_id(letter).datasource(SOURCE)
        panel.with_target(target.instant().format(PromQueryFormat.TABLE))
        names[f"Value #{letter}"] = column.legend
    panel.with_transformation(DataTransformerConfig(id_val="merge", options={}))
    organise = {"excludeByName": {"Time": True}, "renameByName": names}
    return panel.with_transformation(DataTransformerConfig(id_val="organize", options=organise))


def board(uid: str, title: str, text: str) -> Dashboard:
    """An empty dashboard of the last hour."""
    made = Dashboard(title).uid(uid).description(text).tags(["acceptd"]).timezone("browser").refresh("10s")
    return made.time("now-1h", "now").readonly()
