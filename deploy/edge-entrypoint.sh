#!/bin/sh
# What the edge's container starts with: compile the bundle's engines, then run `acespec` with the arguments given, on
# TensorRT where that works.
#
# ACESPEC_BUNDLE   the draft's bundle; default /bundle
# ACESPEC_ENGINES  where plans are kept (acespec reads it); default /engines, a volume, so that later starts find them
# ACESPEC_COMPILE  `auto` (default): compile where TensorRT works; `never`: leave it, for ONNX Runtime's kernels
# ACESPEC_RUNTIME  what computes the draft's steps (acespec reads it); default `tensorrt` once its engines are there
# ACESPEC_READY    file that says the engines are ready and the command was started, for the image's health check
#
# Whether a plan is still the right one (TensorRT, device, graph) is decided by `acespec engine build`, which compiles
# nothing that stands; so it is called at every start.
set -eu
bundle=${ACESPEC_BUNDLE:-/bundle}
export ACESPEC_ENGINES="${ACESPEC_ENGINES:-/engines}"
compile=${ACESPEC_COMPILE:-auto}
ready=${ACESPEC_READY:-/tmp/acespec-ready}
# What `acespec engine build` does first. The last line of its error says whether a module is missing, a library (often
# for want of --runtime nvidia), or the device.
probe='from acespec.edge_runtime.engine_command import build_target; build_target("tensorrt", None)'

say() {
    echo "edge-entrypoint: $1" >&2
}

rm -f "$ready"
case $compile in
never) say 'ACESPEC_COMPILE=never: no engine is compiled' ;;
auto)
    if [ ! -e "$bundle/manifest.json" ]; then
        say "no bundle in $bundle: no engine is compiled"
    elif ! reason=$(python -c "$probe" 2>&1); then
        say "TensorRT does not work here ($(echo "$reason" | tail -n 1)): no engine is compiled"
    else
        acespec engine build "$bundle"
        export ACESPEC_RUNTIME="${ACESPEC_RUNTIME:-tensorrt}"
    fi
    ;;
*)
    say "ACESPEC_COMPILE is '$compile'; it can be 'auto' or 'never'"
    exit 2
    ;;
esac
: > "$ready"
exec acespec "$@"
