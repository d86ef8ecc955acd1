"""The memory model: what a launch of llama-server allocates, per device, to the byte.

Estimator(model).breakdown(params, devices)      # estimate.py
"""
