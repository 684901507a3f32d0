"""Who is blamed for an engine's death."""

import msgspec

from pyengine.messages import RequestKey, SamplingRules, Submit
from pyengine.request.recovery import Recovery
from pyengine.request.request import RequestActor


def running(number: int) -> RequestActor:
    submit = Submit(
        RequestKey(0, number), b"", 0, 1, 0, SamplingRules(0, 0, 1, 0, 0), (), (),
        False, True, 0, 0, 0, 1, 0,
    )  # fmt: skip
    actor = RequestActor(msgspec.structs.replace(submit))
    actor.sent = True
    return actor


def test_a_bystander_of_two_deaths_is_tried_not_failed() -> None:
    recovery = Recovery()
    bystander, poison, other = running(1), running(2), running(3)
    assert recovery.engine_died([bystander, poison]) is None
    bystander.sent = other.sent = True
    assert recovery.engine_died([bystander, other]) is None
    recovery.engine_is_back([bystander, other])
    assert recovery.next_trial() is bystander
    assert recovery.acquits(bystander)
    assert recovery.next_trial() is None


def test_the_only_one_at_two_deaths_is_failed() -> None:
    recovery = Recovery()
    poison = running(1)
    assert recovery.engine_died([poison]) is None
    poison.sent = True
    assert recovery.engine_died([poison]) is poison


def test_the_one_on_trial_is_failed() -> None:
    recovery = Recovery()
    both = [running(1), running(2)]
    recovery.engine_died(both)
    for actor in both:
        actor.sent = True
    assert recovery.engine_died(both) is None
    recovery.engine_is_back(both)
    suspect = recovery.next_trial()
    assert suspect is both[0]
    suspect.sent = True
    assert recovery.engine_died(both) is suspect
