# SPDX-License-Identifier: Apache-2.0
"""freshet.tier: telling the keeper what comes next."""
import json
import logging
import os
import pathlib
import signal
import subprocess
import sys

import pytest

import freshet.tier
from conftest import stand_still

FRESHET = os.path.join(sys.prefix, "..", "bin", "freshet")
WHEELS = os.path.join(sys.prefix, "bin", "freshet")
pytestmark = pytest.mark.skipif(not os.path.exists(FRESHET), reason="there is no build of the command beside the venv")


class Tiers:
    def __init__(self, folder, monkeypatch):
        self.folder = folder
        self.source = os.path.join(folder, "source")
        self.config = os.path.join(folder, "tiers.toml")
        os.mkdir(self.source)
        with open(self.config, "w", encoding="utf-8") as out:
            out.write(f'source = ["{self.source}"]\n[[tier]]\npath = "{folder}/tier"\nquota = "1 MB"\n')
        monkeypatch.setenv("FRESHET_TIER", self.config)
        self.keeper = None

    def keep(self):
        self.keeper = subprocess.Popen([FRESHET, "tier", "keep"], stderr=subprocess.PIPE, text=True)
        assert "keeping" in self.keeper.stderr.readline()

    def make(self, name, size=1000):
        path = os.path.join(os.fsencode(self.source), os.fsencode(name))
        with open(path, "wb") as out:
            out.write(os.urandom(size))
        return path

    def copied(self):
        subprocess.run([FRESHET, "tier", "settle"], check=True)
        said = subprocess.run([FRESHET, "tier", "stat", "--json"], check=True, stdout=subprocess.PIPE, text=True).stdout
        return json.loads(said.splitlines()[-1])["copied_files"]

    def end(self):
        subprocess.run([FRESHET, "tier", "stop"], check=False)
        if self.keeper is not None:
            self.keeper.communicate()


@pytest.fixture
def tiers(folder, monkeypatch):
    made = Tiers(folder, monkeypatch)
    monkeypatch.setattr(freshet.tier, "_upcoming", freshet.tier._Teller())
    monkeypatch.setattr(freshet.tier, "_said", set())
    yield made
    made.end()


