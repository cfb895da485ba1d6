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
FUZZTIME ?= 30s
MODEL    ?= 10000

# How long make soak lasts.
SOAK ?= 20m

# Further flags of bench/compare, such as BENCH="-force -workloads short", or of BenchmarkScale.
BENCH ?=

# How the program is built, but for its path and its package.
PROGRAM = go build -buildvcs=false -ldflags '-s -w -X main.version=$(VERSION) -X main.commit=$(COMMIT)' -o

# Everything is compiled in one way, which is that of the release: Go's build cache keeps some
# seven hundred packages anew for each way, and without them in it that is a minute for two cores.
# The race detector is the exception, since it needs cgo. Test programs are linked without what a debugger reads, which
# takes a third of the linker's time.
export CGO_ENABLED := 0
export GOFLAGS := $(sort $(GOFLAGS) -trimpath -ldflags=-s)

# The benchmarks of single functions, and the figures that they are compared with.
# Figures of another machine say nothing: save your own first.
MICRO    := go test -run '^$$' -bench . -benchmem -count 6 -timeout 20m ./lb ./internal/eventloop ./udp
BASELINE ?= bin/micro-baseline.txt

KUBE_VERSION := $(shell awk '$$1 == "k8s.io/kubernetes" { print $$2 }' deploy/e2e/apiserver/go.mod)
KUBE_LDFLAGS := -X k8s.io/component-base/version.gitVersion=$(KUBE_VERSION) -X k8s.io/component-base/version.gitMajor=1 \
	-X k8s.io/component-base/version.gitMinor=$(word 2,$(subst ., ,$(KUBE_VERSION)))

# What the VM runs: the packages whose tests need what its kernel has. Interpreted, a second of computing takes ten, so that
# tests are short, and what another kernel shows as well is not run there.
VM_PACKAGES ?= ./kernelmodes/ipvs ./sctp

# Tests wait for the kernel and for other processes for most of their time: two packages at a
# time leave two cores time to spare. The packages ALONE count the milliseconds that traffic
# pauses, and run one at a time; those of their tests that count nothing run together, after the
# others. Nothing is compiled meanwhile but at SCHED_IDLE: COMPILE compiles on every core before,
# and go vet is run by make lint.
# A test that fails is run once more, since machines of many tenants stop at times; .ci/summary names
# it at the end. More than three failures, or a data race, are final. $(1) are the packages.
RUNS     = $(CURDIR)/bin/runs
GOTEST   = go run -exec 'env $(GOTEST_ENV)' $(GOTESTSUM) --format pkgname-and-test-fails \
	--rerun-fails=1 --rerun-fails-max-failures=3 --rerun-fails-abort-on-data-race \
	--rerun-fails-report=$$(mkdir -p $(RUNS) && mktemp $(RUNS)/again-XXXXXX) --post-run-command='$(CURDIR)/.ci/count $(RUNS)' \
	--packages '$(1)' -- -count=1 -p 2 -vet=off $(2)
COMPILE  = env $(GOTEST_ENV) go list -export -deps -test

ALONE    = ./cmd/sluice/internal/e2e/...
OTHERS   = $(shell go list ./... | grep -v -e /cmd/sluice/internal/e2e)

# Where goroutines share anything. What kernelmodes but queue, redirect and netfilter share with those who ask for
# their counts, the whole program does in the end-to-end tests; the others left out are functions of their arguments.
RACE_PACKAGES = $(shell go list $(OTHERS) | grep -v -e /internal/testbed -e /internal/houserules -e /redirect \
	-e '/kernelmodes\(/[^q]\|$$\)' -e /internal/netfilter$$ -e /internal/proxyproto -e /sctp/wire -e /internal/kube$$ \
	-e /internal/policies -e /internal/explain -e /internal/reference)

# Tests say themselves in which runs they are: internal/testbed/marks.go has the marks.
E2E_TESTS  = cmd/sluice/internal/e2e
RACE_TESTS = ^($(shell .ci/marked Race $(E2E_TESTS)))$$
RACE_NOT   = ^($(shell .ci/marked Sequential $(shell go list -f '{{.Dir}}' $(RACE_PACKAGES))))$$
VM_TESTS  ?= ^($(shell .ci/marked VM $(E2E_TESTS)))$$/^(ipvs.*)?$$

