"""Decides before a model provider is called whether the call may be paid for, and books the true cost after."""
