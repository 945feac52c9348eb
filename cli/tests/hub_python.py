"""One cache, two programs: what glyd fetches huggingface_hub finds, and the other way round.

Run by .ci/hub_python: hub_python.py GLYD MOCK_HUB FOLDER. Everything comes from a mock Hub of this machine.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

REPO = "org/model"


def environment(cache, endpoint, **more):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING", "TRANSF"))}
    kept = {name: value for name, value in kept.items() if not name.lower().endswith("_proxy")}
    return {**kept, "HF_HUB_CACHE": str(cache), "HF_HOME": str(cache) + "-home", "HF_ENDPOINT": endpoint, **more}


def python(cache, endpoint, **more):
    """The snapshot that huggingface_hub finds, or fetches: in a process of its own, which reads the environment once."""
    code = f"import huggingface_hub as hub; print(hub.snapshot_download({REPO!r}))"
    ran = subprocess.run([sys.executable, "-c", code], env=environment(cache, endpoint, **more), capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return Path(ran.stdout.strip().splitlines()[-1])


def glyd(program, cache, endpoint, out, *arguments, **more):
    command = [program, "pack", REPO, str(out), "--json", *arguments]
    ran = subprocess.run(command, env=environment(cache, endpoint, **more), capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return Path(json.loads(ran.stdout)["source"]["path"])


def files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def layout(cache):
    """Every file and link of the repository's part of a cache: links by where they lead, listings by what they say."""
    folder = cache / "models--org--model"
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = os.readlink(path)
        elif path.is_file():
            found[name] = json.loads(path.read_text()) if name.startswith("trees/") else path.read_bytes()
    return found


def main(program, mock_hub, work):
    mock = subprocess.Popen([mock_hub, f"{REPO}=edge-sharded"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        endpoint = mock.stdout.readline().strip()
        ours, theirs = work / "ours", work / "theirs"
        fetched = glyd(program, ours, endpoint, work / "out")
        there = python(theirs, endpoint)
        assert files(fetched) == files(there)
        assert layout(ours) == layout(theirs), "the caches differ"
        # Each finds the other's whole, and asks for nothing.
        assert python(ours, endpoint, HF_HUB_OFFLINE="1") == fetched
        assert glyd(program, theirs, endpoint, work / "again", "--no-download").resolve() == there.resolve()
        assert files(work / "out") == files(work / "again")
        # With requests allowed neither fetches a content again.
        before = {path: path.stat().st_mtime_ns for path in (ours / "models--org--model/blobs").iterdir()}
        python(ours, endpoint)
        assert before == {path: path.stat().st_mtime_ns for path in before}
    finally:
        mock.stdin.close()
        mock.wait()
    import huggingface_hub

    print(f"one cache for glyd and huggingface_hub {huggingface_hub.__version__}: each reads what the other fetched")


if __name__ == "__main__":
    main(*sys.argv[1:3], Path(sys.argv[3]))
