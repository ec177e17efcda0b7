# Everything runs from here with Python 3.11+, pip and make:  make demo · make test · make check
PYTHON ?= python3
WORKERS ?= 3
LIVE_WORKERS ?= 5
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PACKAGES := $(VENV)/.packages
# Where the environment forbids compiled files, each test process would compile all tests, and pytest's own plugins, again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help demo test test-live check format record proto lab bench-watch bench-scale bench-session soak-session bench-train soak-train soak-predict soak-broker bench-broker soak-serve bench-serve profile-serve bench-front-ends bench-pool bench-ray oracle soak clean

help:
	@echo "make demo         the tour: trains, breaks, explains, trains with the helpers, predicts, serves (about a minute)"
	@echo "make test         the tests, $(WORKERS) at a time (WORKERS=n changes it)"
	@echo "make test-live    the long ones: more real jobs, several hosts, other launchers, $(LIVE_WORKERS) at a time (LIVE_WORKERS=n)"
	@echo "make check        lint, format, types and the house rules"
	@echo "make format       let ruff reformat and reorder"
	@echo "make record       run all gauntlet cases and keep their evidence, from which tests derive the verdicts again"
	@echo "make lab          check between several hosts, all faults (minutes)"
	@echo "make bench-watch  what watching a job costs it"
	@echo "make bench-scale  a verdict over 4,096 ranks: seconds and memory"
	@echo "make bench-session  what session() costs over init_process_group"
	@echo "make soak-session   the long tests of session(): 64 ranks, every fault of the lab"
	@echo "make bench-train  the same training by hand, with rankwise, Accelerate and Fabric"
	@echo "make soak-predict  predict killed at 40 random moments, resumed to the same bytes"
	@echo "make soak-train   30 ranks killed at random moments, and more sizes of everything; about 8 minutes"
	@echo "make bench-ray    the pool on Ray against plain actors and tasks, Ray Serve and Ray Data"
	@echo "make bench-pool   the inference pool against its peers, and against DDP"
	@echo "make soak-broker  100,000 tasks through Redis and RabbitMQ while brokers and workers die (TASKS=n FAULTS=n)"
	@echo "make bench-broker  rankwise worker beside Celery at both brokers, the same models, in turns"
	@echo "make soak-serve   the server under load while workers die and models come and go (SECONDS=n, 600 by default; FRONT_ENDS=n)"
	@echo "make bench-serve  the server against its peers, each in an environment of its own (PEERS=a,b QUICK=1)"
	@echo "make profile-serve  where the server and its peers spend their time: CPU per request, process by process (PEERS=a,b)"
	@echo "make bench-front-ends  what processes that read HTTP gain the server (8 cores or more)"
	@echo "make oracle       the server's answers against those of NVIDIA's Triton, request by request (REQUESTS=n)"
	@echo "make soak         ten minutes of load on the pool while its workers die"
	@echo "make clean        remove caches and $(VENV)"

demo: $(READY)
	@echo "==> rankwise demo"
	@$(BIN)/rankwise demo

test: $(READY) $(PACKAGES)
	@echo "==> tests, $(WORKERS) at a time"
	@$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not serial and not live"; code=$$?; \
	echo "==> tests that need the machine to themselves"; \
	$(BIN)/python -m pytest -m serial $$(grep -rl --include='test_*.py' mark.serial tests) || code=1; \
	exit $$code  # the second looks at the files that have such tests only: to collect all others takes seconds

test-live: $(READY) $(PACKAGES)
	@echo "==> long and live tests, $(LIVE_WORKERS) at a time"
	@$(BIN)/python -m pytest -n $(LIVE_WORKERS) --dist worksteal -m live

check: $(READY)
	@echo "==> ruff check"
	@$(BIN)/ruff check .
	@echo "==> ruff format --check"
	@$(BIN)/ruff format --check .
	@echo "==> mypy --strict src"
	@$(BIN)/mypy --strict src
	@echo "==> house rules"
	@$(BIN)/python -m pytest -q tests/house

format: $(READY)
	@echo "==> ruff check --fix, ruff format"
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

record: $(READY) $(PACKAGES)
	@echo "==> the evidence of all gauntlet cases, recorded anew (half an hour); git diff shows which verdicts have changed"
	@$(BIN)/python -m tests.gauntlet.record

proto:
	@echo "==> descriptors of the gRPC service (needs grpcio-tools)"
	@cd src/rankwise/serve/rpc && $(abspath $(BIN))/python -m grpc_tools.protoc -I. --include_imports --descriptor_set_out=descriptors.binpb inference.proto health.proto reflection.proto

lab: $(READY) $(PACKAGES)
	@echo "==> check between four hosts (network namespaces; needs root)"
	@RANKWISE_LONG=1 $(BIN)/python -m pytest tests/preflight/test_lab.py tests/preflight/test_lab_parity.py tests/preflight/test_lab_many.py

bench-watch: $(READY)
	@echo "==> step time with and without the watch"
	@$(BIN)/python benchmarks/watch.py

bench-scale: $(READY)
	@echo "==> explaining 4,096 ranks with 2,000 collectives each"
	@$(BIN)/python benchmarks/scale.py

bench-session: $(READY)
	@echo "==> starting 4 ranks with and without session()"
	@$(BIN)/python benchmarks/session.py

