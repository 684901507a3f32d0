"""Which requests an engine's death quarantines, releases and fails."""

import msgspec

from pyengine.messages import RequestKey, Submit
from pyengine.request.recovery import Recovery
from pyengine.request.request import RequestActor


def running(number: int) -> RequestActor:
    submit = Submit(
        key=RequestKey(0, number),
        tokens=b"",
        prompt_length=0,
        max_tokens=1,
        sampling=b"",
        skip_special_tokens=True,
        arrival_ns=1,
    )
    actor = RequestActor(msgspec.structs.replace(submit))
    actor.sent = True
    return actor


def test_a_bystander_of_two_deaths_is_quarantined_and_released() -> None:
    recovery = Recovery()
    bystander, poison, other = running(1), running(2), running(3)
    assert recovery.engine_died([bystander, poison]) is None
    bystander.sent = other.sent = True
    assert recovery.engine_died([bystander, other]) is None
    recovery.engine_is_back([bystander, other])
    assert recovery.next_quarantined() is bystander
    assert recovery.release(bystander)
    assert recovery.next_quarantined() is None


def test_a_request_on_trial_is_failed_for_the_second_death() -> None:
    recovery = Recovery()
    both = [running(1), running(2)]
    for _ in range(2):
        for actor in both:
            actor.sent = True
        assert recovery.engine_died(both) is None
    first = trial(recovery, both)
    assert first is both[0]
    assert recovery.engine_died(both) is None  # it may have been killed from outside
    assert trial(recovery, both[::-1]) is first
    assert recovery.engine_died(both) is first


def test_a_request_that_survives_its_trial_is_as_innocent_as_a_new_one() -> None:
    recovery = Recovery()
    both = [running(1), running(2)]
    recovery.engine_died(both)
    both[0].sent = both[1].sent = True
    recovery.engine_died(both)
    first = trial(recovery, both)
    recovery.engine_died(both)
    assert trial(recovery, both) is first
    assert recovery.release(first)
    assert (first.deaths, first.deaths_alone) == (0, 0)
    assert recovery.next_quarantined() is both[1]


def trial(recovery: Recovery, requests: list[RequestActor]) -> RequestActor:
    """The request that the new engine gets first."""
    recovery.engine_is_back(requests)
    alone = recovery.next_quarantined()
    assert alone is not None
    alone.sent = True
    return alone
