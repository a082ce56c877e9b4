from pbt_agents.environments._sudoku_solver import layout, propagate, solve, split_bits

# The board of Wikipedia's article on Sudoku, and its solution.
PUZZLE = "530070000600195000098000060800060003400803001700020006060000280000419005000080079"
SOLUTION = "534678912672195348198342567859761423426853791713924856961537284287419635345286179"


def candidates(size: int, board: str) -> int:
    open_candidates = layout(size).everything
    for cell, digit in enumerate(board):
        if digit != "0":
            open_candidates &= layout(size).keeps[(int(digit) - 1) * size * size + cell]
    return open_candidates


def digits(size: int, solved: int) -> str:
    by_cell = {candidate % size**2: candidate // size**2 + 1 for candidate in split_bits(solved)}
    return "".join(str(by_cell[cell]) for cell in range(size * size))


def test_a_known_board_has_its_known_solution():
    assert digits(9, solve(layout(9), candidates(9, PUZZLE))) == SOLUTION


def test_boxes_of_6x6_are_two_rows_high_and_three_columns_wide():
    # A 1 in the top left corner: none in row 1, in column 1, nor in the rest of rows 1-2, columns 1-3.
    open_ones = candidates(6, "1" + "0" * 35) & (1 << 36) - 1
    closed = {cell for cell in range(36) if not open_ones >> cell & 1}
    assert closed == {1, 2, 3, 4, 5, 6, 12, 18, 24, 30, 7, 8}


def test_propagation_places_the_only_digit_of_a_cell_and_the_only_cell_of_a_digit():
    only_digit = candidates(4, "1200300000000000")  # row 1 leaves 3 and 4 for its last two cells, and nothing is known of column 4
    assert propagate(layout(4), candidates(4, "1230000000000000")) >> (3 * 16 + 3) & 1
    assert propagate(layout(4), only_digit) & layout(4).cells[5] == 1 << (3 * 16 + 5)  # box 1 holds 1, 2 and 3: its last cell is a 4
    hidden = propagate(layout(4), candidates(4, "0000001000000100"))  # 1s in row 2 column 3 and row 4 column 2
    assert hidden & layout(4).cells[0] == 1 << 0  # so the 1 of box 1 stands in row 1, column 1, where all four digits were open


def test_a_board_against_the_rules_has_no_solution():
    assert solve(layout(4), candidates(4, "1230000400000000")) == 0  # row 1 wants a 4 in column 4, which has one


def test_search_goes_on_where_propagation_stops():
    board = candidates(9, "0" * 81)
    assert propagate(layout(9), board) == board
    assert solve(layout(9), board).bit_count() == 81
