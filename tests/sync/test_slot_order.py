import math

import numpy as np
import pytest
import torch
from torch import Tensor

from pbt_agents.errors import GuardError
from pbt_agents.sync.slot_order import SlotOrder
from pbt_agents.testing.fake_engine import TWO_LAYERS

PREFIX = "base_model.model.model.layers.0."


def adapter() -> dict[str, Tensor]:
    """Every matrix filled with a number of its own; named and ordered as PEFT does."""
    return {
        f"{PREFIX}self_attn.q_proj.lora_A.default.weight": torch.full((2, 4), 1.0),
        f"{PREFIX}self_attn.q_proj.lora_B.default.weight": torch.full((4, 2), 2.0),
        f"{PREFIX}self_attn.k_proj.lora_A.default.weight": torch.full((2, 4), 3.0),
        f"{PREFIX}self_attn.k_proj.lora_B.default.weight": torch.full((3, 2), 4.0),
        f"{PREFIX}mlp.down_proj.lora_A.default.weight": torch.full((2, 5), 5.0),
        f"{PREFIX}mlp.down_proj.lora_B.default.weight": torch.full((4, 2), 6.0),
    }


def test_tensors_lie_in_slot_order_whatever_order_they_came_in():
    shuffled = dict(reversed(adapter().items()))

    values = SlotOrder(TWO_LAYERS, scale=1.0).flatten(shuffled)

    assert values.dtype == np.float32
    assert values.tolist() == [1.0] * 8 + [2.0] * 8 + [3.0] * 8 + [4.0] * 6 + [5.0] * 10 + [6.0] * 8


@pytest.mark.parametrize(("scale", "b"), [(16 / 8, 4.0), (16 / math.sqrt(8), 2 * 5.6568542), (1.0, 2.0)])
def test_the_scale_multiplies_b_and_only_b(scale, b):
    """B40: rank 8 and alpha 16 make 2, not 1; with rsLoRA 5.657."""
    values = SlotOrder(TWO_LAYERS, scale).flatten(adapter())

    assert values[:8].tolist() == [1.0] * 8
    np.testing.assert_allclose(values[8:16], b, rtol=1e-6)


def test_a_scaled_adapter_is_wx_plus_scale_times_bax():
    """B40: on a 4x4 layer, against the formula itself."""
    rng = np.random.default_rng(0)
    a, b, x = rng.normal(size=(2, 4)), rng.normal(size=(4, 2)), rng.normal(size=4)
    tensors = adapter()
    tensors[f"{PREFIX}self_attn.q_proj.lora_A.default.weight"] = torch.tensor(a)
    tensors[f"{PREFIX}self_attn.q_proj.lora_B.default.weight"] = torch.tensor(b)

    values = SlotOrder(TWO_LAYERS, scale=2.0).flatten(tensors)

    slot_a, slot_b = values[:8].reshape(2, 4), values[8:16].reshape(4, 2)
    np.testing.assert_allclose(slot_b @ (slot_a @ x), 2.0 * (b @ (a @ x)), rtol=1e-5)


def test_the_adapters_own_tensors_are_left_as_they_were():
    tensors = adapter()
    SlotOrder(TWO_LAYERS, scale=2.0).flatten(tensors)
    assert tensors[f"{PREFIX}self_attn.q_proj.lora_B.default.weight"].unique().tolist() == [2.0]


def test_names_without_the_adapters_name_are_understood():
    saved = {name.replace(".default", ""): tensor for name, tensor in adapter().items()}
    order = SlotOrder(TWO_LAYERS, scale=1.0)
    np.testing.assert_array_equal(order.flatten(saved), order.flatten(adapter()))


def test_a_foreign_prefix_matches_nothing_and_is_named():
    """B39."""
    foreign = {name.replace("base_model.model.", "policy."): tensor for name, tensor in adapter().items()}
    with pytest.raises(GuardError, match=r"matches 0 of 6 .*policy\.model\.layers\.0\.self_attn\.q_proj\.lora_A"):
        SlotOrder(TWO_LAYERS, scale=1.0).flatten(foreign)


def test_a_missing_tensor_is_named():
    """B39."""
    tensors = adapter()
    del tensors[f"{PREFIX}mlp.down_proj.lora_B.default.weight"]
    with pytest.raises(GuardError, match=r"matches 5 of 6 .*Without a tensor: lora_B of model\.layers\.0\.mlp\.down_proj \(4, 2\)"):
        SlotOrder(TWO_LAYERS, scale=1.0).flatten(tensors)


@pytest.mark.parametrize(
    "name",
    [
        f"{PREFIX}self_attn.v_proj.lora_A.default.weight",  # not in the engines' layout
        f"{PREFIX}self_attn.q_proj.lora_magnitude_vector.default.weight",  # another kind of adapter
        "base_model.model.lm_head.modules_to_save.default.weight",  # fully trained, never shipped
    ],
)
def test_a_tensor_without_a_place_is_refused(name):
    """B39."""
    with pytest.raises(GuardError, match="matches 6 of 6"):
        SlotOrder(TWO_LAYERS, scale=1.0).flatten({**adapter(), name: torch.zeros(2, 4)})


def test_another_rank_is_refused_with_both_shapes():
    tensors = adapter()
    tensors[f"{PREFIX}self_attn.q_proj.lora_A.default.weight"] = torch.zeros(8, 4)
    with pytest.raises(GuardError, match=r"q_proj\.lora_A\.default\.weight \(8, 4\).*lora_A of .*q_proj \(2, 4\)"):
        SlotOrder(TWO_LAYERS, scale=1.0).flatten(tensors)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_is_refused_with_its_matrix(bad):
    """B15."""
    tensors = adapter()
    tensors[f"{PREFIX}self_attn.k_proj.lora_B.default.weight"][1, 1] = bad
    with pytest.raises(GuardError, match=r"lora_B of model\.layers\.0\.self_attn\.k_proj is not finite"):
        SlotOrder(TWO_LAYERS, scale=1.0).flatten(tensors)


def test_scaling_may_not_make_a_value_infinite():
    tensors = adapter()
    tensors[f"{PREFIX}self_attn.k_proj.lora_B.default.weight"][0, 0] = 3e38
    with pytest.raises(GuardError, match="not finite"), np.errstate(over="ignore"):
        SlotOrder(TWO_LAYERS, scale=2.0).flatten(tensors)
