"""Every bound of the protocol, in one place. Both sides check against these.

Each constant says what raising it costs.
"""

from __future__ import annotations

from typing import Final

#: Definition of the feature x. A change of its meaning needs a new number: workers that differ are not pooled.
FEATURE_SCHEMA: Final = 1

#: |x| never exceeds this, nats: exp(-40) is far below what float32 probabilities resolve.
MAX_LOG_ODDS: Final = 40.0

#: K, draft tokens a block. A pair's statistics and the update message grow linearly with it. Below 128: the decoder
#: takes the difference of two bytes and must tell one that wrapped around from one that did not.
MAX_POSITIONS: Final = 64

#: Knots J of the link. Fixed when a worker starts: its captured graph unrolls this many terms.
MAX_KNOTS: Final = 8

#: Rows (blocks) a batch. One batch is decoded and binned on the event loop: 8192 x K = 8 takes about a millisecond.
MAX_ROWS: Final = 8192

#: Bytes of one message either way. Bounds what a peer can make us allocate; 8192 rows x K = 64 x float32 x 3 columns
#: fit in 6.3 MB.
MAX_MESSAGE_BYTES: Final = 8 * 1024 * 1024

#: Batches a worker may have sent and not seen answered. It keeps them for resending, so its memory grows with it.
MAX_IN_FLIGHT: Final = 8

#: Streams one (worker, incarnation) may hold; a newer one fences the older.
MAX_STREAMS_A_WORKER: Final = 1

#: Any number of steps, tokens, blocks or seconds that a worker claims. Beyond it float64, and so Prometheus, is not
#: exact; sums over all workers stay finite.
MAX_COUNT: Final = 2**53

#: Slopes: a larger one means saturated features, not a sharper draft (the method's range is .44 to .83).
MAX_SLOPE: Final = 4.0

#: |intercept|, nats: beyond it the acceptance is 0 or 1 to 1e-5 at x = 0.
MAX_INTERCEPT: Final = 12.0

#: Bytes of names: worker id, workload label, each text field of the pair key.
MAX_WORKER_BYTES: Final = 128
MAX_WORKLOAD_BYTES: Final = 64
MAX_NAME_BYTES: Final = 256

#: Points of one curve of a worker's cost table, and notices beside it with their bytes. The service keeps one table a
#: stream, about 12 bytes a point.
MAX_COST_POINTS: Final = 512
MAX_COST_NOTICES: Final = 16
MAX_NOTICE_BYTES: Final = 256

#: Default slope and intercept before any fit: the medians that vLLM's authors fitted online over five production
#: pairs (vLLM, spec_decode/acceptance_estimator.py), and what every prior shrinks towards in the end.
PRIOR_SLOPE: Final = 0.5
PRIOR_INTERCEPT: Final = -0.2
