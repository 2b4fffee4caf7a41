"""The class that stands in for vLLM's OnlineAcceptanceEstimator.

Each decode step: `step` grades the previous drafts into rows and advances the exchange of coefficients, then the draft
model runs and `predict` scores the new drafts, inside its captured graphs.
"""

from __future__ import annotations

import importlib
import logging
import os
import time
from typing import TYPE_CHECKING, Any

import torch

from vllm_client_hook import block as layout
from vllm_client_hook import labels, reference, trimming_device
from vllm_client_hook.apply import Apply
from vllm_client_hook.rows import NUM_COUNTERS, REJECTION_METHOD, WARMUP, Rows
from vllm_client_hook.selftest import self_test
from vllm_client_hook.slots import Page, Slots
from vllm_client_hook.streams import streams_of
from vllm_client_hook.tap import Tap

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from acceptd.modes import Mode
    from vllm_client_hook.block import Block
    from vllm_client_hook.ranks import Ranks
    from vllm_client_hook.seams import Uplink
    from vllm_client_hook.streams import Streams
    from vllm_client_hook.trimming_cost import Judgement

logger = logging.getLogger("vllm.acceptd")


def numerics_of(device: Any) -> ModuleType:
    """`vllm_client_hook.kernels` where Triton runs (a GPU, or its interpreter), else `vllm_client_hook.reference`."""
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    if interpreted or torch.device(device).type != "cpu":
        try:
            return importlib.import_module("vllm_client_hook.kernels")
        except ImportError:
            logger.info("acceptd: no Triton here, the torch reference serves")
    return reference


