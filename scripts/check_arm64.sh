#!/bin/bash
# Carry out the steps of Dockerfile.jetson's target `cpu` in an arm64 Debian root, start what they install, and run the
# edge's tests there: make check-arm64.
#
# Needs root, debootstrap, and on another processor qemu-user-static (and proot, where binfmt_misc cannot be had). Takes
# up to an hour under emulation, so CI leaves it out. The root is Debian 12, the target's own base, with Python 3.11;
# JetPack's bases and its Pythons 3.10 and 3.12 are not tried here. The root is made anew each time, in TMPDIR, and
# removed.
#
# ARM64_MIRROR names another Debian mirror. pip's settings are taken over from the environment (PIP_*).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

needed=(debootstrap git)
[ "$(uname -m)" = aarch64 ] || needed+=(qemu-aarch64-static)
for program in "${needed[@]}"; do
    command -v "$program" > /dev/null ||
        { echo "check_arm64.sh: $program is missing: apt-get install debootstrap git qemu-user-static proot" >&2; exit 1; }
done
[ "$(id -u)" = 0 ] || { echo 'check_arm64.sh: only root can make the Debian root' >&2; exit 1; }
# In a mount namespace of its own, what is mounted below is gone when the script ends, however it ends.
[ -n "${ACESPEC_OWN_MOUNTS:-}" ] || ACESPEC_OWN_MOUNTS=1 exec unshare --mount "$0" "$@"

root=$(mktemp -d "${TMPDIR:-/var/tmp}/acespec-arm64.XXXXXX")
trap 'umount -R "$root/proc" "$root/dev" 2> /dev/null || true; rm -rf --one-file-system "$root"' EXIT
chmod 755 "$root"
stage() { printf '\n=== %s (%d s)\n' "$1" "$SECONDS"; }

# Of the environment only pip's settings and the proxies' enter the root.
settings=(PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive)
while IFS= read -r setting; do settings+=("$setting"); done < <(env | grep -E '^(PIP_[A-Z_]+|https?_proxy|no_proxy)=' | grep -v '^PIP_CERT=' || true)

# What a command prints is of interest when it fails.
quietly() { "$@" > "$root/log" 2>&1 || { tail -n 20 "$root/log"; return 1; }; }

in_root() {
    if chroot "$root" /bin/true 2> /dev/null; then
        env -i "${settings[@]}" chroot "$root" "$@"
    else
        env -i PROOT_NO_SECCOMP=1 "${settings[@]}" \
            proot -0 -q qemu-aarch64-static -r "$root" -b /proc -b /dev -w / "$@"
    fi
}

stage 'Debian 12 for arm64'
if [ "$(uname -m)" != aarch64 ]; then
    [ -e /proc/sys/fs/binfmt_misc/register ] || mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc || true
    update-binfmts --enable qemu-aarch64 2> /dev/null || true
fi
mirror=${ARM64_MIRROR:-http://deb.debian.org/debian}
quietly debootstrap --foreign --arch=arm64 --variant=minbase bookworm "$root" "$mirror"
quietly in_root /debootstrap/debootstrap --second-stage
if chroot "$root" /bin/true 2> /dev/null; then
    mount -t proc proc "$root/proc"
    mount --rbind /dev "$root/dev"
fi
cp -L /etc/resolv.conf "$root/etc/resolv.conf"
# Under a name of its own: the ca-certificates package would write over a bundle at its usual place.
if [ -n "${PIP_CERT:-}" ]; then
    install -m 644 "$PIP_CERT" "$root/pip-certificates.pem"
    settings+=(PIP_CERT=/pip-certificates.pem)
fi

stage "steps of Dockerfile.jetson's target cpu"
# The build context is what .dockerignore lets through; the tests get the whole checkout.
checkout() { git ls-files -z "$@" | tar --create --null --files-from=- ; }
mapfile -t context < <(sed -n 's/^!//p' .dockerignore)
mkdir "$root/context" "$root/checkout"
checkout -- "${context[@]}" | tar --extract --no-same-owner -C "$root/context"
checkout | tar --extract --no-same-owner -C "$root/checkout"
python3 scripts/dockerfile_steps.py Dockerfile.jetson cpu > "$root/steps.sh"
cat >> "$root/steps.sh" <<'STEPS'
as_user() { setpriv --reuid=10001 --regid=10001 --clear-groups "$@"; }
if ! as_user true; then  # proot has no other user than its own
    echo '*** the image cannot be run as its user here, and is not ***'
    as_user() { "$@"; }
fi
echo "=== start, as the image's user"
uname -m; python --version
if healthy; then exit 1; fi
as_user sh -c '. /functions.sh; default_start' > /tmp/help
grep -q 'Lossless edge-cloud speculative decoding' /tmp/help
as_user sh -c '. /functions.sh; healthy'
echo "=== tests"
pip install --quiet --no-cache-dir -c /checkout/requirements/edge.txt '/context[test]'
chown -R 10001:10001 /checkout
cd /checkout
# The two left out compare what a process that aborts leaves on standard error, where the emulator adds a line.
CI=true as_user pytest -m 'not real_model' -p no:cacheprovider --timeout 3000 -q \
    --deselect 'tests/test_doctor.py::test_a_probe_survives_its_code[import os; os.abort()-it ended the process by SIGABRT]' \
    --deselect tests/test_doctor.py::test_nothing_broken_stops_it
STEPS
grep -E '^(start|default_start|healthy)\(\)' "$root/steps.sh" > "$root/functions.sh"
in_root sh /steps.sh
stage 'done'
