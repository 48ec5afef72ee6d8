"""A sample of timm's and torchvision's models against what is published of them; skipped where they are not installed."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from published.models import Count, Model, count, timm_models, torchvision_models

TIMM = """
resnet50 resnext50_32x4d seresnet50 resnest14d res2net50_26w_4s densenet121 dla34 dpn68 vgg11_bn inception_v3
mobilenetv3_large_100 efficientnet_b0 tf_efficientnetv2_b0 mnasnet_100 ghostnet_100 regnety_008 repvgg_a0 hardcorenas_a
nf_resnet50 convnext_tiny convnextv2_atto poolformer_s12 resmlp_12_224 mixer_s16_224 gmlp_s16_224 vit_tiny_patch16_224
deit_tiny_patch16_224 beit_base_patch16_224 cait_xxs24_224 crossvit_tiny_240 swin_tiny_patch4_window7_224
swinv2_tiny_window8_256 twins_pcpvt_small pvt_v2_b0 levit_128s mobilevit_xs edgenext_xx_small efficientformer_l1
maxvit_tiny_tf_224 coatnet_0_rw_224 volo_d1_224 xcit_nano_12_p16_224 eva02_tiny_patch14_224 davit_tiny
""".split()
TORCHVISION = """
alexnet resnet18 wide_resnet50_2 squeezenet1_0 googlenet mobilenet_v2 mobilenet_v3_large shufflenet_v2_x1_0 regnet_y_400mf
efficientnet_v2_s vit_b_16 swin_v2_t
""".split()
Models = Mapping[tuple[str, str], Model]


@pytest.fixture(scope="module")
def models() -> Models:
    """Every model of both libraries, which are imported when the first test asks: each worker collects this file."""
    return {(model.source, model.name): model for model in (*timm_models(), *torchvision_models())}


def counted(model: Model) -> Count:
    assert model.gmacs is not None, "there is no published row"
    found = count(model)
    assert (found.method, found.uncovered) == ("shapes", "")
    return found


@pytest.mark.parametrize("name", TIMM)
def test_a_model_of_timm_is_counted_as_published(models: Models, name: str) -> None:
    found = counted(models["timm", name])
    assert found.is_params_exact
    assert found.off == 0, f"{found.compared / 1e9:.4f} G, published {found.model.gmacs}"
    assert found.is_activations_exact, f"{found.activations / 1e6:.4f} M, published {found.model.macts}"


@pytest.mark.parametrize("name", TORCHVISION)
def test_a_model_of_torchvision_is_counted_as_published(models: Models, name: str) -> None:
    found = counted(models["torchvision", name])
    assert found.params == found.model.params
    assert found.off is not None
    assert found.off <= 0.01, f"{found.macs / 1e9:.4f} G, published {found.model.gmacs}"


def test_nearly_all_models_of_timm_have_a_published_row(models: Models) -> None:
    published = [model for model in models.values() if model.source == "timm" and model.gmacs is not None]
    assert len(published) >= 1100
