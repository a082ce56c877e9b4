import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor, nn

from pbt_agents.trainer.fused_lora import fuse


class TwoLayers(nn.Module):
    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 7, bias), nn.Linear(7, 3, bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))


def policy(fused: bool, bias: bool = False) -> PeftModel:
    """In double precision, A and B both random."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = LoraConfig(r=2, lora_alpha=3, target_modules=["first", "second"], init_lora_weights=False)
        model = get_peft_model(TwoLayers(bias), config).double()
    if fused:
        fuse(model)
    return model


def rows() -> Tensor:
    return torch.randn(4, 6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1), requires_grad=True)


@pytest.mark.parametrize("bias", [False, True])
def test_output_and_every_gradient_are_those_of_peft(bias: bool):
    results = []
    for fused in (False, True):
        model, x = policy(fused, bias), rows()
        output = model(x)
        (output**3).sum().backward()
        results.append([output.detach(), x.grad, *(parameter.grad for parameter in model.parameters() if parameter.requires_grad)])
    assert len(results[0]) == 6
    for expected, actual in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


def test_the_gradient_is_that_of_finite_differences():
    model = policy(fused=True)
    layer = model.get_submodule("base_model.model.first")
    inputs = (rows(), layer.lora_A["default"].weight, layer.lora_B["default"].weight)

    def output(x: Tensor, *_: Tensor) -> Tensor:
        return layer(x)

    assert torch.autograd.gradcheck(output, inputs)


def test_an_input_without_gradient_gets_none():
    x = rows().detach()
    model = policy(fused=True)
    model(x).sum().backward()
    assert x.grad is None
    assert all(parameter.grad is not None for parameter in model.parameters() if parameter.requires_grad)


def test_a_disabled_adapter_is_off():
    model, plain = policy(fused=True), policy(fused=False)
    on = model(rows())
    with model.disable_adapter(), plain.disable_adapter():
        off = model(rows())
        assert torch.equal(off, plain(rows()))
    assert not torch.allclose(on, off)


def test_each_layer_becomes_one_node():
    output = policy(fused=True)(rows())
    assert output.grad_fn is not None
    assert type(output.grad_fn).__name__ == "_LoraLinearBackward"
