"""Variants and options of an environment, checked by name and type before anything starts."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

from pbt_agents.environments._splits import check_split
from pbt_agents.errors import ConfigError, unknown_name

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Settings = TypeVar("Settings", bound="DataclassInstance")


def choose(environment: str, variants: Mapping[str, Settings], variant: str, split: str, options: Mapping[str, Any]) -> Settings:
    """The settings of a variant, with the options that were given in place of its own. The settings check the values themselves."""
    check_split(split)
    if variant not in variants:
        raise unknown_name(f"variant of {environment}", variant, variants)
    types = get_type_hints(type(variants[variant]))
    for name, value in options.items():
        if name not in types:
            raise unknown_name(f"option of {environment}", name, types)
        if not isinstance(value, types[name]) and not (isinstance(value, int) and isinstance(0.0, types[name])):
            kind = getattr(types[name], "__name__", types[name])
            raise ConfigError(f"option {name} of {environment} must be {kind}, got {value!r}, which is {type(value).__name__}.")
    return replace(variants[variant], **options)
