import pytest

from pbt_agents.capacity import gpus_held
from pbt_agents.config import AgentConfig
from pbt_agents.dashboard.cost import Measured, estimate, money
from pbt_agents.dashboard.pace import Pace

STARTED = Measured(seconds=360.0, cpu_s=900.0, cpu_per_s=2.0, tokens_per_s=500.0, experience_bytes=10 << 20, other_bytes=5 << 20)


def test_four_members_on_a_gpu_each_with_a_hundred_steps_of_36_seconds_are_four_gpu_hours_and_twelve():
    """B85: at 3.00 an hour; ten steps are done."""
    pace = Pace()
    pace.result(now_s=360.0, updates=10, step_s=360.0)
    agent = AgentConfig().with_values({"slots": 4, "fleet": "per_agent", "gpus_per_engine": 1.0})
    told = estimate(STARTED, pace.left_s(360.0, 100), gpus_held(agent), price_per_hour=3.0, capacity_bytes=1 << 30)
    assert told.gpu_hours == pytest.approx(4.0)
    assert told.money == pytest.approx(12.0)
    assert told.seconds == pytest.approx(3600.0)
    assert ", 4.0 GPU h, " in told.text()
    assert told.text().endswith(", 12.00 at 3.00 an hour")


def test_all_else_goes_on_as_it_went():
    """3240 s more: two CPU seconds and 500 tokens in each; the experience is ten times that of now, and two checkpoints are kept."""
    told = estimate(STARTED, 3240.0, gpus=0, price_per_hour=None, capacity_bytes=1 << 30)
    assert told.cpu_hours == pytest.approx((900 + 2 * 3240) / 3600)
    assert told.tokens == pytest.approx(500 * 3600)
    assert told.disk_bytes == pytest.approx((100 + 10) << 20)
    assert told.money is None
    assert "GPU" not in told.text()


def test_experience_beyond_the_capacity_is_not_kept():
    assert estimate(STARTED, 3240.0, 0, None, capacity_bytes=20 << 20).disk_bytes == pytest.approx((20 + 10) << 20)


def test_without_a_gpu_the_price_is_that_of_the_machine():
    assert money(7200.0, 0.0, 1.5) == 3.0
    assert money(7200.0, 4.0, 1.5) == 6.0
    assert money(7200.0, 4.0, None) is None
