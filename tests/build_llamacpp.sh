#!/bin/sh
# Builds llama-server, llama-fit-params, llama-bench and ggml-rpc-server once, for the tests marked `llamacpp`, and
# libmockcuda.so (fixtures/recorder/mock_cuda.py) in the same directory, which it prints. About 15 minutes on two cores.
# Source: llama.cpp as the PyPI package llama-cpp-python 0.3.36 carries it (build 11311).
set -eu
version=0.3.36
cache=${AUTOLAYERS_CACHE:-$HOME/.cache/autolayers-tests}/llama-cpp-python-$version
bin=$cache/build/bin
if [ ! -e "$cache/done" ]; then
    mkdir -p "$cache"
    {
        [ -e "$cache/source/vendor" ] || {
            ${PYTHON:-python3} -m pip download --no-binary llama-cpp-python --no-deps -d "$cache" \
                "llama-cpp-python==$version"
            mkdir -p "$cache/source"
            tar -xzf "$cache"/llama_cpp_python-$version.tar.gz -C "$cache/source" --strip-components 1
        }
        source=$cache/source/vendor/llama.cpp
        rm -rf "$source/.git" # a file that points nowhere: cmake would be run again and again for it
        cmake -S "$source" -B "$cache/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=OFF -DGGML_RPC=ON \
            -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF
        nice ninja -C "$cache/build" llama-server llama-fit-params llama-bench ggml-rpc-server
        touch "$cache/done"
    } >&2
fi
[ -e "$bin/llama-bench" ] || nice ninja -C "$cache/build" llama-bench >&2
source=$cache/source/vendor/llama.cpp
maker=$(dirname "$0")/../fixtures/recorder
newest=$(ls -t "$maker"/mock_cuda* | head -n 1)
if [ ! -e "$bin/libmockcuda.so" ] || [ "$newest" -nt "$bin/libmockcuda.so" ]; then
    ${PYTHON:-python3} "$maker/mock_cuda.py" "$source" "$cache/mock_cuda.cpp" >&2
    c++ -std=c++17 -O1 -fPIC -shared -w "$cache/mock_cuda.cpp" -I"$source/ggml/include" -I"$source/ggml/src" \
        -o "$bin/libmockcuda.so.new" >&2
    mv "$bin/libmockcuda.so.new" "$bin/libmockcuda.so"
fi
echo "$bin"
