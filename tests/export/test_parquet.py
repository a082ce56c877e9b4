import math

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pbt_agents.export.parquet import write_parquet


@pytest.fixture
def read(run):
    write_parquet(run)
    return lambda name: pq.read_table(run / name)


def test_each_evaluation_is_a_row_with_its_metrics_and_the_values_in_use(read):
    table = read("metrics.parquet")
    assert table.column_names[:4] == ["member", "updates", "version", "lineage"]
    assert table["member"].to_pylist() == ["agent0", "agent1", "agent1"]
    assert table["updates"].to_pylist() == [2, 2, 4]
    assert table["lineage"].to_pylist() == [0, 0, 1]
    assert table["learning_rate"].to_pylist() == [2e-3] * 3  # what ran, not what the config asks
    assert table["ratio_max"].to_pylist() == [math.inf] * 3
    assert table["advantage"].to_pylist() == ["group_centered"] * 3  # searched, and read back by no one
    assert {"pid", "done", "config", "remark", "seed"} & set(table.column_names) == set()


def test_a_diverged_member_has_a_number_that_is_none_and_not_a_gap(read):
    """B06."""
    fitness = read("metrics.parquet")["fitness"].to_pylist()
    assert (fitness[0], fitness[2]) == (1.5, 0.75)
    assert math.isnan(fitness[1])


def test_each_optimizer_step_that_is_whole_is_a_row(read):
    """B72: torn lines are left out, also where a restarted process wrote on behind one."""
    table = read("updates.parquet")
    rows = list(zip(table["member"].to_pylist(), table["updates"].to_pylist(), table["lineage"].to_pylist(), strict=True))
    assert rows == [("agent0", 1, 0), ("agent0", 2, 0), ("agent1", 1, 0), ("agent1", 2, 0), ("agent1", 4, 1)]
    assert table["by_lag/0/tokens"].to_pylist() == [10, 20, 10, 20, 40]


def test_whole_numbers_stay_whole(read):
    assert read("updates.parquet").schema.field("updates").type == pa.int64()
    assert read("metrics.parquet").schema.field("window").type == pa.int64()
    assert read("metrics.parquet").schema.field("fitness").type == pa.float64()


def test_written_again_it_is_the_same_and_nothing_is_left_beside_it(run, read):
    former = read("metrics.parquet")
    write_parquet(run)
    assert str(read("metrics.parquet").to_pylist()) == str(former.to_pylist())  # NaN equals nothing
    assert sorted(file.name for file in run.iterdir()) == ["metrics.parquet", "population", "updates.parquet"]


def test_a_metric_that_came_later_is_null_in_the_rows_before(run):
    with (run / "population" / "agent0" / "ring" / "updates.jsonl").open("a") as log:
        log.write('{"updates": 3, "version": 3, "lineage": 0, "trainer/new": 7}\n')
    write_parquet(run)
    assert pq.read_table(run / "updates.parquet")["trainer/new"].to_pylist() == [None, None, 7, None, None, None]


def test_a_run_without_a_row_has_the_columns_that_name_one(tmp_path):
    assert write_parquet(tmp_path) == {"metrics.parquet": (0, 4), "updates.parquet": (0, 4)}
    assert pq.read_table(tmp_path / "metrics.parquet").schema.field("member").type == pa.string()