class AcceptanceEstimator:
    """Predicts per-position acceptance inside the draft graph and packs what the target decided for the uplink.

    slope: float32[1] and intercepts: float32[K] are views of the line in force. features and predictions:
    float32[max_num_reqs, K], by request-state slot. untrimmed: set by whoever decides the budget, whether this step
    verifies every drafted token. Raises HookError where the kernels fail their self-test.
    """

    def __init__(
        self, max_num_reqs: int, num_speculative_steps: int, device: Any, *, full_features: bool = False
    ) -> None:
        self.num_speculative_steps = num_speculative_steps
        self.device = device
        self.slots = Slots(max_num_reqs, num_speculative_steps, device, full=full_features)
        self.apply = Apply(num_speculative_steps, device)
        self.features = self.slots.features[:max_num_reqs]
        self.predictions = self.slots.predictions[:max_num_reqs]
        line = layout.LINE_SEGMENT
        slope = layout.SLOPES + line * layout.SLOPE_STRIDE
        intercepts = layout.INTERCEPTS + line * num_speculative_steps
        self.slope = self.apply.floats[slope : slope + 1]
        self.intercepts = self.apply.floats[intercepts : intercepts + num_speculative_steps]
        self.untrimmed = False
        #: What of this step tells what trimming costs; set on rank 0.
        self.judged: Judgement | None = None
        #: Why this rank no longer reports, empty while it does.
        self.frozen = ""
        self._numerics = numerics_of(device)
        self_test(self._numerics, device, full=full_features)
        self._tap: Tap | None = None
        # A rank that reports nothing packs into a page without room.
        self._page = Page(0, num_speculative_steps, device, full=full_features)
        self._totals = torch.zeros(NUM_COUNTERS, dtype=torch.int64, device=device)
        self._draft_tokens: Any = None
        self._gate = WARMUP
        self._live: Callable[[], bool] | None = None
        self._open_gate = 0

    def bind(
        self,
        *,
        ranks: Ranks,
        uplink: Uplink | None,
        live: Callable[[], bool],
        draft_tokens: Any = None,
        standard_rejection: bool = True,
        streams: Streams | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Links what exists only after loading. Until then every block counts as warm-up.

        uplink: on rank 0 alone. live: whether the cost tables are in place. draft_tokens: int64[max_num_reqs, K] of the
        request states. standard_rejection: whether the sampler runs the standard per-token test.
        """
        streams = streams or streams_of(self.device)
        self.apply.bind(ranks, uplink, streams, clock)
        self._draft_tokens = draft_tokens
        self._open_gate = 0 if standard_rejection else REJECTION_METHOD
        self._live = live
        if ranks.rank == 0 and uplink is not None:
            self._uplink: Uplink = uplink
            self._tap = Tap(self.slots, streams, self._hand_over)

    def unbind(self) -> None:
        """Predicts on with what is in force, neither reports nor adopts; on all ranks between the same two steps."""
        self.apply.unbind()
        self._tap = None

    def predict(self, logits: Any, idx_mapping: Any, draft_step: Any, confidence_probs: Any, temperature: Any) -> None:
        """Feature and probability of one draft step; arguments as in `vllm_client_hook.kernels.predict`."""
        state, words, floats = self.slots, self.apply.words, self.apply.floats
        arguments = logits, idx_mapping, draft_step, confidence_probs, temperature
        try:
            self._numerics.predict(state, words, floats, *arguments)
        except Exception:
            if self._numerics is reference:
                raise
            # What keeps a kernel from being launched (it does not compile for this dtype, say) does so on every rank.
            logger.exception("acceptd: the kernels failed; the torch reference serves from here on")
            self._numerics = reference
            self._numerics.predict(state, words, floats, *arguments)

    def step(self, idx_mapping: Any, num_sampled: Any, num_rejected: Any, *extra: Any, **extras: Any) -> None:
        """Grades the drafts that the target has just judged. Never waits, never raises.

        idx_mapping, num_sampled, num_rejected: int[N]; num_sampled counts the bonus token. More arguments, which later
        releases of vLLM may pass, are ignored.
        """
        try:
            # Frozen or not: confidences depend on a slot's flags, and the split on what it explores.
            self.slots.write_admissions()
            if self.frozen:
                self.slots.forget_predictions()
            else:
                self._grade(idx_mapping, num_sampled, num_rejected)
        except Exception as error:
            self._freeze("grading", error)
        # In any case: the other ranks wait in the broadcast.
        try:
            self.apply.advance()
        except Exception as error:
            self._freeze("applying", error)

    def admit(self, slot: int, params: Any, *, custom_processors: bool = False) -> None:
        """A request with these sampling parameters takes a request-state slot."""
        self.slots.admit(slot, labels.flag_byte(params, custom_processors=custom_processors))

    def flush(self) -> None:
        """Hands everything pending to the uplink; may wait for the device."""
        if self._tap is not None and not self.frozen:
            self._tap.flush()

    def reseed(self) -> None:
        """Writes every device tensor again from host copies: after sleep and wake."""
        self.slots.reseed()
        self.apply.reseed()
        self._page.head.zero_()
        if self._tap is not None:
            self._tap.reseed()

    def weights_changed(self) -> None:
        """Target or draft weights were replaced, on all ranks between the same two steps."""
        # First, and nothing in it can fail: ranks that count generations differently would adopt differently.
        self.apply.next_generation()
        try:
            self.slots.forget_predictions()
            if self._tap is not None:
                self.flush()
                self._tap.generation = self.apply.generation
                self._uplink.weights_changed(self.apply.generation)
        except Exception as error:
            self._freeze("following new weights", error)

    @property
    def in_force(self) -> Block:
        """The coefficients in force; adopted on the same step on all ranks."""
        return self.apply.in_force

    @property
    def mode(self) -> Mode:
        """Adopted with the coefficients."""
        return self.apply.in_force.mode

    @property
    def exploration_rate(self) -> float:
        """Share of drafted slots to explore; adopted with the coefficients."""
        return self.apply.in_force.exploration_rate

    def _grade(self, idx_mapping: Any, num_sampled: Any, num_rejected: Any) -> None:
        if self._gate == WARMUP and self._live is not None and self._live():
            self._gate = self._open_gate
        tap = self._tap
        judged, self.judged = self.judged, None
        if tap is not None and judged is not None and self._gate == 0:
            trimming_device.judge(self.slots, tap.totals, idx_mapping, num_sampled, num_rejected, judged=judged)
        page, totals = (self._page, self._totals) if tap is None else (tap.page, tap.totals)
        self._numerics.pack(
            self.slots,
            page,
            totals,
            idx_mapping,
            num_sampled,
            num_rejected,
            self._draft_tokens,
            gate=self._gate,
            untrimmed=self.untrimmed,
        )
        if tap is not None:
            tap.versions = self.apply.versions
            tap.advance(idx_mapping.shape[0])

    def _hand_over(self, rows: Rows) -> None:
        self.apply.learn(rows)
        self._uplink.offer(rows)

    def _freeze(self, what: str, error: Exception) -> None:
        if not self.frozen:
            logger.exception("acceptd: %s failed; this rank no longer reports", what)
            self.frozen = f"{what}: {type(error).__name__}: {error}"
