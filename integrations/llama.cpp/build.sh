#!/bin/bash
# build.sh FOLDER [plain]: llama-server with an external drafter (FOLDER/extern) or as it is, and llama-quantize
# CMAKE_ARGS has more options for cmake.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1" && cd "$1"
build=${2:-extern} version=0.3.36 tree=$PWD
export PATH="$PWD/tools/bin:$PATH"
test "$build" = extern || tree=$PWD/$build.tree
source=$tree/llama_cpp_python-$version/vendor/llama.cpp

echo "$build takes 10 to 20 minutes on two cores, and resumes if it is interrupted"
test -e tools/bin/ninja || { "${PYTHON:-python3}" -m venv tools && tools/bin/pip install --quiet cmake ninja; }
test -e llama_cpp_python-$version.tar.gz ||
  tools/bin/pip download --quiet --no-deps --no-binary llama-cpp-python llama-cpp-python==$version
mkdir -p "$tree"
test -e "$source/unpacked" || { tar xzf llama_cpp_python-$version.tar.gz -C "$tree" && touch "$source/unpacked"; }
if test "$build" = extern; then
  python3 "$here/insert.py" "$source"
  cp --update "$here/speculative-extern.h" "$here/../../rust/c/specds.h" "$source/common"
  cp --update "$here/server-extern.h" "$source/tools/server"
fi
cmake -S "$source" -B "$tree/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF -DGGML_OPENMP=OFF \
  -DGGML_CCACHE=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_OPENSSL=OFF \
  -DLLAMA_USE_PREBUILT_UI=OFF ${CMAKE_ARGS:-}
nice ninja -C "$tree/build" -j "${JOBS:-2}" llama-server llama-quantize
cp "$tree/build/bin/llama-server" "$build" && cp "$tree/build/bin/llama-quantize" .
