# Every target that a person may call has a ## comment; "make help" lists them.

STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
REVIVE      := github.com/mgechev/revive@v1.16.0
GOTESTSUM   := gotest.tools/gotestsum@v1.13.0
BENCHSTAT   := golang.org/x/perf/cmd/benchstat@v0.0.0-20260908200009-22c9c6c9d4da
HELM        := helm.sh/helm/v3/cmd/helm@v3.22.0
NFPM        := github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.45.2
GOVULNCHECK := golang.org/x/vuln/cmd/govulncheck@v1.9.0
# Those that kubectl 1.32, 1.33 and 1.34 have built in.
KUSTOMIZE := sigs.k8s.io/kustomize/kustomize/v5@v5.5.0 sigs.k8s.io/kustomize/kustomize/v5@v5.6.0 \
	sigs.k8s.io/kustomize/kustomize/v5@v5.7.1

VERSION  := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
COMMIT   := $(shell git rev-parse HEAD 2>/dev/null)
DIST     ?= dist
MODEL    ?= 10000
BASELINE ?= bin/micro-baseline.txt

# Go's build cache keeps some seven hundred packages anew for each way of compiling, which without them is a minute for
# two cores. So all is compiled as a release is, but for the race detector, which needs cgo. Test programs are linked
# without what a debugger reads, which takes a third of the linker's time.
export CGO_ENABLED := 0
export GOFLAGS := $(sort $(GOFLAGS) -trimpath -ldflags=-s)
# The tests fail, instead of skipping, where a kernel facility is missing.
export SLUICE_REQUIRE_NETNS = 1
export GOTESTSUM

.NOTPARALLEL:
.DEFAULT_GOAL := help
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
# What has no slash in its name is no file.
.PHONY: $(shell sed -nE 's/^([a-z0-9-]+):.*/\1/p' Makefile)

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

deps: ## install the programs and Go modules that are missing
	@.ci/deps

PROGRAM = go build -buildvcs=false -ldflags '-s -w -X main.version=$(VERSION) -X main.commit=$(COMMIT)' -o

build: ## build bin/sluice
	$(PROGRAM) bin/sluice ./cmd/sluice

install: build ## install the program, the manual page, completions and the unit below PREFIX (/usr/local)
	deploy/release/install bin/sluice $(DESTDIR)$(or $(PREFIX),/usr/local)

demo: build bin/demo ## show Services balanced between hosts made of network namespaces
	@.ci/deps demo
	bin/demo -sluice bin/sluice

docs: ## write the pages that are generated: docs/reference, the chart's README, rules.yaml
	SLUICE_UPDATE=1 go test -count=1 -run '^(TestPages|TestReadme|TestRulesFile)$$' ./cmd/sluice/internal/reference \
		./cmd/sluice/internal/observe/metrics ./deploy/helm

# The program for other machines, and the programs of bench, a module of its own.
PLATFORMS = linux-amd64/sluice linux-arm64/sluice windows-amd64/sluice.exe
.PHONY: $(PLATFORMS:%=bin/%) $(PLATFORMS:%=bin/release/%) bin/compare bin/demo bin/vm
$(PLATFORMS:%=bin/%) $(PLATFORMS:%=bin/release/%):
	GOOS=$(firstword $(subst -, ,$(notdir $(@D)))) GOARCH=$(lastword $(subst -, ,$(@D))) $(PROGRAM) $@ ./cmd/sluice
bin/compare bin/demo bin/vm:
	go build -C bench -buildvcs=false -o ../$@ ./$(@F)

image: bin/linux-amd64/sluice bin/linux-arm64/sluice ## build the image bin/sluice-image.tar, an OCI archive
	@.ci/deps image $(VARIANT)
	deploy/image/build bin $(VARIANT)

image-iptables: ## build the image with iptables and ipset, bin/sluice-image-iptables.tar
	$(MAKE) image VARIANT=iptables

release: ## pack a release into dist/: make release VERSION=0.1.0
	@[ "$(origin VERSION)" = "command line" ] || { echo "release: say which: make release VERSION=0.1.0" >&2; exit 1; }
	@.ci/deps image release
	$(MAKE) build $(PLATFORMS:%=bin/release/%)
	rm -rf $(DIST)
	HOST=bin/sluice NFPM=$(NFPM) deploy/release/build $(VERSION) bin/release $(DIST)

