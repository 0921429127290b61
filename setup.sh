#!/bin/sh
# Makes .venv from requirements.lock; `make` calls it when the lock, the place or TORCH is another than .venv was made for.
#
#   sh setup.sh STAMP BUILD      STAMP: the file to leave in .venv when all is installed; BUILD: default | cpu
#
# Needs Python 3.11+ with venv and pip (PYTHON, python3 where it is not set), nothing else.
set -eu
stamp=$1 build=$2
python=${PYTHON:-python3} index=${TORCH_INDEX:-https://download.pytorch.org/whl/cpu}
venv=.venv

stop() {
    echo "error: $*" >&2
    exit 1
}

check() {
    case $build in default | cpu) ;; *) stop "TORCH=$build is no build of PyTorch here (cpu, default)" ;; esac
    command -v "$python" >/dev/null || stop "$python is not there: install Python 3.11 or newer, or say make PYTHON=/path/to/python3"
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        stop "$("$python" --version) is too old (3.11 or newer): make PYTHON=/path/to/python3.11"
    "$python" -c 'import ensurepip' 2>/dev/null ||
        stop "$python comes without ensurepip, which makes .venv: apt-get install python3-venv (Debian, Ubuntu), or make PYTHON=/path/to/another/python3"
}

# Scripts in .venv/bin name their place, and pip takes 2.14.1+cpu and 2.14.1 for the same torch: either is made afresh.
make_venv() {
    if [ -e $venv/made-for ] && [ "$(cat $venv/made-for)" != "$build $PWD" ]; then
        echo "making $venv afresh: it was made for $(cat $venv/made-for)"
        rm -rf $venv
    fi
    "$venv/bin/python" -c '' 2>/dev/null || "$python" -m venv --clear $venv
    rm -f $venv/installed-* $venv/pip.log
    echo "$build $PWD" >$venv/made-for
}

# The lock without PyTorch and what only its CUDA build needs.
without_torch() {
    awk '/^[^ ]/ { drop = /^(torch|torchvision|triton|nvidia-[^=]*|cuda-[^=]*)==/ } !drop' "$1"
}

install() {
    if [ "$build" = cpu ]; then
        without_torch requirements.lock >$venv/requirements-cpu.lock
        pip_install --require-hashes -r $venv/requirements-cpu.lock
        # shellcheck disable=SC2046  # two words are meant
        pip_install --index-url "$index" $(awk '/^torch(vision)?==/ { print $1 }' requirements.lock)
    else
        pip_install --require-hashes -r requirements.lock
    fi
}

# pip's log goes to a file, its progress in short to the terminal: what is larger than a megabyte, and the errors.
pip_install() {
    {
        $venv/bin/python -m pip install --no-deps --no-input --disable-pip-version-check --progress-bar off "$@" 2>&1 ||
            touch $venv/failed
    } | tee -a $venv/pip.log | while IFS= read -r line; do
        case $line in
        *.metadata*) ;;
        *" MB)" | *" GB)") echo "  ${line#"${line%%[! ]*}"}" ;;
        "Installing collected packages"*) echo "  unpacking: a few minutes" ;;
        esac
    done
    [ ! -e $venv/failed ] && return
    rm $venv/failed
    grep -v ' is ignored: ' $venv/pip.log | tail -n 15 >&2
    stop "pip could not install requirements.lock (all it said: $venv/pip.log); the same command goes on from here"
}

check
make_venv
if [ "$build" = cpu ]; then size="1.5 GB"; else size="up to 6 GB; TORCH=cpu: 1.5 GB"; fi
echo "installing $(grep -c '^[^ ]' requirements.lock) packages of requirements.lock into $venv ($size)"
install
touch "$stamp"
echo "$venv stands"
