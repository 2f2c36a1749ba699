#!/usr/bin/env bash
# "make demo": a three-node lab with the examples, probed. Ends with what to try next.
set -euo pipefail
cd "$(dirname "$0")"
export PATH=$PWD/bin:$PATH
if [ "$(id -u)" != 0 ]; then
	echo "make demo: needs root, for network namespaces" >&2
	exit 2
fi
bold='' plain=''
if [ -t 1 ] && [ "${TERM:-dumb}" != dumb ] && [ -z "${NO_COLOR:-}" ]; then
	bold=$'\033[1m' plain=$'\033[0m'
fi
say() { printf '\n%s$ %s%s\n' "$bold" "$*" "$plain"; "$@"; }
lab=demo
if fairlead --lab $lab lab status >/dev/null 2>&1; then
	printf 'The lab "%s" runs already and is used as it is; "fairlead --lab %s lab down" ends it.\n' $lab $lab
else
	if fairlead lab list -o json | grep -q "\"name\": \"$lab\""; then
		echo "Of an earlier lab \"$lab\" only remains are left; they are removed:"
		say fairlead --lab $lab lab down
	fi
	say fairlead --lab $lab lab up --nodes 3
fi
say fairlead --lab $lab apply -f examples/
say fairlead --lab $lab lab check --all
say fairlead --lab $lab get pods
say fairlead --lab $lab get subnets
cat <<TEXT

The lab "$lab" goes on running. Try (with PATH=$PWD/bin:\$PATH, and --lab $lab if other labs run too):

  fairlead lab status                                      the nodes, their agents, the datastore
  fairlead lab shell bank/teller                           a shell inside a pod
  fairlead lab exec bank/teller -- ping -c1 172.30.254.10  any command inside a pod, here to the outside host
  fairlead get peers                                       how packets reach the other nodes
  fairlead node status node-1                              what one agent says of itself
  fairlead ipam show                                       who has which address
  fairlead lab fault agent-kill node-2                     break something, then
  fairlead lab check                                       see that traffic goes on
  fairlead audit                                           compare the kernel with what it should hold
  fairlead lab down                                        leave nothing behind
TEXT