@pytest.mark.skipif(not os.path.exists(WHEELS), reason="the package was not installed from a wheel")
def test_the_wheel_brings_the_reader(tiers):
    path = tiers.make("data")
    script = "import os, sys; print(os.readlink('/proc/self/fd/%d' % os.open(sys.argv[1], 0)))"
    run = [WHEELS, "tier", "run", "--", sys.executable, "-c", script, os.fsdecode(path)]
    library = subprocess.run([WHEELS, "tier", "library"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    assert os.path.dirname(library) == os.path.dirname(freshet.__file__)
    subprocess.run([WHEELS, "tier", "prefetch"], check=True)
    subprocess.run([WHEELS, "tier", "settle"], check=True)
    ran = subprocess.run(run, check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert ran.stdout.startswith(os.path.join(tiers.folder, "tier")), ran.stderr


def test_without_tiers_nothing_happens_and_is_said_once(tiers, caplog, monkeypatch):
    monkeypatch.delenv("FRESHET_TIER")
    with caplog.at_level(logging.WARNING, "freshet"):
        freshet.tier.upcoming(["/some/file"])
        freshet.tier.upcoming(["/some/file"])
        assert list(freshet.tier.follow(range(10), lambda index: f"/some/{index}")) == list(range(10))
    assert len(caplog.records) == 1 and "FRESHET_TIER" in caplog.text


def test_without_a_keeper_nothing_happens_and_is_said_once(tiers, caplog):
    path = tiers.make("a")
    with caplog.at_level(logging.WARNING, "freshet"):
        for _ in range(3):
            freshet.tier.upcoming([path])
    assert len(caplog.records) == 1 and "no keeper runs" in caplog.text
    assert not os.path.exists(os.path.join(tiers.folder, "tier"))


def test_what_is_no_path_is_the_callers_error(tiers):
    with pytest.raises(TypeError):
        freshet.tier.upcoming([3])
    with pytest.raises(TypeError):
        list(freshet.tier.follow(range(3), lambda index: index))
    with pytest.raises(ValueError):
        freshet.tier.follow(range(3), str, ahead=0)


def test_upcoming_files_are_copied_before_anybody_opens_them(tiers):
    tiers.keep()
    names = [os.fsdecode(b"name \n \xff"), "b", "c", "d", "e"]
    paths = [tiers.make(name) for name in names]
    freshet.tier.upcoming([os.fsdecode(paths[0]), pathlib.Path(os.fsdecode(paths[1])), paths[2]])
    freshet.tier.upcoming([b"/absent", b"/etc/passwd", tiers.source, b"", b"zero\0byte"])
    assert tiers.copied() == 3
    # Nothing is lost by a keeper that dies; the next call after a while finds the next one.
    os.kill(tiers.keeper.pid, signal.SIGKILL)
    tiers.keeper.communicate()
    freshet.tier.upcoming(paths[3:4])
    tiers.keep()
    freshet.tier._upcoming._not_before = 0.0
    freshet.tier.upcoming(paths[3:])
    assert tiers.copied() == 5


def test_follow_yields_what_the_sampler_yields_and_tells_it_ahead(tiers):
    tiers.keep()
    paths = [tiers.make(str(number)) for number in range(20)]

    class Sampler:
        epoch = 7
        drawn = 0

        def __iter__(self):
            for number in range(20):
                Sampler.drawn += 1
                yield number * 3 % 20

        def __len__(self):
            return 20

    followed = freshet.tier.follow(Sampler(), lambda index: paths[index], ahead=8)
    assert len(followed) == 20 and followed.epoch == 7
    with pytest.raises(AttributeError):
        followed.nothing
    indices = iter(followed)
    assert next(indices) == 0
    assert Sampler.drawn == 8
    assert tiers.copied() == 8
    assert [0, *indices] == [number * 3 % 20 for number in range(20)]
    assert tiers.copied() == 20
    assert list(followed) == list(Sampler())


def test_a_batch_sampler_tells_the_files_of_a_batch(tiers):
    tiers.keep()
    paths = [tiers.make(str(number)) for number in range(6)]
    batches = [[0, 1], [2, 3], [4]]
    told = freshet.tier.follow(batches, lambda batch: [paths[index] for index in batch] + [None])
    assert list(told) == batches
    assert tiers.copied() == 5


def test_a_child_tells_by_itself(tiers):
    tiers.keep()
    paths = [tiers.make(str(number)) for number in range(4)]
    freshet.tier.upcoming(paths[:2])
    child = os.fork()
    if child == 0:
        freshet.tier.upcoming(paths[2:3])
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    freshet.tier.upcoming(paths[3:])
    # What the child told may have gone with the child; what this process told has not.
    assert tiers.copied() >= 3


def test_a_keeper_that_is_stopped_holds_nobody_up_for_long(tiers, caplog):
    tiers.keep()
    path = tiers.make("a")
    stand_still(tiers.keeper.pid)
    try:
        freshet.tier.upcoming([path])
        freshet.tier.upcoming([path] * 1000)
        assert "in time" in caplog.text
    finally:
        os.kill(tiers.keeper.pid, signal.SIGCONT)
    # The order ended with its connection; the next call after a while begins another one.
    freshet.tier._upcoming._not_before = 0.0
    freshet.tier.upcoming([path])
    assert tiers.copied() == 1


def test_in_a_run_a_dataset_is_there_when_it_is_opened(tiers):
    torch_data = pytest.importorskip("torch.utils.data")
    del torch_data
    paths = [tiers.make(str(number)) for number in range(40)]
    program = """
import json, sys, torch, freshet.tier
from torch.utils.data import DataLoader, Dataset, RandomSampler
paths = json.loads(sys.argv[1])
class Files(Dataset):
    def __len__(self): return len(paths)
    def __getitem__(self, index): return sum(open(paths[index], "rb").read())
files = Files()
def epochs(told):
    torch.manual_seed(1)
    sampler = RandomSampler(files, generator=torch.Generator().manual_seed(5))
    if told: sampler = freshet.tier.follow(sampler, lambda index: paths[index])
    loader = DataLoader(files, sampler=sampler, num_workers=2, batch_size=4)
    return [batch.tolist() for _ in range(2) for batch in loader]
assert epochs(True) == epochs(False)
"""
    report = os.path.join(tiers.folder, "report")
    subprocess.run([FRESHET, "tier", "run", "--report", report, "--", sys.executable, "-c", program,
                    json.dumps([os.fsdecode(path) for path in paths])], check=True)
    with open(report, encoding="utf-8") as file:
        assert json.load(file)["opens"] == 160
