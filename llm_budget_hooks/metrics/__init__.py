"""Observers that feed metrics and traces; each is a module of its own, and takes the extra of the same name.

Labels are bounded: a value that comes after the first few hundred is counted as ``other``, so that made-up names of
models or tenants cannot grow a series each. No user is a label unless it is asked for.
"""
