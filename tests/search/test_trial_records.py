"""The records of trials in the journal of a search whose driver was killed."""

from collections.abc import Sequence

import pytest

from sparkdl.runs import TrialState
from sparkdl.runs.events import AttributesStored, Event, RunStarted, TrialChanged
from sparkdl.search.trial_records import untold_trials

START = RunStarted()


def ended(number: int, state: TrialState = TrialState.COMPLETE) -> TrialChanged:
    return TrialChanged(number=number, state=state)


def told(number: int) -> AttributesStored:
    return AttributesStored(number=number, attrs={})


@pytest.mark.parametrize(
    ("events", "untold"),
    [
        ([START], set()),
        ([START, ended(0), told(0)], set()),
        ([START, ended(0)], {0}),
        ([START, ended(0), told(0), ended(1), START, START], {1}),
        ([START, ended(1), START, told(1)], set()),  # The next driver has told it.
        ([START, ended(0, TrialState.RUNNING), START], set()),
        # What follows shows that the driver went on.
        ([START, ended(0), ended(1), told(1)], set()),
    ],
)
def test_trials_whose_end_the_study_has_missed_were_the_last_of_their_driver(
    events: Sequence[Event], untold: set[int]
) -> None:
    assert untold_trials(events) == untold
