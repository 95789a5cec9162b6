"""The baseline: found in the latest steady span, with its noise, or the reason why there is none yet."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judged import at, steps

from chaoskit.judge import find_baseline
from chaoskit.judge.baseline import percentile
from chaoskit.judge.timeline import Interval, Sample, Spec
from chaoskit.judge.verdict import Baseline
from chaoskit.model.experiment import Budgets


def spec(**given_spec):
    return Spec(**{"budgets": Budgets(), "band": 0.1, "for_": 10.0, **given_spec})


def noisy(count, pace, share, seed=0, start=0.0):
    """Steps whose lengths scatter evenly by this share."""
    chance = random.Random(seed)  # noqa: S311  noise, not a secret
    t, samples = start, []
    for step in range(count):
        samples.append(Sample(at(t), step, "a"))
        t += pace * (1 + chance.uniform(-share, share))
    return samples


def bursts(count):
    """Thirty steps at five times the pace, and as many at half of it, again and again: large noise, and no drift."""
    t, samples = 0.0, []
    for step in range(count):
        samples.append(Sample(at(t), step, "a"))
        t += 0.2 if step % 60 < 30 else 2.0
    return samples


def test_five_windows_of_an_even_training_are_a_baseline():
    found = find_baseline(steps(0, 100, 0.0), spec(), 100.0)

    assert isinstance(found, Baseline)
    assert (found.pace, found.rate, found.steps, found.window, found.noise, found.band) == (1.0, 1.0, 100, 20.0, 0.0, 0.1)
    assert (found.start, found.end, found.gap_p99, found.gap_limit, found.stride) == (0.0, 100.0, 1.0, 5.0, 1)


def test_less_than_five_windows_are_not_yet_one():
    assert find_baseline(steps(0, 99, 0.0), spec(), 99.0) == "5.0 of 5 windows of 20.0 s were seen"
    assert find_baseline(steps(0, 50, 0.0), spec(), 50.0) == "2.5 of 5 windows of 20.0 s were seen"


def test_nothing_seen_is_no_baseline():
    assert find_baseline([], spec(), 10.0) == "fewer than three steps were seen"


@pytest.mark.parametrize(
    ("given_spec", "pace", "window"),
    [
        ({}, 1.0, 20.0),
        ({}, 0.1, 10.0),
        ({"for_": 40.0}, 1.0, 40.0),
        ({"checkpoint_every": 50}, 1.0, 50.0),
        ({"min_window_steps": 30}, 1.0, 30.0),
    ],
)
def test_a_window_is_the_longest_of_for_twenty_steps_and_a_checkpoint_interval(given_spec, pace, window):
    found = find_baseline(steps(0, 600, 0.0, pace), spec(**given_spec), 600 * pace)

    assert isinstance(found, Baseline)
    assert found.window == pytest.approx(window)
    assert found.end - found.start >= 5 * window - 1e-6


@pytest.mark.row("L50")
def test_slow_first_steps_do_not_prevent_it():
    slow_start = [Sample(at(0.0), 0, "a"), Sample(at(30.0), 1, "a"), Sample(at(40.0), 2, "a"), *steps(3, 110, 41.0)]
    found = find_baseline(slow_start, spec(), 148.0)

    assert isinstance(found, Baseline)
    assert (found.pace, found.start) == (pytest.approx(1.0), pytest.approx(48.0))


def test_only_the_life_that_steps_now_counts():
    """What came before a restart is another training's pace."""
    old, new = steps(0, 200, 0.0, 2.0, "a"), steps(150, 200, 500.0, 1.0, "b")

    assert find_baseline([*old, *new], spec(), 550.0) == "2.5 of 5 windows of 20.0 s were seen"


def test_a_training_that_still_speeds_up_is_not_steady():
    t, samples = 0.0, []
    for step in range(200):
        samples.append(Sample(at(t), step, "a"))
        t += 2.0 - 0.005 * step
    found = find_baseline(samples, spec(band=0.05), t)

    assert isinstance(found, str)
    assert "the pace still moves" in found


