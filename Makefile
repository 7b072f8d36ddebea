# Two commands on a fresh machine: `make audit` and `make test`. A third: `make bench`.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# A process a core, each with one thread. What pytest compiles is kept for the next run.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist worksteal
DATA ?=
WEIGHTS ?=

.PHONY: audit flower nvflare check docs test pythons test-all lint browser bench accuracy inversion clean

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[all,dev]'
	touch $@

audit: $(INSTALLED)  ## what gradients of the embedded images give away: a table and a page
	$(BIN)/softleak audit

flower: $(INSTALLED)  ## a federation in Flower's simulation, without and with the guard: a page
	$(BIN)/python -m examples.flower

nvflare: $(INSTALLED)  ## a federation in NVIDIA FLARE's simulator, without the filter, with it, and with a fault
	$(BIN)/python -m examples.nvflare

browser: $(INSTALLED)  ## a Chromium to test the page in, fetched if there is none
	$(BIN)/python -m tools.browser

check: $(INSTALLED) lint  ## the inner loop: lint, types, the shape of the house, labels
	$(PYTEST) -m "not slow" tests/unit/labels tests/unit/report tests/integration/test_architecture.py tests/integration/test_plain_words.py

test: $(INSTALLED) lint browser  ## lint, types, and every test that is not slow, the numerical ones as other machines round
	$(PYTEST) -m "not slow"
	$(BIN)/python -m tools.machines
	$(BIN)/python -m tools.pythons

docs: $(INSTALLED)  ## the site of the documentation, in site/, strictly and without network
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

pythons: $(INSTALLED)  ## the other Pythons, with torch fetched for them however large it is
	$(BIN)/python -m tools.pythons --install

test-all: $(INSTALLED) lint browser  ## the slow tests too
	$(PYTEST)

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(INSTALLED)  ## the speed table, in ratios
	$(BIN)/python -m benchmarks

accuracy: $(INSTALLED)  ## the accuracy table at full size: make accuracy DATA=… WEIGHTS=…
	$(BIN)/python -m benchmarks.accuracy --samples 1000 --arbitrary 100 \
		$(if $(DATA),--data $(DATA)) $(if $(WEIGHTS),--weights $(WEIGHTS))

inversion: $(INSTALLED)  ## the inversion table, 100 images per cell: make inversion DATA=…
	$(BIN)/python -m benchmarks.inversion_accuracy --samples 100 $(if $(DATA),--data $(DATA))

clean:
	rm -rf $(VENV) .venv-3.* build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
