"""Stub."""
from __future__ import annotations


def matrices(model, params, used, found, groups, buffers):
    return buffers, False


def shared_out(model, params, used, found, groups, buffers):
    return buffers, False