def test_a_silent_training_is_not_steady():
    assert find_baseline(steps(0, 200, 0.0), spec(), 210.0) == "no step for 10.0 s, where 1 s is the pace"


def test_a_stall_in_the_span_is_not_steady_until_it_has_passed():
    stalled = [*steps(0, 100, 0.0), *steps(101, 230, 130.0)]

    assert isinstance(find_baseline([one for one in stalled if one.step <= 150], spec(), 179.0), str)
    assert isinstance(find_baseline(stalled, spec(), 259.0), Baseline)


def test_checkpoint_pauses_are_part_of_normal():
    """A pause of 6 s each 50 steps: no window is without one, and no such gap is a stall."""
    t, samples = 0.0, []
    for step in range(401):
        samples.append(Sample(at(t), step, "a"))
        t += 7.0 if step % 50 == 0 else 1.0
    found = find_baseline(samples, spec(checkpoint_every=50), samples[-1].t.mid)

    assert isinstance(found, Baseline)
    assert found.pace == pytest.approx(1.12, abs=0.01)
    assert found.gap_limit >= 7.0


def test_noise_wider_than_the_stated_band_widens_it_when_nothing_drifts():
    samples = noisy(400, 1.0, 0.5, seed=1)
    found = find_baseline(samples, spec(band=0.08), samples[-1].t.mid)

    assert isinstance(found, Baseline)
    assert 0.08 < found.noise < 0.16
    assert found.band == found.noise
    assert found.end - found.start >= 10 * found.window - 1e-6


@pytest.mark.parametrize("band", [0.03, 0.3])
def test_noise_of_more_than_two_bands_or_half_the_pace_is_no_baseline(band):
    """Halves that agree are not enough: in such noise a fault as large as the noise would look absorbed."""
    samples = noisy(400, 1.0, 0.5) if band < 0.1 else bursts(400)
    found = find_baseline(samples, spec(band=band), samples[-1].t.mid)

    assert isinstance(found, str)
    assert "scatter by" in found
    assert f"at most ±{min(0.5, 2 * band):.0%} can be judged with a band of {band:.0%}" in found


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.01, 2.0), st.floats(0.0, 0.3))
def test_the_pace_is_found_through_noise(seed, pace, share):
    samples = noisy(700, pace, share, seed)
    found = find_baseline(samples, spec(for_=0.0), samples[-1].t.mid)

    assert isinstance(found, Baseline)
    assert found.pace == pytest.approx(pace, rel=share / 5 + 1e-6)
    assert found.noise <= share + 1e-9


@settings(max_examples=20, deadline=None)
@given(st.randoms(use_true_random=False))
def test_the_order_of_arrival_means_nothing(chance):
    samples = noisy(200, 1.0, 0.1)
    shuffled = list(samples)
    chance.shuffle(shuffled)

    assert find_baseline(shuffled, spec(), 200.0) == find_baseline(samples, spec(), 200.0)


def test_lines_that_come_in_tens_give_the_same_pace():
    samples = [Sample(Interval(10.0 * (step // 10), 10.0 * (step // 10 + 1)), step, "a") for step in range(200)]
    found = find_baseline(samples, spec(), 200.0)

    assert isinstance(found, Baseline)
    assert (found.pace, found.noise) == (pytest.approx(1.0), pytest.approx(0.0))


def test_a_training_that_logs_every_tenth_step_is_measured_in_steps():
    samples = [Sample(at(float(step)), step, "a") for step in range(0, 201, 10)]
    found = find_baseline(samples, spec(), 200.0)

    assert isinstance(found, Baseline)
    assert (found.pace, found.stride, found.gap_p99) == (1.0, 10, 10.0)


def test_noise_is_what_99_percent_of_the_windows_stay_within():
    """Up or down from the mean pace: of a hundred windows and one the worst does not count, and the second worst does."""
    deviations = [0.01] * 99 + [0.07, 0.30]

    assert percentile(sorted(deviations), 0.99) == 0.07
