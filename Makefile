# Everything a developer does, each with its own set-up. GNU make 3.81 (macOS) is enough; so is bash 3.2 or any sh.
#
#   make demo        train on handwritten digits on a pretend cluster, preempted half-way
#   make test        lint, types and all quick tests
#   make test-part   the quick tests of one part: make test-part P=clusterdp/checkpoint
#   make test-slurm  end-to-end tests on a real Slurm that it boots on this machine (Debian, as root); SLURM=24.11
#   make test-bound  the quick tests with the lowest versions that pyproject.toml promises: PYTHON=python3.10; BOUND=newest
#   make test-all    both, the slow tests, and those on a real Slurm on two other releases
#   make bench       what things cost, beside what one would write by hand
#   make gpu-day     all checks and figures that take a GPU (make test-gpu and bench-gpu are its halves)
#   make rehearsals  mutants, correct programs and programs of others under the drills (hours), and docs/rehearsed.md
#   make docs        the pages as HTML, in build/docs
#   make lint        ruff, codespell and mypy (make lint-tests: mypy of the tests);  make format mends what ruff can mend
#   make release V=0.2.0  version, changelog, test of the wheel, commit and tag; nothing is pushed
#   make clean       remove .venv, caches and builds (not runs/)

# Thousands of processes that the tests start would each compile all modules again, where an image sets this.
unexport PYTHONDONTWRITEBYTECODE

venv := .venv
bin := $(venv)/bin
# The stamps: whoever changes what is to be installed gets it installed by the next make.
visitor := $(venv)/.visitor
stamp := $(venv)/.installed
download = $(bin)/python -m pip --disable-pip-version-check install --constraint .ci/constraints.txt
pip = $(download) --quiet

demo: $(visitor)
	$(bin)/clusterdp submit configs/digits.yaml --cluster local

# Four at a time, also on two cores: much of what is tested is waiting.
test: lint
	$(bin)/python -m pytest -n 4 --dist worksteal -m "not slurm and not slow and not gpu"

# Those of one part: a folder or a file of the package.
test-part: $(stamp)
	@paths=$$($(bin)/python -m tests.part "$(P)") && \
	$(bin)/python -m pytest -n 3 --dist worksteal -m "not slurm and not slow and not gpu" $$paths

# On two clusters side by side. SLURM=24.11: on that release instead of the machine's own (22.05, 24.11 or 26.05).
in-release = $(if $(SLURM),$(bin)/python -m tests.slurm.release $(SLURM))
test-slurm: $(stamp)
	$(in-release) $(bin)/python -m pytest -n 2 --dist worksteal -m "slurm and not long and not gpu"

# In an environment of its own, with torch as plain pip brings it (CUDA's libraries and all: 6 GB).
# -W default: old libraries warn of what newer ones deprecate.
BOUND ?= lowest
bound := build/$(BOUND)
test-bound:
	@python=$$(sh .ci/find-python) && "$$python" -m venv $(bound)
	@$(bound)/bin/python -m pip --quiet install uv
	$(bound)/bin/uv pip install --quiet --python $(bound)/bin/python \
	  --resolution $(if $(filter lowest,$(BOUND)),lowest-direct,highest) --editable '.[dev]'
	$(bound)/bin/python -m pytest -W default -n 4 --dist worksteal -m "not slurm and not slow and not gpu"

test-all: lint lint-tests
	@$(MAKE) docs
	@$(pip) --no-build-isolation --editable '.[notebook]'
	@$(pip) --requirement tests/checkpoint/packages.txt
	$(bin)/python -m pytest -n 3 --dist worksteal -m "not slurm"
	$(bin)/python -m pytest -m slurm
	@$(pip) lightning==2.6.6 keras==3.15.0 skorch==1.4.0
	$(bin)/python -m tests.benchmarks.five_tasks

# On a machine with a GPU, with the torch that is there: PYTHON=python3 make gpu-day
PYTHON ?= $(bin)/python
test-gpu:
	$(PYTHON) -m pytest -m gpu -W default tests/gpu tests/checkpoint/test_gpu.py
bench-gpu:
	$(PYTHON) -m tests.gpu.bench
gpu-day:
	@$(PYTHON) -m tests.gpu.day

