# Everyday commands; `make` alone lists them. Each makes .venv first where needed; a second time nothing is set up anew.
#
#   PYTHON=python3.12   the interpreter that .venv is made from (3.11 or newer)
#   TORCH=cpu           PyTorch's CPU build, without the nvidia packages; TORCH=default goes back; .venv remembers it

export PYTHON ?= python3
VENV := .venv
RUN := PATH="$(CURDIR)/$(VENV)/bin:$$PATH"
PORT ?= 5000

# .venv is up to date when it holds the stamp of this lock, this build of PyTorch and this place.
BUILD := $(or $(TORCH),$(shell cut -d' ' -f1 $(VENV)/made-for 2>/dev/null),default)
INSTALLED := $(VENV)/installed-$(shell { echo "$(BUILD) $(CURDIR)"; cat requirements.lock; } | git hash-object --stdin)

.DEFAULT_GOAL := help
.PHONY: help setup repro test soak overfit lint ui server lock generate clean gc repository

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' Makefile

setup: $(INSTALLED) ## make .venv from requirements.lock (the other targets do so by themselves)
	@echo "to type dvc, mlflow and python yourself: . $(VENV)/bin/activate"

$(INSTALLED):
	@sh setup.sh $(INSTALLED) $(BUILD)

repro: repository $(INSTALLED) ## run the pipeline: from pictures to a trained, evaluated, exported model
	@$(RUN) dvc repro

# A file of tests a core, each on one thread: threads of two programs on the same cores wait for each other.
test: repository $(INSTALLED) ## run the tests (ARGS="-k params": some of them)
	@$(RUN) OMP_NUM_THREADS=1 pytest -n auto --maxprocesses 8 --dist loadfile $(ARGS)

soak: repository $(INSTALLED) ## run the long tests
	@$(RUN) pytest -m soak $(ARGS)

overfit: repository $(INSTALLED) ## check that the network learns one batch by heart, before a long training
	@$(RUN) dvc repro --quiet prepare
	@$(RUN) python stages/find.py overfit

lint: $(INSTALLED) ## check format, style, types and the arrows between rooms
	@$(RUN) ruff format --check --quiet
	@$(RUN) ruff check --quiet
	@$(RUN) mypy
	@$(RUN) PYTHONPATH=stages lint-imports --no-logo --cache-dir .import_linter_cache

ui: $(INSTALLED) ## show the recorded runs in the browser (PORT=5000)
	@$(RUN) python -c "$$RUN_TABLES" $(PORT)
	@$(RUN) mlflow ui --port $(PORT)

server: $(INSTALLED) ## start a tracking server to try: mlflow with a password, on PostgreSQL and S3
	@$(RUN) PYTHONPATH=stages python tests/servers.py

lock: $(INSTALLED) ## compile requirements.lock from pyproject.toml, for all platforms
	@$(RUN) uv pip compile pyproject.toml --group dev --universal --generate-hashes --no-header --no-annotate \
		--python-version 3.11 --quiet -o requirements.lock

generate: $(INSTALLED) ## write params.schema.json and the list of torchvision's networks
	@$(RUN) PYTHONPATH=stages python -m darkroom.params.generate

clean: ## remove what tools cache; runs, checkpoints, data, downloads and .venv stay
	@rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dvc_plots
	@find stages tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

gc: $(INSTALLED) ## list finished checkpoints, artifacts and downloads that nothing needs (YES=1 removes them)
	@$(RUN) python stages/gc.py $(if $(YES),--yes)

# A downloaded zip is no repository, and dvc needs one.
repository:
	@git rev-parse --git-dir >/dev/null 2>&1 || { echo "error: dvc needs a git repository here: git clone the project,\
	 or type: git init && git add . && git commit -m 'As downloaded'" >&2; exit 1; }

# The bare page of `mlflow ui` opens on another view: this prints the addresses of the tables of runs.
define RUN_TABLES
import pathlib, sqlite3, sys
if not pathlib.Path("mlflow.db").exists():
    sys.exit("no runs yet: make repro")
query = "select name, experiment_id from experiments where lifecycle_stage = 'active' and name <> 'Default'"
for name, number in sqlite3.connect("mlflow.db").execute(query):
    print(f"runs of {name}: http://127.0.0.1:{sys.argv[1]}/#/experiments/{number}/runs")
endef
export RUN_TABLES
