# Fairlead. "make demo" shows it, "make test" tests it; docs/development.md tells the rest.

SHELL       := /bin/bash
.SHELLFLAGS := -euo pipefail -c

GO      ?= go
BIN     := bin
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS := -s -w -X main.version=$(VERSION)

# What tests and benchmarks need beside Go (Debian names). "make packages" installs what is missing.
PACKAGES := nftables iproute2 iputils-ping tcpdump conntrack etcd-server openvswitch-switch containernetworking-plugins gcc libc6-dev

.PHONY: all build demo test test-long bench generate lint packages clean

all: build

build: ## the four binaries, into bin/
	@mkdir -p $(BIN)
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN)/ ./cmd/fairlead ./cmd/fairlead-agent ./cmd/fairlead-controller ./cmd/fairlead-cni

packages: ## install the Debian packages that are missing (root)
	@missing=""; for p in $(PACKAGES); do dpkg-query -W -f '$${Status}' "$$p" 2>/dev/null | grep -q 'ok installed' || missing="$$missing $$p"; done; \
	if [ -n "$$missing" ]; then \
		if [ "$$(id -u)" != 0 ]; then echo "make packages: missing:$$missing; run it as root to install them" >&2; exit 2; fi; \
		echo "installing$$missing"; apt-get update -qq; DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing; \
	fi

demo: packages build ## a three-node lab with the examples, probed
	@./demo.sh

test: ## everything that takes under 15 minutes; as root, else what it can
	@./test.sh short

test-long: ## the rest: long property tests, faults, big labs (TEST_SECONDS bounds it)
	@./test.sh long

bench: packages build ## ratios against baselines, interleaved; docs/benchmarks.md (BENCH="-only cni" chooses)
	@mkdir -p .cache
	$(GO) build -o .cache/bench ./test/bench
	.cache/bench -bin $(BIN) $(BENCH)

generate: ## deepcopy functions, CRDs, BPF objects
	$(GO) tool -modfile=tools/go.mod controller-gen object paths=./api/... crd output:crd:dir=deploy/crds
	$(GO) generate ./internal/apply/bpf

lint: ## vet, golangci-lint, govulncheck
	$(GO) vet ./...
	$(GO) tool -modfile=tools/go.mod golangci-lint run ./...
	$(GO) tool -modfile=tools/go.mod govulncheck ./...

clean:
	rm -rf $(BIN)
