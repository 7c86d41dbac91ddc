#!/bin/bash
# build.sh FOLDER: llama-server as it is and with an external drafter, FOLDER/plain and FOLDER/extern, from the package index
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1" && cd "$1"
source=llama_cpp_python-0.3.36/vendor/llama.cpp
export PATH="$PWD/tools/bin:$PATH"

build() {
  nice ninja -C build -j "${JOBS:-2}" llama-server && cp build/bin/llama-server "$1"
}

if ! test plain -nt "$here/extern.patch"; then
  "${PYTHON:-python3}" -m venv tools && tools/bin/pip install --quiet cmake ninja
  tools/bin/pip download --quiet --no-deps --no-binary llama-cpp-python llama-cpp-python==0.3.36
  rm -rf "$source" && tar xzf llama_cpp_python-0.3.36.tar.gz
  cmake -S "$source" -B build -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF -DGGML_OPENMP=OFF \
    -DGGML_CCACHE=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_OPENSSL=OFF \
    -DLLAMA_USE_PREBUILT_UI=OFF
  build plain
  patch --directory "$source" --strip 1 < "$here/extern.patch"
fi
cp --update "$here/speculative-extern.h" "$here/../../rust/c/specds.h" "$source/common"
build extern
