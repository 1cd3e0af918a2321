#!/bin/sh
# Compilers from pip where the machine has none. Argument: the virtual environment's bin folder.
#   C/C++  links the CPU kernels and builds the launcher; without one, ziglang stands in.
#   nvcc   is needed only to build CUDA kernels; without it and without the wheels, the CPU target still works.
#   nvdisasm  shows machine code, in which lost waits are looked for; without it kernels are built all the same.
set -eu
bin=$1

if ! command -v cc >/dev/null 2>&1 && ! command -v gcc >/dev/null 2>&1 && ! command -v clang >/dev/null 2>&1; then
    echo "no C compiler on the PATH: installing ziglang" >&2
    "$bin/python" -m pip install --quiet 'ziglang>=0.13'
    for name in cc gcc c++ g++; do
        case $name in *++) mode=c++ ;; *) mode=cc ;; esac
        printf '#!/bin/sh\nexec "%s/python" -m ziglang %s "$@"\n' "$(cd "$bin" && pwd)" "$mode" >"$bin/$name"
        chmod +x "$bin/$name"
    done
fi

if ! command -v nvcc >/dev/null 2>&1; then
    echo "no nvcc on the PATH: installing NVIDIA's compiler wheels" >&2
    "$bin/python" -m pip install --quiet 'nvidia-cuda-nvcc>=13.0.48,<13.1' 'nvidia-nvvm>=13.0,<13.1' 'nvidia-cuda-crt>=13.0,<13.1' 'nvidia-cuda-nvrtc>=13.0,<13.1' \
        'nvidia-cuda-cccl>=13.0.50,<13.1' 'nvidia-cuda-runtime>=13.0,<13.1' ||
        echo "could not install them: CUDA kernels will not build here (the CPU target does)" >&2
fi

nvcc=$(command -v nvcc || true)
if ! command -v nvdisasm >/dev/null 2>&1 && ! test -x "${CUDA_HOME:-/usr/local/cuda}/bin/nvdisasm" &&
    ! test -x "$(dirname "$(readlink -f "${nvcc:-nvcc}" || true)")/nvdisasm"; then
    echo "no nvdisasm on the PATH or beside nvcc: installing NVIDIA's wheel" >&2
    "$bin/python" -m pip install --quiet 'nvidia-cuda-nvdisasm>=13.0,<14' ||
        echo "could not install it: machine code is not looked at" >&2
fi
