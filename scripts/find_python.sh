#!/bin/sh
# Print the first Python interpreter that works, of the versions named, the preferred first: find_python.sh 3.11 3.12
#
# "Works" is tried, not assumed: a version manager may leave a launcher on PATH for a version it would refuse to
# run, and some distributions ship a Python that cannot create virtual environments. Versions installed by pyenv
# but not activated are found as well.
set -u
for version in "$@"; do
    for candidate in "python$version" "${PYENV_ROOT:-${HOME:-}/.pyenv}/versions/$version".*/bin/python python3; do
        if "$candidate" - "$version" 2>/dev/null <<'CHECK'
import ensurepip, ssl, sys, venv
sys.exit(".".join(map(str, sys.version_info[:2])) != sys.argv[1])
CHECK
        then
            command -v "$candidate"
            exit 0
        fi
    done
done
exit 1
