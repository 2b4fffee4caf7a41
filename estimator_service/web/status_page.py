"""The status page and the JSON it is fed with, for people without a dashboard. It reads, and changes nothing.

Everything it shows may come from whoever can reach the service (names of pairs and workers above all): it is data to
the page, never markup, and the page's own policy lets nothing but its one script run.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections import Counter, OrderedDict
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

import acceptd
from estimator_service import jsonable
from estimator_service.state import history_entry, pair_state, worker_states
from estimator_service.web.message import Answer, Request

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from estimator_service.fleet import Fleet
    from estimator_service.pair import Pair

#: Pairs and workers in one answer, and points of a course. With K = 64 positions an answer stays below 2 MB, with
#: ordinary ones below 200 kB; raising one makes answers longer by that much, and a page of that many rows hard to read.
MAX_PAIRS: Final = 100
MAX_WORKERS: Final = 100
MAX_POINTS: Final = 240

#: Seconds for which an answer serves everyone who asks the same: viewers cost the service no more than one does.
_STATE_SECONDS: Final = 0.5
_HISTORY_SECONDS: Final = 2.0
#: Answers kept at once.
_MAX_KEPT: Final = 8

#: Parts of the page, in the order of the script.
_SCRIPTS: Final = ("dom.js", "numbers.js", "chart.js", "course.js", "reliability.js", "sections.js", "page.js")

Body = dict[str, Any]


class StatusPage:
    """Routes of a fleet's page: "/", "/api/state" and "/api/history", the latter two with `?pair=ID`."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._page = page()
        self._kept: OrderedDict[tuple[str, str], tuple[float, Answer]] = OrderedDict()
        self.routes: dict[str, Callable[[Request], Awaitable[Answer]]] = {
            "/": self._document,
            "/api/state": self._state,
            "/api/history": self._history,
        }

    async def _document(self, request: Request) -> Answer:
        return self._page

    async def _state(self, request: Request) -> Answer:
        """The service, its pairs, and all about one of them: the one asked for, else the busiest."""
        wanted = request.query.get("pair", "")
        answer = self._recall("state", wanted, _STATE_SECONDS)
        return answer or self._keep("state", wanted, _answer(200, self._state_body(wanted)))

    async def _history(self, request: Request) -> Answer:
        """Coefficients of a pair over all of its history, oldest first, thinned to MAX_POINTS."""
        wanted = request.query.get("pair", "")
        pair = self._fleet.pairs.get(wanted)
        if pair is None:
            return _answer(404, {"error": "no such pair; accepted: the id of one in /api/state"})
        if answer := self._recall("history", wanted, _HISTORY_SECONDS):
            return answer
        course = await self._fleet.archive.course(pair, MAX_POINTS)
        points = [_point(jsonable.history_entry(history_entry(item))) for item in course]
        return self._keep("history", wanted, _answer(200, {"pair": pair.id, "points": points}))

    def _state_body(self, wanted: str) -> Body:
        fleet = self._fleet
        connected = Counter(session.pair.id for session in fleet.sessions.values())
        pairs = sorted(fleet.pairs.values(), key=lambda pair: (-connected[pair.id], pair.id))
        shown = fleet.pairs.get(wanted) or (pairs[0] if pairs and not wanted else None)
        body: Body = {
            "now": fleet.clock.wall(),
            "service": {
                "version": acceptd.__version__,
                "epoch": fleet.epoch,
                "status": "draining" if fleet.draining else "degraded" if fleet.ledger.delivery.trouble else "ok",
                "store": fleet.ledger.delivery.trouble or "ok",
                "pairs": len(pairs),
                "workers": len(fleet.sessions),
            },
            "pairs": [_brief(pair, connected[pair.id]) for pair in pairs[:MAX_PAIRS]],
            "pairs_left_off": max(len(pairs) - MAX_PAIRS, 0),
            "pair": None,
        }
        if shown is not None:
            state = pair_state(fleet, shown)
            workers = [jsonable.worker(item) for item in worker_states(fleet, shown)]
            # Whatever needs attention is seen, however many there are.
            workers.sort(key=lambda worker: not (worker["quarantined"] or worker["last_rejected_update"]))
            for worker in workers:
                del worker["peer"]
            body["pair"] = {
                **jsonable.pair_state(state),
                "cause": shown.publication.cause,
                "drift_scores": dict(shown.last_round.drift_scores) if shown.last_round else {},
                "workers_connected": workers[:MAX_WORKERS],
                "workers_left_off": max(len(workers) - MAX_WORKERS, 0),
            }
        return body

    def _recall(self, kind: str, pair: str, seconds: float) -> Answer | None:
        at, answer = self._kept.get((kind, pair), (float("-inf"), None))
        return answer if self._fleet.clock.monotonic() - at < seconds else None

    def _keep(self, kind: str, pair: str, answer: Answer) -> Answer:
        self._kept[kind, pair] = self._fleet.clock.monotonic(), answer
        self._kept.move_to_end((kind, pair))
        while len(self._kept) > _MAX_KEPT:
            self._kept.popitem(last=False)
        return answer


def page() -> Answer:
    """The document with its style and script inside, and a policy that admits exactly these two."""
    folder = resources.files("estimator_service.web.page")
    style = (folder / "page.css").read_text("utf-8")
    script = "\n".join((folder / name).read_text("utf-8") for name in _SCRIPTS)
    document = (folder / "page.html").read_text("utf-8")
    document = document.replace("/* style */", style).replace("/* script */", script)
    policy = {
        "default-src": "'none'",
        "style-src": _hash(style),
        "script-src": _hash(script),
        "connect-src": "'self'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    headers = (
        ("Content-Security-Policy", "; ".join(f"{name} {value}" for name, value in policy.items())),
        ("Referrer-Policy", "no-referrer"),
        ("Cross-Origin-Opener-Policy", "same-origin"),
        ("Cross-Origin-Resource-Policy", "same-origin"),
        ("Cache-Control", "no-store"),
    )
    return Answer(200, document.encode(), "text/html; charset=utf-8", headers)


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _answer(status: int, body: Body) -> Answer:
    headers = (("Cache-Control", "no-store"), ("Cross-Origin-Resource-Policy", "same-origin"))
    return Answer(status, json.dumps(jsonable.finite(body)).encode(), "application/json", headers)


def _brief(pair: Pair, workers: int) -> Body:
    """A line of the list of pairs."""
    version, last = pair.publication.version, pair.last_round
    return {
        "id": pair.id,
        "version": {"epoch": version.epoch, "counter": version.counter},
        "workers": workers,
        "observations": int(pair.counters.observations.sum()),
        "slope": pair.publication.pooled.line.slopes[0],
        "notices": len(last.notices) + len(last.quarantined) if last else 0,
    }


def _point(entry: Body) -> Body:
    """What a course shows of one version."""
    coefficients, scores = entry["coefficients"], entry["calibration"] or {}
    return {
        "version": coefficients["version"],
        "at": entry["published_at_seconds"],
        "cause": entry["cause"],
        "slope": coefficients["slope"],
        "intercepts": coefficients["intercepts"],
        "log_loss": scores.get("log_loss"),
        "ece": scores.get("ece"),
    }
