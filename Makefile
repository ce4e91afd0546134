# make alone prints the targets.
SHELL := /bin/bash
BIN   := bin/kube-splice
PKGS  := ./...
SUDO  := $(shell [ "$$(id -u)" = 0 ] || echo sudo)

# Debian packages: what the demo needs, and what the tests drive besides.
DEMO_PACKAGES := iptables iproute2
TEST_PACKAGES := $(DEMO_PACKAGES) nftables conntrack socat strace util-linux procps gcc libc6-dev nginx libnginx-mod-stream haproxy
BENCH_PACKAGES := $(DEMO_PACKAGES) haproxy nginx libnginx-mod-stream util-linux gcc libc6-dev

STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOVULNCHECK := golang.org/x/vuln/cmd/govulncheck@v1.9.0
GOSEC := github.com/securego/gosec/v2/cmd/gosec@v2.30.0
# What gosec finds and is meant:
#   G103, G115  system calls take pointers, and numbers of the kernel's sizes
#   G204        the iptables programs, and the demo's own command, are run by name
#   G302, G306  the connection log is for its group, a written configuration for all
#   G304        the files are those that the operator names, or the kernel's own
#   G404        nobody gains by guessing which port or endpoint is next
# The lab is no part of a node: its folders are open, as ip-netns(8) makes them.
GOSEC_MEANT := proxy/.*:G103,G115,G404;balancer/.*:G404;redirect/.*:G204;cmd/.*:G204,G302,G304
GOSEC_MEANT := $(GOSEC_MEANT);config/.*:G304,G306;source/.*:G304;lab/.*:G104,G115,G301,G302,G304,G705
# What the tests are called whose outcome is the relay engine's.
CONNECTION_TESTS := Sending|HalfClosed|Reset|EndpointThat|Dials|BytesSent|ReadyEndpoints|Vanished|Keepalive|Probes|Shortage|IdleTimeout|Header|Terminated|KilledProgram|LineForEveryEnd
FUZZTIME ?= 30s
CHURN ?= 60s
SOAK ?= 10m
BENCHFLAGS ?=

.PHONY: help
help: ## print this
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-13s%s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## build bin/kube-splice, a static binary
	CGO_ENABLED=0 go build -trimpath -o $(BIN) ./cmd/kube-splice

.PHONY: demo
demo: build demo-packages ## run the proxy in a lab of network namespaces and show what it does
	$(BIN) lab demo

.PHONY: test
test: test-packages ## run all tests, with the race detector; those of connections on both relay engines
	go test -race -timeout 20m $(PKGS)
	KUBE_SPLICE_RELAY=copy go test -race -timeout 20m ./proxy
	KUBE_SPLICE_RELAY=copy go test -race -timeout 20m -run '$(CONNECTION_TESTS)' ./cmd/kube-splice

.PHONY: test-cluster
test-cluster: bin/controlplane test-packages ## run the tests against a real API server (its first build takes 10 to 20 minutes)
	KUBE_SPLICE_CONTROLPLANE=$(CURDIR)/bin/controlplane go test -race -timeout 30m -tags cluster -run '^TestCluster' ./cmd/kube-splice

.PHONY: churn
churn: test-packages ## send 5,000 new UDP clients a second through the proxy for CHURN (60s)
	KUBE_SPLICE_CHURN=$(CHURN) go test -count 1 -v -run '^TestUDPClientsThatComeAndGoLeaveNothingBehind$$' ./cmd/kube-splice

.PHONY: soak
soak: test-packages ## put mixed load on the relay engines for SOAK (10m) each
	KUBE_SPLICE_SOAK=$(SOAK) go test -race -count 1 -v -timeout 24h -run '^TestSoak$$' ./proxy/relay

# A Kubernetes control plane for tests. Its first build compiles 2,200 packages;
# later ones link only.
bin/controlplane: $(wildcard testdata/controlplane/*)
	cd testdata/controlplane && version=$$(go list -m -f '{{.Version}}' k8s.io/kubernetes) && \
	IFS=. read -r major minor _ <<<"$${version#v}" && at=k8s.io/component-base/version && \
	nice go build -o ../../$@ \
	  -ldflags "-s -w -X $$at.gitVersion=$$version -X $$at.gitMajor=$$major -X $$at.gitMinor=$$minor" .

.PHONY: fuzz
fuzz: ## run every fuzz target for FUZZTIME (30s)
	@set -e; for file in $$(grep -rlE '^func Fuzz' --include='*_test.go' .); do \
	  for target in $$(grep -oE '^func Fuzz[A-Za-z0-9_]+' $$file | cut -d' ' -f2); do \
	    echo "== $$target in $$(dirname $$file)"; $(call fuzz_one,$$target,$$(dirname $$file)); \
	  done; done

# fuzz_one TARGET FOLDER. A run whose time ends while a worker is busy is reported by
# go test as "context deadline exceeded"; that is no finding.
define fuzz_one
set -o pipefail; said=$$(mktemp); \
if ! go test -run '^$$' -fuzz "^$(1)$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 10x ./$(2) 2>&1 | tee $$said; then \
  if grep -qE 'Failing input|panic:|DATA RACE' $$said || ! grep -q 'context deadline exceeded' $$said; then exit 1; fi; \
  echo "(its time ended while a worker was busy; nothing was found)"; \
fi; rm -f $$said
endef

.PHONY: bench
bench: build bench-packages ## compare the cost of relaying TCP with HAProxy's and nginx's (5 minutes)
	cd testdata/bench && go run . $(BENCHFLAGS)

.PHONY: bench-udp
bench-udp: build bench-packages ## compare the cost of relaying UDP with nginx's (8 minutes)
	cd testdata/bench-udp && go run .

.PHONY: bench-go
bench-go: ## run the benchmarks of the balancer, the listeners and the rules
	go test -run '^$$' -bench . -benchmem ./balancer ./proxy ./redirect

.PHONY: lint
lint: ## gofmt, go vet, staticcheck, gosec (its first build takes some minutes)
	@test -z "$$(gofmt -l .)" || { echo "gofmt would change: $$(gofmt -l .)"; exit 1; }
	go vet $(PKGS)
	go vet -tags cluster ./cmd/kube-splice
	go run $(STATICCHECK) $(PKGS)
	go run $(GOSEC) -quiet -exclude-dir testdata -nosec-require-rules -nosec-require-justification -exclude-rules '$(GOSEC_MEANT)' $(PKGS)

.PHONY: vulncheck
vulncheck: ## govulncheck: calls that reach known vulnerabilities; asks https://vuln.go.dev
	go run $(GOVULNCHECK) $(PKGS)

.PHONY: image
image: ## build the container image kube-splice:latest
	docker build -t kube-splice:latest .

.PHONY: clean
clean: ## remove what was built
	rm -rf bin

.PHONY: demo-packages test-packages bench-packages
demo-packages:
	@$(call install,$(DEMO_PACKAGES))
test-packages:
	@$(call install,$(TEST_PACKAGES))
bench-packages:
	@$(call install,$(BENCH_PACKAGES))

# install PACKAGES installs those Debian packages that are missing.
define install
missing=$$(for p in $(1); do dpkg -s $$p >/dev/null 2>&1 || echo $$p; done); \
if [ -n "$$missing" ]; then \
  echo "installing $$missing" && $(SUDO) apt-get update -qq && \
  DEBIAN_FRONTEND=noninteractive $(SUDO) apt-get install -y -qq --no-install-recommends $$missing >/dev/null; \
fi
endef