# What make verify runs with the race detector only.
RACE_ONCE  = $(filter-out $(subst |, ,$(shell .ci/marked Timed $(E2E_TESTS))),$(subst |, ,$(shell .ci/marked Race $(E2E_TESTS))))

# Set by make verify: tests of the whole program that have run already.
HAVE_RUN =

# The distribution's etcd is too old for an API server to stream lists from, as
# present clusters do; the tests of watching run on one that can, too.
E2E = cd deploy/e2e && $(call GOTEST,./...,-timeout 10m) && $(call GOTEST,.,-timeout 10m -run 'TestWatch' -args -etcd ../../bin/etcd)

# The tests fail, instead of skipping, where a kernel facility is missing.
export SLUICE_REQUIRE_NETNS = 1

# CI installs what it needs, as a newcomer does.
.NOTPARALLEL:
.DEFAULT_GOAL := help
SHELL := bash
.SHELLFLAGS := -euo pipefail -c

.PHONY: attacks conformance rollouts peers systems help deps bench-deps build image image-iptables demo soak bench \
	bench-quick bench-sctp \
	bench-offload bench-control bench-micro bench-micro-save scale test test-all test-bench test-beside test-packages \
	test-arm64 test-program test-systems test-vm test-vm-packages test-vm-program test-wine e2e race race-packages \
	race-program fuzz models lint cross verify docs \
	clean bin/compare bin/demo bin/vm

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

deps: ## install the programs and Go modules that are missing
	@.ci/deps

build: ## build bin/sluice
	$(PROGRAM) bin/sluice ./cmd/sluice

# Where make install puts files, below DESTDIR.
PREFIX ?= /usr/local

install: build ## install the program, the manual page, completions and the unit below PREFIX (/usr/local)
	deploy/release/install bin/sluice $(DESTDIR)$(PREFIX)

# Where make release writes to.
DIST ?= dist

# The programs of a release, and where they are for.
RELEASE = bin/release/linux-amd64/sluice bin/release/linux-arm64/sluice bin/release/windows-amd64/sluice.exe

