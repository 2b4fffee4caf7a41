"""Trimming by scores of the prefix leaves the output the target's, exactly; by the drawn token it does not.

Speculative sampling as Leviathan et al. (2023) and Chen et al. (2023) define it, on vocabularies small enough to
enumerate every draft, every split of the budget and every accept/reject outcome with their probabilities as fractions.
The split is the one the hook runs.
"""

from fractions import Fraction

import numpy as np
import pytest
from speculative_enumeration import ONE, Model, expected, output, verify

from acceptd.errors import ConfigError
from estimator_service.lab.features import FEATURES, trimming_feature
from vllm_client_hook.budget import split


def q_max(q, _):
    return float(max(q))


def negative_entropy(q, _):
    return float(np.exp(sum(float(v) * np.log(float(v)) for v in q)))


def margin(q, _):
    second, first = sorted(q)[-2:]
    return float(1 - second / first)


def constant(_, __):
    return 0.5


def q_sampled(q, token):
    return float(q[token])


@pytest.mark.parametrize("score", [q_max, negative_entropy, margin, constant])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("budget", [0, 1, 2, 3, 4])
def test_two_requests_sharing_a_budget_generate_what_the_target_does(score, seed, budget):
    target, draft = Model(seed, 2, 2), Model(100 + seed, 2, 2)
    prefixes = [(0,), (1,)]
    found = output(target, draft, score, prefixes=prefixes, depth=2, budget=budget, length=2)
    assert found == expected(target, prefixes, 2)


@pytest.mark.parametrize("score", [q_max, negative_entropy, margin])
def test_deep_blocks_over_three_tokens(score):
    target, draft = Model(5, 3, 1), Model(6, 3, 1)
    found = output(target, draft, score, prefixes=[(0,)], depth=3, budget=2, length=4)
    assert found == expected(target, [(0,)], 4)


def test_the_drawn_tokens_probability_biases_the_shared_budget_too():
    target, draft = Model(0, 2, 2), Model(100, 2, 2)
    prefixes = [(0,), (1,)]
    found = output(target, draft, q_sampled, prefixes=prefixes, depth=2, budget=2, length=2)
    assert sum(found.values()) == 1
    assert found != expected(target, prefixes, 2)


def tell_tale():
    """A target that does not care, and a draft that is sure after token 0 and not after token 1."""
    half = (Fraction(1, 2), Fraction(1, 2))
    target, draft = Model(0, 2, 1), Model(0, 2, 1)
    target.known = {(0,): half, (1,): half}
    draft.known = {(0,): (Fraction(1, 10), Fraction(9, 10)), (1,): half}
    return target, draft


def all_or_nothing(table):
    """A budget by the scores, as a cost in steps gives: every slot if the deepest is worth it, otherwise none."""
    return sum(len(row) for row in table) if table[0][-1] > 0.6 else 0


def one_step_old(before, _table):
    return 1 if before is None else all_or_nothing(before)


def fresh(_before, table):
    return all_or_nothing(table)


@pytest.mark.parametrize("prefixes", [[(0,)], [(0,), (1,)]])
def test_a_budget_from_scores_of_the_step_before_is_lossless(prefixes):
    target, draft = tell_tale()
    found = output(target, draft, q_max, prefixes=prefixes, depth=2, budget=one_step_old, length=3)
    assert found == expected(target, prefixes, 3)


def test_a_budget_from_this_steps_scores_is_not():
    """A deep position's score depends on the tokens before it, and through the budget decides whether they count."""
    target, draft = tell_tale()
    found = output(target, draft, q_max, prefixes=[(0,)], depth=2, budget=fresh, length=1)
    # Drafted 0 (.1): all is verified, and it passes. Drafted 1 (.9): nothing is, and the target draws by itself.
    assert found == {((0,),): Fraction(1, 10) + Fraction(9, 20), ((1,),): Fraction(9, 20)}


def test_exploration_drawn_without_looking_is_lossless():
    target, draft, prefixes = Model(0, 2, 2), Model(100, 2, 2), [(0,), (1,)]
    explore = [(Fraction(1, 2), (0, 0)), (Fraction(1, 4), (2, 0)), (Fraction(1, 4), (0, 1))]
    found = output(target, draft, q_max, prefixes=prefixes, depth=2, budget=1, length=2, explore=explore)
    assert found == expected(target, prefixes, 2)


def test_exploration_where_the_deep_score_is_low_is_not():
    target, draft = tell_tale()

    def doubtful(table):
        return [(ONE, (2,) if table[0][-1] < 0.6 else (0,))]

    found = output(target, draft, q_max, prefixes=[(0,)], depth=2, budget=0, length=1, explore=doubtful)
    assert sum(found.values()) == 1
    assert found != expected(target, [(0,)], 1)


def fixed(*distribution):
    return lambda _prefix: distribution


