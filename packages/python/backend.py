"""A PEP 517 backend that packs a compiled `tenure` into a wheel. It needs only the standard library.

`cargo xtask dist wheel` passes the binary, its version and its platform in the environment:

    TENURE_BINARY     the program to pack
    TENURE_VERSION    its version
    TENURE_PLATFORM   the platform tag, for example manylinux_2_17_x86_64

The same inputs give the same bytes.
"""

import base64
import hashlib
import os
import pathlib
import re
import zipfile

ROOT = pathlib.Path(__file__).parent

# The oldest time that a zip file can contain.
TIME = (1980, 1, 1, 0, 0, 0)


def _project(field):
    """Returns a text or a list of texts of the table `project`. Python 3.9 has no parser for TOML."""
    text = (ROOT / "pyproject.toml").read_text()
    value = re.search(rf"^{field} = (\[.*?\]|\".*?\")$", text, re.MULTILINE | re.DOTALL).group(1)
    texts = re.findall(r'"([^"]*)"', value)
    return texts if value.startswith("[") else texts[0]


def _given(variable):
    value = os.environ.get(variable)
    if not value:
        raise SystemExit(f"{variable} is not set; run `cargo xtask dist wheel`")
    return value


def _metadata(version):
    lines = [
        "Metadata-Version: 2.4",
        f"Name: {_project('name')}",
        f"Version: {version}",
        f"Summary: {_project('description')}",
        f"License-Expression: {_project('license')}",
        "License-File: LICENSE",
        f"Requires-Python: {_project('requires-python')}",
        f"Keywords: {','.join(_project('keywords'))}",
        *(f"Classifier: {classifier}" for classifier in _project("classifiers")),
        "Description-Content-Type: text/markdown",
    ]
    return "\n".join(lines) + "\n\n" + (ROOT / "README.md").read_text()


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """Writes the wheel into the folder, and returns its name."""
    version, platform = _given("TENURE_VERSION"), _given("TENURE_PLATFORM")
    binary = pathlib.Path(_given("TENURE_BINARY"))
    tag = f"py3-none-{platform}"
    info = f"tenure-{version}.dist-info"
    wheel = [
        "Wheel-Version: 1.0",
        "Generator: tenure",
        "Root-Is-Purelib: false",
        *(f"Tag: py3-none-{name}" for name in platform.split(".")),
    ]
    files = {f"tenure/{path.name}": path.read_bytes() for path in sorted((ROOT / "src/tenure").glob("*.*"))}
    files |= {
        f"tenure-{version}.data/scripts/tenure": binary.read_bytes(),
        f"{info}/licenses/LICENSE": (ROOT / "../../LICENSE").read_bytes(),
        f"{info}/METADATA": _metadata(version).encode(),
        f"{info}/WHEEL": ("\n".join(wheel) + "\n").encode(),
        f"{info}/entry_points.txt": b"[pytest11]\ntenure = tenure.pytest_plugin\n",
    }
    record = []
    for path, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record.append(f"{path},sha256={digest},{len(content)}\n")
    record.append(f"{info}/RECORD,,\n")
    files[f"{info}/RECORD"] = "".join(record).encode()
    name = f"tenure-{version}-{tag}.whl"
    with zipfile.ZipFile(pathlib.Path(wheel_directory) / name, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in files.items():
            entry = zipfile.ZipInfo(path, TIME)
            mode = 0o755 if "/scripts/" in path else 0o644
            # A regular file with this mode, as the host system Unix stores it.
            entry.create_system, entry.external_attr = 3, (0o100000 | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)
    return name
