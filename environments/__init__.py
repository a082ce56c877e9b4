"""The tasks agents learn. One file each, whose name is its id and which exports ENVIRONMENT; `arithmetic.py` is the one to copy."""