bench: export CLUSTERDP_BENCH_FIGURES = build/figures.jsonl
bench: $(stamp)
	@mkdir -p build && rm -f $$CLUSTERDP_BENCH_FIGURES
	$(bin)/python -m tests.benchmarks.startup
	$(bin)/python -m tests.benchmarks.first_allreduce
	$(bin)/python -m tests.benchmarks.batch_program
	$(bin)/python -m tests.benchmarks.restart_time
	$(bin)/python -m tests.benchmarks.lost_nodes
	$(bin)/python -m tests.benchmarks.memory_copies
	$(bin)/python -m tests.benchmarks.goodput
	$(bin)/python -m tests.benchmarks.shared_flags_cost
	$(bin)/python -m tests.benchmarks.technique_cost
	$(bin)/python -m tests.benchmarks.trainer_overhead
	$(bin)/python -m tests.benchmarks.tensor_data
	$(bin)/python -m tests.benchmarks.ddp_cost
	$(bin)/python -m tests.benchmarks.any_ranks_cost --ranks 2
	$(bin)/python -m tests.benchmarks.any_ranks_cost --ranks 4
	$(bin)/python -m tests.benchmarks.snapshot
	$(bin)/python -m tests.benchmarks.list_runs
	$(bin)/python -m tests.benchmarks.top
	$(bin)/python -m tests.benchmarks.checkpoint_ls
	$(bin)/python -m tests.benchmarks.logs
	$(bin)/python -m tests.benchmarks.large_run
	$(bin)/python -m tests.benchmarks.checkpoint_speed --mb 1000 --ranks 1 2
	$(bin)/python -m tests.benchmarks.report
	$(bin)/python -m tests.benchmarks.fake_speed
	$(bin)/python -m tests.benchmarks.sweep_submit
	@$(bin)/python -m tests.benchmarks.claims $$CLUSTERDP_BENCH_FIGURES

rehearsals: $(stamp)
	$(bin)/python -m tests.rehearse.rehearsals
	$(bin)/python -m tests.rehearse.rehearsed

docs: $(stamp)
	@$(pip) --no-build-isolation --editable '.[docs]'
	$(bin)/python -m sphinx -W -n --keep-going -b html -d build/doctrees docs build/docs

lint: $(stamp)
	$(bin)/ruff check .
	$(bin)/ruff format --check .
	$(bin)/codespell clusterdp configs docs findings sbatch_templates *.md
	$(bin)/mypy

lint-tests: $(stamp)
	$(bin)/mypy --config-file tests/mypy.ini tests

format: $(stamp)
	$(bin)/ruff check --fix .
	$(bin)/ruff format .

# CHANGELOG.md has a heading "## V (unreleased)" for it.
release: lint
	@test -n "$(V)" || { echo 'make release V=0.2.0: which version?' >&2; exit 2; }
	@test -z "$$(git status --porcelain)" || { echo 'make release: commit your changes first' >&2; exit 2; }
	@grep -q '^## $(V) (unreleased)$$' CHANGELOG.md || { echo 'CHANGELOG.md: no heading "## $(V) (unreleased)"' >&2; exit 2; }
	@test -s build/figures.jsonl || { echo 'make release: run `make bench` first, on an idle machine' >&2; exit 2; }
	sed -i.old 's/^__version__ = .*/__version__ = "$(V)"/' clusterdp/__init__.py && rm clusterdp/__init__.py.old
	sed -i.old 's/^version = "[^"]*"/version = "$(V)"/' clusterdp/fakeslurm/pyproject.toml && rm clusterdp/fakeslurm/pyproject.toml.old
	sed -i.old "s/^## $(V) (unreleased)$$/## $(V) ($$(date +%Y-%m-%d))/" CHANGELOG.md && rm CHANGELOG.md.old
	$(bin)/python -m pytest -n 4 --dist worksteal -m "not slurm and not slow and not gpu" --junitxml=build/tests.xml
	$(bin)/python -m pytest tests/test_wheel.py
	$(bin)/python -m tests.benchmarks.history $(V) build/tests.xml build/figures.jsonl
	git commit -am 'Release $(V)' && git tag -a v$(V) -m 'clusterdp $(V)'

clean:
	rm -rf $(venv) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# What a visitor needs. torch comes first and alone: left to pip's resolver beside the rest, another build of it may be
# taken.
$(visitor): pyproject.toml .ci/constraints.txt .ci/find-python
	@echo "setting up $(venv), once: 1 of 3, the environment"
	@python=$$(sh .ci/find-python) && "$$python" -m venv $(venv)
	@$(pip) pip hatchling
	@echo "setting up $(venv): 2 of 3, torch (a large download)"
	@$(download) torch
	@echo "setting up $(venv): 3 of 3, clusterdp and its dependencies"
	@$(pip) --no-build-isolation --editable '.[demo]'
	@touch $@

$(stamp): $(visitor)
	@echo "setting up $(venv): the tools of developers"
	@$(pip) --no-build-isolation --editable '.[dev]'
	@touch $@

.PHONY: demo test test-part test-slurm test-bound test-all test-gpu bench-gpu gpu-day bench rehearsals docs lint lint-tests format release clean
