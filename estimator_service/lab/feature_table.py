"""The feature table of a trace: how well each feature alone tells accepted tokens from rejected ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from estimator_service.fit import likelihood
from estimator_service.lab.binned import Binned
from estimator_service.lab.features import FEATURES
from estimator_service.lab.regression import regress
from estimator_service.lab.scores import ranked_auc

if TYPE_CHECKING:
    from collections.abc import Callable

    from estimator_service.lab.features import Feature
    from estimator_service.lab.trace import Trace

#: Bins over a feature's range: AUC is then right to about 1e-5; 100 kB a feature and position.
_BINS: Final = 4096


@dataclass(frozen=True)
class FeatureRow:
    """One feature over a whole trace.

    auc: of the feature itself, positions pooled. fitted_auc, log_loss (nats): of logit P = ω·feature + β_k fitted to
    the whole trace. slope: ω, a unit of the feature.
    """

    feature: Feature
    observations: int
    auc: float
    fitted_auc: float
    log_loss: float
    slope: float

    def as_json(self) -> dict[str, Any]:
        """The fields by name."""
        values = {name: value for name, value in vars(self).items() if name != "feature"}
        return {"lossless": self.feature.lossless, **values}


def feature_table(trace: Trace, on_progress: Callable[[int], None] = lambda _: None) -> list[FeatureRow]:
    """A row for each feature whose column the trace has, in the registry's order. One pass over the trace.

    Raises TraceError at the first bad value.
    """
    features = [feature for feature in FEATURES if feature.column in trace.names]
    counts = [Binned(trace.num_positions, feature.low, feature.high, _BINS) for feature in features]
    for blocks in trace.chunks({feature.column for feature in features}):
        row, position = np.nonzero(blocks.observed)
        label = blocks.label[row, position]
        group = np.zeros(len(row), np.int64)
        columns = {name: values[row, position].astype(np.float64) for name, values in blocks.positions.items()}
        for feature, binned in zip(features, counts, strict=True):
            value = np.clip(feature.compute(columns[feature.column]), feature.low, feature.high)
            binned.add(group, position, value, label)
        on_progress(len(blocks))
    return [_row(feature, binned) for feature, binned in zip(features, counts, strict=True)]


def _row(feature: Feature, binned: Binned) -> FeatureRow:
    number, accepted, total = binned.sums[:, 0]
    observations = number.sum()
    # In standard deviations, so that slopes of all features lie within the bounds of the fit.
    mean = total.sum() / max(observations, 1.0)
    center = np.divide(total, number, out=np.zeros_like(total), where=number > 0)
    spread = float(np.sqrt((number * (center - mean) ** 2).sum() / max(observations, 1.0))) or 1.0
    cells = binned.cells(mean, spread)
    fitted = regress(cells)
    point = likelihood.Point(fitted.slope[:, None], np.nan_to_num(fitted.intercepts))
    order = np.argsort(likelihood.linear_predictor(cells, point)[0], axis=None, kind="stable")
    outcomes = np.stack([number - accepted, accepted], axis=-1)
    return FeatureRow(
        feature,
        int(observations),
        ranked_auc(outcomes.sum(axis=0)),
        ranked_auc(outcomes.reshape(-1, 2)[order]),
        float(fitted.log_loss[0]),
        float(fitted.slope[0]) / spread,
    )
