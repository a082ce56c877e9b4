import pytest

from pbt_agents.environments._boxed import last_boxed


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"\boxed{1 1 5} no, \boxed{2 3 4}", "2 3 4"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        ("the answer is 7", None),
        (r"\boxed{7", None),
        (r"\boxed{1 1 5}, or rather \boxed{2 3", "1 1 5"),
        (r"\boxed{}", ""),
        (r"\boxed {8} and then }}", "8"),
    ],
)
def test_the_last_complete_box_is_the_answer_and_the_text_around_it_never_is(text: str, content: str | None):
    """B58."""
    assert last_boxed(text) == content
