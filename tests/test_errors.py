from pbt_agents.errors import one_line


def test_an_error_is_shown_in_one_line_and_its_end_is_left_out_when_it_is_very_long():
    assert one_line("rate\n  is wrong") == "rate is wrong"
    shown = one_line("x" * 100_000)
    assert shown.startswith("x" * 1500 + "...")
    assert shown.endswith("(98500 letters more)")
    assert len(shown) < 1600
