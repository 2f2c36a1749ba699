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

generate: ## deepcopy functions, CRDs, BPF objects, manifests
	$(GO) tool -modfile=tools/go.mod controller-gen object paths=./api/... crd output:crd:dir=deploy/crds
	$(GO) generate ./internal/apply/bpf
	cd tools/chart && $(GO) run .

lint: ## vet, golangci-lint, govulncheck
	$(GO) vet ./...
	$(GO) tool -modfile=tools/go.mod golangci-lint run ./...
	$(GO) tool -modfile=tools/go.mod govulncheck ./...

clean:
	rm -rf $(BIN)

# A real Kubernetes cluster on this machine (root; docs/kubernetes.md). Its programs are built from their Go modules
# into the user's cache directory: the first time takes tens of minutes.
KUBE_PACKAGES := runc conntrack nftables iptables busybox-static iproute2 gcc libc6-dev
KUBE          := .cache/kubernetes
NODES         ?= 3
FOCUS         ?= (\[sig-network\].*\[Conformance\])|Netpol
TESTS         ?= smoke e2e cnp

.PHONY: images kube-packages kube-tool kube-up kube-test kube-bench kube-faults kube-load kube-down

images: build ## the image of our programs, an OCI archive, without a container engine
	$(GO) run ./deploy/images -bin $(BIN) -o $(BIN)/fairlead-images.tar

kube-packages:
	@$(MAKE) --no-print-directory packages PACKAGES="$(KUBE_PACKAGES)"

kube-tool:
	@mkdir -p .cache
	$(GO) build -o $(KUBE) ./test/kubernetes

kube-up: kube-packages images kube-tool ## a cluster with Fairlead (NODES=3; VALUES=FILE of the chart, UPFLAGS)
	$(if $(VALUES),cd tools/chart && $(GO) run . -values $(abspath $(VALUES)) -dir $(CURDIR)/.cache)
	$(KUBE) up --nodes $(NODES) $(if $(VALUES),--manifest .cache/fairlead.yaml) $(UPFLAGS)

kube-test: kube-tool ## what Kubernetes' own tests say (FOCUS and TESTS choose), after checks of our own
	$(if $(filter smoke,$(TESTS)),$(KUBE) smoke)
	$(if $(filter e2e,$(TESTS)),$(KUBE) e2e '$(FOCUS)')
	$(if $(filter cnp,$(TESTS)),$(KUBE) cnp)

kube-bench: kube-tool ## how long pods take to be Ready, and ADD's share of it
	$(KUBE) bench

kube-faults: build kube-tool ## pods come and go, agents, nodes and the API server go away: what must hold; and every right is used
	$(KUBE) churn --fairlead $(BIN)/fairlead
	$(KUBE) faults --fairlead $(BIN)/fairlead
	$(KUBE) verbs

kube-load: images kube-tool ## upgrade Fairlead on the running cluster to this tree
	$(KUBE) load

kube-down: kube-tool ## stop the cluster and remove everything of it
	$(KUBE) down