test-release: ## pack a release twice and compare, and look at what is in it
	$(MAKE) release VERSION=0.0.1
	$(MAKE) release VERSION=0.0.1 DIST=bin/release/again
	diff -r $(DIST) bin/release/again
	deploy/release/check $(DIST) 0.0.1

test-deb: ## install, upgrade under load and purge the package for Debian, in a VM with systemd; needs root
	@.ci/deps test
	$(MAKE) release VERSION=0.0.1
	$(MAKE) release VERSION=0.0.2 DIST=bin/release/next
	deploy/release/test-deb $(DIST)/sluice_0.0.1_$$(go env GOARCH).deb bin/release/next/sluice_0.0.2_$$(go env GOARCH).deb

# What the API server consists of is compiled, and the VM computes, in the time that tests leave idle (SCHED_IDLE): they
# take seven minutes of a core, and half an hour of one. The VM's clock is its own, and it does not take a processor from
# who counts milliseconds. What waits the most comes first.
IDLE = .ci/beside chrt --idle 0 $(MAKE) systems test-vm

test: deps ## run every test
	@rm -rf bin/runs
	$(IDLE) -- $(MAKE) test-program test-beside
	@.ci/test summary

verify: deps ## run all that CI runs
	@rm -rf bin/runs
	$(IDLE) cross -- $(MAKE) lint race-program test-program test-beside demo VERIFY=1
	@.ci/test summary

# The tests against an API server wait for five seconds of six, and those under wine and of bench for half of the time.
# The tests of single packages fill what processors there are. None of all these counts milliseconds.
test-beside:
	.ci/beside $(MAKE) e2e test-wine test-bench -- $(MAKE) $(if $(VERIFY),race-packages) test-packages

race: race-packages race-program ## run the tests under the race detector (needs a C compiler)
e2e: deps build systems bin/sluice-image.tar bin/sluice-image-iptables.tar ## run the tests against a real API server
test-arm64: ## run the unit tests of the build for linux/arm64 under QEMU, about 5 minutes
	@.ci/deps arm64
	.ci/test arm64
test-bench: deps ## run the tests of the demonstration and the measurements
test-packages: deps ## run the tests of single packages
test-program: deps build image image-iptables ## run the tests of the whole program
test-vm: deps bin/vm ## run the tests that need ip_vs, sctp or dummy devices, on a Debian kernel in a VM
test-wine: deps ## run the tests of what serves on Windows, under wine
race-packages race-program: deps build
e2e test-bench test-packages test-program test-vm test-wine race-packages race-program:
	.ci/test $(@:test-%=%) $(if $(VERIFY),unraced)

# What the tests against an API server run.
systems: bin/kube-apiserver bin/kube-proxy bin/etcd bin/helm \
	$(foreach k,$(KUSTOMIZE),bin/kustomize/$(lastword $(subst @, ,$k))/kustomize)

bin/kube-apiserver bin/kube-proxy bin/etcd &: deploy/e2e/apiserver/go.mod deploy/e2e/apiserver/go.sum
	deploy/e2e/apiserver/build bin
bin/helm:
	GOBIN=$(CURDIR)/bin go install $(HELM)
bin/kustomize/%/kustomize:
	GOBIN=$(CURDIR)/$(@D) go install $(filter %$*,$(KUSTOMIZE))
bin/sluice-%.tar:
	$(MAKE) $*

conformance: bin/helm ## run Kubernetes' own tests on a cluster in this machine, MODE=nftables, FOCUS='a pattern'
	@.ci/deps image iptables conformance
	deploy/conformance/conformance $(or $(MODE),userspace)

rollouts: bin/helm ## count what clients lose while backends, nodes and Sluice roll, in MODE="userspace nftables kube-proxy"
	@.ci/deps image iptables conformance
	deploy/conformance/rollouts $(or $(MODE),userspace nftables kube-proxy)