def threshold_output(p, q, score, threshold):
    """First emitted token when a draft token is verified only if its score reaches the threshold."""
    target, draft = fixed(*p), fixed(*q)
    out = [Fraction(0), Fraction(0)]
    for token, mass in enumerate(q):
        verified = (token,) if score(q, token) >= threshold else ()
        for run, probability in verify(target, draft, (), verified).items():
            out[run[0]] += mass * probability
    return tuple(out)


def test_the_counter_example_of_the_design():
    p, q = (Fraction(1, 2), Fraction(1, 2)), (Fraction(1, 5), Fraction(4, 5))
    assert threshold_output(p, q, q_sampled, 0.5) == (Fraction(2, 5), Fraction(3, 5))
    assert threshold_output(p, q, q_max, 0.5) == p


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.name)
def test_only_features_of_the_prefix_may_trim(feature):
    if feature.lossless:
        assert trimming_feature(feature.name) is feature
        assert feature.column != "logit_qsampled"
        return
    with pytest.raises(ConfigError, match=r"depends on the token that was drawn.*accepted: 'log q_max'"):
        trimming_feature(feature.name)


def test_exactly_the_drawn_tokens_feature_is_lossy():
    assert [feature.name for feature in FEATURES if not feature.lossless] == ["logit q_sampled"]
    with pytest.raises(ConfigError, match="'logprob' is unknown; accepted: 'log q_max'"):
        trimming_feature("logprob")


def sampled(score, draws, seed):
    """Counts of the first two tokens of both requests over `draws` independent batches of two, and what they should be.

    All batches advance together; batches with equal confidences get one call of the hook's `split`. A context is the
    last two tokens of a two-token vocabulary as a number of two bits, a batch's outcome four bits.
    """
    rng = np.random.default_rng(seed)
    depth, budget = 2, 2
    target, draft = Model(0, 2, 2), Model(100, 2, 2)
    p, q = (
        np.array([[float(v) for v in model((context >> 1, context & 1))] for context in range(4)])
        for model in (target, draft)
    )
    scheduled = np.full(2, depth, np.int32)
    requests = 2 * draws
    context = np.tile([0b00, 0b01], draws)
    generated, length = np.zeros(requests, np.int64), np.zeros(requests, np.int64)

    def draw(second):
        """A token for each request, the second one with this probability."""
        return (rng.random(requests) < second).astype(np.int64)

    def append(contexts, tokens):
        return ((contexts << 1) | tokens) & 0b11

    while (length < 2).any():
        heads, proposed = [context], []
        for _ in range(depth):
            proposed.append(draw(q[heads[-1], 1]))
            heads.append(append(heads[-1], proposed[-1]))
        path = (context << 2) | (proposed[0] << 1) | proposed[1]
        admitted = np.empty(requests, np.int64)
        batch = (path[0::2] << 4) | path[1::2]
        for kind in np.unique(batch):
            table = []
            for code in (kind >> 4, kind & 0b1111):
                tokens = ((code >> 1) & 1, code & 1)
                at = [code >> 2, append(code >> 2, tokens[0])]
                table.append([score(q[c], t) for c, t in zip(at, tokens, strict=True)])
            admitted.reshape(draws, 2)[batch == kind] = split(np.array(table), scheduled, budget)
        alive = np.ones(requests, bool)
        here = context
        for k in range(depth + 1):
            verified = alive & (k < admitted)
            emitted = draw(p[here, 1])
            passed = np.zeros(requests, bool)
            if k < depth:
                token = proposed[k]
                passed = verified & (rng.random(requests) * q[here, token] < p[here, token])
                # With two tokens the residual of a rejected one is all on the other.
                emitted = np.where(verified, np.where(passed, token, 1 - token), emitted)
            room = alive & (length < 2)
            generated[room] = (generated[room] << 1) | emitted[room]
            here = np.where(alive, append(here, emitted), here)
            length += alive
            alive = passed
        context = here
    wanted = np.zeros(16)
    for ((a, b), (c, d)), mass in expected(target, [(0, 0), (0, 1)], 2).items():
        wanted[(a << 3) | (b << 2) | (c << 1) | d] = float(mass)
    return np.bincount((generated[0::2] << 2) | generated[1::2], minlength=16), wanted


def chi_square_p(counts, wanted):
    from scipy.stats import chisquare

    return chisquare(counts, wanted * counts.sum()).pvalue


def test_a_million_draws_through_the_budget_follow_the_target():
    counts, wanted = sampled(q_max, 1_000_000, seed=1)
    assert counts.sum() == 1_000_000
    assert chi_square_p(counts, wanted) > 1e-3


def test_the_same_draws_show_the_bias_of_a_score_that_peeks():
    counts, wanted = sampled(q_sampled, 100_000, seed=1)
    assert chi_square_p(counts, wanted) < 1e-12
