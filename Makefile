# Two commands of a fresh clone: `make demo` and `make test`. Both install what they need into .venv.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test check size clean

demo: $(STAMP)
	@PATH="$(abspath $(BIN)):$$PATH" sh assets/demo.sh

test: $(STAMP)
	$(BIN)/pytest

check: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

# Lines and tokens by package, with the difference to the last release or to `make size SINCE=COMMIT`.
size:
	@$(PYTHON) tests/support/package_size.py $(SINCE)

# Current pip shows progress while it installs; the one in a new environment only while it downloads.
$(STAMP): pyproject.toml
	@echo 'Installing quantkit with all runtimes and the development tools into $(VENV): 3 GB, a few minutes.'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --upgrade pip
	$(BIN)/python -m pip install --disable-pip-version-check --editable '.[all,dev]'
	@touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info