attacks: deps build ## run the attacks and cases, about 25 minutes; ONLY="hijack loops": some of them
	cmd/sluice/internal/e2e/attacks/run bin/sluice $(ONLY)

soak: deps ## run traffic, changes, upgrades and attacks for SOAK (20m) and print a row a minute
	cmd/sluice/internal/e2e/soak/run $(or $(SOAK),20m) $(CURDIR)/bin/soak.md

fuzz: ## run every fuzz target for FUZZTIME (30s; 10000x is a count)
	.ci/fuzz $(or $(FUZZTIME),30s)

models: ## walk through random changes for MODEL (10000) steps, from new seeds, and steer in every way
	go test -count=1 -timeout 0 -run '^TestModel$$' ./cmd/sluice/internal/process/daemon -model.seed 0 -model.steps $(MODEL)
	go test -count=1 -timeout 0 -run '^Test(Ask)?Model$$' -p 1 ./kernelmodes/iptables ./kernelmodes/nftables -model.changes $(MODEL)
	go test -count=1 -timeout 0 ./redirect -variants

lint: ## check format, go vet, staticcheck, revive and the module files
	.ci/lint $(STATICCHECK) $(REVIVE)

cross: bin/windows-amd64/sluice.exe ## compile everything for linux/arm64 and windows/amd64
	for module in . bench; do \
		GOOS=linux GOARCH=arm64 go build -C $$module ./...; GOOS=windows GOARCH=amd64 go build -C $$module ./...; done

vulncheck: ## look for known vulnerabilities in what is linked; asks Go's database
	for module in . bench; do go run $(GOVULNCHECK) -C $$module ./...; done

peers: deps ## unpack today's HAProxy and nginx into bin/peers, for the measurements
	@.ci/peers bin/peers

# BENCH has further flags, such as "-force -workloads short". The VM has SCTP and ipvs, which few kernels have, and one
# core, perhaps an interpreted one. bin/compare takes its peers from bin/peers.
COMPARE = bin/compare -sluice bin/sluice
COMPARE_IN_VM = mkdir -p bin/vm-bench/testdata && cp bin/sluice bin/vm-bench/testdata && \
	cd bin/vm-bench && ../vm -grace 30m ../compare -sluice testdata/sluice -duration 200ms -force

bench: peers build bin/compare ## measure Sluice beside its peers on an idle machine, for about 45 minutes
	$(COMPARE) -out bench/results $(BENCH)

bench-quick: peers build bin/compare ## the same for the most telling workloads, under 5 minutes
	$(COMPARE) -quick $(BENCH)

scale: peers build bin/compare ## measure what Services and open connections cost, on an idle machine
	$(COMPARE) -workloads 'services-*,connections-*' -systems haproxy,nginx -rounds 5 $(BENCH)

bench-sctp: deps build bin/compare bin/vm ## measure a message over SCTP beside the kernel's paths, here and in the VM
	$(COMPARE) -workloads 'sctp-*' -systems 'dnat,direct' -rounds 5 $(BENCH)
	$(COMPARE_IN_VM) -workloads 'sctp-*' -systems 'ipvs,dnat,direct' -rounds 3

bench-offload: deps build bin/compare bin/vm ## measure the kernel's forwarding of Services, here and in the VM
	$(COMPARE) -workloads 'offload-nftables-*,offload-iptables-*' -rounds 1 $(BENCH)
	$(COMPARE_IN_VM) -workloads 'offload-*-1000,offload-*-5000' -rounds 1

bench-control: deps build systems ## measure starts, changes and forwarding beside kube-proxy, from an API server
	cd deploy/e2e && go test -run '^$$' -bench Scale -benchtime 1x -timeout 0 . -args -load 2s $(BENCH)

bench-micro: ## measure single functions and compare them with BASELINE, which the first run on this machine writes
	@mkdir -p bin
	go test -run '^$$' -bench . -benchmem -count 6 -timeout 20m ./lb/... ./internal/eventloop ./udp | tee bin/micro.txt
	[ -e $(BASELINE) ] || cp bin/micro.txt $(BASELINE)
	go run $(BENCHSTAT) $(BASELINE) bin/micro.txt

clean: ## remove what was built
	rm -rf bin dist
