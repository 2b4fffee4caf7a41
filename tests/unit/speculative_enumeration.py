"""Speculative sampling by exact enumeration: every draft, every split and every outcome, with fractions.

The test is the standard per-token one of Leviathan et al. (2023) and Chen et al. (2023); the split is the hook's.
"""

from collections import defaultdict
from fractions import Fraction
from itertools import product

import numpy as np

from vllm_client_hook.budget import split

ONE = Fraction(1)


class Model:
    """Next-token distributions by the last `memory` tokens, as fractions; drawn once from a seed."""

    def __init__(self, seed, vocabulary, memory, denominator=12):
        self._rng = np.random.default_rng(seed)
        self.vocabulary, self._memory, self._denominator = vocabulary, memory, denominator
        self.known = {}

    def __call__(self, prefix):
        key = prefix[-self._memory :]
        if key not in self.known:
            weights = self._rng.integers(1, self._denominator, self.vocabulary).tolist()
            self.known[key] = tuple(Fraction(w, sum(weights)) for w in weights)
        return self.known[key]

    def sequences(self, prefix, length):
        """Probability of every continuation of `length` tokens."""
        out = {(): ONE}
        for _ in range(length):
            out = {(*s, t): p * q for s, p in out.items() for t, q in enumerate(self(prefix + s))}
        return out


def drafts(draft, prefix, depth):
    """(probability, tokens) of every draft block, with the distributions each token came from."""
    for tokens in product(range(draft.vocabulary), repeat=depth):
        probability = ONE
        for k, token in enumerate(tokens):
            probability *= draft(prefix + tokens[:k])[token]
        if probability:
            yield probability, tokens


def verify(target, draft, prefix, tokens):
    """Probability of every emitted run, given verified draft tokens: the standard per-token rejection test."""
    out = defaultdict(Fraction)
    reached = ONE
    for k, token in enumerate(tokens):
        p, q = target(prefix + tokens[:k]), draft(prefix + tokens[:k])
        accept = min(ONE, p[token] / q[token])
        residual = [max(a - b, Fraction(0)) for a, b in zip(p, q, strict=True)]
        if accept < 1:
            for other, mass in enumerate(residual):
                out[(*tokens[:k], other)] += reached * (1 - accept) * mass / sum(residual)
        reached *= accept
    for token, mass in enumerate(target(prefix + tokens)):
        out[(*tokens, token)] += reached * mass
    return out


def confidences(score, draft, prefix, tokens):
    """One score in [0, 1] a position. `score` sees the draft distribution there, and the token only if it peeks."""
    return [score(draft(prefix + tokens[:k]), token) for k, token in enumerate(tokens)]


def output(target, draft, score, *, prefixes, depth, budget, length, explore=None):
    """Joint distribution of the first `length` tokens of each request, sharing a budget of draft tokens a step.

    budget: a number, or what decides it from the scores of the step before (None at first) and of this one.
    explore: (probability, depth verified in any case) alternatives, drawn without looking; or what decides by looking.
    """
    scheduled = np.full(len(prefixes), depth, np.int32)
    finished = defaultdict(Fraction)
    running = {(tuple(() for _ in prefixes), None): ONE}
    while running:
        following = defaultdict(Fraction)
        for (state, before), mass in running.items():
            heads = [p + s for p, s in zip(prefixes, state, strict=True)]
            for combination in product(*(list(drafts(draft, head, depth)) for head in heads)):
                drawn = [tokens for _, tokens in combination]
                table = tuple(tuple(confidences(score, draft, h, t)) for h, t in zip(heads, drawn, strict=True))
                drafts_ = budget(before, table) if callable(budget) else budget
                choices = explore(table) if callable(explore) else explore or [(ONE, (0,) * len(prefixes))]
                for chance, forced in choices:
                    weight = mass * chance
                    for probability, _ in combination:
                        weight *= probability
                    count = max(drafts_, sum(forced))
                    admitted = split(np.array(table), scheduled, count, np.array(forced, np.int32))
                    assert admitted.sum() == count
                    runs = [verify(target, draft, h, t[:n]) for h, t, n in zip(heads, drawn, admitted, strict=True)]
                    for emitted in product(*(r.items() for r in runs)):
                        total = weight
                        for _, probability in emitted:
                            total *= probability
                        after = tuple((s + run)[:length] for s, (run, _) in zip(state, emitted, strict=True))
                        if all(len(s) == length for s in after):
                            finished[after] += total
                        else:
                            following[after, table if callable(budget) else None] += total
        running = following
    return dict(finished)


def expected(target, prefixes, length):
    """What the target alone generates: the requests are independent."""
    out = defaultdict(Fraction)
    for combination in product(*(target.sequences(p, length).items() for p in prefixes)):
        mass = ONE
        for _, probability in combination:
            mass *= probability
        out[tuple(s for s, _ in combination)] += mass
    return dict(out)
