"""The numbers of passes, when iterations are left early or have read ahead."""

from hypothesis import given
from hypothesis import strategies as st

from sparkdl.data.pass_numbers import PassNumbers


@given(st.integers(1, 5), st.lists(st.integers(0, 5), max_size=6))
def test_each_iteration_begins_with_the_same_pass_on_every_rank(
    epochs: int, taken: list[int]
) -> None:
    """An iteration takes up to as many passes as it has; one that takes none does not count."""
    numbers, begun = PassNumbers(), 0
    for count in taken:
        numbers.begin(epochs)
        count = min(count, epochs)
        assert [numbers.take() for _ in range(count)] == [*range(begun, begun + count)]
        begun += epochs if count else 0
