"""Options of an environment, checked by name before anything starts."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from pbt_agents.errors import unknown_name

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Settings = TypeVar("Settings", bound="DataclassInstance")


def choose_variant(environment: str, variants: Mapping[str, Settings], variant: str, options: Mapping[str, Any]) -> Settings:
    """The settings of a variant, with the options that were given in place of its own."""
    if variant not in variants:
        raise unknown_name(f"variant of {environment}", variant, variants)
    settings = variants[variant]
    known = [field.name for field in fields(settings)]
    for name in options:
        if name not in known:
            raise unknown_name(f"option of {environment}", name, known)
    return replace(settings, **options)
