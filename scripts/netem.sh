#!/bin/bash
# Give a network interface the delay, jitter, rate and loss of a wide-area link, by the kernel's own netem.
#
#   scripts/netem.sh up INTERFACE [--delay MS] [--jitter MS] [--rate 50kbps] [--loss PERCENT] [--dry-run]
#   scripts/netem.sh down INTERFACE [--dry-run]
#   scripts/netem.sh show INTERFACE
#
# Only what leaves the interface is shaped: run it at both ends, each with half of the round trip. Over lo both
# directions leave, so --delay 25 there is a round trip of 50 ms for everything on the machine that uses it. `up`
# again changes what is set; `down` gives the interface back. Another queue discipline that somebody has set on
# the interface is left alone, and refused. Needs root (not for --dry-run, which prints the command alone).
#
# As in `acespec wan-relay`, a packet is late by --delay and up to --jitter more, and rates are in bits a second.
# Without --rate, jitter lets packets overtake each other, which the relay never does.
#
# Exit status: 2 for what is not understood, 3 where there is no tc or no netem (then use acespec wan-relay).
set -euo pipefail

fail() { echo "netem.sh: $2" >&2; exit "$1"; }
usage() { sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" | sed -n '3,5p' >&2; fail 2 "$1"; }

action=${1:-} interface=${2:-}
case $action in
    up | down | show) ;;
    *) usage 'say up, down or show' ;;
esac
[[ $interface =~ ^[A-Za-z0-9][A-Za-z0-9_.@:-]{0,14}$ ]] || usage "name an interface, as lo or eth0"
shift 2

delay=0 jitter=0 rate='' loss='' dry_run=''
number='^([0-9]+)(\.[0-9]+)?$'
while [ $# -gt 0 ]; do
    case $1 in
        --dry-run) dry_run=yes; shift; continue ;;
        --delay | --jitter | --rate | --loss) [ "$action" = up ] || usage "$1 goes with up alone" ;;
        *) usage "what is $1?" ;;
    esac
    [ $# -ge 2 ] || usage "$1 needs a value"
    case $1 in
        --rate) # tc's own kbps are bytes
            [[ ${2,,} =~ ^([0-9]+(\.[0-9]+)?)([kmg]?)bps$ ]] || usage "--rate $2 is not a rate; write it as 50kbps"
            rate=${BASH_REMATCH[1]}${BASH_REMATCH[3]}bit ;;
        *)
            [[ $2 =~ $number ]] || usage "$1 $2 is not a number"
            declare "${1#--}=$2" ;;
    esac
    shift 2
done

command=(tc qdisc add dev "$interface" root netem limit 100000)
if [ "$action" = up ]; then
    # netem's jitter goes both ways from its delay, the relay's only adds to it.
    half=$(awk -v jitter="$jitter" 'BEGIN { print jitter / 2 }')
    middle=$(awk -v delay="$delay" -v half="$half" 'BEGIN { print delay + half }')
    command+=(delay "${middle}ms")
    [ "$half" = 0 ] || command+=("${half}ms")
    [ -z "$loss" ] || command+=(loss "$loss%")
    [ -z "$rate" ] || command+=(rate "$rate")
elif [ "$action" = down ]; then
    command=(tc qdisc del dev "$interface" root)
else
    command=(tc -s qdisc show dev "$interface")
fi
if [ -n "$dry_run" ]; then
    echo "${command[*]}"
    exit
fi

command -v tc > /dev/null || fail 3 'there is no tc here (apt-get install iproute2); acespec wan-relay needs none'
current=$(tc qdisc show dev "$interface" root 2>&1) || fail 1 "$current"
if [ "$action" != show ]; then
    case $current in
        'qdisc netem '*) [ "$action" = down ] || command[2]=change ;;
        '' | *' 0: '*) # the kernel's own
            [ "$action" = up ] || { echo "netem.sh: nothing is set on $interface"; exit; } ;;
        *) fail 1 "somebody has set another queue discipline on $interface, which is left alone: $current" ;;
    esac
fi
said=$("${command[@]}" 2>&1) || case $said in
    *'qdisc kind is unknown'* | *'Failed to find specified qdisc'* | *'No such file or directory'*)
        fail 3 "could not be run: this kernel has no netem (module sch_netem): $said; acespec wan-relay needs none" ;;
    *) fail 1 "$said" ;;
esac
[ -z "$said" ] || echo "$said"
[ "$action" = show ] || echo "${command[*]}"
