#!/usr/bin/env bash
# The tests behind "make test" (short) and "make test-long" (long). As root everything
# runs; without root, what can. What did not run is listed at the end.
#   TEST_SECONDS=N  bounds the whole run (default 900 short, 3600 long)
set -euo pipefail
cd "$(dirname "$0")"
mode=${1:-short}
case $mode in
short) budget=${TEST_SECONDS:-900} ;;
long) budget=${TEST_SECONDS:-3600} ;;
*) echo "usage: $0 short|long" >&2; exit 2 ;;
esac
if [ "$(id -u)" = 0 ]; then
	make --no-print-directory packages
else
	echo "not root: tests that need namespaces, nftables or BPF are left out; see the list at the end"
fi
make --no-print-directory build
mkdir -p .cache
go build -o .cache/report ./test/report
export FAIRLEAD_BIN=$PWD/bin FAIRLEAD_LONG=
run() { # run NAME DIR ARGS...
	echo "== $1"
	(cd "$2" && shift 2 && go test -json "$@" 2>&1) | .cache/report
}
if [ "$mode" = long ]; then
	export FAIRLEAD_LONG=1
	run "long tests" . -p 1 -timeout "${budget}s" -run 'Long|Lab|Scenario' ./...
	exit
fi
go vet ./...
run "all packages, race detector" . -race -p 2 -timeout "${budget}s" ./...
for module in test/crd; do
	run "$module" "$module" -timeout 300s ./...
done
