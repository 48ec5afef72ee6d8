# Two commands for a newcomer: `make quickstart` and `make test`. The rest is for those who work on sweeprof.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
# Installing anew is due when what is to be installed changes, and only then.
STAMP := $(shell cat pyproject.toml constraints.txt | cksum | cut -d' ' -f1)

# A sweep and its tests start many processes: their modules are compiled once, also where the environment says otherwise.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: quickstart test test-gpu check lint types docs screenshots unit coverage slow thorough versions dist test-cluster hydra-versions system browser compiler database latex slurm cron zsh benchmarks ray published chaos mutants structure format clean

quickstart: $(VENV)/.quickstart-$(STAMP)
	$(BIN)/python -m sweeprof +sweep=quickstart

test: check

# What CI runs first; then `make slow`. The type check takes one processor, and lint and docs the other.
check:
	$(MAKE) --jobs=2 --output-sync lint types docs
	$(MAKE) unit

lint: $(VENV)/.test-$(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/actionlint .github/workflows/*.yml

types: $(VENV)/.test-$(STAMP)
	$(BIN)/mypy

# The documentation as a site in build/site; a broken link or anchor, or a page outside the navigation, is an error.
docs: $(VENV)/.test-$(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict

# Runs the tests that docs/features.csv names for each feature of the replaced profilers, and prints the table with their outcomes.
features: $(VENV)/.test-$(STAMP)
	$(BIN)/python docs/feature_table.py

# The pictures of the README, from a run of the quickstart, which takes about two minutes; needs `make browser`.
screenshots: $(VENV)/.test-$(STAMP)
	$(BIN)/python docs/images/make.py

PYTEST := -m pytest -m "not (slow or system or thorough)"
SLIPCOVER := PYTHONWARNINGS="ignore:Unable to activate" $(BIN)/python -m slipcover --branch
unit: $(VENV)/.test-$(STAMP)
	$(BIN)/python $(PYTEST)

# The same tests; also measures the lines and branches of sweeprof/ that they run in their own process, and fails below this percentage.
# It takes a quarter longer.
COVERAGE := 90
coverage: $(VENV)/.test-$(STAMP)
	$(SLIPCOVER) --source sweeprof --json --out .coverage.json $(PYTEST) \
	  -W ignore::pytest.PytestAssertRewriteWarning -W "ignore:Unable to activate:RuntimeWarning"
	$(SLIPCOVER) --fail-under $(COVERAGE) --skip-covered --missing-width 40 --out .coverage.json --merge .coverage.json

# The tests that take more than a second each (sweeps under kills, full disks, every precision, Hydra's traps), and those that need a
# browser or others of what `make system` and `make ray` install. They wait often: one worker more than other tests.
slow: $(VENV)/.test-$(STAMP)
	$(BIN)/python -m pytest --numprocesses=3 -m "(slow or system) and not thorough"

# Long variants of what other tests show, for which CI has no time: every night, and before a change that they cover is merged.
thorough: $(VENV)/.test-$(STAMP)
	$(BIN)/python -m pytest -m thorough

# The sdist and the wheel in new environments: every Python, every extra alone, the oldest and the newest versions that pyproject.toml
# allows. It needs a package index and half an hour; `make versions ROWS="3.13 and torch"` selects.
ROWS :=
versions: $(VENV)/.test-$(STAMP)
	$(BIN)/python -m pytest -s --numprocesses=0 -m thorough tests/installation -k "$(ROWS)"

# The sdist and the wheel, in dist. `make dist TAG=v1.2.3`, which releases run, first compares the tag with the version and the changelog.
TAG :=
dist: $(VENV)/.test-$(STAMP)
ifneq ($(TAG),)
	test "$(TAG)" = "v$$($(BIN)/python -m hatchling version)"
	grep -q "^## $(TAG:v%=%) " CHANGELOG.md
endif
	$(BIN)/python -m build --outdir dist

# On a real Slurm and a real Ray of three nodes, started here for that: as root, after `make slurm ray`. There is one per machine, hence no workers.
# CI leaves out what is marked `slow`: `make test-cluster CLUSTER="not slow"`. Which of them failed is kept apart from other tests, which CI
# runs at the same time.
CLUSTER := slow or not slow
test-cluster: $(VENV)/.test-$(STAMP)
	$(BIN)/python -m pytest --numprocesses=0 -o cache_dir=.pytest_cache/cluster -m "$(CLUSTER)" tests/cluster

# On a host with a GPU, with a PyTorch for it: figures against those of other tools, sweeps that run out of memory or are killed: minutes.
# `make test-gpu GPU_PYTHON=python3` runs with what that Python has, without a package index; SWEEPROF_TEST_DEVICE=cpu on the CPU.
GPU_PYTHON = $(BIN)/python
test-gpu: $(if $(filter $(BIN)/python,$(GPU_PYTHON)),$(VENV)/.test-$(STAMP))
	$(GPU_PYTHON) -m pytest --numprocesses=0 -W default tests/gpu

# Shapes of sweeps and Hydra's traps on every supported Hydra, each with the OmegaConf that it asks for.
HYDRA := 1.3.2+2.3.0 1.3.8+2.3.1 1.4.0rc3+2.4.1rc1
SHAPES := tests/end_to_end/test_shapes.py tests/end_to_end/test_hydra_traps.py tests/unit/plan/test_compose.py
hydra-versions: $(addprefix .hydra/,$(HYDRA))
	for pair in $(HYDRA); do \
	  echo "hydra-core and omegaconf $$pair"; \
	  PYTHONPATH=$(CURDIR)/.hydra/$$pair:$(CURDIR) $(BIN)/python -m pytest -q $(SHAPES) || exit 1; \
	done

.hydra/%: | $(VENV)/.test-$(STAMP)
	$(BIN)/python -m pip install --quiet --no-deps --target $@ hydra-core==$(firstword $(subst +, ,$*)) omegaconf==$(lastword $(subst +, ,$*))

# Timing claims, measured side by side: printed as ratios, never asserted as times.
benchmarks: $(VENV)/.test-$(STAMP)
	$(BIN)/python -m pytest -s --numprocesses=0 tests/benchmarks

# Every model of timm and torchvision against the tables that their authors publish: minutes.
published: $(VENV)/.test-$(STAMP)
	PYTHONPATH=tests $(BIN)/python -m published.count_published

# Bugs that are planted one at a time, and whether the tests catch them: half an hour.
mutants: $(VENV)/.test-$(STAMP)
	$(BIN)/python tests/mutants.py

# Figures of the code's structure; `make structure CHECKOUTS="../first ."` compares checkouts.
CHECKOUTS := .
structure: $(VENV)/.test-$(STAMP)
	$(BIN)/python tests/structure.py $(CHECKOUTS)

format: $(VENV)/.test-$(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Sweeps under random kills, twenty seeds; `make thorough` runs one: minutes.
chaos: $(VENV)/.test-$(STAMP)
	CHAOS_SEEDS=20 $(BIN)/python -m pytest -s --numprocesses=0 tests/chaos

# Ray and Hydra's launcher for it, which asks for an older cloudpickle than the other tests run with, and works with theirs.
ray: $(VENV)/.test-$(STAMP)
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt ray
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --no-deps hydra-ray-launcher

# Packages of Debian and its kin, which these targets install as root: each its own, and `make system` all but latex.
browser := chromium fonts-dejavu-core
# What torch.compile needs, and an allocator that tests count with.
compiler := g++
# What the tests of a tracking server with PostgreSQL need; they start one of their own.
database := postgresql
# What `make thorough` compiles tables for papers with.
latex := texlive-latex-base texlive-latex-recommended
# What the tests on a cluster need; they start one of their own.
slurm := slurm-wlm munge slurmdbd mariadb-server
# What runs a night as docs/recipes/nightly.cron has it; its test starts the daemon itself.
cron := cron
# The shell, beside bash, in which the tests complete commands.
zsh := zsh

SYSTEM := browser compiler database slurm cron zsh
system:
	apt-get update -qq
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(foreach name,$(SYSTEM),$($(name)))

browser compiler database latex slurm cron zsh:
	$(MAKE) system SYSTEM=$@

clean:
	rm -rf $(VENV) .hydra build dist .mypy_cache .ruff_cache .pytest_cache .coverage.json

$(VENV)/bin/python:
	$(PYTHON) -m venv --upgrade-deps $(VENV)

# pip compiles modules in one process only.
define install
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable '.[$(1)]'
	$(BIN)/python -m compileall -q -j 0 -x '/tests?/|/testing/' $(VENV)/lib >/dev/null || true
endef

$(VENV)/.quickstart-$(STAMP): | $(VENV)/bin/python
	$(call install,all)
	@touch $@

$(VENV)/.test-$(STAMP): | $(VENV)/bin/python
	$(call install,dev)
	@touch $@ $(VENV)/.quickstart-$(STAMP)
