"""What is done to the service and its network. Each fault leaves things as they were, and the service serving."""

from __future__ import annotations

import errno
import os
import random
import resource
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from chaos_service import ChaosService, until
from crew import Crew
from proxy import Proxy


@dataclass
class Chaos:
    """disk: a small tmpfs that holds the store, None where mounting one is not allowed. pause: seconds of SIGSTOP."""

    service: ChaosService
    proxy: Proxy
    crew: Crew
    random: random.Random
    disk: Path | None
    pause: float

    def kill(self) -> None:
        """kill -9."""
        self.service.kill()
        self.service.start()

    def kill_twice(self) -> None:
        """kill -9, and again while workers come back."""
        self.kill()
        time.sleep(self.random.uniform(0.0, 0.2))
        self.kill()

    def stop(self) -> None:
        """SIGSTOP: the service neither answers nor goes away."""
        self.service.process.send_signal(signal.SIGSTOP)
        time.sleep(self.pause)
        self.service.process.send_signal(signal.SIGCONT)

    def port_closed(self) -> None:
        """Connections are cut and new ones refused for a while."""
        self.proxy.shut()
        time.sleep(self.random.uniform(0.1, 0.6))
        self.proxy.open()

    def cut(self) -> None:
        """Connections are cut, new ones are taken."""
        self.proxy.cut()

    def slow(self) -> None:
        """Every chunk is late, and few bytes a second go through; somewhere in it connections are cut, too."""
        self.proxy.delay, self.proxy.rate = self.random.uniform(0.01, 0.08), self.random.choice((0.0, 200_000.0))
        time.sleep(self.random.uniform(0.3, 1.0))
        if self.random.random() < 0.5:
            self.proxy.cut()
        self.proxy.delay = self.proxy.rate = 0.0

    def disk_full(self) -> None:
        """No byte more can be written, until there is room again."""
        failures = self.service.metric("acceptd_store_failures_total")
        filler = self._fill()
        # A write-ahead log that was emptied is written over: then nothing fails, which is as well.
        deadline = time.monotonic() + 2.0
        while time.monotonic() < deadline and self.service.metric("acceptd_store_failures_total") == failures:
            time.sleep(0.05)
        self._free(filler)
        self._commits_again()

    def killed_on_a_full_disk(self) -> None:
        """kill -9 while nothing can be written, and a start that finds the disk still full."""
        filler = self._fill()
        time.sleep(self.random.uniform(0.0, 0.3))
        self.service.kill()
        self.service.start()
        time.sleep(self.random.uniform(0.0, 0.3))
        self._free(filler)
        self._commits_again()

    def truncated(self) -> None:
        """The running service's file, or its write-ahead log, loses its end.

        Both are memory's to write anew. Killing the service before it has noticed would lose what was acknowledged:
        no program can keep what is taken off its disk. A cut that falls into the middle of a commit leaves a hole that
        the commit's end hides; the next one is noticed.
        """
        failures = self.service.metric("acceptd_store_failures_total")
        suffixes = self.random.choice((("",), ("-wal",), ("", "-wal")))

        def noticed() -> bool:
            for suffix in suffixes:
                path = self.service.store.with_name(self.service.store.name + suffix)
                if path.exists() and path.stat().st_size:
                    os.truncate(path, path.stat().st_size // self.random.randint(2, 5))
            deadline = time.monotonic() + 3.0
            while time.monotonic() < deadline:
                if self.service.metric("acceptd_store_failures_total") > failures:
                    return True
                time.sleep(0.05)
            return False

        until(noticed, "the truncation is noticed")
        self._commits_again()

    def clock_jump(self) -> None:
        """The wall clock goes forward or back by up to ten years."""
        offset = float(self.service.offset.read_text()) + self.random.uniform(-3e8, 3e8)
        fresh = self.service.offset.with_name("offset.new")
        fresh.write_text(str(offset))
        fresh.replace(self.service.offset)

    def duplicates(self) -> None:
        """Batches arrive twice, and long after they were answered."""
        for uplink in self.random.sample(self.crew.uplinks, len(self.crew.uplinks) // 4 + 1):
            uplink.repeat, uplink.stale = self.random.randint(1, 4), self.random.randint(0, 2)

    def reordered(self) -> None:
        """Batches arrive before their turn."""
        for uplink in self.random.sample(self.crew.uplinks, len(self.crew.uplinks) // 4 + 1):
            uplink.early = self.random.randint(1, 2)

    @property
    def kinds(self) -> list[Callable[[], None]]:
        return [
            self.kill,
            self.stop,
            self.port_closed,
            self.slow,
            self.disk_full,
            self.truncated,
            self.clock_jump,
            self.duplicates,
            self.reordered,
            self.kill_twice,
            self.cut,
            self.killed_on_a_full_disk,
        ]

    def _commits_again(self) -> None:
        until(lambda: self.service.health() == "ok", "it commits again")

    def _fill(self) -> Path | None:
        if self.disk is None:
            # As the kernel would answer on a full disk: what lies there may be read, and not grow.
            resource.prlimit(self.service.process.pid, resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
            return None
        filler = self.disk / "filler"
        with filler.open("wb", buffering=0) as file:
            for size in (1 << 20, 4096, 1):
                try:
                    while file.write(bytes(size)) == size:
                        pass
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
        return filler

    def _free(self, filler: Path | None) -> None:
        if filler is None:
            unlimited = resource.RLIM_INFINITY, resource.RLIM_INFINITY
            resource.prlimit(self.service.process.pid, resource.RLIMIT_FSIZE, unlimited)
        else:
            filler.unlink()


def mount_small_disk(at: Path, megabytes: int) -> Path | None:
    """A tmpfs of this size, None where this process may not mount one."""
    at.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(at)]
    try:
        done = subprocess.run(command, check=False, capture_output=True)
    except FileNotFoundError:
        return None
    return at if done.returncode == 0 else None


def unmount(at: Path) -> None:
    subprocess.run(["umount", "-l", str(at)], check=True)
