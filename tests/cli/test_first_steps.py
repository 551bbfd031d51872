"""The README's first steps, word for word: from an installation to a refusal, a raised limit and a passing call."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from llm_budget_hooks.testing import FakeProvider

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
(SESSION,) = re.findall(r"^```console\n(.*?)^```$", README.split("## First steps\n")[1].split("\n## ")[0], re.S | re.M)
(ASK, *_) = re.findall(r"^```python\n(.*?)^```$", README.split("## LiteLLM\n")[1], re.S | re.M)


@pytest.mark.timeout(600)  # three times LiteLLM is imported, and a package is built
def test_the_first_steps_print_what_the_readme_shows(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "llm_budget_hooks", tmp_path / "llm_budget_hooks")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "ask.py").write_text(ASK, encoding="utf-8")
    commands = [line.removeprefix("$ ") for line in SESSION.splitlines() if line.startswith("$ ")]
    assert commands[1] == "pip install -q ."
    # What it depends on is installed already, here: the new environment sees it instead of downloading it again.
    packages = sysconfig.get_paths()["purelib"]
    commands.insert(1, f"echo {packages} > $(echo .venv/lib/python*/site-packages)/installed.pth")
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    env |= {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    env |= {"PATH": f"{Path(sys.executable).parent}:{env['PATH']}", "OPENAI_API_KEY": "any"}
    with FakeProvider(text="Hello! How can I help you today?", output_tokens=9) as provider:
        env |= dict.fromkeys(("OPENAI_API_BASE", "OPENAI_BASE_URL"), provider.base_url)
        env |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        script = "set -e\n" + "\n".join(commands)
        run = ["bash", "-c", script]
        done = subprocess.run(run, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=550)
        asked = provider.count
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [line for line in SESSION.splitlines() if not line.startswith("$ ")]
    assert asked == 2
