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


def test_the_only_one_at_two_deaths_is_failed() -> None:
    recovery = Recovery()
    poison = running(1)
    assert recovery.engine_died([poison]) is None
    poison.sent = True
    assert recovery.engine_died([poison]) is poison


def test_the_quarantined_request_that_is_sent_alone_is_failed() -> None:
    recovery = Recovery()
    both = [running(1), running(2)]
    recovery.engine_died(both)
    for actor in both:
        actor.sent = True
    assert recovery.engine_died(both) is None
    recovery.engine_is_back(both)
    alone = recovery.next_quarantined()
    assert alone is both[0]
    alone.sent = True
    assert recovery.engine_died(both) is alone
