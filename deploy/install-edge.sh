#!/bin/sh
# Install the edge into an image, from the sources beside this script: install-edge.sh EXTRA
#
# Makes environment/ in the working directory, where the image's PATH expects it, with the package, the EXTRA's pinned
# dependencies and the entry point; makes the user the container runs as, and the folder its engines are kept in. The
# sources are removed. Every target of Dockerfile.jetson calls it, and so does `make check-arm64`.
set -eu
extra=$1
sources=$(cd "$(dirname "$0")/.." && pwd)

python3 -m venv environment
environment/bin/pip install --no-cache-dir -c "$sources/requirements/edge.txt" "$sources[$extra]"

# TensorRT's module is the system's. Its folder goes behind the environment's own, so that of all it holds only what
# the environment lacks is taken from there. Looked for, not imported: on a Jetson the libraries the import needs
# are mounted when the container starts, and are not there while the image is built.
folder=$(python3 -c 'import importlib.util as u; s = u.find_spec("tensorrt"); print(s.origin if s else "")')
folder=$(dirname "$(dirname "$folder")")
case $extra in
jetpack*)
    test "$folder" != . || { echo 'install-edge.sh: the base has no Python module tensorrt' >&2; exit 1; }
    packages=$(environment/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    echo "$folder" > "$packages/tensorrt.pth"
    ;;
esac

install -m 755 "$sources/deploy/edge-entrypoint.sh" environment/bin/edge-entrypoint
rm -rf "$sources"

# Device files of a Jetson's GPU belong to the group video.
useradd --no-create-home --home-dir /tmp --uid 10001 --user-group --groups video acespec
install -d -o 10001 -g 10001 /engines
