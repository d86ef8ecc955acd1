"""Why a launch failed or is slow, read from its log.

    from autolayers.diagnosis.diagnosis import explain

    answer = explain("server.log")
    # "oom_device", "cache", "CUDA0", ...
    answer.cause, answer.phase, answer.device, answer.bytes, answer.fatal

Nothing is imported here: whoever only reads buffers (log.py) needs none of the signs.
"""
