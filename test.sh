#!/usr/bin/env bash
# The tests behind "make test" (short) and "make test-long" (long). As root everything
# runs; without root, what can. What did not run is listed.
#   TEST_SECONDS=N  bounds the whole run (default 900 short, 3600 long)
set -euo pipefail
cd "$(dirname "$0")"
mode=${1:-short}
case $mode in
short) budget=${TEST_SECONDS:-900} ;;
long) budget=${TEST_SECONDS:-3600} ;;
*)
	echo "usage: $0 short|long" >&2
	exit 2
	;;
esac
if [ "$(id -u)" = 0 ]; then
	make --no-print-directory packages
else
	echo "not root: tests that need namespaces, nftables or BPF are left out; see the lists"
fi
make --no-print-directory build
mkdir -p .cache
go build -o .cache/report ./test/report
export FAIRLEAD_BIN=$PWD/bin
failed=0
run() { # run NAME DIR ARGS...
	echo "== $1"
	(cd "$2" && shift 2 && go test -json "$@" 2>&1) | .cache/report || failed=1
}

# Packages that start labs or whole plugins run one at a time: they have the machine's
# two cores to themselves. The others run side by side.
labs=(./lab ./test/lab/... ./test/conformance/...)
others=$(go list ./... | grep -v -e '/lab$' -e '/test/lab/' -e '/test/conformance/')

if [ "$mode" = short ]; then
	go vet ./... || failed=1
	# shellcheck disable=SC2086
	run "packages, race detector" . -race -p 2 -timeout "${budget}s" $others
	run "labs and plugins" . -p 1 -timeout "${budget}s" "${labs[@]}"
	run "CRDs" test/crd -timeout 300s ./...
	run "policy cases" test/cyclonus -timeout 300s ./...
	exit $failed
fi

# Long tests have Long in their names. A package that does not fit into the time that
# is left is named, not failed.
export FAIRLEAD_LONG=1
grep -rl --include=*_test.go 'func Test[A-Za-z0-9]*Long' internal lab test | xargs -n1 dirname | sort -u >.cache/long
while read -r dir; do
	left=$((budget - SECONDS))
	if [ "$left" -lt 240 ]; then
		echo "did not run: the long tests of $dir: ${left}s of ${budget}s are left"
		continue
	fi
	run "long tests of $dir" . -timeout "${left}s" -run Long "./$dir"
done <.cache/long
exit $failed
