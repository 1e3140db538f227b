import random

from tracker.config import Window
from tracker.schedule import Call, Schedule


def test_summary_steps_are_the_first_the_multiples_and_the_last():
    schedule = Schedule(steps=11, summary_every=2)
    assert [k for k in range(1, 12) if schedule.is_summary(k)] == [1, 2, 4, 6, 8, 10, 11]
    assert not any(Schedule(steps=11).is_summary(k) for k in range(1, 12))


def test_the_untrained_state_is_validated():
    schedule = Schedule(steps=10, validate_every=4)
    assert [k for k in range(11) if schedule.is_validation(k)] == [0, 1, 4, 8, 10]
    assert not Schedule(steps=10).is_validation(0)


def test_one_call_spans_several_summary_intervals():
    schedule = Schedule(steps=1000, summary_every=10)
    assert schedule.call(0, 1000) == Call(1, 8)  # steps 1 to 9
    assert schedule.call(9, 100) == Call(10, 9)
    assert schedule.call(9, 5) == Call(1, 4)
    assert schedule.call(14, 100) == Call(0, 5)


def drawn(seed):
    """A schedule of random intervals."""
    draw = random.Random(seed)
    summary_every = draw.randint(0, 12)
    return draw, Schedule(
        steps=draw.randint(1, 60),
        summary_every=summary_every,
        validate_every=draw.randint(0, 20),
        histogram_every=summary_every * draw.randint(0, 3),
        checkpoint_every=draw.randint(0, 9),
        windows=(Window(5, 8),) if draw.random() < 0.5 else (),
    )


def test_calls_cover_every_step_once_and_stop_where_the_host_must_act():
    for seed in range(2000):
        draw, schedule = drawn(seed)
        step, instrumented = 0, []
        while step < schedule.steps:
            call = schedule.call(step, draw.randint(1, 100))
            assert call.steps >= 1
            instrumented += [step + 1 + i * (call.plain + 1) for i in range(call.intervals)]
            for inside in range(step + 1, step + call.steps):
                assert not schedule.is_validation(inside)
                assert not schedule.is_checkpoint(inside)
                assert not schedule.is_histogram(inside)
                assert not schedule.window(inside)
            if call.steps > 1:
                assert not schedule.window(step + 1)
            step += call.steps
        assert step == schedule.steps
        expected = [k for k in range(1, schedule.steps + 1) if schedule.is_summary(k)]
        assert instrumented == expected
