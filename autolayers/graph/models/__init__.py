"""One file per architecture or family whose graph needs code, named as its file in llama.cpp's
src/models."""
