# Every target that a person may call has a ## comment; "make help" lists them.

STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOTESTSUM   := gotest.tools/gotestsum@v1.13.0

VERSION  := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
FUZZTIME ?= 30s

# One package's tests at a time: many of them count turns and deadlines on the
# real kernel, and two cores are soon shared too thinly.
GOTEST := go run $(GOTESTSUM) --format pkgname-and-test-fails -- -count=1 -p 1

# The tests fail, instead of skipping, where a kernel facility is missing.
export SLUICE_REQUIRE_NETNS = 1

# CI installs what it needs, as a newcomer does.
.NOTPARALLEL:
.DEFAULT_GOAL := help
SHELL := bash
.SHELLFLAGS := -euo pipefail -c

.PHONY: help deps build demo scale test race fuzz lint cross verify clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

deps: ## install the programs and Go modules that are missing
	@.ci/deps

build: ## build bin/sluice
	CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags '-s -w -X main.version=$(VERSION)' -o bin/sluice ./cmd/sluice

demo: deps build ## show Services balanced between hosts made of network namespaces
	go run ./bench/demo -sluice bin/sluice

scale: deps build ## measure what the number of Services costs, on an idle machine
	go run ./bench/scale -sluice bin/sluice

test: deps build ## run every test
	$(GOTEST) -timeout 15m ./...

race: deps build ## run the tests under the race detector (needs a C compiler)
	CGO_ENABLED=1 $(GOTEST) -race -short -timeout 20m ./...

fuzz: ## run every fuzz target for FUZZTIME (30s; 10000x is a count)
	@targets=$$(grep -roE --include='*_test.go' '^func Fuzz\w+' . | sort) || { echo "fuzz: no target found" >&2; exit 1; }; \
	while IFS=: read -r file func; do \
		dir=$$(dirname "$$file") name=$${func#func }; \
		echo "fuzz: $$name in $$dir"; \
		go test -run '^$$' -fuzz "^$$name$$" -fuzztime $(FUZZTIME) "$$dir" </dev/null; \
	done <<< "$$targets"

lint: ## check format, go vet, staticcheck and the module files
	@echo "gofmt"; unformatted=$$(gofmt -l .); [ -z "$$unformatted" ] || { echo "not gofmt'ed: $$unformatted" >&2; exit 1; }
	go vet ./...
	GOOS=windows go vet ./...
	go run $(STATICCHECK) ./...
	go run -exec 'env GOOS=windows' $(STATICCHECK) ./...
	go mod tidy -diff
	go mod verify

cross: ## compile everything, tests too, for linux/arm64 and windows/amd64
	GOOS=linux GOARCH=arm64 go build ./...
	GOOS=linux GOARCH=arm64 go vet ./...
	GOOS=windows GOARCH=amd64 go build ./...
	GOOS=windows GOARCH=amd64 go vet ./...

verify: ## run all that CI runs
	$(MAKE) lint
	$(MAKE) cross
	$(MAKE) fuzz FUZZTIME=10000x
	$(MAKE) race
	$(MAKE) demo
	$(MAKE) test

clean: ## remove what was built
	rm -rf bin