release: build ## pack a release into dist/: make release VERSION=0.1.0
	@[ "$(origin VERSION)" = "command line" ] || { echo "release: say which: make release VERSION=0.1.0" >&2; exit 1; }
	@.ci/deps image release
	$(foreach p,$(RELEASE),target=$(notdir $(patsubst %/,%,$(dir $p))) && \
		GOOS=$${target%-*} GOARCH=$${target#*-} $(PROGRAM) $p ./cmd/sluice &&) rm -rf $(DIST)
	HOST=bin/sluice NFPM=$(NFPM) deploy/release/build $(VERSION) bin/release $(DIST)

test-release: ## pack a release twice and compare, and look at what is in it
	$(MAKE) release VERSION=0.0.1
	$(MAKE) release VERSION=0.0.1 DIST=bin/release/again
	diff -r $(DIST) bin/release/again
	deploy/release/check $(DIST) 0.0.1

docs: ## write the pages that are generated: docs/reference, the chart's README, rules.yaml
	SLUICE_UPDATE=1 go test -count=1 -run '^(TestPages|TestReadme|TestRulesFile)$$' ./cmd/sluice/internal/reference \
		./cmd/sluice/internal/metrics ./deploy/helm

# It needs root, as the end-to-end tests do. Without KVM it takes some three minutes.
test-deb: ## install, upgrade under load, remove and purge the package for Debian, in a VM with systemd
	@.ci/deps test
	$(MAKE) release VERSION=0.0.1
	$(MAKE) release VERSION=0.0.2 DIST=bin/release/next
	deploy/release/test-deb $(DIST)/sluice_0.0.1_$$(go env GOARCH).deb bin/release/next/sluice_0.0.2_$$(go env GOARCH).deb

vulncheck: ## look for known vulnerabilities in what is linked; asks Go's database
	go run $(GOVULNCHECK) ./...
	go run $(GOVULNCHECK) -C bench ./...

image: ## build the image bin/sluice-image.tar, an OCI archive; VARIANT=iptables: the one with iptables and ipset
	@.ci/deps image $(VARIANT)
	GOOS=linux GOARCH=amd64 $(PROGRAM) bin/linux-amd64/sluice ./cmd/sluice
	GOOS=linux GOARCH=arm64 $(PROGRAM) bin/linux-arm64/sluice ./cmd/sluice
	deploy/image/build bin $(VARIANT)

image-iptables: ## build the image with iptables and ipset, bin/sluice-image-iptables.tar
	$(MAKE) image VARIANT=iptables

# All hosts share the queues of this machine's processors, of 1,000 packets each, of which an attack takes so many that
# those of others are lost before they are at the node, as they would not be with wires of their own.
BACKLOG := /proc/sys/net/core/netdev_max_backlog

soak: deps ## run traffic, changes, upgrades and attacks for SOAK (20m) and print a row a minute
	if [ -w $(BACKLOG) ]; then trap "echo $$(cat $(BACKLOG)) > $(BACKLOG)" EXIT; echo 100000 > $(BACKLOG); fi; \
	go test -count=1 -timeout 0 -v -run '^TestSoak$$' ./cmd/sluice/internal/e2e/soak \
		-soak $(SOAK) -table $(CURDIR)/bin/soak.md

conformance: bin/helm ## run Kubernetes' own tests on a cluster in this machine, MODE=nftables, FOCUS='a pattern'
	@.ci/deps image iptables conformance
	deploy/conformance/conformance $(or $(MODE),userspace)

rollouts: bin/helm ## count what clients lose while backends, nodes and Sluice roll, in MODE="userspace nftables kube-proxy"
	@.ci/deps image iptables conformance
	deploy/conformance/rollouts $(or $(MODE),userspace nftables kube-proxy)

attacks: deps build ## run the attacks and cases, about 25 minutes; ONLY="hijack loops": some of them
	cmd/sluice/internal/e2e/attacks/run bin/sluice $(ONLY)

# The programs of bench, a module of its own. Measurements start the one that they build.
bin/compare bin/demo bin/vm:
	go build -C bench -buildvcs=false -o ../$@ ./$(@F)

demo: build bin/demo ## show Services balanced between hosts made of network namespaces
	@.ci/deps demo
	bin/demo -sluice bin/sluice

bench-deps: deps ## install what the measurements need besides: HAProxy, nginx, load tools
	@.ci/deps bench

# Measurements compare with today's peers, which the distribution does not have: bin/peers has them.
PEERS = export PATH="$(CURDIR)/bin/peers/bin:$$PATH"

peers: bench-deps ## unpack today's HAProxy and nginx into bin/peers, for the measurements
	@.ci/peers bin/peers

bench: peers build bin/compare ## measure Sluice beside its peers on an idle machine, for about 45 minutes
	$(PEERS); bin/compare -sluice bin/sluice -out bench/results $(BENCH)

bench-quick: peers build bin/compare ## the same for the most telling workloads, under 5 minutes
	$(PEERS); bin/compare -sluice bin/sluice -quick $(BENCH)

# The VM has SCTP and ipvs, which few kernels have, and one core, perhaps an interpreted one.
IN_VM = mkdir -p bin/vm-bench/testdata && cp bin/sluice bin/vm-bench/testdata && \
	cd bin/vm-bench && ../vm -grace 30m ../compare -sluice testdata/sluice -duration 200ms -force

bench-sctp: deps build bin/compare bin/vm ## measure what a message over SCTP costs, beside the kernel's paths, here and in the VM
	bin/compare -sluice bin/sluice -workloads 'sctp-*' -systems 'ipvs,dnat,direct' -rounds 5 $(BENCH)
	$(IN_VM) -workloads 'sctp-*' -systems 'ipvs,dnat,direct' -rounds 3

bench-micro: ## measure single functions and compare them with the saved figures
	@mkdir -p bin
	$(MICRO) | tee bin/micro.txt
	go run $(BENCHSTAT) $(BASELINE) bin/micro.txt

bench-micro-save: ## save the figures of single functions to compare with later
	@mkdir -p $(dir $(BASELINE))
	$(MICRO) > $(BASELINE)

# iptables is measured in the VM too, for the ratio to ipvs.
bench-offload: deps build bin/compare bin/vm ## measure what it costs that the kernel forwards Services, here and in the VM
	bin/compare -sluice bin/sluice -workloads 'offload-nftables-*,offload-iptables-*' -rounds 1 $(BENCH)
	$(IN_VM) -workloads 'offload-*-1000,offload-*-5000' -rounds 1

scale: peers build bin/compare ## measure what the number of Services costs, on an idle machine
	$(PEERS); bin/compare -sluice bin/sluice -workloads 'services-*' -rounds 5 $(BENCH)

bench-control: deps build systems ## measure starts, changes and forwarding beside kube-proxy, from an API server
	cd deploy/e2e && go test -run '^$$' -bench Scale -benchtime 1x -timeout 0 . -args -load 2s $(BENCH)

test: ## run every test
	@rm -rf $(RUNS)
	$(MAKE) test-all
	@.ci/summary $(RUNS)

# What the tests against an API server run.
SYSTEMS = bin/kube-apiserver bin/etcd bin/kube-proxy bin/helm $(foreach k,$(KUSTOMIZE),bin/kustomize/$(lastword $(subst @, ,$k))/kustomize)

# The programs that the API server consists of are compiled, and the VM computes, in the time that other tests
# leave idle (SCHED_IDLE): without anything in Go's build cache they take seven minutes of a core, and the VM
# half an hour of one. Its clock is its own, and it does not take a processor from who counts milliseconds.
test-all: bench-deps
	.ci/beside chrt --idle 0 $(MAKE) systems test-vm -- $(MAKE) test-program test-beside

# The tests against an API server wait for five seconds of six, and those under wine and of bench for half of the time;
# the tests of single packages fill what processors there are, and none of all these counts milliseconds.
test-beside:
	.ci/beside $(MAKE) e2e test-wine test-bench -- $(MAKE) $(BESIDE)

BESIDE = test-packages

test-packages: bench-deps ## run the tests of single packages
	$(COMPILE) ./... >/dev/null
	$(call GOTEST,$(OTHERS),-timeout 15m -parallel 4)

test-bench: bench-deps ## run the tests of demonstrations and measurements
	cd bench && $(COMPILE) ./... >/dev/null
	cd bench && $(call GOTEST,./...,-timeout 15m -parallel 4)

test-program: bench-deps build image image-iptables ## run the tests of the whole program
	$(COMPILE) ./... >/dev/null
	SLUICE_IMAGES=$(CURDIR)/bin $(call GOTEST,$(ALONE),-p 1 -timeout 15m -parallel 8 \
		$(if $(HAVE_RUN),-skip '^($(subst $() ,|,$(HAVE_RUN)))$$'))

test-systems: ## run the tests that need an API server, a VM or wine
	.ci/beside chrt --idle 0 $(MAKE) test-vm -- $(MAKE) e2e test-wine

# What may differ there: atomics, layouts that the kernel reads, codecs. There are no namespaces under QEMU.
ARM64_PACKAGES = lb udp tcp sctp/wire internal/mmsg internal/socket internal/eventloop internal/proxyproto internal/session \
	cmd/sluice/internal/handover
ARM64_NOT      = ^($(shell .ci/marked '(Native|Sequential)' $(ARM64_PACKAGES)))$$

test-arm64: ## run the unit tests of the build for linux/arm64 under QEMU, about 5 minutes
	@.ci/deps arm64
	SLUICE_REQUIRE_NETNS= GOARCH=arm64 go test -count=1 -short -p 1 -timeout 15m -exec qemu-aarch64-static \
		-skip '$(ARM64_NOT)' $(ARM64_PACKAGES:%=./%)

test-wine: deps ## run the tests of what serves on Windows, under wine
	@GOTESTSUM=$(GOTESTSUM) RUNS=$(RUNS) .ci/test-wine

e2e: deps build systems bin/sluice-image.tar bin/sluice-image-iptables.tar ## run the tests against a real Kubernetes API server
	$(E2E)

systems: $(SYSTEMS)

bin/sluice-image.tar:
	$(MAKE) image

bin/sluice-image-iptables.tar:
	$(MAKE) image-iptables

# Without anything in Go's build cache the API server takes two cores some three
# minutes; with it, seconds. Two make at a time, one of them at SCHED_IDLE, share what either has compiled.
bin/kube-apiserver bin/etcd bin/kube-proxy: deploy/e2e/apiserver/go.mod deploy/e2e/apiserver/go.sum
	cd deploy/e2e/apiserver && for name in kube-apiserver kube-proxy; do \
		go build -o ../../../bin/$$name -ldflags '-s -w $(KUBE_LDFLAGS)' k8s.io/kubernetes/cmd/$$name; done
	cd deploy/e2e/apiserver && go build -o ../../../bin/etcd -ldflags '-s -w' go.etcd.io/etcd/server/v3

bin/helm:
	GOBIN=$(CURDIR)/bin go install $(HELM)

bin/kustomize/%/kustomize:
	GOBIN=$(CURDIR)/$(@D) go install $(filter %$*,$(KUSTOMIZE))

# Three machines at a time: each has one processor, and a clock of its own where it is interpreted,
# so that no test there sees how busy this machine is: what is left to them may be little, for long.
test-vm: deps bin/vm ## run the tests that need ip_vs, sctp or dummy devices, on a Debian kernel in a VM
	.ci/beside $(MAKE) test-vm-program -- $(MAKE) test-vm-packages

test-vm-packages: ## those of them that are about single packages (bin/vm must be there)
	SLUICE_REQUIRE_DUMMY=1 $(call GOTEST,./redirect/addresses,-exec '$(CURDIR)/bin/vm' -timeout 40m -run '^TestAddress')
	SLUICE_REQUIRE_IPVS=1 $(call GOTEST,./kernelmodes/kubeproxy,-exec '$(CURDIR)/bin/vm' -timeout 40m -run '^TestIPVS$$')
	SLUICE_REQUIRE_IPVS=1 $(call GOTEST,$(VM_PACKAGES),-exec '$(CURDIR)/bin/vm' -p 1 -short -timeout 40m)

test-vm-program: ## those of them that are about the whole program (bin/vm must be there)
	SLUICE_REQUIRE_IPVS=1 SLUICE_REQUIRE_DUMMY=1 $(call GOTEST,./cmd/sluice/internal/e2e \
		./cmd/sluice/internal/e2e/handover,-exec '$(CURDIR)/bin/vm' -p 2 -short -timeout 40m -run '$(VM_TESTS)')

race: race-packages race-program ## run the tests under the race detector (needs a C compiler)

race-packages race-program: GOTEST_ENV = CGO_ENABLED=1

race-packages: deps build ## those of them that are about single packages
	$(COMPILE) -race $(RACE_PACKAGES) $(ALONE) >/dev/null
	$(call GOTEST,$(RACE_PACKAGES),-race -short -timeout 20m -skip '$(RACE_NOT)')

race-program: deps build ## those of them that are about the whole program
	$(COMPILE) -race $(RACE_PACKAGES) $(ALONE) >/dev/null
	$(call GOTEST,$(ALONE),-p 1 -race -short -timeout 20m -parallel 8 -run '$(RACE_TESTS)')

fuzz: ## run every fuzz target for FUZZTIME (30s; 10000x is a count)
	@targets=$$(grep -roE --include='*_test.go' '^func Fuzz\w+' . | sort) || { echo "fuzz: no target found" >&2; exit 1; }; \
	while IFS=: read -r file func; do \
		dir=$$(dirname "$$file") name=$${func#func }; \
		echo "fuzz: $$name in $$dir"; \
		go test -C "$$dir" -vet=off -run '^$$' -fuzz "^$$name$$" -fuzztime $(FUZZTIME) </dev/null; \
	done <<< "$$targets"

models: ## walk through random changes for MODEL (10000) steps, from new seeds, and steer in every way
	go test -count=1 -timeout 0 -run '^TestModel$$' ./cmd/sluice/internal/daemon -model.seed 0 -model.steps $(MODEL)
	go test -count=1 -timeout 0 -run '^Test(Ask)?Model$$' -p 1 ./kernelmodes/iptables ./kernelmodes/nftables -model.changes $(MODEL)
	go test -count=1 -timeout 0 ./redirect -variants

lint: ## check format, go vet, staticcheck, revive and the module files
	.ci/lint $(STATICCHECK) $(REVIVE)

cross: ## compile everything for linux/arm64 and windows/amd64
	for module in . bench; do (cd $$module; \
		GOOS=linux GOARCH=arm64 go build ./...; GOOS=windows GOARCH=amd64 go build ./...); done
	GOOS=windows GOARCH=amd64 $(PROGRAM) bin/sluice.exe ./cmd/sluice

# What is compiled and not run, and what the VM runs, has the time that tests leave idle, as in test-all: from the first
# second on, since linters wait for files and for each other, and first what the tests against an API server wait for. Those
# of the whole program come first, since they wait the most.
verify: bench-deps ## run all that CI runs
	@rm -rf $(RUNS)
	.ci/beside chrt --idle 0 $(MAKE) systems test-vm cross -- \
		$(MAKE) lint race-program test-program test-beside demo HAVE_RUN='$(RACE_ONCE)' BESIDE='race-packages test-packages'
	@.ci/summary $(RUNS)

clean: ## remove what was built
	rm -rf bin dist
