from .engine import Engine

IK_LLAMA = Engine("ik_llama.cpp", whole_batches=True, one_sequence=True)
