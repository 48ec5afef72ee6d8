"""Folders of sweeprof: in a checkout, installed from a wheel."""

from __future__ import annotations

import runpy
import shutil
from pathlib import Path

import sweeprof
from sweeprof import paths

PACKAGE = Path(sweeprof.__file__).parent


def test_the_configs_are_beside_the_package_in_a_checkout() -> None:
    assert paths.conf_folder() == PACKAGE.parent / "conf"


def test_the_configs_are_in_the_package_that_a_wheel_installs(tmp_path: Path) -> None:
    installed = tmp_path / "site-packages" / "sweeprof"
    shutil.copytree(PACKAGE.parent / "conf", installed / "conf")
    shutil.copy(PACKAGE / "paths.py", installed)
    assert runpy.run_path(str(installed / "paths.py"))["conf_folder"]() == installed / "conf"