soak-session: $(READY) $(PACKAGES)
	@echo "==> session(): 64 ranks, and every fault of the lab"
	@RANKWISE_LONG=1 $(BIN)/python -m pytest -q tests/train -k "session or spawn"

bench-train: $(READY)
	@echo "==> training side by side: lines, step overhead, misuses caught"
	@$(BIN)/python benchmarks/train_peers.py

soak-train: $(READY)
	@echo "==> kill -9 of a random rank, 30 times"
	@RANKWISE_LONG=1 $(BIN)/python -m pytest -q -s tests/train/test_elastic.py tests/train/test_equality.py

soak-predict: $(READY)
	@echo "==> predict, killed at 40 random moments"
	@RANKWISE_LONG=1 $(BIN)/python -m pytest -q tests/offline/test_kills.py tests/offline/test_gathering.py tests/offline/test_memory.py

bench-pool: $(READY)
	@echo "==> the pool against ProcessPoolExecutor, loky and joblib"
	@$(BIN)/python benchmarks/pool.py; code=$$?; $(BIN)/python benchmarks/inference_ways.py || code=1; \
	$(BIN)/python benchmarks/predict_rows.py || code=1; exit $$code

bench-ray: $(READY)
	@echo "==> the pool on Ray against plain actors and tasks, Ray Serve and Ray Data"
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt 'ray[serve,data]'
	@$(BIN)/python -m compileall -q src  # as pip does for Ray: every worker that starts would compile what it imports
	@$(BIN)/python benchmarks/ray_peers.py

soak-broker: $(READY) $(PACKAGES)
	@echo "==> tasks through brokers while they and their workers die"
	@$(BIN)/python benchmarks/soak_broker.py --tasks $(or $(TASKS),100000) --faults $(or $(FAULTS),20)

bench-broker: $(READY) $(PACKAGES)
	@echo "==> rankwise worker beside Celery, which gets an environment of its own"
	@$(BIN)/python benchmarks/broker_peers.py

soak-serve: $(READY)
	@echo "==> the server under load while workers die and models come and go"
	@$(BIN)/python benchmarks/soak_serve.py --seconds $(or $(SECONDS),600) --front-ends $(or $(FRONT_ENDS),auto)

bench-serve: $(READY)
	@echo "==> the server against its peers"
	@$(BIN)/python benchmarks/serve.py $(if $(PEERS),--peers $(PEERS)) $(if $(QUICK),--quick)

profile-serve: $(READY)
	@echo "==> where the server and its peers spend their time"
	@$(BIN)/python benchmarks/serve_profile.py $(if $(PEERS),--peers $(PEERS))

bench-front-ends: $(READY)
	@echo "==> the server with and without front-end processes"
	@$(BIN)/python benchmarks/front_ends.py

oracle: $(READY)
	@echo "==> the same requests to NVIDIA's Triton server and to ours"
	@RANKWISE_ORACLE=$(or $(REQUESTS),2000) $(BIN)/python -m pytest -q -s tests/serve/test_oracle.py

soak: $(READY)
	@echo "==> ten minutes of load while workers die"
	@RANKWISE_SOAK_S=600 $(BIN)/python -m pytest -q -n 1 tests/pool/test_load.py

clean:
	@echo "==> removing caches and $(VENV)"
	@rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(READY): pyproject.toml constraints.txt
	@echo "==> $(VENV): torch and everything else at the versions of constraints.txt (the first time this takes minutes)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: make PYTHON=python3.12 ..."; exit 1; }
	@# Debian's python3 comes without ensurepip; then the system's pip brings one into the new environment.
	@[ -x $(BIN)/pip ] || $(PYTHON) -m venv $(VENV) >/dev/null 2>&1 \
		|| { $(PYTHON) -m venv --clear --without-pip $(VENV) && $(PYTHON) -m pip --python $(BIN)/python install --quiet pip; }
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	@$(BIN)/python -m compileall -q src  # as pip does for what is not editable: start-up is measured in milliseconds
	@touch $@

# Tests that need one of these programs skip, with the reason, where it is missing. Tried once: remove $(PACKAGES) to try again.
$(PACKAGES): | $(READY)
	@missing=""; \
	command -v ip >/dev/null || missing="$$missing iproute2"; \
	command -v nft >/dev/null || missing="$$missing nftables"; \
	command -v mpirun >/dev/null || missing="$$missing openmpi-bin"; \
	command -v redis-server >/dev/null || missing="$$missing redis-server"; \
	[ -x /usr/sbin/rabbitmq-server ] || command -v rabbitmq-server >/dev/null || missing="$$missing rabbitmq-server"; \
	command -v chromium >/dev/null || command -v google-chrome >/dev/null || missing="$$missing chromium"; \
	if [ -z "$$missing" ]; then :; \
	elif [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then \
		echo "==> not installed:$$missing (needs root and apt-get); the tests that use them will be skipped"; \
	else \
		echo "==> apt-get install$$missing"; \
		export DEBIAN_FRONTEND=noninteractive; \
		apt-get update -qq >/dev/null 2>&1; \
		for package in $$missing; do \
			apt-get install -qq -y --no-install-recommends $$package >/dev/null 2>&1 \
				|| echo "==> $$package could not be installed; the tests that use it will be skipped"; \
		done; \
	fi
	@touch $@
